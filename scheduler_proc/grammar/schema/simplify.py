"""Replace what JSON Schema's core cannot say: `contains`, `uniqueItems`, bounds on the number of
members, names that match several patterns.

Called for each shape on its way to the output. Each is spread out into a few simpler shapes, or
becomes a shape that only a grammar says (`ItemPaths`, `Distinct`), or is refused by name and place
where neither is exact.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise, permutations

from scheduler_proc.grammar.schema.document import refuse
from scheduler_proc.grammar.schema.judge import check_refusals
from scheduler_proc.grammar.schema.normalise import Normaliser
from scheduler_proc.grammar.schema.pattern import head
from scheduler_proc.grammar.schema.shapes import (
    Arrays,
    Distinct,
    ItemPaths,
    JsonLiteral,
    Need,
    Numbers,
    Objects,
    Shape,
    Strings,
    Values,
    at_most,
    both,
    literal_of,
    meet_strings,
)
from scheduler_proc.grammar.schema.terminal import is_never_met

MAX_SPREAD = 256  # alternatives that one shape may be spread out into
_MAX_UNIQUE = 63  # the bits of a parameter of llguidance's that it can test
_MAX_COMPARED = 2000  # what sets of strings may cost: each the square of its number of patterns
_MAX_ARRANGED = 5
_MAX_ARRANGEMENTS = 2000
_MAX_SLOTS = 24
_MAX_ARCS = 400


class Simplifier:
    """Makes the shapes of one normaliser printable."""

    def __init__(self, normaliser: Normaliser) -> None:
        self._normaliser = normaliser
        self._never: dict[Strings, bool] = {}  # answers that the back end gave
        self._compared = 0
        self._false: Need = ((normaliser.document.add(False, 0), True),)

    def printable(self, shape: Shape) -> list[Shape]:
        """Shapes without `contains`, `unique` and refusals, whose union is `shape`.

        Patterns of objects have no name in common. Raises GrammarError naming the keyword that
        cannot be printed.
        """
        match shape:
            case Numbers():
                check_refusals(tuple(refusal for _, refusal in shape.not_multiples))
                return [shape]
            case Strings() if is_never_met(shape):
                return []
            case Arrays():
                return self._arrays(shape)
            case Objects():
                check_refusals(shape.refusals)
                found = self._with_some(self._apart(shape))
                return [part for each in found for part in self._objects(each)]
            case _:
                return [shape]

    # ---- Arrays ----

    def _arrays(self, shape: Arrays) -> list[Shape]:
        check_refusals(shape.refusals)
        if any(wanted.most is not None and wanted.most < wanted.least for wanted in shape.contains):
            return []
        slots = self._slots(shape)
        wanted = tuple(x for x in shape.contains if x.least or x.most is not None)
        shape = replace(shape, contains=wanted, most=slots)
        if not shape.unique or slots in (0, 1):
            return self._paths(replace(shape, unique=None))
        if slots is not None and slots <= _MAX_SLOTS and self._all_disjoint(shape, slots):
            return self._paths(replace(shape, unique=None))
        return self._unique(shape)

    def _paths(self, shape: Arrays) -> list[Shape]:
        """The array unchanged, or with its `contains` counted along the items."""
        if not shape.contains:
            return [shape]
        whole = self._of_all(shape)
        if whole is not None:
            return whole
        known = shape.most if shape.most is not None else max(len(shape.prefix), shape.least)
        states: dict[tuple[int, ...], int] = {(0,) * (1 + len(shape.contains)): 0}
        found: list[tuple[int, Need, int]] = []
        for state in (pending := list(states)):
            if shape.most is not None and state[0] == shape.most:
                continue
            for need, counts in self._steps(shape, state):
                after = (min(state[0] + 1, known), *counts)
                if after not in states:
                    states[after] = len(states)
                    pending.append(after)
                found.append((states[state], need, states[after]))
            if len(found) > _MAX_ARCS:
                reason = f"contains would take more than {_MAX_ARCS} steps: give maxItems"
                raise refuse(shape.contains[0].pointer, reason)
        accepting = frozenset(
            number
            for state, number in states.items()
            if state[0] >= shape.least
            and all(c >= x.least for c, x in zip(state[1:], shape.contains, strict=True))
        )
        return [ItemPaths(tuple(found), accepting)]

    def _of_all(self, shape: Arrays) -> list[Shape] | None:
        """The shapes if a `contains` must hold for no item, or holds for all; otherwise None."""
        for i, wanted in enumerate(shape.contains):
            others = (*shape.contains[:i], *shape.contains[i + 1 :])
            no: Need = ((wanted.atom[0], not wanted.atom[1]),)
            if wanted.most == 0:
                prefix = tuple(both(need, no) for need in shape.prefix)
                rest = both(shape.rest, no)
                return self._paths(replace(shape, prefix=prefix, rest=rest, contains=others))
            needs = {*shape.prefix, shape.rest}
            if all(self._normaliser.is_empty(both(need, no)) for need in needs):
                least, most = max(shape.least, wanted.least), at_most(shape.most, wanted.most)
                if most is not None and least > most:
                    return []
                return self._paths(replace(shape, least=least, most=most, contains=others))
        return None

    def _steps(
        self, shape: Arrays, state: tuple[int, ...]
    ) -> Iterator[tuple[Need, tuple[int, ...]]]:
        """What the next item can be, and the counts of `contains` after it."""
        options: list[tuple[Need, tuple[int, ...]]] = [(shape.item(state[0]), ())]
        for count, wanted in zip(state[1:], shape.contains, strict=True):
            if wanted.most is None and count == wanted.least:  # nothing depends on it any more
                options = [(need, (*counts, count)) for need, counts in options]
                continue
            yes: Need = (wanted.atom,)
            # Without an upper bound those that are counted need only be some of those there are.
            no: Need = () if wanted.most is None else ((wanted.atom[0], not wanted.atom[1]),)
            more = [] if count == wanted.most else [(yes, count + 1)]
            options = [
                (both(need, part), (*counts, number))
                for need, counts in options
                for part, number in ((no, count), *more)
            ]
        return iter(options)

    def _slots(self, shape: Arrays) -> int | None:
        """How many items there can be at most; None if that has no bound."""
        for i, need in enumerate((*shape.prefix, shape.rest)):
            if shape.most is not None and i >= shape.most:
                break
            if self._normaliser.is_empty(need):
                return i
        return shape.most

    def _unique(self, shape: Arrays) -> list[Shape]:
        literals = self._finite(shape)
        if literals is None:
            reason = f"uniqueItems is only supported for up to {_MAX_UNIQUE} possible items"
            raise refuse(str(shape.unique), reason)
        if len(literals) <= _MAX_ARRANGED:
            return [Values(tuple(self._arrangements(shape, literals)))]
        accepts = self._normaliser.judge.accepts
        counted, share = 0, (0, len(literals))
        if shape.contains:
            if len(shape.contains) > 1:
                reason = "contains is supported once beside uniqueItems"
                raise refuse(shape.contains[1].pointer, reason)
            wanted = shape.contains[0]
            literals.sort(key=lambda literal: not accepts((wanted.atom,), literal))
            counted = sum(accepts((wanted.atom,), literal) for literal in literals)
            share = (wanted.least, counted if wanted.most is None else wanted.most)
        numbers = {
            need: tuple(i for i, literal in enumerate(literals) if accepts(need, literal))
            for need in (*shape.prefix, shape.rest)
        }
        slots = tuple(numbers[need] for need in shape.prefix)
        most = len(literals) if shape.most is None else min(shape.most, len(literals))
        if shape.least > most or share[0] > counted:
            return []
        return [
            Distinct(tuple(literals), slots, numbers[shape.rest], shape.least, most, counted, share)
        ]

    def _all_disjoint(self, shape: Arrays, slots: int) -> bool:
        pairs = combinations([shape.item(i) for i in range(slots)], 2)
        return all(self._normaliser.is_empty(both(a, b)) for a, b in pairs)

    def _finite(self, shape: Arrays) -> list[JsonLiteral] | None:
        """All values that an item can have, if they are few."""
        literals: dict[JsonLiteral, None] = {}
        for need in (*shape.prefix, shape.rest):
            for part in self._normaliser.shapes(need):
                values = _few(part)
                if values is None:
                    return None
                literals.update(dict.fromkeys(values))
        return list(literals) if len(literals) <= _MAX_UNIQUE else None

    def _arrangements(self, shape: Arrays, literals: list[JsonLiteral]) -> Iterator[JsonLiteral]:
        most = len(literals) if shape.most is None else min(shape.most, len(literals))
        found = 0
        for size in range(shape.least, most + 1):
            for chosen in permutations(literals, size):
                array = literal_of([literal.value for literal in chosen])
                if self._normaliser.judge.accepts_shape(shape, array):
                    found += 1
                    _check_spread(found, "uniqueItems", str(shape.unique), _MAX_ARRANGEMENTS)
                    yield array

    # ---- Objects ----

    def _objects(self, shape: Objects) -> list[Shape]:
        """The object without bounds on the number of members that follow from the rest."""
        shape = self._listed_required(shape)
        required = set(shape.required)
        empty = {name for name, need in shape.properties if self._normaliser.is_empty(need)}
        optional = [name for name, _ in shape.properties if name not in required | empty]
        open_ended = not self._is_closed(shape)
        least, most = max(0, shape.least - len(required)), shape.most
        if most is not None and not open_ended and most >= len(required) + len(optional):
            most = None
        if open_ended and least > 1:  # names that are not listed may come again
            place = f"{shape.limits_at}/minProperties"
            raise refuse(place, "minProperties is only supported above 1 for listed properties")
        if least > len(optional) and not open_ended:
            return []
        if most is not None and most < len(required):
            return []
        return [replace(shape, least=shape.least if least else 0, most=most)]

    def _with_some(self, shape: Objects) -> list[Objects]:
        """For each set of names, require one of them: a listed one, or one left in `some`."""
        found = [replace(shape, some=())]
        for names, place in shape.some:
            split: list[Objects] = []
            for part in found:
                fitting = [name for name, _ in part.properties if names.matches(name)]
                if any(names.matches(name) for name in part.required):
                    split.append(part)
                    continue
                split += [replace(part, required=(*part.required, name)) for name in fitting]
                if not self._is_closed(part):
                    split.append(replace(part, some=(*part.some, (names, place))))
            _check_spread(len(split), place.rpartition("/")[2], place)
            found = split
        return found

    def _apart(self, shape: Objects) -> Objects:
        """The same object, with patterns such that each name matches at most one."""
        place = f"{shape.limits_at}/patternProperties"
        names = [names for names, _ in shape.patterns]
        if all(each == Strings(patterns=each.patterns[:1]) for each in names):
            heads = sorted((head(each.patterns[0]), i) for i, each in enumerate(names))
            pairs = ((i, j) for (a, i), (b, j) in combinations(heads, 2) if b.startswith(a))
            if not any(self._pieces(names[i], [names[j]], place) for i, j in pairs):
                return shape
        parts: list[tuple[Strings, Need | None]] = [(Strings(), None)]
        for each, need in shape.patterns:
            inside: list[tuple[Strings, Need | None]] = []
            outside: list[tuple[Strings, Need | None]] = []
            for part, known in parts:
                met = self._pieces(part, [each], place)
                inside += [(piece, need if known is None else both(known, need)) for piece in met]
                left = self._pieces(part, each.others(), place) if met else [part]
                outside += [(piece, known) for piece in left]
            parts = inside + outside
            _check_spread(len(parts), "patternProperties", place)
        found = tuple((part, shape.rest if need is None else need) for part, need in parts)
        return replace(shape, patterns=found, rest=self._false)

    def _pieces(self, strings: Strings, others: list[Strings], place: str) -> list[Strings]:
        """The parts of a set that lie in each of `others`, without empty ones."""
        found = []
        for piece in (meet_strings(strings, other) for other in others):
            if piece is None or _are_apart(piece):
                continue
            if piece not in self._never:
                self._compared += len(piece.patterns + piece.without) ** 2
                if self._compared > _MAX_COMPARED:
                    raise refuse(place, "has patterns that take too many comparisons")
                self._never[piece] = is_never_met(piece)
            found += [] if self._never[piece] else [piece]
        return found

    def _listed_required(self, shape: Objects) -> Objects:
        listed = {name for name, _ in shape.properties}
        extra = tuple((n, shape.unlisted(n)) for n in shape.required if n not in listed)
        return replace(shape, properties=(*shape.properties, *extra))

    def _is_closed(self, shape: Objects) -> bool:
        needs = [shape.rest, *(need for _, need in shape.patterns)]
        return all(self._normaliser.is_empty(need) for need in needs)


def _are_apart(strings: Strings) -> bool:
    """Whether two patterns of a set begin with different characters."""
    heads = sorted(head(pattern) for pattern in strings.patterns)
    return any(not b.startswith(a) for a, b in pairwise(heads))


def _few(shape: Shape) -> tuple[JsonLiteral, ...] | None:
    """The values of a shape, if they are few."""
    if isinstance(shape, Values):
        return shape.literals
    if not isinstance(shape, Numbers) or not shape.integer or not shape.low or not shape.high:
        return None
    values = range(int(shape.low[0]), int(shape.high[0]) + 1, int(shape.multiple or 1))
    if len(values) > _MAX_UNIQUE or shape.not_multiples:
        return None
    return tuple(map(literal_of, values))


def _check_spread(number: int, keyword: str, pointer: str, limit: int = MAX_SPREAD) -> None:
    if number > limit:
        raise refuse(pointer, f"{keyword} would take more than {limit} alternatives")
