"""Videos: the right frames of all containers, and nothing else is opened."""

import io
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from tests.running.profiles import seeds
from tests.tokenizer_proc.media.films import decoded, film
from tests.tokenizer_proc.media.gallery import encoded, rgb
from tokenizer_proc.media import pictures, video
from tokenizer_proc.media.base import MediaError
from tokenizer_proc.media.video import Film, open_video

FILMS = {
    "mp4": {"container": "mp4", "codec": "libx264"},
    "mp4, key frames": {"container": "mp4", "codec": "libx264", "g": "5", "bf": "2"},
    "mp4, open groups": {"codec": "libx264", "x264-params": "open-gop=1:keyint=7"},
    "mov": {"container": "mov", "codec": "mpeg4", "g": "6"},
    "webm": {"container": "webm", "codec": "libvpx", "g": "8"},
    "webm, VP9": {"container": "webm", "codec": "libvpx-vp9", "g": "8", "cpu-used": "8"},
    "matroska": {"container": "matroska", "codec": "mjpeg"},
    "avi": {"container": "avi", "codec": "mpeg4", "g": "5"},
}  # fmt: skip


@pytest.mark.parametrize("name", FILMS)
def test_frames_are_those_of_a_whole_decode(name: str) -> None:
    data = film(23, **FILMS[name])  # type: ignore[arg-type]
    found, all_frames = open_video([data]), decoded(data)
    assert (found.total, found.width, found.height, found.fps) == (23, 64, 48, 10)
    assert found.is_film and len({image.tobytes() for image in all_frames}) == 23
    for indices in ([0], [22], [3, 4, 5], [0, 7, 8, 15, 22], list(range(23))):
        frames = list(found.frames(indices))
        for index, image in zip(indices, frames, strict=True):
            assert image == all_frames[index], (indices, index)


def test_pictures_are_a_video() -> None:
    images = [rgb(30, 20, seed=number) for number in range(4)]
    found = open_video([encoded(image) for image in images])
    assert (found.total, found.width, found.height, found.is_film) == (4, 30, 20, False)
    assert list(found.frames([1, 3])) == [images[1], images[3]]
    assert open_video([encoded(images[0])]).total == 1
    other = open_video([encoded(images[0]), encoded(rgb(20, 30))])
    with pytest.raises(MediaError, match="one size"):
        list(other.frames([0, 1]))
    with pytest.raises(MediaError, match="not an image"):
        open_video([b"text", encoded(images[0])])


@pytest.mark.parametrize("data", [b"", b"text", b"\0" * 500, b"<svg/>", b"\x47" + b"\0" * 187])
def test_what_is_no_video_is_refused(data: bytes) -> None:
    with pytest.raises(MediaError, match="not a video"):
        open_video([data])


@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize("name", ["mp4", "webm", "avi"])
def test_broken_files_are_refused_or_read(name: str, seed: int) -> None:
    data = film(9, **FILMS[name])  # type: ignore[arg-type]
    rng = np.random.default_rng(seed)
    broken = [data[:length] for length in range(12, len(data), max(1, len(data) // 12))]
    for _ in range(12):
        hurt = bytearray(data)
        for place in rng.integers(12, len(data), 12):
            hurt[place] = rng.integers(0, 256)
        broken.append(bytes(hurt))
    for file in broken:
        try:
            found = open_video([file])
            for image in found.frames(range(found.total)):
                assert image.size == (found.width, found.height)
        except MediaError:
            continue


def test_half_a_file_is_refused() -> None:
    data = film(9, movflags="faststart")
    with pytest.raises(MediaError, match="truncated"):
        open_video([data[: len(data) // 2]])


def _playlists(directory: Path) -> dict[str, str]:
    """Texts by FFmpeg's names for them, each of which leads to a video beside it."""
    secret = directory / "secret.ts"
    secret.write_bytes(film(5, "mpegts"))
    hls = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{secret}\n#EXT-X-ENDLIST\n"
    return {"hls": hls, "concat": f"ffconcat version 1.0\nfile '{secret}'\n"}


@pytest.mark.parametrize("name", ["hls", "concat"])
def test_playlists_open_nothing(name: str, tmp_path: Path) -> None:
    text = _playlists(tmp_path)[name]
    path = tmp_path / f"list.{name}"
    path.write_text(text)
    with av.open(str(path), format=name, options={"safe": "0"} if name == "concat" else {}) as file:
        assert file.streams.video  # the list is a good one
    data = text.encode()
    with pytest.raises(MediaError, match="not a video"):
        open_video([data])
    # Not even if FFmpeg is told to read it as what it is, or it looks like something else.
    with pytest.raises(MediaError, match=r"another file|truncated or broken"):
        Film(data, name)
    for start in (b"\0\0\0\x18ftypmp42", b"\x1aE\xdf\xa3", b"RIFF\0\0\0\0AVI "):
        with pytest.raises(MediaError):
            open_video([start + data])


def test_nothing_is_opened_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a container leads to is asked of us, and refused; without protocols FFmpeg has no other
    way."""
    asked: list[str] = []

    def refuse(url: str, flags: int, options: object) -> object:
        asked.append(url)
        raise MediaError("refers to another file")

    monkeypatch.setattr(video, "_refuse", refuse)
    with pytest.raises(MediaError):
        Film(_playlists(tmp_path)["hls"].encode(), "hls")
    assert [Path(url.removeprefix("file:")).name for url in asked] == ["secret.ts"]


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = film(10, "matroska", "mjpeg", rate=Fraction(1, 1000))
    with pytest.raises(MediaError, match="10000 s long, more than 7200 s"):
        open_video([slow])
    monkeypatch.setattr(video, "MAX_FILE_FRAMES", 8)
    with pytest.raises(MediaError, match="more than 8 frames"):
        open_video([film(9)])


def test_large_frames_are_refused_before_they_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pictures, "MAX_PIXELS", 64 * 48 - 1)
    with pytest.raises(MediaError, match="the video has 64 x 48 pixels, more than 3071"):
        open_video([film(3)])


def test_a_file_of_sounds_is_no_video() -> None:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as output:
        stream = output.add_stream("aac", rate=8000)
        for number in range(10):
            sound = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
            sound.sample_rate, sound.pts = 8000, 1024 * number
            output.mux(stream.encode(sound))
        output.mux(stream.encode())
    with pytest.raises(MediaError, match="has no video"):
        open_video([file.getvalue()])


def test_frames_are_in_colour() -> None:
    red = Image.new("RGB", (32, 32), (200, 20, 30))
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as output:
        stream = output.add_stream("mjpeg", rate=10)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuvj420p"
        output.mux(stream.encode(av.VideoFrame.from_ndarray(np.asarray(red))))
        output.mux(stream.encode())
    [image] = open_video([file.getvalue()]).frames([0])
    assert np.abs(np.asarray(image, np.int32) - (200, 20, 30)).max() < 6
