"""Sizes and cuts of pictures, as transformers' processors on Pillow make them.

All pictures are of mode RGB; sizes are (height, width) in pixels.
"""

from typing import NamedTuple

from PIL import Image

from tokenizer_proc.media.base import MediaError
from tokenizer_proc.media.pictures import check_size


class Size(NamedTuple):
    """A configured size: `height` and `width`, or edges that keep the picture's proportions."""

    height: int = 0
    width: int = 0
    shortest_edge: int = 0
    longest_edge: int = 0

    def of(self, height: int, width: int) -> tuple[int, int]:
        """What a picture of this height and width is resized to."""
        if self.height and self.width:
            return self.height, self.width
        if self.longest_edge:
            return _between(height, width, self.shortest_edge, self.longest_edge)
        edge = self.shortest_edge
        if width <= height:
            return int(edge * height / width), edge
        return edge, int(edge * width / height)

    @property
    def square(self) -> tuple[int, int]:
        """The size of something square."""
        return (self.height, self.width) if self.height else (self.shortest_edge,) * 2


class Fit(NamedTuple):
    """What is done to a whole picture, in this order; each step is left out if it is None."""

    pad_colour: tuple[int, int, int] | None  # of the bars that make it square
    size: Size | None
    resample: Image.Resampling
    crop: tuple[int, int] | None

    def apply(self, image: Image.Image) -> Image.Image:
        """The picture so resized and cut."""
        if self.pad_colour is not None:
            image = pad_to_square(image, self.pad_colour)
        if self.size is not None:
            image = resize(image, self.size.of(image.height, image.width), self.resample)
        return image if self.crop is None else center_crop(image, self.crop)

    def size_of(self, height: int, width: int) -> tuple[int, int]:
        """What size a picture of this height and width comes to."""
        if self.pad_colour is not None:
            height = width = max(height, width)
        if self.size is not None:
            height, width = self.size.of(height, width)
        return self.crop or (height, width)


def resize(image: Image.Image, size: tuple[int, int], resample: Image.Resampling) -> Image.Image:
    """`image` at another size. Raises MediaError if that would be too large, or nothing, as it is
    where a picture is very long and narrow."""
    height, width = size
    check_size(width, height, "resized for the model, the picture has")
    return image.resize((width, height), resample)


def center_crop(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """The middle of `image`, or where it is smaller, `image` in the middle of black."""
    height, width = size
    top, left = (image.height - height) // 2, (image.width - width) // 2
    return image.crop((left, top, left + width, top + height))


def pad_to_square(image: Image.Image, colour: tuple[int, int, int]) -> Image.Image:
    """`image` in the middle of a square."""
    side = max(image.size)
    check_size(side, side, "made square for the model, the picture has")
    return pad_around(image, (side, side), colour)


def pad_around(
    image: Image.Image, size: tuple[int, int], colour: tuple[int, int, int] = (0, 0, 0)
) -> Image.Image:
    """`image` in the middle of a canvas; an odd row or column more is below or to the right."""
    height, width = size
    if image.size == (width, height):
        return image
    canvas = Image.new("RGB", (width, height), colour)
    canvas.paste(image, ((width - image.width) // 2, (height - image.height) // 2))
    return canvas


def cut(image: Image.Image, height: int, width: int) -> list[Image.Image]:
    """The tiles of a grid over `image`, row by row; the last ones may be smaller."""
    return [
        image.crop((x, y, min(x + width, image.width), min(y + height, image.height)))
        for y in range(0, image.height, height)
        for x in range(0, image.width, width)
    ]


def check_proportions(height: int, width: int, most: int) -> None:
    """Raise MediaError if one side is more than `most` times as long as the other."""
    if max(height, width) > most * min(height, width):
        raise MediaError(
            f"the picture has {width} x {height} pixels: one side is more than {most} times as "
            "long as the other"
        )


def _between(height: int, width: int, shortest: int, longest: int) -> tuple[int, int]:
    """The shorter side becomes `shortest`, or less if the other were longer than `longest`."""
    short, long = min(height, width), max(height, width)
    exact = float(shortest)
    edge = shortest
    if float(long) / float(short) * shortest > longest:
        exact = longest * float(short) / float(long)
        edge = round(exact)
    if short == edge:
        return height, width
    if width < height:
        return int(exact * height / width), edge
    return edge, int(exact * width / height)
