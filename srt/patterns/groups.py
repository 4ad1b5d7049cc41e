r"""Where the named groups of a pattern match in a text that it matches as a whole, as in `re`.

Used where the text of an answer is complete. The text is read twice, so the time is proportional to
its length whatever the pattern: backwards, to know at each place which nodes of the automaton can
lead to the end, and forwards, taking the best of these. Places are in characters.

Source: R. Cox, "Regular expression matching: the virtual machine approach", 2009.
"""

from typing import NamedTuple

from srt.patterns.classes import category
from srt.patterns.errors import StateLimitError
from srt.patterns.ranges import Ranges, contains
from srt.patterns.read_re import parse
from srt.patterns.tree import Anchor, AnchorKind, Chars, Choice, Concat, Literal, Node, Repeat

MAX_GROUP_NODES = 4096
_END = 0  # the node after the pattern
_GROUP_ENDS = (AnchorKind.GROUP_START, AnchorKind.GROUP_END)


class Span(NamedTuple):
    """One time that the group `name` matched: text[start:end]."""

    name: str
    start: int
    end: int


class _Step(NamedTuple):
    """A node: it first reads a character of `ranges`, if it has any, or needs its anchor to hold;
    `targets` are the next nodes, the best first."""

    targets: tuple[int, ...] = ()
    ranges: Ranges | None = None
    anchor: Anchor | None = None


class _NodeEdges:
    """The edges between nodes, followed backwards. Sets of nodes are bits: nearly all nodes lead
    to the one that was made just before, which makes a step a shift."""

    def __init__(self) -> None:
        self._shifted = self._targets = 0
        self._sources: dict[int, int] = {}  # of the other targets

    def add(self, node: int, target: int) -> None:
        if target == node - 1:
            self._shifted |= 1 << node
        else:
            self._targets |= 1 << target
            self._sources[target] = self._sources.get(target, 0) | 1 << node

    def back(self, nodes: int) -> int:
        """All that lead to one of `nodes`."""
        found = nodes << 1 & self._shifted
        nodes &= self._targets
        while nodes:
            last = nodes.bit_length() - 1
            found |= self._sources[last]
            nodes ^= 1 << last
        return found


class GroupPattern:
    """A pattern whose named groups can be found."""

    def __init__(self, pattern: str, max_nodes: int = MAX_GROUP_NODES) -> None:
        """Raises GrammarError for a bad pattern or one of more than `max_nodes` nodes."""
        self._max_nodes = max_nodes
        self._steps = [_Step()]
        self._start = self._build(parse(pattern, groups=True), _END)
        self._reading, self._free = _NodeEdges(), _NodeEdges()  # of those that read, the others
        self._readers: dict[Ranges, int] = {}
        self._held: dict[AnchorKind, int] = {}  # which nodes need an assertion
        for node, (targets, ranges, anchor) in enumerate(self._steps):
            edges = self._free if ranges is None else self._reading
            for target in targets:
                edges.add(node, target)
            if ranges is not None:
                self._readers[ranges] = self._readers.get(ranges, 0) | 1 << node
            if anchor is not None and anchor.kind not in _GROUP_ENDS:
                self._held[anchor.kind] = self._held.get(anchor.kind, 0) | 1 << node

    @property
    def num_nodes(self) -> int:
        """The size of its automaton."""
        return len(self._steps)

    @property
    def names(self) -> set[str]:
        """The names of its groups."""
        return {step.anchor.group for step in self._steps if step.anchor is not None} - {""}

    def spans(self, text: str) -> list[Span]:
        """Each time that a group matched, in the order of their beginnings. If the pattern does
        not match all of the text, `text` is taken for the beginning of a match, and the result
        is the groups that have ended."""
        found = self.whole_spans(text)
        return self._spans(text, (1 << len(self._steps)) - 1) or [] if found is None else found

    def whole_spans(self, text: str) -> list[Span] | None:
        """As `spans`; None where the pattern does not match all of `text`."""
        return self._spans(text, 1 << _END)

    def _spans(self, text: str, last: int) -> list[Span] | None:
        """The groups along the best way to one of the nodes `last`, if there is any."""
        ways = self._ways(text, last)
        return self._walk(text, ways) if ways[0] >> self._start & 1 else None

    # ---- the automaton -------------------------------------------------------------------------

    def _add(self, step: _Step) -> int:
        if len(self._steps) >= self._max_nodes:
            raise StateLimitError(
                f"a pattern with named groups takes at most {self._max_nodes:,} states, its "
                "repetitions unrolled: leave the names out, or repeat less"
            )
        self._steps.append(step)
        return len(self._steps) - 1

    def _build(self, node: Node, target: int) -> int:
        """The entry to a copy of `node` that goes on at `target`."""
        match node:
            case Literal(text):
                for char in reversed(text):
                    target = self._add(_Step((target,), ((ord(char), ord(char)),)))
                return target
            case Chars(ranges):
                return self._add(_Step((target,), ranges))
            case Anchor():
                return self._add(_Step((target,), anchor=node))
            case Concat(items):
                for item in reversed(items):
                    target = self._build(item, target)
                return target
            case Choice(items):
                return self._add(_Step(tuple([self._build(item, target) for item in items])))
            case Repeat(item, low, high, lazy):
                target = self._optional(item, target, None if high is None else high - low, lazy)
                for _ in range(low):
                    target = self._build(item, target)
                return target

    def _optional(self, item: Node, target: int, times: int | None, lazy: bool) -> int:
        """`item` up to `times` times, or any number of times."""
        if times is None:
            loop = self._add(_Step())
            self._steps[loop] = _either(self._build(item, loop), target, lazy)
            return loop
        end = target
        for _ in range(times):
            target = self._add(_either(self._build(item, target), end, lazy))
        return target

    # ---- backwards -----------------------------------------------------------------------------

    def _ways(self, text: str, last: int) -> list[int]:
        """For each place, the set of nodes, as bits, that lead from there to one of `last` at the
        end of the text."""
        known: dict[tuple[str, int, int], int] = {}
        readers: dict[str, int] = {}  # of each character
        found = [0] * len(text) + [self._closed(last, self._failing(text, len(text)))]
        for at in range(len(text) - 1, -1, -1):
            char, failing = text[at], self._failing(text, at)
            ways = known.get((char, found[at + 1], failing))
            if ways is None:
                if char not in readers:
                    readers[char] = self._readers_of(char)
                reading = self._reading.back(found[at + 1]) & readers[char]
                ways = known[char, found[at + 1], failing] = self._closed(reading, failing)
            found[at] = ways
        return found

    def _closed(self, nodes: int, failing: int) -> int:
        """`nodes`, and all nodes except `failing` that lead to them without reading."""
        new = nodes
        while new:
            new = self._free.back(new) & ~(nodes | failing)
            nodes |= new
        return nodes

    def _failing(self, text: str, at: int) -> int:
        """The nodes whose assertion does not hold at the place `at`."""
        failing = 0
        for kind, nodes in self._held.items():
            failing |= 0 if _holds(kind, text, at) else nodes
        return failing

    def _readers_of(self, char: str) -> int:
        found = 0
        for ranges, nodes in self._readers.items():
            found |= nodes if contains(ranges, ord(char)) else 0
        return found

    # ---- forwards ------------------------------------------------------------------------------

    def _walk(self, text: str, ways: list[int]) -> list[Span]:
        """The groups along the best way."""
        node, begun, found = self._start, [], []
        for at in range(len(text) + 1):
            node, passed = self._next_reader(node, text, at, ways[at])
            for anchor in passed:
                if anchor.kind is AnchorKind.GROUP_START:
                    begun.append(at)
                else:
                    found.append(Span(anchor.group, begun.pop(), at))
            if at < len(text):
                node = self._steps[node].targets[0]
        return sorted(found, key=lambda span: (span.start, -span.end))

    def _next_reader(self, node: int, text: str, at: int, ways: int) -> tuple[int, list[Anchor]]:
        """The node where the best way reads the next character, or ends, and the ends of groups
        before it."""
        waiting: list[tuple[int, tuple[Anchor, ...]]] = [(node, ())]
        seen = set()
        while True:
            node, passed = waiting.pop()
            if node in seen or not ways >> node & 1:
                continue
            seen.add(node)
            step = self._steps[node]
            if step.ranges is not None or node == _END:
                return node, list(passed)
            if step.anchor is not None:
                if not _holds(step.anchor.kind, text, at):
                    continue
                passed = (*passed, step.anchor) if step.anchor.group else passed
            waiting += [(target, passed) for target in reversed(step.targets)]


def _either(item: int, end: int, lazy: bool) -> _Step:
    return _Step((end, item) if lazy else (item, end))


def _holds(kind: AnchorKind, text: str, at: int) -> bool:
    """Whether an assertion holds at the place `at`."""
    match kind:
        case AnchorKind.START:
            return at == 0
        case AnchorKind.LINE_START:
            return at == 0 or text[at - 1] == "\n"
        case AnchorKind.END:
            return at == len(text)
        case AnchorKind.FINAL_END:
            return text[at : at + 2] in ("", "\n")
        case AnchorKind.LINE_END:
            return at == len(text) or text[at] == "\n"
        case AnchorKind.BOUNDARY | AnchorKind.UNICODE_BOUNDARY:
            return _is_boundary(kind is AnchorKind.UNICODE_BOUNDARY, text, at)
        case AnchorKind.NO_BOUNDARY | AnchorKind.NO_UNICODE_BOUNDARY:
            return not _is_boundary(kind is AnchorKind.NO_UNICODE_BOUNDARY, text, at)
        case _:
            return True


def _is_boundary(unicode: bool, text: str, at: int) -> bool:
    """Whether a word begins or ends at the place `at`."""
    words = category("w", unicode)
    before, after = (char != "" and contains(words, ord(char)) for char in _around(text, at))
    return before != after


def _around(text: str, at: int) -> tuple[str, str]:
    """The characters before and after a place; empty at an edge."""
    return text[max(0, at - 1) : at], text[at : at + 1]
