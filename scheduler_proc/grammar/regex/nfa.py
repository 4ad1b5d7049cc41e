"""From an AST to a nondeterministic automaton over bytes (Thompson's construction).

Built from the end: each node is made with the place where it continues, so that a sequence needs
no empty edges. Counted repetitions are unrolled; `estimate` says beforehand how large that makes
the automaton, and `build_nfa` refuses what is above MAX_NODES.

Source: K. Thompson, "Regular expression search algorithm", CACM 11(6), 1968.
"""

from scheduler_proc.grammar.regex.dawg import build_dawg
from scheduler_proc.grammar.regex.utf8 import EXIT, ByteForm, Edge, byte_form
from srt.patterns.errors import StateLimitError
from srt.patterns.tree import (
    Anchor,
    AnchorKind,
    Chars,
    Choice,
    Concat,
    Literal,
    Node,
    Repeat,
)

MAX_NODES = 500_000
ACCEPT = 0  # the node at which the text may end; it has no edges


class NFA:
    """Nodes with edges that read a byte, empty edges, or one empty edge under a condition."""

    def __init__(self) -> None:
        self.edges: list[list[Edge]] = [[]]
        self.empty: list[list[int]] = [[]]
        self.anchors: dict[int, AnchorKind] = {}  # its node's one empty edge is conditional
        self.start = ACCEPT

    def add(self, edges: list[Edge], empty: list[int]) -> int:
        """A new node."""
        self.edges.append(edges)
        self.empty.append(empty)
        return len(self.edges) - 1


def build_nfa(node: Node) -> NFA:
    """The automaton of `node`. Raises StateLimitError if it would be above MAX_NODES."""
    size = estimate(node)
    if size > MAX_NODES:
        raise StateLimitError(
            f"the pattern is too large: its repetitions unrolled, it would take about {size:,} "
            f"states, and the limit is {MAX_NODES:,}"
        )
    nfa = NFA()
    nfa.start = _NfaBuilder(nfa).build(node, ACCEPT)
    return nfa


def estimate(node: Node) -> int:
    """About how many nodes `node` takes; too few by one per AST node at most."""
    match node:
        case Literal(text):
            return len(text.encode())
        case Chars(ranges):
            return len(byte_form(ranges))
        case Anchor():
            return 1
        case Concat(items) | Choice(items):
            return 1 + sum(map(estimate, items))
        case Repeat(item, low, high):
            return (1 + estimate(item)) * (low + 1 if high is None else high)


class _NfaBuilder:
    def __init__(self, nfa: NFA) -> None:
        self._nfa = nfa

    def build(self, node: Node, target: int) -> int:
        """The entry to a copy of `node` that continues at `target`."""
        match node:
            case Literal(text):
                for byte in reversed(text.encode()):
                    target = self._nfa.add([(1 << byte, target)], [])
                return target
            case Chars(ranges):
                return self._chars(byte_form(ranges), target)
            case Anchor(kind):
                entry = self._nfa.add([], [target])
                self._nfa.anchors[entry] = kind
                return entry
            case Concat(items):
                for item in reversed(items):
                    target = self.build(item, target)
                return target
            case Choice(items):
                texts = [item.text.encode() for item in items if isinstance(item, Literal)]
                rest = [item for item in items if not isinstance(item, Literal)]
                entries = [self.build(item, target) for item in rest]
                if texts:
                    entries.append(self._texts(texts, target))
                return self._nfa.add([], entries)
            case Repeat(item, low, high):
                target = self._optional(item, target, None if high is None else high - low)
                for _ in range(low):
                    target = self.build(item, target)
                return target

    def _optional(self, item: Node, target: int, times: int | None) -> int:
        """`item` up to `times` times, or any number of times."""
        if times is None:
            loop = self._nfa.add([], [target])
            self._nfa.empty[loop].append(self.build(item, loop))
            return loop
        end = target
        for _ in range(times):  # every copy leads straight to the end: closures stay small
            target = self._nfa.add([], [end, self.build(item, target)])
        return target

    def _chars(self, nodes: ByteForm, target: int) -> int:
        base = len(self._nfa.edges)
        for edges in nodes:
            moved = [(mask, target if to == EXIT else base + to) for mask, to in edges]
            entry = self._nfa.add(moved, [])
        return entry

    def _texts(self, texts: list[bytes], target: int) -> int:
        """One of the texts, with common beginnings and ends shared."""
        dawg = build_dawg(texts, MAX_NODES)
        base = len(self._nfa.edges)
        for edges, final in zip(dawg.edges, dawg.final, strict=True):
            moved = [(1 << byte, base + to) for byte, to in edges]
            self._nfa.add(moved, [target] if final else [])
        return base + dawg.start
