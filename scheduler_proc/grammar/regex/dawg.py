"""The minimal acyclic automaton of a list of byte strings (a DAWG), built in one pass.

Choices become one directly; the NFA builder uses it for alternations of literals, so that tens of
thousands of words share their beginnings and ends before anything else looks at them.

Source: Daciuk, Mihov, Watson, Watson, "Incremental construction of minimal acyclic finite-state
automata", Computational Linguistics 26(1), 2000: the algorithm for sorted input.
"""

from collections.abc import Iterable
from typing import NamedTuple

from srt.patterns.errors import StateLimitError

Edges = tuple[tuple[int, int], ...]  # (byte, target), by byte


class Dawg(NamedTuple):
    """Of each node: its edges, which lead to earlier nodes, and whether a string ends there."""

    edges: list[Edges]
    final: list[bool]
    start: int


class _Node:
    """A node on the path of the last string; its newest edge's target is the next one."""

    __slots__ = ("edges", "final")

    def __init__(self) -> None:
        self.edges: list[tuple[int, int]] = []  # to nodes that are finished
        self.final = False


def build_dawg(strings: Iterable[bytes], max_nodes: int) -> Dawg:
    """The automaton of `strings`, in any order; there may be duplicates.

    Raises StateLimitError as soon as it has more than `max_nodes` nodes.
    """
    register: dict[tuple[bool, Edges], int] = {}
    path = [_Node()]
    previous = b""
    for string in sorted(set(strings)):
        _finish(path, previous, _common_prefix_len(previous, string), register)
        if len(register) > max_nodes:
            break
        path += [_Node() for _ in range(len(string) - len(path) + 1)]
        path[-1].final = True
        previous = string
    _finish(path, previous, 0, register)
    start = _register(path[0], register)
    if len(register) > max_nodes:
        raise StateLimitError(f"the choices take more than {max_nodes:,} states, the limit")
    return Dawg([edges for _, edges in register], [final for final, _ in register], start)


def _finish(
    path: list[_Node], string: bytes, length: int, register: dict[tuple[bool, Edges], int]
) -> None:
    """Replace the nodes of `path` beyond depth `length` by their equals among the finished."""
    for depth in range(len(path) - 1, length, -1):
        target = _register(path.pop(), register)
        path[-1].edges.append((string[depth - 1], target))


def _register(node: _Node, register: dict[tuple[bool, Edges], int]) -> int:
    return register.setdefault((node.final, tuple(node.edges)), len(register))


def _common_prefix_len(first: bytes, second: bytes) -> int:
    length = min(len(first), len(second))
    if first[:length] == second[:length]:
        return length
    low = 0  # first[:low] is common, first[:length] is not
    while length - low > 1:
        middle = (low + length) // 2
        if first[:middle] == second[:middle]:
            low = middle
        else:
            length = middle
    return low
