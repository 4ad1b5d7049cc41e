"""What a prompt of vLLM's shape shows: its `multi_modal_data`."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from srt.client.media import KINDS, MediaFile, Picture, Video
from srt.wire.errors import RequestError

FIELD = "multi_modal_data"


def media_of(data: Any) -> tuple[list[Any], list[str]]:
    """The media in the order of the dict, and their names. "image" is a picture or a list of them;
    "video" one video, as a file, an array [frames, height, width, 3] or a list of pictures, or a
    list of videos. A video may be in a tuple with a dict of vLLM's, which is not read."""
    if not isinstance(data, Mapping):
        raise RequestError(" must be a dict", at=FIELD)
    media, names = [], []
    for kind, given in data.items():
        if kind not in KINDS:
            raise RequestError(f" has {kind!r}; it takes image and video", at=FIELD)
        if given is None:
            continue
        several = _videos(given) if kind == "video" else _several(given)
        media += [_video(each) if kind == "video" else each for each in several]
        names += [f"{FIELD}.{kind}[{i}]" for i in range(len(several))]
    return media, names


def _several(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else [given]


def _videos(given: Any) -> list[Any]:
    is_one = not isinstance(given, list) or (given and all(map(_is_picture, given)))
    return [given] if is_one else list(given)


def _video(given: Any) -> Video | MediaFile:
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Mapping):
        given = given[0]
    return given if isinstance(given, Video | MediaFile) else Video(given)


def _is_picture(given: Any) -> bool:
    """Whether it is a frame: a file in a list is a video."""
    if isinstance(given, np.ndarray):
        return given.ndim < 4
    return isinstance(given, Picture) or hasattr(given, "getpixel")
