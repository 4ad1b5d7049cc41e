"""Seeded English-like text of about a wanted number of tokens.

Words come from a built-in list, or are given. How many tokens a word costs depends on the server:
`tokens_per_word` is measured with a probe request.
"""

import random

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


class TextSource:
    """Text from one seed: the same seed and calls give the same text."""

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
