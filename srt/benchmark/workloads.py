"""The shapes of the serving workloads, as data.

A workload is a forest. A node is one request: its prompt is its parent's prompt, its parent's
answer and its own text; its children start when it has answered. A node without output only
carries text. `scale` multiplies the number of roots.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from msgspec import Struct

from srt.benchmark.text import Source


class Node(Struct):
    """One request; `out_tokens` 0 sends none and passes its text on. `fields` are further ones of
    its body."""

    text: str
    out_tokens: int
    children: "list[Node]" = []
    fields: dict[str, Any] = {}


class Workload(Struct):
    """Roots that run under a limit of `concurrency` requests at a time."""

    name: str
    concurrency: int
    roots: Sequence[Node]


def _count(base: int, scale: float) -> int:
    return max(1, round(base * scale))


def single(source: Source, scale: float) -> Workload:
    """One stream: 4 requests after one another, 128 prompt tokens, 128 out."""
    return Workload("single", 1, [Node(source.prompt(128), 128) for _ in range(_count(4, scale))])


def batch(source: Source, scale: float) -> Workload:
    """64 unrelated prompts of 256 tokens, 32 at a time, 128 out."""
    return Workload("batch", 32, [Node(source.prompt(256), 128) for _ in range(_count(64, scale))])


def fewshot(source: Source, scale: float) -> Workload:
    """64 requests, 16 at a time: one shared prefix of 1,470 tokens, 60 own tokens, 16 out."""
    pairs = [source.pair(95, 43) for _ in range(10)]
    shared = "".join(
        f"\nExample {i}:{request}\nAnswer:{answer}" for i, (request, answer) in enumerate(pairs)
    )
    roots = [
        Node(f"{shared}\nQuestion:{source.request(56)}\nAnswer:", 16)
        for _ in range(_count(64, scale))
    ]
    return Workload("fewshot", 16, roots)


def multiturn(source: Source, scale: float) -> Workload:
    """16 chats at once of 4 turns: 90 new tokens a turn, 64 out; the history grows."""
    roots = []
    for _ in range(_count(16, scale)):
        turns = [Node(f"\nUser:{source.request(84)}\nAssistant:", 64) for _ in range(4)]
        for turn, following in pairwise(turns):
            turn.children = [following]
        roots.append(turns[0])
    return Workload("multiturn", 16, roots)


def tree(source: Source, scale: float) -> Workload:
    """8 problems of 300 tokens; 3 levels of branching 3 (3 + 9 + 27 requests), 40 out, 24 at once.

    A node's prompt is its parent's prompt and answer, and a step line of about 10 tokens.
    """
    roots = [Node(source.request(300), 0, _steps(source, 3)) for _ in range(_count(8, scale))]
    return Workload("tree", 24, roots)


def _steps(source: Source, levels: int) -> list[Node]:
    if levels == 0:
        return []
    return [
        Node(f"\nStep {i}:{source.request(6)}", 40, _steps(source, levels - 1)) for i in range(3)
    ]


def longprompt(source: Source, scale: float) -> Workload:
    """8 unrelated prompts of 4,000 tokens, 4 at a time, 32 out."""
    return Workload(
        "longprompt", 4, [Node(source.prompt(4000), 32) for _ in range(_count(8, scale))]
    )


WORKLOADS: dict[str, Callable[[Source, float], Workload]] = {
    shape.__name__: shape for shape in (single, batch, fewshot, multiturn, tree, longprompt)
}
