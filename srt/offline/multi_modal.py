"""What a prompt of vLLM's shape shows: its `multi_modal_data`."""

import re
from collections.abc import Mapping, Sequence
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


def in_order(
    text: str | None, files: Sequence[MediaFile], placeholders: Mapping[str, str]
) -> list[MediaFile]:
    """The files in the order of their `placeholders`, by kind, in the text. A dict does not say
    which picture comes before which video."""
    texts = {text: kind for kind, text in placeholders.items()}
    if text is None or len(texts) < 2 or len({file.kind for file in files}) < 2:
        return [*files]
    pattern = "|".join(map(re.escape, sorted(texts, key=len, reverse=True)))
    kinds = [texts[found] for found in re.findall(pattern, text)]
    if sorted(kinds) != sorted(file.kind for file in files):
        return [*files]  # the server says what is wrong
    of_kind = {kind: iter([file for file in files if file.kind == kind]) for kind in KINDS}
    return [next(of_kind[kind]) for kind in kinds]


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
