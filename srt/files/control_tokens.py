"""The control tokens of a model, which only its chat template may write, and where texts hold them.

The tokenizer cuts prompts at them, and the prompt reader finds those that users wrote. Control
tokens are a model's special tokens, and those that are named like them: some models list
`<|fim_prefix|>` or `<｜User｜>` among the ordinary added tokens. `<think>` and `<tool_call>` are
not control tokens, unless the model says so.
"""

import re
from collections.abc import Collection
from itertools import pairwise
from typing import NamedTuple

import tokenizers
from tokenizers import AddedToken, models

from srt.files.gguf_tokens import SPM_SPACE

_LOOKS_SPECIAL = re.compile(r"<([|｜]).*\1>", re.DOTALL)


NO_TOKEN = -1


class Found(NamedTuple):
    """A control token `id` at `text[start:stop]`, with the blanks that it swallows; NO_TOKEN if the
    text there is no token of the model's."""

    id: int
    start: int
    stop: int


class ControlTokens:
    """The control tokens of `encoder`, which treats all of them as special from then on. The
    `others`, texts or ids, are control tokens too; texts that are no tokens are found and marked
    like them."""

    def __init__(self, encoder: tokenizers.Tokenizer, others: Collection[str | int] = ()) -> None:
        added = encoder.get_added_tokens_decoder()
        self._ids = {
            token.content: i
            for i, token in added.items()
            if token.special
            or _LOOKS_SPECIAL.fullmatch(token.content)
            or i in others
            or token.content in others
        }
        tokens = [_special(added[i]) for i in self._ids.values()]
        encoder.add_special_tokens(tokens)
        self.ids = frozenset(self._ids.values())
        words = [text for text in others if isinstance(text, str) and text not in self._ids]
        self._ids |= dict.fromkeys(words, NO_TOKEN)
        # Where normalized text is searched for these tokens, other spellings are found too.
        is_normalizing = any(token.normalized for token in tokens)
        self._normalizer = encoder.normalizer if is_normalizing else None
        texts = {*self._ids, *map(self._normal, self._ids)} - {""}
        self._heads = {text[:k] for text in texts for k in range(1, len(text))}
        self._tails = {text[k:] for text in texts for k in range(1, len(text))}
        self._max_part = max(map(len, self._heads), default=0)
        self._firsts, self._lasts = {t[0] for t in texts}, {t[-1] for t in texts}
        # The library's own search, for these tokens only, which it numbers from 0.
        self._by_finder = list(self._ids.values())
        self._finder = tokenizers.Tokenizer(models.BPE())
        self._may_hold = re.compile("|".join(re.escape(t) for t in {t[:2] for t in self._ids}))
        if self._normalizer is not None:
            self._finder.normalizer = self._normalizer
            self._may_hold = re.compile("")
        self._finder.add_special_tokens([*tokens, *map(AddedToken, words)])

    def find(self, text: str) -> list[Found]:
        """Where the model's tokenizer sees control tokens in `text`, from left to right."""
        if not self._ids or not self._may_hold.search(text):
            return []
        found = self._finder.encode(text, add_special_tokens=False)
        places = zip(found.ids, found.offsets, strict=True)
        return [Found(self._by_finder[i], start, stop) for i, (start, stop) in places]

    def broken(self, text: str) -> list[str]:
        """`text` in parts, cut after the first character of each control token."""
        places = [i for found in self.find(text) if (i := _inside(found, text))]
        return [text[i:j] for i, j in pairwise([0, *places, len(text)])]

    def hold(self, role: str) -> bool:
        """Whether `role` is part of some control token, as `user` is of `<|user|>`, also after a
        template strips it or changes its case."""
        role = self._normal(role).strip().casefold()
        return any(role in text.casefold() for text in self._ids)

    def marked(self, text: str, mark: str) -> str:
        """`text` with the character `mark` inside each control token, and at an end of the text
        that is a part of one, blanks aside: so however texts are joined, they form none.

        Tokens of one character cannot be marked and stay control tokens.
        """
        if not text:
            return text
        for _ in range(self._max_part):  # tokens that overlap are found one after the other
            parts = self.broken(text)
            if len(parts) == 1:
                break
            text = mark.join(parts)
        kept = text.rstrip()
        if any(self._ends_with_part(self._normal(end)) for end in {kept, text}):
            text = kept + mark + text[len(kept) :]
        kept = text.lstrip()
        if any(self._begins_with_part(self._normal(head)) for head in {kept, text}):
            text = text[: len(text) - len(kept)] + mark + kept
        return text

    def _normal(self, text: str) -> str:
        """`text` as the model's tokenizer sees it when it looks for these tokens."""
        if self._normalizer is None:
            return text
        normal: str = self._normalizer.normalize_str(text)
        return normal.removeprefix(SPM_SPACE)  # which a tokenizer may put in front of a text

    def _ends_with_part(self, text: str) -> bool:
        if self._firsts.isdisjoint(text[-self._max_part :]):  # as nearly always
            return False
        return any(text[-size:] in self._heads for size in range(1, self._max_part + 1))

    def _begins_with_part(self, text: str) -> bool:
        if self._lasts.isdisjoint(text[: self._max_part]):
            return False
        return any(text[:size] in self._tails for size in range(1, self._max_part + 1))


def _inside(found: Found, text: str) -> int:
    """The place after the first character of a control token; 0 if it has no other."""
    whole = text[found.start : found.stop]
    start = found.start + len(whole) - len(whole.lstrip())
    return start + 1 if len(whole.strip()) > 1 else 0


def _special(token: AddedToken) -> AddedToken:
    """The same token, marked as special."""
    return AddedToken(
        token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=True,
    )
