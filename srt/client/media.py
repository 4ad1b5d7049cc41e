"""Pictures and videos that a request shows the model, as their files: how programs give them, and
how they are sent.

Reading, hashing and encoding happen in threads: they take milliseconds for each megabyte.
"""

import asyncio
import base64
import binascii
import hashlib
import io
import sys
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec import Struct

from srt.wire.errors import RequestError
from srt.wire.media import BASE64_BLANKS, MAX_FRAMES, MediaRef
from srt.wire.media import MAX_FILE_BYTES as MAX_FILE_BYTES

if TYPE_CHECKING:
    from PIL.Image import Image as PilImage

KINDS = ("image", "video")
DETAILS = ("auto", "low", "high")
_SLICE_BYTES = 3 * 2**17
_AT_ONCE_BYTES = 2**16  # what is shorter is hashed without a thread
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA")


class MediaFile(Struct, frozen=True):
    """An "image" or a "video": the bytes of its file, or those of the pictures that are the frames
    of a video. `detail` is OpenAI's; of a video `num_frames` are looked at (0: the model's
    default)."""

    kind: str
    frames: tuple[bytes, ...]
    detail: str = "auto"
    num_frames: int = 0


class Picture(Struct, frozen=True):
    """A picture: a file, given as its path, its bytes or a `data:` URL, or a picture of Pillow's;
    with OpenAI's `detail`."""

    source: Any
    detail: str = "auto"


class Video(Struct, frozen=True):
    """A video: a file, given as its path, its bytes or a `data:` URL, or the pictures that are its
    frames. `num_frames` of it are looked at, evenly spaced; 0: the model's default."""

    source: Any
    num_frames: int = 0


# What a request may show. What is no struct is the source of a Picture.
Media: TypeAlias = "str | PathLike[str] | bytes | PilImage | Picture | Video | MediaFile"


async def opened(media: Sequence[Media], names: Sequence[str] | None = None) -> list[MediaFile]:
    """The files of what a program shows. Raises RequestError, with the medium's name of `names`
    (media[i])."""
    if not isinstance(media, list | tuple):
        raise RequestError(" must be a list", at="media")
    at = [f"media[{i}]" for i in range(len(media))] if names is None else names
    return await asyncio.to_thread(lambda: list(map(_opened, media, at)))


async def frames_of(media: Sequence[MediaFile]) -> tuple[list[MediaRef], list[bytes]]:
    """What a message to the ring says of the files, and the frames behind it: equal files go
    once."""
    size = sum(len(frame) for file in media for frame in file.frames)
    if size < _AT_ONCE_BYTES:
        return _frames_of(media)
    return await asyncio.to_thread(_frames_of, media)


def data_url(file: MediaFile) -> msgspec.Raw:
    """The file as a `data:` URL, as JSON; the pictures of a video are separated by commas, as vLLM
    has them. In slices, between which a thread lets others run."""
    kind = "jpeg" if file.kind == "video" and len(file.frames) > 1 else "*"
    pieces = [f'"data:{file.kind}/{kind};base64'.encode()]
    for frame in file.frames:
        pieces.append(b",")
        slices = range(0, len(frame), _SLICE_BYTES)
        pieces += [base64.b64encode(frame[start : start + _SLICE_BYTES]) for start in slices]
    pieces.append(b'"')
    return msgspec.Raw(b"".join(pieces))


def _frames_of(media: Sequence[MediaFile]) -> tuple[list[MediaRef], list[bytes]]:
    refs, blobs = [], list[bytes]()
    sent: dict[bytes, list[int]] = {}  # the frames' lengths by hash
    for file in media:
        hashed, lengths = hashlib.sha256(), [len(frame) for frame in file.frames]
        for frame in file.frames:
            hashed.update(frame)
        digest = hashed.digest()
        is_new = sent.setdefault(digest, lengths) is lengths or sent[digest] != lengths
        if is_new:
            blobs += file.frames
        count = len(file.frames) if is_new else 0
        refs.append(MediaRef(file.kind, digest, count, file.detail, file.num_frames))
    return refs, blobs


def _opened(given: Any, at: str) -> MediaFile:
    if isinstance(given, MediaFile):
        return _checked(given, at)
    if not isinstance(given, Video):
        picture = given if isinstance(given, Picture) else Picture(given)
        return _checked(MediaFile("image", (_file(picture.source, at),), picture.detail), at)
    source = given.source
    if isinstance(source, list | tuple) or (_is_array(source) and source.ndim == 4):
        frames = tuple(_file(frame, f"{at}.source[{i}]") for i, frame in enumerate(source))
    else:
        frames = (_file(source, at),)
    return _checked(MediaFile("video", frames, num_frames=given.num_frames), at)


def _checked(file: MediaFile, at: str) -> MediaFile:
    for name, values in (("kind", KINDS), ("detail", DETAILS)):
        if getattr(file, name) not in values:
            raise RequestError(f" must be one of {', '.join(values)}", at=f"{at}.{name}")
    if type(file.num_frames) is not int or not 0 <= file.num_frames <= MAX_FRAMES:
        raise RequestError(f" must be in [0, {MAX_FRAMES}]", at=f"{at}.num_frames")
    most = MAX_FRAMES if file.kind == "video" else 1
    if not 0 < len(file.frames) <= most:
        raise RequestError(f" must have 1 to {most} frames, not {len(file.frames)}", at=at)
    for frame in file.frames:
        if not isinstance(frame, bytes):
            raise RequestError(f" must have bytes as frames, not {type(frame).__name__}", at=at)
    _check_size(sum(map(len, file.frames)), at)
    return file


def _check_size(size: int, at: str) -> None:
    if size > MAX_FILE_BYTES:
        raise RequestError(f" has more than {MAX_FILE_BYTES} bytes", at=at)
    if not size:
        raise RequestError(" is empty", at=at)


def _file(given: Any, at: str) -> bytes:
    """The bytes of one file."""
    if isinstance(given, bytes | bytearray | memoryview):
        _check_size(len(given), at)
        return bytes(given)
    if isinstance(given, str) and given[:5].lower() == "data:":
        return _decoded(given, at)
    if isinstance(given, str) and given[:8].lower().startswith(("http://", "https://")):
        raise RequestError(": a client fetches no addresses; give the file's bytes", at=at)
    if isinstance(given, str | PathLike):
        return _read(Path(given), at)
    pillow = sys.modules.get("PIL.Image")
    is_picture = pillow is not None and isinstance(given, pillow.Image)
    is_array = _is_array(given)
    if is_array and given.dtype != "uint8":
        raise RequestError(f" must be an array of uint8, not {given.dtype}", at=at)
    if is_picture or is_array:
        data = _png(given, is_picture, at)
        _check_size(len(data), at)
        return data
    wanted = "a path, bytes, a data: URL or a picture of Pillow's"
    raise RequestError(f" must be {wanted}, not {type(given).__name__}", at=at)


def _is_array(given: Any) -> bool:
    """Whether it is an array of numpy's, which only programs that have such arrays load."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(given, numpy.ndarray)


def _read(path: Path, at: str) -> bytes:
    try:
        if not path.is_file():
            raise RequestError(f": there is no file {str(path)!r}", at=at)
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise RequestError(f": {str(path)!r} cannot be read: {error}", at=at) from None
    _check_size(len(data), at)
    return data


def _decoded(url: str, at: str) -> bytes:
    head, comma, text = url.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise RequestError(" must have base64 in its data: URL", at=at)
    text = text.translate(BASE64_BLANKS)
    _check_size(len(text) * 3 // 4 - 2 if text else 0, at)
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise RequestError(" is not valid base64", at=at) from None
    _check_size(len(data), at)
    return data


def _png(given: Any, is_picture: bool, at: str) -> bytes:
    """A picture of Pillow's, or an array [height, width] or [height, width, 3 or 4] of uint8, as
    the file of a PNG: its pixels as they are, turned as its EXIF data says."""
    try:
        from PIL import Image, ImageOps
    except ImportError:
        reason = " is an array, which Pillow makes a file of: pip install 'srt-lang[vision]'"
        raise RequestError(reason, at=at) from None
    try:
        picture = given if is_picture else Image.fromarray(given)
        picture = ImageOps.exif_transpose(picture)
        picture = picture if picture.mode in _PNG_MODES else picture.convert("RGB")
        written = io.BytesIO()
        picture.save(written, "PNG", compress_level=1)
    except (OSError, ValueError, TypeError, SyntaxError, MemoryError) as error:
        raise RequestError(f" cannot be written as a PNG: {error}", at=at) from None
    return written.getvalue()
