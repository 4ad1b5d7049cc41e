"""The workloads as token ids: those of the serving benchmark, and two of shared prefixes."""

import random
from collections.abc import Callable, Sequence

import numpy as np

from bench.hit_rate.families import OUTPUT_TOKEN
from srt.benchmark.text import WORDS, TextSource
from srt.benchmark.workloads import WORKLOADS, Node, Workload

PREFIX, QUESTION, ANSWER = 2000, 40, 16  # tokens
AT_ONCE = 32
PART = 4  # letters of a token


def groups(source: TextSource, scale: float) -> Workload:
    """24 prefixes of 2,000 tokens, 48 questions of 40 tokens, 16 out, 32 at once."""
    prefixes = [source.text(PREFIX) for _ in range(24)]
    chosen = [prefixes[i % 24] for i in range(round(48 * scale))]
    return _asked(source, "groups", random.Random("groups").sample(chosen, len(chosen)))


def zipf(source: TextSource, scale: float) -> Workload:
    """64 questions to 8 such prefixes, the n-th most popular by 1/n."""
    prefixes = [source.text(PREFIX) for _ in range(8)]
    weights = [1 / rank for rank in range(1, 9)]
    chosen = random.Random("zipf").choices(prefixes, weights, k=round(64 * scale))
    return _asked(source, "zipf", chosen)


def _asked(source: TextSource, name: str, prefixes: Sequence[str]) -> Workload:
    roots = [Node(prefix + source.text(QUESTION), ANSWER) for prefix in prefixes]
    return Workload(name, AT_ONCE, roots)


SHAPES: dict[str, Callable[[TextSource, float], Workload]] = {
    **WORKLOADS,
    "groups": groups,
    "zipf": zipf,
}


def tokens_of(word: str) -> list[str]:
    """A word's parts: as with real tokenizers, texts of as many words differ in length."""
    return [word[at : at + PART] for at in range(0, len(word), PART)]


def source_of(seed: int) -> TextSource:
    """Texts whose lengths are right on average."""
    return TextSource(seed, sum(len(tokens_of(word)) for word in WORDS) / len(WORDS))


class Words:
    """Parts of words as token ids, numbered as they come."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def ids(self, text: str) -> np.ndarray:
        """int32 [tokens]."""
        known, first = self._ids, OUTPUT_TOKEN + 1
        parts = [part for word in text.split() for part in tokens_of(word)]
        return np.array([known.setdefault(part, len(known) + first) for part in parts], np.int32)


def answer(length: int) -> np.ndarray:
    """What every request gets."""
    return np.full(length, OUTPUT_TOKEN, np.int32)
