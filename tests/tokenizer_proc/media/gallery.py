"""Pictures' files of every kind, made here: what the parity of processors is tried on."""

import io
from typing import Any

import numpy as np
from PIL import Image


def noise(width: int, height: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    """Smooth colours with some noise, uint8 [height, width, channels]."""
    rng = np.random.default_rng(seed + width * 10_007 + height)
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    phases = rng.uniform(0, 6.28, channels)
    wave = np.sin(x[..., None] / 9 + phases) + np.cos(y[..., None] / 7 - phases)
    grain = rng.normal(0, 12, (height, width, channels))
    made: np.ndarray = np.clip(128 + 55 * wave + grain, 0, 255)
    return made.astype(np.uint8)


def encoded(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    """The picture's file."""
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def rgb(width: int, height: int, seed: int = 0) -> Image.Image:
    """A picture in colour."""
    return Image.fromarray(noise(width, height, seed=seed))


def _turned(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(rgb(90, 60), "JPEG", exif=exif)


def _grey(width: int, height: int) -> Image.Image:
    return Image.fromarray(noise(width, height, 1)[:, :, 0])


def _palette(**options: Any) -> bytes:
    return encoded(rgb(75, 52).quantize(32), **options)


def gallery() -> dict[str, bytes]:
    """Files by a name that says what is odd about each."""
    deep = Image.fromarray(noise(40, 33, 1)[:, :, 0].astype(np.uint16) * 3)
    translucent = Image.fromarray(noise(64, 48, 4))
    colours = rgb(83, 61)
    red, green, blue = noise(83, 61)[5, 5].tolist()
    frames = [rgb(44, 70, seed=seed) for seed in range(3)]
    return {
        "jpeg": encoded(colours, "JPEG"),
        "jpeg, progressive": encoded(colours, "JPEG", progressive=True),
        "jpeg, grey": encoded(_grey(71, 50), "JPEG"),
        "jpeg, CMYK": encoded(rgb(50, 66).convert("CMYK"), "JPEG"),
        **{f"jpeg, turned {number}": _turned(number) for number in range(2, 9)},
        "png": encoded(colours),
        "png, grey": encoded(_grey(60, 91)),
        "png, grey and alpha": encoded(translucent.convert("LA")),
        "png, alpha": encoded(translucent),
        "png, one bit": encoded(_grey(66, 44).convert("1")),
        "png, 16 bit": encoded(deep),
        "png, palette": _palette(),
        "png, palette with one transparent": _palette(transparency=3),
        "png, palette with alphas": _palette(transparency=bytes(range(0, 256, 8))),
        "png, transparent colour": encoded(colours, transparency=(red, green, blue)),
        "webp": encoded(colours, "WEBP"),
        "webp, lossless with alpha": encoded(translucent, "WEBP", lossless=True),
        "gif": encoded(rgb(58, 40).quantize(16), "GIF"),
        "gif, moving": encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "1 x 1": encoded(rgb(1, 1)),
        "2 x 3": encoded(rgb(2, 3)),
        "square": encoded(rgb(64, 64)),
        "very wide": encoded(rgb(600, 7)),
        "very tall": encoded(rgb(5, 480)),
        "wide": encoded(rgb(310, 101)),
        "tall": encoded(rgb(77, 260)),
        "large": encoded(rgb(330, 290)),
    }
