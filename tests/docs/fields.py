"""The fields of requests with their classes, as the documentation lists them."""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from srt.gateway.wire.fields import Ignored, Kind, OnlyNeutral, rule_sentences


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
    for name, field in sorted(kind.fields.items()):
        if isinstance(field, OnlyNeutral):
            values = ", ".join(msgspec.json.encode(v).decode() for v in (None, *field.neutral))
            yield FieldRow(name, f"only {values}", field.why)
