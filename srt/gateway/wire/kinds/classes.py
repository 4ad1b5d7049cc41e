"""The classes of request fields, and the tables of them that a kind of JSON object has."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from srt.wire.sampling import rules_of

Path = tuple[str | int, ...]  # names of fields and indices of lists, from the body on
Meanings = tuple[tuple[Any, Any], ...]  # values of other servers, each with what it means here


class Ignored(NamedTuple):
    """A field whose value cannot matter; `why` says so in the documentation."""

    why: str


class OnlyNeutral(NamedTuple):
    """A field that is not supported; `neutral` are the values that mean "not used"."""

    neutral: tuple[Any, ...]
    why: str


class Hint(NamedTuple):
    """A field without effect that no answer depends on being honoured: the answer's header names
    it, unless its value is one of `neutral`, which ask for what is done anyway. `is_always_taken`:
    also where fields without effect are refused."""

    why: str
    neutral: tuple[Any, ...] = ()
    is_always_taken: bool = False


class Renamed(NamedTuple):
    """Another server's name of the field `to`. `meant`: values that mean another one there."""

    to: str
    meant: Meanings = ()


class Members(NamedTuple):
    """An object of another server whose members are fields of the request here."""

    why: str


class Refused(NamedTuple):
    """Another server's field that constrains or bounds an answer and is not supported under this
    name; `instead` says what to send. The values that are `neutral` ask for nothing."""

    instead: str
    neutral: tuple[Any, ...] = ()


FieldClass = Ignored | OnlyNeutral | Hint
Foreign = Hint | Renamed | Members | Refused


class Kind(NamedTuple):
    """The fields of one kind of JSON object that are not honoured, its nested kinds, and those
    fields for which null is a value of its own.

    Where fields that are unknown may be left out, `honoured` are those of the object's struct, and
    `others` the ones that other servers have; elsewhere both are empty. `meant` has, by field, the
    values of other servers.
    """

    fields: Mapping[str, FieldClass]
    nested: "Mapping[str, Kind]" = MappingProxyType({})
    with_null: frozenset[str] = frozenset()
    honoured: frozenset[str] = frozenset()
    others: Mapping[str, Foreign] = MappingProxyType({})
    meant: Mapping[str, Meanings] = MappingProxyType({})


NO_EXTRAS = Kind({})


def names_of(*structs: type[msgspec.Struct]) -> frozenset[str]:
    """The fields of all of these structs, by their names in JSON."""
    return frozenset(field.encode_name for s in structs for field in msgspec.structs.fields(s))


def same(a: Any, b: Any) -> bool:
    """Whether two JSON values are equal; true is not 1."""
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


def rule_sentences(struct: type[msgspec.Struct]) -> dict[str, str]:
    """What the rules of a struct's fields say, to follow their descriptions."""
    rules: dict[str, str] = {}
    for name, rule in rules_of(struct):
        rules[name] = f"{rules.get(name, '')} {rule.words[0].upper()}{rule.words[1:]}."
    return rules
