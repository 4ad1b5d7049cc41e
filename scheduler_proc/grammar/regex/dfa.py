"""The finished product: a minimal deterministic automaton over bytes, as arrays.

`finish` makes it of a state graph. Equal languages (over the same absent bytes) give equal
arrays: states are numbered breadth first from the start, classes by their first byte.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.regex.minimise import merge_equivalent
from scheduler_proc.grammar.regex.subset import StateGraph
from scheduler_proc.grammar.regex.trim import Distances, distances, is_reachable

DEAD = -1
NO_MATCH = "no text can match"


@dataclass(frozen=True, eq=False)
class ByteDFA:
    """A minimal DFA over bytes; every state is reachable and can reach acceptance.

    `transitions` is int32 [states, classes], -1 where no byte of the class may follow;
    `byte_class` uint8 [256]; `accepting` bool [states]. The start is state 0.
    """

    transitions: np.ndarray
    byte_class: np.ndarray
    accepting: np.ndarray

    @property
    def num_states(self) -> int:
        return len(self.accepting)

    def step(self, state: int, byte: int) -> int:
        """The state after `byte`, or -1."""
        return int(self.transitions[state, self.byte_class[byte]])

    def walk(self, data: Iterable[int], state: int = 0) -> int:
        """The state after all bytes of `data`, or -1."""
        for byte in data:
            if state == DEAD:
                break
            state = self.step(state, byte)
        return state

    def matches(self, data: bytes) -> bool:
        """Whether `data` is in the language."""
        state = self.walk(data)
        return state != DEAD and bool(self.accepting[state])


def finish(graph: StateGraph, byte_class: np.ndarray) -> ByteDFA:
    """The minimal DFA of `graph`, whose symbols are the classes of `byte_class`.

    Raises GrammarError if there is nothing that the graph accepts.
    """
    far = distances(graph)
    if not np.isfinite(far.shortest[0]):
        raise GrammarError(NO_MATCH)
    live = is_reachable(graph) & np.isfinite(far.shortest)
    table = _dense(graph, byte_class)
    table = np.where(table == DEAD, DEAD, np.where(live[table], table, DEAD))
    kept = np.flatnonzero(live)
    number = np.full(len(live), DEAD, np.int32)
    number[kept] = np.arange(len(kept), dtype=np.int32)
    table = np.where(table[kept] == DEAD, DEAD, number[table[kept]]).astype(np.int32)
    accepting = np.array(graph.accepting, bool)[kept]
    far = Distances(far.shortest[kept], far.longest[kept])
    return _canonical(*merge_equivalent(table, accepting, far), byte_class)


def finish_minimal(graph: StateGraph, byte_class: np.ndarray) -> ByteDFA:
    """`finish` for a graph that is known to be minimal and trimmed: only arranged as arrays."""
    return _canonical(_dense(graph, byte_class), np.array(graph.accepting, bool), byte_class)


def _dense(graph: StateGraph, byte_class: np.ndarray) -> np.ndarray:
    """The graph's edges as a table int32 [states, classes]."""
    table = np.full((len(graph.rows), int(byte_class.max()) + 1), DEAD, np.int32)
    numbers: dict[int, int] = {}  # set of symbols -> its row in `members`
    edges = [
        (state, numbers.setdefault(symbols, len(numbers)), target)
        for state, row in enumerate(graph.rows)
        for symbols, target in row
    ]
    if not edges:
        return table
    packed = b"".join(symbols.to_bytes(32, "little") for symbols in numbers)
    bits = np.frombuffer(packed, np.uint8).reshape(-1, 32)
    members = np.unpackbits(bits, axis=1, bitorder="little")
    which, symbol = np.nonzero(members)  # by set of symbols
    counts = np.bincount(which, minlength=len(numbers))
    firsts = np.cumsum(counts) - counts
    sources, sets, targets = np.array(edges, np.int64).T
    lengths = counts[sets]
    offsets = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    columns = symbol[np.repeat(firsts[sets], lengths) + offsets]
    table[np.repeat(sources, lengths), columns] = np.repeat(targets, lengths)
    return table


def _canonical(table: np.ndarray, accepting: np.ndarray, byte_class: np.ndarray) -> ByteDFA:
    """Merge classes with equal columns and number everything by first use."""
    columns: dict[bytes, int] = {}
    by_column = np.ascontiguousarray(table.T)
    merged: list[int] = []  # by first byte, as the classes are
    firsts: list[int] = []
    for symbol, column in enumerate(by_column):
        merged.append(columns.setdefault(column.tobytes(), len(columns)))
        if len(columns) > len(firsts):
            firsts.append(symbol)
    table = table[:, firsts]
    order = _breadth_first(table)
    number = np.empty(len(order) + 1, np.int32)
    number[order] = np.arange(len(order), dtype=np.int32)
    number[-1] = DEAD  # where index -1 points
    return ByteDFA(
        np.ascontiguousarray(number[table[order]]),
        np.array(merged, np.uint8)[byte_class],
        accepting[order],
    )


def _breadth_first(table: np.ndarray) -> np.ndarray:
    """All states, in the order in which a search from state 0 meets them."""
    sources, symbols = np.nonzero(table != DEAD)
    targets = table[sources, symbols].tolist()
    bounds = np.searchsorted(sources, np.arange(len(table) + 1)).tolist()
    order = [0]
    seen = bytearray(len(table))
    seen[0] = 1
    for state in order:  # grows meanwhile
        for target in targets[bounds[state] : bounds[state + 1]]:
            if not seen[target]:
                seen[target] = 1
                order.append(target)
    return np.array(order, np.int64)
