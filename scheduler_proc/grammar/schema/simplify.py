"""Replace what no back end can print: `contains`, `uniqueItems`, bounds on the number of members.

Called for each shape on its way to the output. Each is spread out into finitely many simpler
shapes where that is exact, and refused by name and place where it is not.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, permutations

from scheduler_proc.grammar.schema.document import refuse
from scheduler_proc.grammar.schema.normalise import Normaliser
from scheduler_proc.grammar.schema.shapes import (
    Arrays,
    Contains,
    Literal,
    Need,
    Numbers,
    Objects,
    Refusal,
    Shape,
    Strings,
    Values,
    both,
    literal_of,
)

MAX_SPREAD = 256  # alternatives that one shape may be spread out into
_MAX_UNIQUE_VALUES = 6
_MAX_UNIQUE_ARRAYS = 2000
_MAX_SLOTS = 24


class Simplifier:
    """Makes the shapes of one normaliser printable."""

    def __init__(self, normaliser: Normaliser) -> None:
        self._normaliser = normaliser
        self._false: Need = ((normaliser.document.add(False, 0), True),)

    def printable(self, shape: Shape) -> list[Shape]:
        """Shapes without `contains`, `unique` and refusals, whose union is `shape`.

        Objects with bounds on the number of members have no optional listed properties. Raises
        GrammarError naming the keyword that cannot be printed.
        """
        match shape:
            case Values():
                return [shape]
            case Numbers():
                return self._numbers(shape)
            case Strings():
                return self._strings(shape)
            case Arrays():
                return self._arrays(shape)
            case Objects():
                _check_refusals(shape.refusals)
                return self._objects(shape)

    def _numbers(self, shape: Numbers) -> list[Shape]:
        if shape.integer and shape.refusals:
            return []  # an integer, and no integer
        _check_refusals((*shape.refusals, *(negated.refusal for negated in shape.not_multiples)))
        return [shape]

    def _strings(self, shape: Strings) -> list[Shape]:
        _check_refusals((*shape.refusals, *(negated.refusal for negated in shape.without)))
        return [shape]

    # ---- Arrays ----

    def _arrays(self, shape: Arrays) -> list[Shape]:
        found: list[Arrays] = [shape]
        for wanted in shape.contains:
            if wanted.least == 0 and wanted.most is None:
                continue
            found = [part for array in found for part in self._contain(array, wanted)]
            _check_spread(len(found), "contains", wanted.pointer)
        printable: list[Shape] = []
        for array in found:
            printable += self._unique(replace(array, contains=()))
        _check_refusals(shape.refusals)
        return printable

    def _contain(self, shape: Arrays, wanted: Contains) -> Iterator[Arrays]:
        yes: Need = (wanted.atom,)
        no: Need = ((wanted.atom[0], not wanted.atom[1]),)
        if wanted.most is not None and wanted.most < wanted.least:
            return
        if wanted.most == 0:
            yield replace(
                shape,
                prefix=tuple(both(need, no) for need in shape.prefix),
                rest=both(shape.rest, no),
            )
            return
        slots = self._slots(shape)
        if not shape.prefix and self._normaliser.is_empty(both(shape.rest, no)):
            yield from _counted(shape, wanted.least, wanted.most)
        elif slots is None or slots > _MAX_SLOTS:
            raise refuse(wanted.pointer, "contains is only supported in arrays with few items")
        elif wanted.most is None:
            for chosen in combinations(range(slots), wanted.least):
                yield _at_slots(shape, dict.fromkeys(chosen, yes))
        else:
            yield from self._exactly(shape, wanted, slots)

    def _exactly(self, shape: Arrays, wanted: Contains, slots: int) -> Iterator[Arrays]:
        yes: Need = (wanted.atom,)
        no: Need = ((wanted.atom[0], not wanted.atom[1]),)
        if 2**slots > MAX_SPREAD:
            raise refuse(wanted.pointer, "maxContains is only supported in arrays with few items")
        most = slots if wanted.most is None else min(slots, wanted.most)
        for number in range(wanted.least, most + 1):
            for chosen in combinations(range(slots), number):
                needs = {i: yes if i in chosen else no for i in range(slots)}
                least = max(chosen, default=-1) + 1
                part = _at_slots(shape, needs)
                yield replace(part, least=max(shape.least, least))

    def _slots(self, shape: Arrays) -> int | None:
        """How many items there can be at most; None if that has no bound."""
        if shape.most is not None and shape.most <= _MAX_SLOTS:
            return shape.most
        for i, need in enumerate((*shape.prefix, shape.rest)):
            if self._normaliser.is_empty(need):
                return i if shape.most is None else min(i, shape.most)
        return shape.most

    def _unique(self, shape: Arrays) -> list[Shape]:
        slots = self._slots(shape)
        if not shape.unique or slots in (0, 1):
            return [replace(shape, unique=None)]
        if slots is not None and slots <= _MAX_SLOTS and self._all_disjoint(shape, slots):
            return [replace(shape, unique=None)]
        literals = self._finite(shape)
        if literals is None:
            reason = "uniqueItems is only supported for few possible items"
            raise refuse(shape.unique, reason)
        return [Values(tuple(self._arrangements(shape, literals)))]

    def _all_disjoint(self, shape: Arrays, slots: int) -> bool:
        pairs = combinations([shape.item(i) for i in range(slots)], 2)
        return all(self._normaliser.is_empty(both(a, b)) for a, b in pairs)

    def _finite(self, shape: Arrays) -> list[Literal] | None:
        """All values that an item can have, if they are few."""
        literals: dict[Literal, None] = {}
        for need in (*shape.prefix, shape.rest):
            for part in self._normaliser.shapes(need):
                if not isinstance(part, Values):
                    return None
                literals.update(dict.fromkeys(part.literals))
        return list(literals) if len(literals) <= _MAX_UNIQUE_VALUES else None

    def _arrangements(self, shape: Arrays, literals: list[Literal]) -> Iterator[Literal]:
        most = len(literals) if shape.most is None else min(shape.most, len(literals))
        found = 0
        for size in range(shape.least, most + 1):
            for chosen in permutations(literals, size):
                array = literal_of([literal.value for literal in chosen])
                if self._normaliser.judge.accepts_shape(replace(shape, refusals=()), array):
                    found += 1
                    _check_spread(found, "uniqueItems", str(shape.unique), _MAX_UNIQUE_ARRAYS)
                    yield array

    # ---- Objects ----

    def _objects(self, shape: Objects) -> list[Shape]:
        """Decide the bounds on the number of members by choosing which optional ones there are."""
        shape = self._listed_required(shape)
        required = set(shape.required)
        empty = {name for name, need in shape.properties if self._normaliser.is_empty(need)}
        optional = [name for name, _ in shape.properties if name not in required | empty]
        open_ended = not self._is_closed(shape)
        least, most = max(0, shape.least - len(required)), shape.most
        if most is not None and not open_ended and most >= len(required) + len(optional):
            most = None
        shape = replace(shape, least=shape.least if least else 0, most=most)
        if open_ended and least > 1:  # names that are not listed may come again
            place = f"{shape.limits_at}/minProperties"
            raise refuse(place, "minProperties is only supported above 1 for listed properties")
        if (not least and most is None) or (not optional and open_ended):
            return [shape]
        if least > len(optional) and not open_ended:
            return []
        return list(self._chosen(shape, optional, least, open_ended))

    def _listed_required(self, shape: Objects) -> Objects:
        listed = {name for name, _ in shape.properties}
        extra = tuple((n, shape.unlisted(n)) for n in shape.required if n not in listed)
        return replace(shape, properties=(*shape.properties, *extra))

    def _is_closed(self, shape: Objects) -> bool:
        needs = [shape.rest, *(need for _, need in shape.patterns)]
        return all(self._normaliser.is_empty(need) for need in needs)

    def _chosen(
        self, shape: Objects, optional: list[str], least: int, open_ended: bool
    ) -> Iterator[Shape]:
        if least == 1 and shape.most is None:
            _check_spread(len(optional), "minProperties", f"{shape.limits_at}/minProperties")
            yield from self._first_present(shape, optional, open_ended)
            return
        keyword = "minProperties" if least else "maxProperties"
        _check_spread(2 ** len(optional), keyword, f"{shape.limits_at}/{keyword}")
        for number in range(len(optional) + 1):
            for chosen in combinations(optional, number):
                absent = set(optional) - set(chosen)
                count = len(shape.required) + number
                if shape.most is not None and count > shape.most:
                    continue
                if count >= shape.least or open_ended:
                    yield self._with(shape, chosen, absent, counted=open_ended)

    def _first_present(
        self, shape: Objects, optional: list[str], open_ended: bool
    ) -> Iterator[Shape]:
        for i, name in enumerate(optional):
            yield self._with(shape, (name,), set(optional[:i]), counted=False)
        if open_ended:
            yield self._with(shape, (), set(optional), counted=True)

    def _with(
        self, shape: Objects, present: tuple[str, ...], absent: set[str], counted: bool
    ) -> Objects:
        return replace(
            shape,
            properties=tuple(
                (name, self._false if name in absent else need) for name, need in shape.properties
            ),
            required=(*shape.required, *present),
            least=shape.least if counted else 0,
            most=shape.most if counted else None,
        )


def _counted(shape: Arrays, least: int, most: int | None) -> Iterator[Arrays]:
    """All items are such as are wanted: their number is the array's."""
    high = shape.most if most is None else most if shape.most is None else min(most, shape.most)
    low = max(shape.least, least)
    if high is None or low <= high:
        yield replace(shape, least=low, most=high)


def _at_slots(shape: Arrays, needs: dict[int, Need]) -> Arrays:
    """The arrays whose items at some indices meet more needs; those slots must be there unless
    the caller says otherwise."""
    count = max((*needs, len(shape.prefix) - 1)) + 1 if needs else len(shape.prefix)
    prefix = tuple(both(shape.item(i), needs.get(i, ())) for i in range(count))
    return replace(shape, prefix=prefix, least=max(shape.least, max(needs, default=-1) + 1))


def _check_refusals(refusals: tuple[Refusal, ...]) -> None:
    for refusal in refusals:
        raise refuse(refusal.pointer, f"{refusal.keyword}: {refusal.reason}")


def _check_spread(number: int, keyword: str, pointer: str, limit: int = MAX_SPREAD) -> None:
    if number > limit:
        raise refuse(pointer, f"{keyword} would take more than {limit} alternatives")
