"""A vocabulary as llguidance needs it, and the tokens that agree with bytes it forces.

Made once per vocabulary by the llguidance back end. llguidance takes its tokenizer for canonical:
where bytes are forced, its mask has the one token that the tokenizer would choose, or, if that
knows none, is wrong. So masks at forced bytes come from here.
"""

import weakref
from bisect import bisect_left
from typing import Any

import llguidance

from scheduler_proc.grammar.vocabulary import TokenVocabulary


class LLTokens:
    """The ordinary tokens of a vocabulary by their bytes, and its llguidance tokenizer."""

    # What llguidance reads of a tokenizer.
    bos_token_id = None
    is_tokenizer_wrapper = True

    def __init__(self, vocabulary: TokenVocabulary) -> None:
        """A vocabulary without EOS gets one for llguidance, after its last id."""
        self._ids: dict[bytes, list[int]] = {}
        for i, data in enumerate(vocabulary.token_bytes):
            if data:
                self._ids.setdefault(data, []).append(i)
        self._sorted = sorted(self._ids)
        self._longest = max(map(len, self._sorted), default=0)
        extra = [] if vocabulary.eos_ids else [b"<end>"]
        self.tokens = vocabulary.token_bytes + extra
        self.eos_token_id = vocabulary.eos_ids[0] if vocabulary.eos_ids else len(self.tokens) - 1
        self.special_token_ids = sorted({*vocabulary.special_ids, self.eos_token_id})
        wrapper: Any = self  # of the right shape, though not of its class
        self.tokenizer: Any = llguidance.LLTokenizer(wrapper)
        del self.tokens, self.special_token_ids  # it has copied them

    def __call__(self, text: str | bytes) -> list[int]:
        """The longest token at each place, up to bytes that no token has."""
        data = text.encode() if isinstance(text, str) else bytes(text)
        found: list[int] = []
        at = 0
        while at < len(data):
            sizes = range(min(self._longest, len(data) - at), 0, -1)
            size = next((n for n in sizes if data[at : at + n] in self._ids), 0)
            if size == 0:
                break
            found.append(self._ids[data[at : at + size]][0])
            at += size
        return found

    def within(self, forced: bytes) -> list[int]:
        """The tokens that `forced` begins with."""
        sizes = range(1, min(self._longest, len(forced)) + 1)
        return [i for n in sizes for i in self._ids.get(forced[:n], ())]

    def beyond(self, forced: bytes) -> list[int]:
        """The tokens that begin with `forced` and are longer."""
        longer = self._sorted[slice(*self._range(forced))]
        return [i for data in longer for i in self._ids[data]]

    def num_beyond(self, forced: bytes) -> int:
        """How many `beyond` there are, tokens of equal bytes counted once. Takes no longer if they
        are many: half a vocabulary begins with a space."""
        first, last = self._range(forced)
        return last - first

    def _range(self, forced: bytes) -> tuple[int, int]:
        """The place of the longer tokens among the sorted ones."""
        first = bisect_left(self._sorted, forced)
        last = bisect_left(self._sorted, forced + b"\xff" * (self._longest + 1), first)
        return first + (forced in self._ids), last


_known: "weakref.WeakKeyDictionary[TokenVocabulary, LLTokens]" = weakref.WeakKeyDictionary()


def tokens_of(vocabulary: TokenVocabulary) -> LLTokens:
    """What llguidance needs of a vocabulary, made when first asked for and then kept with it."""
    found = _known.get(vocabulary)
    if found is None:
        found = _known[vocabulary] = LLTokens(vocabulary)
    return found
