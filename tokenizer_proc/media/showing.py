"""Where a prompt shows its media: placeholders in texts and ids, and the spans that they become.

Called by the prompt reader. A placeholder that a user wrote in a text that is not to be read as
control tokens has a mark inside (see `marking`) and is not found here. Invariant: each token with a
placeholder's id belongs to the span of an item, so a user's text can take no item's place.
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from srt.wire.errors import RequestError
from srt.wire.media import MediaItem, MediaRef, MediaSpan
from tokenizer_proc.media.base import MediaProcessor

Encode = Callable[[str], np.ndarray]  # a text that continues other text


class Shown(NamedTuple):
    """The media of a request, and the items of each."""

    refs: Sequence[MediaRef] = ()
    items: Sequence[Sequence[MediaItem]] = ()

    @property
    def kinds(self) -> list[str]:
        return [ref.kind for ref in self.refs]

    @property
    def num_tokens(self) -> int:
        """What its items take of a prompt."""
        return sum(item.length for items in self.items for item in items)


NOTHING = Shown()


def controls_of(processor: MediaProcessor | None) -> set[str | int]:
    """What stands for media in a text or in ids: users cannot write it by chance."""
    if processor is None:
        return set()
    texts = {processor.placeholder(kind) for kind in processor.kinds}
    return {*texts, processor.placeholder_id, processor.video_placeholder_id}


class Showing:
    """Shows media to the model of `processor`."""

    def __init__(self, processor: MediaProcessor) -> None:
        self._processor = processor
        texts = {kind: processor.placeholder(kind) for kind in sorted(processor.kinds)}
        self.placeholders = texts
        self._ids = {"image": processor.placeholder_id, "video": processor.video_placeholder_id}
        longest_first = sorted(set(texts.values()), key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, longest_first)))

    def expanded(self, text: str, shown: Shown) -> str:
        """`text` with what stands for each medium in the place of its placeholder. Raises
        RequestError unless it has one for each, in their order."""
        found = list(self._any.finditer(text))
        _check_count(len(found), len(shown.refs))
        parts, done = [], 0
        for i, match in enumerate(found):
            kind = shown.refs[i].kind
            if match[0] != self.placeholders[kind]:
                reason = f" is a {kind}, but the prompt has {match[0]} in its place"
                raise RequestError(reason, at=f"media[{i}]")
            parts += [text[done : match.start()], self._processor.expansion(kind, shown.items[i])]
            done = match.end()
        return "".join(parts) + text[done:]

    def expanded_ids(self, ids: np.ndarray, shown: Shown, encode: Encode) -> np.ndarray:
        """`ids` (int32 [n]) with what stands for each medium; unchanged if that is there already.
        Raises RequestError unless the ids are one or the other."""
        if self._matched(ids, shown) is not None:
            return ids
        whole = {kind: encode(text) for kind, text in self.placeholders.items()}
        alone = {int(one[0]) for one in whole.values() if len(one) == 1}
        at = np.flatnonzero(np.isin(ids, list(alone)))
        _check_count(len(at), len(shown.refs))
        parts, done = [], 0
        for i, place in enumerate(map(int, at)):
            kind = shown.refs[i].kind
            if len(whole[kind]) != 1 or whole[kind][0] != ids[place]:
                reason = f" is a {kind}, but input_ids have {ids[place]} in its place"
                raise RequestError(reason, at=f"media[{i}]")
            expansion = self._processor.expansion(kind, shown.items[i])
            parts += [ids[done:place], encode(expansion)]
            done = place + 1
        return np.concatenate([*parts, ids[done:]]).astype(np.int32)

    def spans(self, ids: np.ndarray, shown: Shown) -> list[MediaSpan]:
        """The spans of all items in `ids` (int32 [n]). Raises RequestError if other tokens of the
        prompt have a placeholder's id."""
        spans = self._matched(ids, shown)
        if spans is None:
            count = int(np.isin(ids, list(self._ids.values())).sum())
            raise RequestError(
                f": they take {shown.num_tokens} tokens of the prompt, but it has {count} that "
                f"stand for media, or has them elsewhere",
                at="media",
            )
        return spans

    def _matched(self, ids: np.ndarray, shown: Shown) -> list[MediaSpan] | None:
        """The spans, if the placeholders' ids in `ids` are those of the items in their order."""
        at = np.flatnonzero(np.isin(ids, list(self._ids.values())))
        if len(at) != shown.num_tokens:
            return None
        spans, done = [], 0
        for item in (item for items in shown.items for item in items):
            places = at[done : done + item.length]
            is_run = places[-1] - places[0] == item.length - 1
            if not is_run or (ids[places] != self._ids[item.kind]).any():
                return None
            spans.append(MediaSpan(int(places[0]), item))
            done += item.length
        return spans


def _check_count(placeholders: int, media: int) -> None:
    if placeholders != media:
        reason = f": the prompt has {placeholders} placeholders for {media} pictures and videos"
        raise RequestError(reason, at="media")
