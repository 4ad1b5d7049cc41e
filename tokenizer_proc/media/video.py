"""Opens videos: files of known containers, with PyAV and from memory, or several pictures.

The container is known by its first bytes and told to FFmpeg by name, so that no playlist or list of
files is ever read as one; what a container refers to, another file or an address, is not opened.
"""

import io
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn, Protocol

from PIL import Image

from tokenizer_proc.media.base import MediaError
from tokenizer_proc.media.pictures import MAX_PIXELS, check_size, open_picture

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

MAX_FILE_FRAMES = 500_000
MAX_DURATION_S = 2 * 3600.0
PICTURES_FPS = 24.0  # of frames that come as pictures; what transformers takes then
_CODECS = frozenset(
    {
        "h264", "hevc", "vp8", "vp9", "av1", "libdav1d", "libaom-av1", "libvpx", "libvpx-vp9",
        "mpeg4", "mpeg2video", "mpeg1video", "mjpeg", "png", "theora", "prores",
    }
)  # fmt: skip
_NO_VIDEO = "not a video (MP4, MOV, WebM, Matroska or AVI, or pictures)"
_BROKEN = "the video is truncated or broken"


class Video(Protocol):
    """Frames that can be looked at. `total` is how many there are, at `fps` per second."""

    height: int
    width: int
    total: int
    fps: float
    is_film: bool  # frames are to be chosen; otherwise somebody has chosen them

    def frames(self, indices: Sequence[int]) -> Iterator[Image.Image]:
        """The frames of these numbers, which ascend, in mode RGB. Raises MediaError."""


def open_video(files: Sequence[bytes]) -> Video:
    """A video of one file, or of several pictures. Raises MediaError."""
    container = _container(files[0]) if len(files) == 1 else None
    if container is not None:
        return Film(files[0], container)
    try:
        return Slides(files)
    except MediaError as error:
        raise MediaError(_NO_VIDEO if len(files) == 1 else str(error)) from error


def _container(data: bytes) -> str | None:
    """FFmpeg's name of what reads this file."""
    if data[4:8] == b"ftyp":
        return "mp4"
    if data.startswith(b"\x1aE\xdf\xa3"):
        return "matroska"
    if data[:4] == b"RIFF" and data[8:12] == b"AVI ":
        return "avi"
    return None


class Slides:
    """Pictures of one size."""

    fps = PICTURES_FPS
    is_film = False

    def __init__(self, files: Sequence[bytes]) -> None:
        self._files = files
        first = open_picture(files[0])
        self.width, self.height = first.size
        self.total = len(files)

    def frames(self, indices: Sequence[int]) -> Iterator[Image.Image]:
        for index in indices:
            image = open_picture(self._files[index])
            if image.size != (self.width, self.height):
                raise MediaError("the pictures of a video are not of one size")
            yield image


class Film:
    """The first video stream of a container."""

    is_film = True

    def __init__(self, data: bytes, container: str) -> None:
        with _decoding():
            self._open(data, container)
        check_size(self.width, self.height, "the video has")
        if self.total / self.fps > MAX_DURATION_S:
            raise MediaError(
                f"the video is {self.total / self.fps:.0f} s long, more than {MAX_DURATION_S:.0f} s"
            )

    def frames(self, indices: Sequence[int]) -> Iterator[Image.Image]:
        with _decoding():
            decoder: Iterator[VideoFrame] = iter(())
            time = -1 << 63
            for index in indices:
                target = self._times[index]
                # To decode from the last key frame on is enough, and from where we are if that
                # comes later.
                key = self._keys[max(bisect_right(self._keys, target) - 1, 0)]
                if key > time:
                    self._file.seek(key, stream=self._stream)
                    decoder = self._file.decode(self._stream)
                for frame in decoder:
                    time = target if frame.pts is None else frame.pts
                    if time >= target:
                        if (frame.width, frame.height) != (self.width, self.height):
                            raise MediaError("the video's frames are not of one size")
                        yield Image.fromarray(frame.to_ndarray(format="rgb24"))
                        break
                else:
                    raise MediaError(_BROKEN)

    def _open(self, data: bytes, container: str) -> None:
        import av  # a tenth of a second that a server without videos need not wait

        self._file = av.open(
            io.BytesIO(data),
            "r",
            format=container,
            container_options={"protocol_whitelist": "none"},
            io_open=_refuse,
        )
        if not self._file.streams.video:
            raise MediaError("the file has no video")
        self._stream = self._file.streams.video[0]
        codec = self._stream.codec_context
        if codec.name not in _CODECS:
            raise MediaError(f"videos of codec {codec.name} are not supported")
        codec.thread_count = 1
        self.width, self.height = codec.width, codec.height
        # A stream may come to larger frames than its header says.
        codec.options = {"max_pixels": str(MAX_PIXELS)}
        self._read_times()
        rate = self._stream.average_rate or self._stream.guessed_rate
        self.fps = float(rate) if rate else PICTURES_FPS

    def _read_times(self) -> None:
        """Find when frames are shown, and which are key frames, without decoding."""
        times: list[int] = []
        keys: list[int] = []
        count = 0
        for packet in self._file.demux(self._stream):
            if not packet.size:
                continue
            count += 1
            if count > MAX_FILE_FRAMES:
                raise MediaError(f"the video has more than {MAX_FILE_FRAMES} frames")
            time = packet.dts if packet.pts is None else packet.pts
            if time is None or packet.is_discard:
                continue
            times.append(time)
            if packet.is_keyframe:
                keys.append(time)
        if not times or not keys or count < self._stream.frames:
            raise MediaError(_BROKEN)
        self._times, self._keys = sorted(times), sorted(keys)
        self.total = len(times)


@contextmanager
def _decoding() -> Iterator[None]:
    """What FFmpeg trips over in a hostile file is the file's fault."""
    try:
        yield
    except MediaError:
        raise
    except Exception as error:
        if type(error) is MemoryError:  # ours: FFmpeg's is of a class below, and of large headers
            raise
        raise MediaError(_BROKEN) from error


def _refuse(url: str, flags: int, options: object) -> NoReturn:
    raise MediaError("the video refers to another file or an address")
