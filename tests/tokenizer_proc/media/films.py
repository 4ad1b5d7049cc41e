"""Videos' files, made here."""

import io
from fractions import Fraction
from typing import cast

import av
import numpy as np
from av.video.stream import VideoStream
from PIL import Image

from tests.tokenizer_proc.media.gallery import noise


def frame(index: int, width: int, height: int) -> np.ndarray:
    """The picture that a film shows as its frame of this number, uint8 [height, width, 3]."""
    base = noise(width, height).astype(np.int32) // 4
    return (base + 6 * (index % 30)).astype(np.uint8)


def film(
    count: int,
    container: str = "mp4",
    codec: str = "libx264",
    size: tuple[int, int] = (64, 48),
    rate: Fraction | int = 10,
    **options: str,
) -> bytes:
    """A video's file with `count` frames of (width, height) `size`, `rate` each second."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        stream = cast(VideoStream, output.add_stream(codec, rate=rate, options=options))
        stream.width, stream.height = size
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for index in range(count):
            output.mux(stream.encode(av.VideoFrame.from_ndarray(frame(index, *size))))
        output.mux(stream.encode())
    return file.getvalue()


def decoded(data: bytes) -> list[Image.Image]:
    """All frames, one after the other."""
    with av.open(io.BytesIO(data), "r") as file:
        frames = file.decode(video=0)
        return [Image.fromarray(frame.to_ndarray(format="rgb24")) for frame in frames]
