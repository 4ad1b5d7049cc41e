"""Opens a picture's file: JPEG, PNG, WebP, and the first frame of GIF, known by their content.

What the header says of its size is checked before anything is decoded or allocated for it.
"""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from PIL import Image, ImageOps

from tokenizer_proc.media.base import MediaError

MAX_PIXELS = 40_000_000
MAX_SIDE = 65_535  # the most that a JPEG can have
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF")
_SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a")
_NO_IMAGE = "not an image (JPEG, PNG, WebP or GIF)"
_BROKEN = "the picture is truncated or broken"


def open_picture(data: bytes) -> Image.Image:
    """The picture as it is to be seen: mode RGB, turned as its EXIF data says, what is transparent
    upon white.

    Colours become RGB as Pillow converts them, so 16 bit greys above 255 are white, as for
    transformers. Raises MediaError, and MemoryError.
    """
    if not data:
        raise MediaError("the file is empty")
    _check_webp(data)
    with warnings.catch_warnings():
        # Of odd metadata, and of sizes, which are checked below. A worker has one thread.
        warnings.simplefilter("ignore")
        return _decoded(_opened(data))


def check_size(width: int, height: int, what: str = "the picture has") -> None:
    """Raise MediaError if that is more than we decode or make."""
    if width < 1 or height < 1:
        raise MediaError(f"{what} no pixels")
    if width * height > MAX_PIXELS or max(width, height) > MAX_SIDE:
        raise MediaError(
            f"{what} {width} x {height} pixels, more than {MAX_PIXELS} in all or {MAX_SIDE} "
            "on one side"
        )


def _opened(data: bytes) -> Image.Image:
    """The picture, of which only the header was read."""
    with _blaming(_BROKEN if _is_known(data) else _NO_IMAGE):
        try:
            image = Image.open(io.BytesIO(data), formats=_FORMATS)
        except Image.DecompressionBombError:
            raise MediaError(f"the picture has more than {MAX_PIXELS} pixels") from None
    check_size(*image.size)
    return image


def _decoded(image: Image.Image) -> Image.Image:
    with _blaming(_BROKEN):
        image.load()
    # With broken EXIF data a sound picture is seen as it was stored.
    with suppress(MediaError), _blaming(_BROKEN):
        ImageOps.exif_transpose(image, in_place=True)
    with _blaming(f"the picture's colours ({image.mode}) cannot be read"):
        return _rgb(image)


@contextmanager
def _blaming(message: str) -> Iterator[None]:
    """What Pillow trips over in a hostile file is the file's fault; that memory runs out is known
    to the caller."""
    try:
        yield
    except (MediaError, MemoryError):
        raise
    except Exception as error:
        raise MediaError(message) from error


def _rgb(image: Image.Image) -> Image.Image:
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
    return image.convert("RGB")


def _is_known(data: bytes) -> bool:
    return data.startswith(_SIGNATURES) or _is_webp(data)


def _is_webp(data: bytes) -> bool:
    return data[:4] == b"RIFF" and data[8:12] == b"WEBP"


def _check_webp(data: bytes) -> None:
    """Check a WebP file's size: to open it, Pillow allocates all of its canvas."""
    if not _is_webp(data) or len(data) < 30:
        return
    kind = data[12:16]
    if kind == b"VP8X":
        width = 1 + int.from_bytes(data[24:27], "little")
        height = 1 + int.from_bytes(data[27:30], "little")
    elif kind == b"VP8L":
        packed = int.from_bytes(data[21:25], "little")
        width, height = 1 + (packed & 0x3FFF), 1 + (packed >> 14 & 0x3FFF)
    else:
        width = int.from_bytes(data[26:28], "little") & 0x3FFF
        height = int.from_bytes(data[28:30], "little") & 0x3FFF
    check_size(width, height)
