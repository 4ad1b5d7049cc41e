"""The fields of requests with their classes, as the documentation lists them."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from srt.gateway.wire.fields import (
    CHAT,
    COMPLETION,
    RESPONSES,
    Foreign,
    Hint,
    Ignored,
    Kind,
    Members,
    OnlyNeutral,
    Refused,
    Renamed,
    rule_sentences,
)


class FieldRow(NamedTuple):
    """One line of the documentation."""

    name: str
    treatment: str
    note: str


def describe(struct: type[msgspec.Struct], kind: Kind) -> Iterator[FieldRow]:
    """Every field of a kind of request: honoured ones from `struct`, then the others by class."""
    _, components = msgspec.json.schema_components([struct])
    rules = rule_sentences(struct)
    for name, schema in components[struct.__name__]["properties"].items():
        yield FieldRow(name, "honoured", schema.get("description", "") + rules.get(name, ""))
    for name, field in sorted(kind.fields.items()):
        if isinstance(field, Ignored):
            yield FieldRow(name, "accepted", field.why)
        if isinstance(field, Hint):
            yield FieldRow(name, *_foreign(field))
    for name, field in sorted(kind.fields.items()):
        if isinstance(field, OnlyNeutral):
            yield FieldRow(name, f"only {_listed((None, *field.neutral))}", field.why)


def _listed(values: tuple[object, ...]) -> str:
    return ", ".join(msgspec.json.encode(value).decode() for value in values)


def _foreign(field: Foreign) -> tuple[str, str]:
    """What becomes of another server's field, and a note."""
    if isinstance(field, Renamed):
        values = "; ".join(
            f"{_listed((theirs,))} is {_listed((ours,))}" for theirs, ours in field.meant
        )
        return f"honoured as {field.to}", values
    if isinstance(field, Members):
        return "honoured", field.why
    neutral = "".join(f"; {_listed((value,))} asks for nothing" for value in field.neutral)
    if isinstance(field, Refused):
        return "refused", f"use {field.instead}{neutral}"
    return "ignored and named", field.why + neutral


# Where requests have objects with fields of other servers, as the documentation calls these places.
_PLACES: dict[str, Mapping[str, Foreign]] = {
    "chats": CHAT.others,
    "completions": COMPLETION.others,
    "responses": RESPONSES.others,
    "messages": CHAT.nested["messages"].others,
    "tools": CHAT.nested["tools"].others,
}


def foreign() -> Iterator[tuple[str, str, str, str]]:
    """Every field of another server, the places where it is known, and what becomes of it there."""
    names = dict.fromkeys(name for others in _PLACES.values() for name in others)
    for name in sorted(names):
        found: dict[tuple[str, str], list[str]] = {}
        for place, others in _PLACES.items():
            if name in others:
                found.setdefault(_foreign(others[name]), []).append(place)
        for (treatment, note), places in found.items():
            yield name, ", ".join(places), treatment, note
