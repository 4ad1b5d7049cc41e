"""What is opened as a picture, and how other files are refused."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from tests.running.profiles import seeds
from tests.tokenizer_proc.media.gallery import encoded, gallery, noise, rgb
from tokenizer_proc.media.base import MediaError
from tokenizer_proc.media.pictures import MAX_PIXELS, MAX_SIDE, open_picture
from tokenizer_proc.media.resize import Size, center_crop, resize

NO_IMAGE = r"not an image \(JPEG, PNG, WebP or GIF\)"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect/></svg>'


def _chunk(name: bytes, data: bytes) -> bytes:
    check = zlib.crc32(name + data)
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", check)


def _png(width: int, height: int) -> bytes:
    """A grey PNG that says to be of this size, with little data."""
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    data = _chunk(b"IDAT", zlib.compress(b"\0" * 1000))
    return b"\x89PNG\r\n\x1a\n" + header + data + _chunk(b"IEND", b"")


def _gif(width: int, height: int) -> bytes:
    data = bytearray(encoded(rgb(4, 4).quantize(4), "GIF"))
    data[6:10] = struct.pack("<HH", width, height)
    return bytes(data)


def _jpeg(width: int, height: int) -> bytes:
    data = bytearray(encoded(rgb(8, 8), "JPEG"))
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def _webp(kind: bytes, body: bytes) -> bytes:
    chunk = kind + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", len(chunk) + 4) + b"WEBP" + chunk


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"\0" * 100, NO_IMAGE),
        (b"a text\n" * 9, NO_IMAGE),
        (SVG, NO_IMAGE),
        (b"%PDF-1.7\n" + b"x" * 99, NO_IMAGE),
        (encoded(rgb(9, 9), "BMP"), NO_IMAGE),
        (encoded(rgb(9, 9), "TIFF"), NO_IMAGE),
        (encoded(rgb(9, 9), "PPM"), NO_IMAGE),
        (b"\x89PNG\r\n\x1a\n", "truncated or broken"),
        (b"\xff\xd8\xff\xe0", "truncated or broken"),
        (b"GIF89a", "truncated or broken"),
        (b"RIFF\x20\0\0\0WEBPVP8 " + b"\0" * 40, "truncated or broken|no pixels"),
    ],
)
def test_what_is_no_picture_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(MediaError, match=message):
        open_picture(data)


@pytest.mark.parametrize("name", ["jpeg", "png", "webp", "gif", "png, palette", "jpeg, CMYK"])
def test_every_shorter_file_is_refused_or_read(name: str) -> None:
    """None crashes or does anything else; half a file is refused."""
    data = gallery()[name]
    with pytest.raises(MediaError, match="truncated"):
        open_picture(data[: len(data) // 2])
    for length in range(0, len(data), max(1, len(data) // 40)):
        try:
            open_picture(data[:length])
        except MediaError:
            continue


@pytest.mark.parametrize("seed", seeds(1))
def test_files_with_wrong_bytes_are_refused_or_read(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for data in gallery().values():
        if len(data) > 40_000:
            continue
        for _ in range(12):
            hurt = bytearray(data)
            for place in rng.integers(0, len(data), 8):
                hurt[place] = rng.integers(0, 256)
            try:
                open_picture(bytes(hurt))
            except MediaError:
                continue


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (_png(30_000, 30_000), None),
        (_png(8_000, 6_000), "8000 x 6000"),
        (_png(MAX_SIDE + 1, 1), f"{MAX_SIDE + 1} x 1"),
        (_png(2**31 - 1, 2**31 - 1), None),
        (_jpeg(65_535, 65_535), None),
        (_jpeg(10_000, 9_000), "10000 x 9000"),
        (_gif(9_000, 9_000), "9000 x 9000"),
        (_webp(b"VP8X", b"\0\0\0\0" + b"\xff\xff\xff" * 2), f"{2**24} x {2**24}"),
        (_webp(b"VP8L", b"\x2f" + b"\xff" * 20), "16384 x 16384"),
        (_webp(b"VP8 ", b"\0\0\0\x9d\x01\x2a\xff\x3f\xff\x3f" + b"\0" * 20), "16383 x 16383"),
    ],
)
def test_bombs_are_refused_by_their_headers(data: bytes, size: str | None) -> None:
    with pytest.raises(MediaError, match=f"{size or ''}.*more (pixels )?than|{MAX_PIXELS} pixels"):
        open_picture(data)


def test_webp_headers_are_read_right() -> None:
    """Large pictures are found by what the header says, and no others."""
    for options in ({}, {"lossless": True}, {"exif": b"Exif\0\0II*\0\x08\0\0\0\0\0"}):
        assert open_picture(encoded(rgb(90, 31), "WEBP", **options)).size == (90, 31)


def test_first_frame_of_gif() -> None:
    frames = [Image.fromarray(noise(20, 20, seed=n)).quantize(64) for n in range(3)]
    moving = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    expected = Image.open(io.BytesIO(encoded(frames[0], "GIF"))).convert("RGB")
    assert np.array_equal(np.asarray(open_picture(moving)), np.asarray(expected))


def test_broken_exif_data_leaves_the_picture_as_it_is() -> None:
    image = rgb(30, 20)
    hurt = encoded(image, "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\x7f\x00")
    assert open_picture(hurt).size == (30, 20)


def test_several_pictures_in_a_phones_file_are_one() -> None:
    """MPO, which phones name .jpg."""
    file = encoded(rgb(40, 30), "MPO", save_all=True, append_images=[rgb(40, 30, seed=1)])
    assert open_picture(file).size == (40, 30)


def test_memory_that_runs_out_is_not_the_files_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_out(image: Image.Image, mode: str) -> Image.Image:
        raise MemoryError

    monkeypatch.setattr(Image.Image, "convert", run_out)
    with pytest.raises(MemoryError):
        open_picture(encoded(rgb(9, 9)))


def test_resizing_never_makes_a_picture_too_large() -> None:
    """A line becomes a long one where the shorter side decides."""
    line = Image.new("RGB", (60_000, 2))
    with pytest.raises(MediaError, match="resized for the model"):
        resize(line, Size(shortest_edge=336).of(2, 60_000), Image.Resampling.BICUBIC)


def test_crops_are_in_the_middle_and_black_around() -> None:
    image = Image.fromarray(noise(5, 4))
    crop = np.asarray(center_crop(image, (7, 2)))
    assert crop.shape == (7, 2, 3)
    assert np.array_equal(crop[2:6], noise(5, 4)[:, 1:3])
    assert not crop[:2].any() and not crop[6:].any()
