"""What may stand in front of a constraint: bytes that the output begins with, and free output up
to and including the first occurrence of some bytes, always or only after an opener.

Each is put in front of a state graph as a chain of states: state i has just read the first i of the
bytes, and the last one leads to the graph's start. For free output the chain is the
Knuth-Morris-Pratt automaton of the bytes: at another byte it goes back as far as it must.

Source: Knuth, Morris, Pratt, "Fast pattern matching in strings", SIAM J. Comput. 6(2), 1977.
"""

from scheduler_proc.grammar.regex.alphabet import Alphabet
from scheduler_proc.grammar.regex.subset import Row, StateGraph
from srt.patterns.errors import StateLimitError


def put_after(
    after: bytes, graph: StateGraph, alphabet: Alphabet, opener: bytes = b"", max_states: int = 0
) -> StateGraph:
    """`graph`, from the first occurrence of `after` on; each of its bytes must be a symbol. With
    `opener`, `graph` or, behind these bytes, the same: at most `max_states` states more, or
    StateLimitError."""
    if not after:
        return graph
    shift = len(after)
    rows = _free_rows(after, alphabet) + _shifted(graph.rows, shift)
    waiting = StateGraph(rows, [False] * shift + list(graph.accepting))
    if not opener:
        return waiting
    return _either(put_before(opener, waiting, alphabet), graph, max_states)


def put_before(before: bytes, graph: StateGraph, alphabet: Alphabet) -> StateGraph:
    """`before`, and then `graph`; each of its bytes must be a symbol."""
    if not before:
        return graph
    shift = len(before)
    chain: list[Row] = [
        [(symbols, i)] if (symbols := alphabet.symbols(1 << byte)) else []
        for i, byte in enumerate(before, start=1)
    ]
    return StateGraph(chain + _shifted(graph.rows, shift), [False] * shift + list(graph.accepting))


def _either(longer: StateGraph, graph: StateGraph, max_states: int) -> StateGraph:
    """What either automaton accepts. `longer` ends with the states of `graph`: only where both may
    go on differently is a new state needed, for the pair of their states."""
    shift = len(longer.rows) - len(graph.rows)
    numbers: dict[tuple[int, int], int] = {(0, 0): 0}
    order = [(0, 0)]
    rows: list[list[tuple[int, tuple[int, int] | int]]] = []  # to a pair, or a state of `longer`
    for first, second in order:  # grows meanwhile
        row: list[tuple[int, tuple[int, int] | int]] = []
        others = [(symbols, shift + target) for symbols, target in graph.rows[second]]
        for symbols, target in longer.rows[first]:
            for number, (same, other) in enumerate(others):
                common = symbols & same
                if not common:
                    continue
                symbols, others[number] = symbols & ~common, (same & ~common, other)
                pair = (target, other - shift)
                row.append((common, target if target == other else pair))
                if target != other and pair not in numbers:
                    if len(order) >= max_states:
                        raise StateLimitError(
                            f"the automaton has more than {max_states:,} states, the limit"
                        )
                    numbers[pair] = len(order)
                    order.append(pair)
            row.append((symbols, target))
        rows.append([(symbols, target) for symbols, target in row + others if symbols])
    size = len(order)
    pairs: list[Row] = [
        [(s, size + to if isinstance(to, int) else numbers[to]) for s, to in row] for row in rows
    ]
    accepting = [longer.accepting[first] or graph.accepting[second] for first, second in order]
    return StateGraph(pairs + _shifted(longer.rows, size), accepting + list(longer.accepting))


def byte_masks(data: bytes) -> list[int]:
    """The sets of bytes that an alphabet must tell apart to read or look for `data`."""
    return [1 << byte for byte in set(data)]


def _shifted(rows: list[Row], shift: int) -> list[Row]:
    """The rows of states that are renumbered to follow `shift` others."""
    return [[(symbols, target + shift) for symbols, target in row] for row in rows]


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
