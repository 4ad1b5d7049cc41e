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

    def expanded(self, text: str, shown: Shown, param: str) -> str:
        """`text`, of the field `param`, with what stands for each medium in the place of its
        placeholder: the first one of a kind stands for the first medium of that kind. Raises
        RequestError unless it has one for each."""
        found = list(self._any.finditer(text))
        paired = self._paired([match[0] for match in found], shown, param)
        parts, done = [], 0
        for match, i in zip(found, paired, strict=True):
            parts += [text[done : match.start()], self._expansion(shown, i)]
            done = match.end()
        return "".join(parts) + text[done:]

    def expanded_ids(self, ids: np.ndarray, shown: Shown, encode: Encode, param: str) -> np.ndarray:
        """`ids` (int32 [n]), of the field `param`, with what stands for each medium; unchanged if
        that is there already. Raises RequestError unless the ids are one or the other."""
        if self._matched(ids, shown) is not None:
            return ids
        whole = {text: encode(text) for text in set(self.placeholders.values())}
        alone = {int(one[0]): text for text, one in whole.items() if len(one) == 1}
        at = np.flatnonzero(np.isin(ids, list(alone))).tolist()
        paired = self._paired([alone[int(ids[place])] for place in at], shown, param)
        parts, done = [], 0
        for place, i in zip(at, paired, strict=True):
            parts += [ids[done:place], encode(self._expansion(shown, i))]
            done = place + 1
        return np.concatenate([*parts, ids[done:]]).astype(np.int32)

    def spans(self, ids: np.ndarray, shown: Shown, param: str) -> list[MediaSpan]:
        """The spans of all items in `ids` (int32 [n]), of the field `param`, in ascending order.
        Raises RequestError if other tokens of the prompt have a placeholder's id."""
        spans = self._matched(ids, shown)
        if spans is None:
            count = int(np.isin(ids, list(self._ids.values())).sum())
            raise RequestError(
                f": pictures and videos take {shown.num_tokens} tokens of the prompt, but it has "
                f"{count} that stand for them, or has them elsewhere",
                at="media" if shown.refs else param,
            )
        return spans

    def _expansion(self, shown: Shown, number: int) -> str:
        return self._processor.expansion(shown.refs[number].kind, shown.items[number])

    def _paired(self, found: Sequence[str], shown: Shown, param: str) -> list[int]:
        """The number of the medium that each placeholder stands for: the first one of a kind for
        the first of that kind. Where all kinds become the same token, `_matched` knows only the
        request's order, so placeholders must be in it."""
        media: dict[str, list[int]] = {text: [] for text in self.placeholders.values()}
        for i, kind in enumerate(shown.kinds):
            media[self.placeholders[kind]].append(i)
        for text, numbers in media.items():
            if found.count(text) != len(numbers):
                kinds = [f"{kind}s" for kind, each in self.placeholders.items() if each == text]
                raise RequestError(
                    f": the prompt has {found.count(text)} placeholders {text} for {len(numbers)} "
                    f"{' and '.join(kinds)}",
                    at="media" if numbers else param,
                )
        expected = [self.placeholders[kind] for kind in shown.kinds]
        if len(set(self._ids.values())) == 1 and found != expected:
            i = next(i for i, text in enumerate(expected) if text != found[i])
            reason = f" is of kind {shown.kinds[i]}, but the prompt has {found[i]} in its place"
            raise RequestError(reason, at=f"media[{i}]")
        rest = {text: iter(numbers) for text, numbers in media.items()}
        return [next(rest[text]) for text in found]

    def _matched(self, ids: np.ndarray, shown: Shown) -> list[MediaSpan] | None:
        """The spans, if the placeholders' ids in `ids` are those of the items: where two kinds have
        different ones, each kind's in their order."""
        spans = []
        for token_id in set(self._ids.values()):
            at, done = np.flatnonzero(ids == token_id), 0
            for item in (item for items in shown.items for item in items):
                if self._ids[item.kind] != token_id:
                    continue
                places = at[done : done + item.length]
                if len(places) < item.length or places[-1] - places[0] != item.length - 1:
                    return None
                spans.append(MediaSpan(int(places[0]), item))
                done += item.length
            if done != len(at):
                return None
        return sorted(spans, key=lambda span: span.start)
