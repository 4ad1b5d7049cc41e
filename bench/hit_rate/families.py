"""Seven families of prompts that share beginnings in seven ways, as token ids in random order."""

import random
from collections.abc import Callable

import numpy as np

OUTPUT_TOKEN = 0  # in no prompt, so that no output is the beginning of a prompt
VOCAB = 32000

Prompt = np.ndarray  # int32 [length]


def few_shot(rng: random.Random, scale: float) -> list[Prompt]:
    """8 sets of examples of 1,200 tokens, 50 questions of 40 tokens to each."""
    return _with_questions(rng, [random_text(rng, 1200) for _ in range(_count(8, scale))], 50, 40)


def document_qa(rng: random.Random, scale: float) -> list[Prompt]:
    """40 documents of 1,000 tokens, 10 questions of 20 tokens to each."""
    return _with_questions(rng, [random_text(rng, 1000) for _ in range(_count(40, scale))], 10, 20)


def zipf(rng: random.Random, scale: float) -> list[Prompt]:
    """600 questions of 30 tokens to 100 texts of 200 to 800, the n-th most popular by 1/n."""
    texts = [random_text(rng, rng.randint(200, 800)) for _ in range(_count(100, scale))]
    weights = [1 / (rank + 1) for rank in range(len(texts))]
    chosen = rng.choices(texts, weights, k=6 * len(texts))
    return [_joined(text, random_text(rng, 30)) for text in chosen]


def deep(rng: random.Random, scale: float) -> list[Prompt]:
    """Trees of 6 levels with branches of 20 to 200 tokens: the prompts of 400 leaves."""
    level = [random_text(rng, 100) for _ in range(_count(5, scale))]
    for branching in (2, 2, 2, 2, 5):
        level = [
            _joined(prefix, random_text(rng, rng.randint(20, 200)))
            for prefix in level
            for _ in range(branching)
        ]
    return _shuffled(rng, level)


def mixed(rng: random.Random, scale: float) -> list[Prompt]:
    """150 questions to 15 documents, 150 to 3 sets of examples, 150 unrelated prompts."""
    documents = [random_text(rng, 800) for _ in range(_count(15, scale))]
    examples = [random_text(rng, 1200) for _ in range(_count(3, scale))]
    prompts = _with_questions(rng, documents, 10, 20) + _with_questions(rng, examples, 50, 40)
    unrelated = [random_text(rng, rng.randint(50, 400)) for _ in range(_count(150, scale))]
    return _shuffled(rng, prompts + unrelated)


def chain(rng: random.Random, scale: float) -> list[Prompt]:
    """10 chats of 40 turns, each turn 40 tokens longer than the one before."""
    chats = [random_text(rng, 40 * 40) for _ in range(_count(10, scale))]
    return _shuffled(rng, [chat[: 40 * (turn + 1)] for chat in chats for turn in range(40)])


def wide(rng: random.Random, scale: float) -> list[Prompt]:
    """200 beginnings of 300 tokens, 3 endings of 30 tokens to each."""
    return _with_questions(rng, [random_text(rng, 300) for _ in range(_count(200, scale))], 3, 30)


FAMILIES: dict[str, Callable[[random.Random, float], list[Prompt]]] = {
    "few-shot": few_shot,
    "document QA": document_qa,
    "Zipf": zipf,
    "deep": deep,
    "mixed": mixed,
    "chain": chain,
    "wide": wide,
}


def prompts_of(family: str, scale: float, seed: int) -> list[Prompt]:
    """The family's prompts in a random order; `scale` multiplies the number of texts."""
    return FAMILIES[family](random.Random(f"{family} {seed}"), scale)


def random_text(rng: random.Random, length: int) -> Prompt:
    """Random tokens."""
    return np.array(rng.choices(range(1, VOCAB), k=length), np.int32)


def _count(base: int, scale: float) -> int:
    return max(2, round(base * scale))


def _joined(*parts: Prompt) -> Prompt:
    return np.concatenate(parts)


def _shuffled(rng: random.Random, prompts: list[Prompt]) -> list[Prompt]:
    return rng.sample(prompts, len(prompts))


def _with_questions(
    rng: random.Random, texts: list[Prompt], questions: int, length: int
) -> list[Prompt]:
    prompts = [_joined(text, random_text(rng, length)) for text in texts for _ in range(questions)]
    return _shuffled(rng, prompts)
