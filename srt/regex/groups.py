r"""Where the named groups of a pattern lie in a text that the whole of it matches, as `re` says.

Used where the text of an answer is complete. The text is read twice, so the time is proportional to
its length whatever the pattern: backwards, to know at each place which nodes of the automaton can
lead to the end, and forwards, taking the best of these. Places are in characters.

Source: R. Cox, "Regular expression matching: the virtual machine approach", 2009.
"""

from typing import NamedTuple

from srt.regex.codepoints import Ranges, contains
from srt.regex.errors import StateLimitError
from srt.regex.parser import parse
from srt.regex.syntax import Anchor, AnchorKind, Chars, Choice, Concat, Literal, Node, Repeat

MAX_GROUP_NODES = 4096
_END = 0  # the node behind the pattern
_GROUP_ENDS = (AnchorKind.GROUP_START, AnchorKind.GROUP_END)


class Span(NamedTuple):
    """One time that the group `name` matched: text[start:end]."""

    name: str
    start: int
    end: int


class _Step(NamedTuple):
    """A node: it reads a character of `ranges` first, if it has any, or needs its anchor to hold;
    `targets` are where it leads to, the best first."""

    targets: tuple[int, ...] = ()
    ranges: Ranges | None = None
    anchor: Anchor | None = None


class GroupPattern:
    """A pattern whose named groups can be found."""

    def __init__(self, pattern: str) -> None:
        """Raises GrammarError for a bad pattern or one of more than MAX_GROUP_NODES nodes."""
        self._steps = [_Step()]
        self._start = self._build(parse(pattern, groups=True), _END)
        self._before: list[list[int]] = [[] for _ in self._steps]  # who leads here without reading
        for node, step in enumerate(self._steps):
            for target in step.targets if step.ranges is None else ():
                self._before[target].append(node)
        anchors = (step.anchor for step in self._steps if step.anchor is not None)
        self._kinds = sorted({a.kind for a in anchors} - {*_GROUP_ENDS}, key=lambda k: k.value)
        self._readers: dict[str, list[tuple[int, int]]] = {}

    @property
    def names(self) -> set[str]:
        """Those of its groups."""
        return {step.anchor.group for step in self._steps if step.anchor is not None} - {""}

    def spans(self, text: str) -> list[Span]:
        """Each time that a group matched, in the order of their beginnings. Where the pattern does
        not match all of the text, `text` is taken for the beginning of a match, and what is told
        are the groups that have ended."""
        for last in (1 << _END, (1 << len(self._steps)) - 1):
            ways = self._ways(text, last)
            if ways[0] >> self._start & 1:
                return self._walk(text, ways)
        return []

    # ---- the automaton -------------------------------------------------------------------------

    def _add(self, step: _Step) -> int:
        if len(self._steps) >= MAX_GROUP_NODES:
            raise StateLimitError(
                f"a pattern with named groups takes at most {MAX_GROUP_NODES:,} states, its "
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
        end."""
        known: dict[tuple[str, int, tuple[bool, ...]], int] = {}
        found = [0] * len(text) + [self._closed(last, text, len(text))]
        for at in range(len(text) - 1, -1, -1):
            key = (text[at], found[at + 1], tuple(_holds(k, text, at) for k in self._kinds))
            ways = known.get(key)
            if ways is None:
                reading = 0
                for node, target in self._reading(text[at]):
                    reading |= (found[at + 1] >> target & 1) << node
                ways = known[key] = self._closed(reading, text, at)
            found[at] = ways
        return found

    def _closed(self, nodes: int, text: str, at: int) -> int:
        """`nodes`, and all that lead to them without reading."""
        waiting = [node for node in range(len(self._steps)) if nodes >> node & 1]
        while waiting:
            for node in self._before[waiting.pop()]:
                if not nodes >> node & 1 and self._passes(node, text, at):
                    nodes |= 1 << node
                    waiting.append(node)
        return nodes

    def _passes(self, node: int, text: str, at: int) -> bool:
        anchor = self._steps[node].anchor
        return anchor is None or _holds(anchor.kind, text, at)

    def _reading(self, char: str) -> list[tuple[int, int]]:
        """The nodes that read `char`, with where they lead to."""
        found = self._readers.get(char)
        if found is None:
            found = self._readers[char] = [
                (node, step.targets[0])
                for node, step in enumerate(self._steps)
                if step.ranges is not None and contains(step.ranges, ord(char))
            ]
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
        """The node that the best way reads the next character with, or that it ends at, and the
        ends of groups before it."""
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
    """Whether an assertion is true of the place `at`."""
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
        case _:
            return True
