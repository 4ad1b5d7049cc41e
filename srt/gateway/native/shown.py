"""The pictures and videos of /generate and /score_choices: `image_data` and `video_data`."""

from collections.abc import Iterator, Sequence
from typing import Any

from srt.gateway.media.given import GivenMedia, MediaList, MediaRules
from srt.gateway.openai.chat_messages import chat_media_texts
from srt.gateway.wire.native import NativeRequest, Shown
from srt.gateway.wire.score import ScoreBody
from srt.wire.errors import RequestError

ShownBody = NativeRequest | ScoreBody

_FIELDS = {"image": "image_data", "video": "video_data"}  # by the kind


def media_of(body: ShownBody, count: int, is_list: bool, rules: MediaRules) -> list[MediaList]:
    """A list for each of `count` prompts; `is_list` says that they came as a list. Raises
    RequestError naming the field that is wrong."""
    lists = [MediaList(rules, bare=True) for _ in range(count)]
    for kind, name in _FIELDS.items():
        given = getattr(body, name)
        if given in (None, "", []):
            continue
        if isinstance(body, NativeRequest) and body.messages is not None:
            raise RequestError(" goes with a text or ids: messages have parts", at=name)
        of_prompts = _of_prompts(given, count, name) if is_list else [(name, given)]
        for media, (path, shown) in zip(lists, of_prompts, strict=True):
            for at, each in _items(shown, path):
                media.add(_given(kind, each, at))
    return lists


def media_texts(body: ShownBody) -> Iterator[str]:
    """The texts of a body that may be as long as files."""
    for name in _FIELDS.values():
        yield from _texts(getattr(body, name))
    if isinstance(body, NativeRequest):
        yield from chat_media_texts(body)


def _texts(shown: Any) -> Iterator[str]:
    if isinstance(shown, list):
        for each in shown:
            yield from _texts(each)
    elif shown is not None:
        yield shown if isinstance(shown, str) else shown.url


def _of_prompts(given: Any, count: int, name: str) -> Sequence[tuple[str, Any]]:
    """What each of several prompts shows, with its field."""
    if not isinstance(given, list):
        return [(name, given)] * count
    if len(given) != count:
        raise RequestError(f" must have one entry per prompt ({count})", at=name)
    return [(f"{name}[{i}]", each) for i, each in enumerate(given)]


def _items(shown: Any, path: str) -> Iterator[tuple[str, Shown]]:
    """The files of one prompt, each with its field."""
    if not isinstance(shown, list):
        shown, names = [shown], [path]
    else:
        names = [f"{path}[{i}]" for i in range(len(shown))]
    for at, each in zip(names, shown, strict=True):
        if isinstance(each, list):
            raise RequestError(": lists of lists are for several prompts", at=at)
        if each is not None:
            yield at, each


def _given(kind: str, shown: Shown, path: str) -> GivenMedia:
    if isinstance(shown, str):
        return GivenMedia(kind, shown, path)
    return GivenMedia(kind, shown.url, f"{path}.url", shown.detail, shown.num_frames)
