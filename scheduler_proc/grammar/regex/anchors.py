r"""End assertions, resolved: an NFA without them that accepts the same texts.

`\Z`, `$` and multi-line `$` say what the rest of the text may be: "", {"", "\n"}, or "" and all
that starts with a newline. Each of these sets contains the one before, so what a path through
the NFA still owes is one of them, the strictest; nodes are copied per debt, as far as reachable.
Start assertions (`^`, `\A`) look back and are left to the subset construction, which knows.
"""

from scheduler_proc.grammar.regex.nfa import ACCEPT, NFA
from srt.patterns.tree import AnchorKind

NEWLINE_MASK = 1 << 0x0A

_FREE = 0
_DEBTS = {AnchorKind.LINE_END: 1, AnchorKind.FINAL_END: 2, AnchorKind.END: 3}
# What is owed once a newline has been read; with debt 3 nothing may be read.
_AFTER_NEWLINE = {1: _FREE, 2: 3}

_Place = tuple[int, int]  # node of the original, debt


def resolve_end_anchors(nfa: NFA) -> NFA:
    """An equivalent NFA without end assertions; `nfa` itself if it has none."""
    if not any(kind in _DEBTS for kind in nfa.anchors.values()):
        return nfa
    return _Resolver(nfa).resolve()


class _Resolver:
    def __init__(self, nfa: NFA) -> None:
        self._nfa = nfa
        self._copy = NFA()
        self._known: dict[_Place, int] = {(ACCEPT, debt): ACCEPT for debt in range(4)}
        self._todo: list[_Place] = []

    def resolve(self) -> NFA:
        self._copy.start = self._node((self._nfa.start, _FREE))
        while self._todo:
            self._expand(self._todo.pop())
        return self._copy

    def _node(self, place: _Place) -> int:
        if place not in self._known:
            self._known[place] = self._copy.add([], [])
            self._todo.append(place)
        return self._known[place]

    def _expand(self, place: _Place) -> None:
        node, debt = place
        copy = self._known[place]
        kind = self._nfa.anchors.get(node)
        if kind in _DEBTS:
            debt = max(debt, _DEBTS[kind])
        elif kind is not None:
            self._copy.anchors[copy] = kind
        self._copy.empty[copy] = [self._node((to, debt)) for to in self._nfa.empty[node]]
        for mask, to in self._nfa.edges[node]:
            if debt == _FREE:
                self._copy.edges[copy].append((mask, self._node((to, _FREE))))
            elif mask & NEWLINE_MASK and debt in _AFTER_NEWLINE:
                after = self._node((to, _AFTER_NEWLINE[debt]))
                self._copy.edges[copy].append((NEWLINE_MASK, after))
