"""Sampling parameters, with the one constraint of all the fields that may hold one.

Called for every request of /generate and the OpenAI routes. Two constraints, or a rule about
blanks that cannot be enforced, are a RequestError that names the client's fields.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

import msgspec
from msgspec import UNSET

from srt.gateway.constraint.wire import (
    JsonObjectFormat,
    JsonSchemaFormat,
    OpenAISamplingFields,
    ResponseFormat,
    SamplingFields,
    StructuralTagFormat,
    StructuredOutputs,
)
from srt.wire.constraint import ConstraintKind, Whitespace
from srt.wire.errors import RequestError
from srt.wire.sampling import SamplingParams

_ANY_OBJECT = {"type": "object"}
_ANY_JSON = "$$ANY$$"  # SGLang's name for "no schema"
# The kinds of constraint by the fields that hold them: those of all routes, vLLM's older ones, and
# those in its `structured_outputs`.
_OWN: dict[str, ConstraintKind] = {kind: kind for kind in get_args(ConstraintKind)}
_GUIDED: dict[str, ConstraintKind] = {
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "choices",
    "guided_grammar": "ebnf",
}
_OUTPUTS: dict[str, ConstraintKind] = {
    "json": "json_schema",
    "regex": "regex",
    "choice": "choices",
    "grammar": "ebnf",
    "structural_tag": "structural_tag",
}
_FREE_PATTERNS = ("[\\n\\t ]*", "[\n\t ]*", "[ \\n\\t]*", "[ \\n\\t\\r]*", "\\s*")


class Given(NamedTuple):
    """A constraint: the field of SamplingParams, its value, and the client's name for it. JSON is
    an object, or the text that a client has made of it."""

    kind: ConstraintKind
    value: Any
    path: str


def native_constraint(fields: SamplingFields) -> Given | None:
    """The constraint of a `sampling_params`."""
    return _only(_held(fields, _OWN))


def openai_constraint(fields: OpenAISamplingFields) -> Given | None:
    """The constraint of an OpenAI request."""
    given = _held(fields, _OWN)
    if fields.response_format is not None:
        given += _response_format(fields.response_format)
    if fields.structured_outputs is not None:
        given += _structured_outputs(fields.structured_outputs)
    given += _held(fields, _GUIDED)
    return _only(given)


def sampling_of(
    fields: SamplingFields, given: Given | None, after: str, **others: Any
) -> SamplingParams:
    """The ring's parameters: those of `fields`, the constraint, which holds after the text
    `after`, and `others`, which have other names in the body."""
    held: dict[str, Any] = {}
    if given is not None:
        held[given.kind] = given.value if given.kind == "choices" else json_text(given.value)
    values = fields.shared() | {
        "n": fields.n,
        "stop": _as_list(fields.stop),
        "stop_regex": _as_list(fields.stop_regex),
        "no_stop_trim": fields.no_stop_trim,
        "json_whitespace": _whitespace(fields, given),
        "disable_additional_properties": _closing(fields, given),
        "constraint_after": after,
        "constraint_opener": fields.constraint_opener,
    }
    return SamplingParams(**values | held | others)


def _as_list(value: str | list[str]) -> list[str]:
    """One or several strings as a list; "" is none."""
    return value if isinstance(value, list) else [value] if value else []


def _whitespace(fields: SamplingFields, given: Given | None) -> Whitespace:
    """The rule about blanks in JSON; RequestError if the fields disagree or there is no JSON."""
    if not isinstance(fields, OpenAISamplingFields):
        return fields.json_whitespace
    wanted: dict[str, Whitespace] = {}
    if fields.json_whitespace == "free":
        wanted["json_whitespace"] = "free"
    if fields.guided_whitespace_pattern is not None:
        path = "guided_whitespace_pattern"
        wanted[path] = _pattern(fields.guided_whitespace_pattern, path)
    outputs = fields.structured_outputs
    if outputs is not None and outputs.whitespace_pattern is not None:
        path = "structured_outputs.whitespace_pattern"
        wanted[path] = _pattern(outputs.whitespace_pattern, path)
    if outputs is not None and outputs.disable_any_whitespace:
        wanted["structured_outputs.disable_any_whitespace"] = "compact"
    names = list(wanted)
    for name in names[1:]:
        if wanted[name] != wanted[names[0]]:
            raise RequestError(f" contradicts {names[0]}", at=name)
    if given is None and "free" in wanted.values():
        raise RequestError(" needs a constraint", at=names[0])
    return wanted[names[0]] if names else "compact"


def _closing(fields: SamplingFields, given: Given | None) -> bool | None:
    """Whether objects are closed; RequestError if the fields disagree, or if there is nothing that
    could have objects: neither a constraint nor tools, of which some are free."""
    name, own = "disable_additional_properties", fields.disable_additional_properties
    outputs = fields.structured_outputs if isinstance(fields, OpenAISamplingFields) else None
    inner = None if outputs is None else outputs.disable_additional_properties
    path = name if inner is None else f"structured_outputs.{name}"
    if own is not None and inner not in (None, own):
        raise RequestError(f" contradicts {name}", at=path)
    closes = inner if own is None else own
    if given is None and closes:
        if getattr(fields, "tools", None):
            return None
        raise RequestError(" needs a constraint", at=path if own is None else name)
    return closes


def _pattern(pattern: str, path: str) -> Whitespace:
    if pattern == "":
        return "compact"
    if pattern in _FREE_PATTERNS:
        return "free"
    reason = 'is not supported with this value: JSON has no blanks ("") or any ("[\\n\\t ]*")'
    raise RequestError(f" {reason}", at=path)


def _response_format(form: ResponseFormat) -> list[Given]:
    if isinstance(form, JsonObjectFormat):
        if form.schema is UNSET:
            return [Given("json_schema", _ANY_OBJECT, "response_format")]
        return [Given("json_schema", form.schema, "response_format.schema")]
    if isinstance(form, JsonSchemaFormat):
        schema = form.json_schema.schema
        if form.json_schema.strict and isinstance(schema, dict):
            schema = {"x-closed": True, **schema}
        return [Given("json_schema", schema, "response_format.json_schema.schema")]
    if isinstance(form, StructuralTagFormat):
        parts = msgspec.structs.asdict(form)
        tag = {name: value for name, value in parts.items() if value is not UNSET}
        return [Given("structural_tag", {"type": "structural_tag", **tag}, "response_format")]
    return []


def _structured_outputs(outputs: StructuredOutputs) -> list[Given]:
    path = "structured_outputs."
    given = _held(outputs, _OUTPUTS, path)
    if outputs.json_object:
        given.append(Given("json_schema", _ANY_OBJECT, path + "json_object"))
    return given


def _held(
    fields: msgspec.Struct, kinds: Mapping[str, ConstraintKind], path: str = ""
) -> list[Given]:
    """The constraints in those of `kinds` that are given: that are neither "" nor None."""
    given = []
    for name, kind in kinds.items():
        value = getattr(fields, name)
        if value is not None and value != "":
            value = {} if kind == "json_schema" and value == _ANY_JSON else value
            given.append(Given(kind, value, path + name))
    return given


def _only(given: list[Given]) -> Given | None:
    for one in given[1:]:
        raise RequestError(f" cannot be combined with {given[0].path}", at=one.path)
    return given[0] if given else None


def json_text(value: Any) -> str:
    """A JSON value as text; text is unchanged."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
