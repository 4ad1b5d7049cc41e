"""Seeded text of about a wanted number of tokens: what a source of prompts has, and English-like
random words.

How many tokens a word costs depends on the server: `tokens_per_word` is measured with a probe
request.
"""

import random
from typing import Protocol

_PROSE = (
    "the and for with from this that when where which while after before under over into about "
    "river mountain garden window letter number system market school winter summer morning night "
    "people teacher doctor farmer sailor writer engineer child mother brother friend neighbour "
    "small large quiet early late green yellow heavy simple common open deep narrow bright cold "
    "walk carry build write answer follow gather explain measure compare return remember travel "
    "water stone paper metal wood glass bread apple horse bird table chair road bridge station "
    "question problem reason example result method history language music story picture plan "
    "always often never sometimes almost together perhaps quickly slowly again still also only"
)
WORDS = _PROSE.split()
SENTENCE_WORDS = 12


class Source(Protocol):
    """Prompts of about as many tokens as are wanted. All begin with a space."""

    tokens_per_word: float

    def words(self, text: str) -> int:
        """How many words `text` has, as this source counts them."""

    def request(self, tokens: int) -> str:
        """What a user asks."""

    def prompt(self, tokens: int) -> str:
        """The same, ready for its answer."""

    def pair(self, tokens: int, answer_tokens: int) -> tuple[str, str]:
        """What a user asks, and an answer."""


class TextSource:
    """Random words from one seed, from a built-in list unless they are given: the same seed and
    calls give the same text. Answers to them loop."""

    def __init__(
        self, seed: int | str, tokens_per_word: float = 1.0, words: list[str] | None = None
    ) -> None:
        self._rng = random.Random(seed)
        self._words = words or WORDS
        self.tokens_per_word = tokens_per_word

    def text(self, tokens: int) -> str:
        """About `tokens` tokens, in short sentences; begins with a space."""
        count = max(1, round(tokens / self.tokens_per_word))
        return " " + " ".join(self._rng.choice(self._words) + self._stop(i) for i in range(count))

    @staticmethod
    def _stop(index: int) -> str:
        return "." if index % SENTENCE_WORDS == SENTENCE_WORDS - 1 else ""

    def words(self, text: str) -> int:
        """See `Source`."""
        return len(text.split())

    def request(self, tokens: int) -> str:
        """See `Source`."""
        return self.text(tokens)

    def prompt(self, tokens: int) -> str:
        """See `Source`."""
        return self.text(tokens)

    def pair(self, tokens: int, answer_tokens: int) -> tuple[str, str]:
        """See `Source`."""
        return self.text(tokens), self.text(answer_tokens)
