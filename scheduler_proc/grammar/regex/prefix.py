"""Free output up to and including the first occurrence of some bytes.

The Knuth-Morris-Pratt automaton of the bytes, put in front of a state graph: state i has just read
the first i of them, and the last byte leads to the graph's start. Before that, anything may come.

Source: Knuth, Morris, Pratt, "Fast pattern matching in strings", SIAM J. Comput. 6(2), 1977.
"""

from scheduler_proc.grammar.regex.alphabet import Alphabet
from scheduler_proc.grammar.regex.subset import Row, StateGraph


def put_after(after: bytes, graph: StateGraph, alphabet: Alphabet) -> StateGraph:
    """`graph`, from the first occurrence of `after` on; each of its bytes must be a symbol."""
    if not after:
        return graph
    shift = len(after)
    shifted = [[(symbols, target + shift) for symbols, target in row] for row in graph.rows]
    return StateGraph(
        _free_rows(after, alphabet) + shifted, [False] * shift + list(graph.accepting)
    )


def byte_masks(data: bytes) -> list[int]:
    """The sets of bytes that an alphabet must tell apart to look for `data`."""
    return [1 << byte for byte in set(data)]


def _free_rows(after: bytes, alphabet: Alphabet) -> list[Row]:
    steps: list[dict[int, int]] = []  # per state: the bytes that lead elsewhere than to state 0
    fallback = 0  # where the longest proper suffix of what was read leads
    for length, byte in enumerate(after):
        step = dict(steps[fallback]) if length else {}
        if length:
            fallback = steps[fallback].get(byte, 0)
        step[byte] = length + 1
        steps.append(step)
    return [_row(step, alphabet) for step in steps]


def _row(step: dict[int, int], alphabet: Alphabet) -> Row:
    others = alphabet.everything
    row: Row = []
    for byte, target in step.items():
        symbols = alphabet.symbols(1 << byte)
        if symbols:
            row.append((symbols, target))
            others &= ~symbols
    return [*row, (others, 0)] if others else row
