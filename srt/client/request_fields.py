"""Makes the requests of `srt.client.generation` of what programs pass to `AsyncClient`.

A part of the ring drops what it cannot decode, so a wrong type must be found on this side of the
socket: here it is a RequestError that names the field, the same with both transports. The structs'
annotations say what a field takes; a struct may be given as a mapping.
"""

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from srt.client.generation import Request, ScoreRequest, TokenizeRequest, scoring_of
from srt.client.media import MediaFile
from srt.wire.errors import RequestError
from srt.wire.messages import ChatMessage, ToolSpec
from srt.wire.sampling import SamplingParams

T = TypeVar("T", bound=msgspec.Struct)
Fields = Mapping[str, Any]
_MIN_INT, _MAX_INT = -(2**63), 2**64 - 1  # of a message
_MISSING = object()
# Texts of JSON objects, which may be given as objects.
_JSON_FIELDS = ("json_schema", "structural_tag", "template_args", "parameters")
_SCORING_TYPES = get_type_hints(scoring_of)
del _SCORING_TYPES["return"]


def checked_request(given: Fields) -> Request:
    """In place of `scoring`, `given` has the arguments of `scoring_of`."""
    if "scoring" in given:
        raise RequestError("unknown field 'scoring'", param="scoring")
    scoring = {
        name: _value(name, kind, given[name])
        for name, kind in _SCORING_TYPES.items()
        if name in given
    }
    request = {name: value for name, value in given.items() if name not in scoring}
    return msgspec.structs.replace(_struct("", Request, request), scoring=scoring_of(**scoring))


def checked_tokenize(given: Fields) -> TokenizeRequest:
    return _struct("", TokenizeRequest, given)


def checked_score(given: Fields) -> ScoreRequest:
    return _struct("", ScoreRequest, given)


@cache
def _types(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return get_type_hints(kind)


def _struct(path: str, kind: type[T], given: Any) -> T:
    """`given`, which `path` names, with every field of its type."""
    if kind is MediaFile and isinstance(given, kind):
        return given  # `media` has checked it, and it may be long
    if kind is ToolSpec and isinstance(given, Mapping) and given.get("type") == "function":
        given = given.get("function", given)  # OpenAI's JSON of a function
    fields = _set_fields(kind, given) if isinstance(given, kind) else given
    if not isinstance(fields, Mapping):
        raise RequestError(f" must be a {kind.__name__} or a dict", at=path)
    prefix = f"{path}." if path and kind is not SamplingParams else ""
    types, made = _types(kind), {}
    for name, value in fields.items():
        if name not in types:
            raise RequestError(f"unknown field {f'{prefix}{name}'!r}", param=f"{prefix}{name}")
        if name in _JSON_FIELDS:
            value = _json_text(value)
        if (kind, name, value) != (ChatMessage, "tool_calls", None):  # as in OpenAI's messages
            made[name] = _value(f"{prefix}{name}", types[name], value)
    try:
        return kind(**made)
    except TypeError as error:  # a field is missing
        raise RequestError(f"{path}: {error}", param=path or None) from None


def _set_fields(kind: type[msgspec.Struct], given: msgspec.Struct) -> Fields:
    """The fields but those that have the default, which needs no check."""
    defaults = _defaults(kind)
    return {
        name: value
        for name, value in msgspec.structs.asdict(given).items()
        if type(value) is not type(default := defaults.get(name, _MISSING)) or value != default
    }


@cache
def _defaults(kind: type[msgspec.Struct]) -> dict[str, Any]:
    fields = msgspec.structs.fields(kind)
    made = {each.name: each.default_factory() for each in fields if callable(each.default_factory)}
    plain = {each.name: each.default for each in fields if each.default is not msgspec.NODEFAULT}
    return made | plain


@cache
def _parts(kind: Any) -> tuple[tuple[Any, ...], Any, Any]:
    """The kinds in an annotation, the one of them that is not plain text, and its items' kind."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    (other,) = [each for each in kinds if each not in (str, NoneType)] or [str]
    return kinds, other, get_args(other)[0] if get_origin(other) in (list, Sequence) else None


def _value(path: str, kind: Any, value: Any) -> Any:
    """`value` as an annotation says: structs, lists of structs and ids are made here."""
    kinds, kind, item = _parts(kind)
    if value is None and NoneType in kinds:
        return None
    if type(value) in kinds and _is_plain(value):
        return value
    if isinstance(value, str) and str in kinds:
        return _leaf(path, str, value)
    if _is_struct(kind):
        return _struct(path, kind, value)
    if kind == Sequence[int]:
        return _ids(path, value)
    if not _is_struct(item) and get_origin(item) is not UnionType:
        return _leaf(path, kind, value)
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise RequestError(" must be a list", at=path)
    return [_value(f"{path}[{i}]", item, each) for i, each in enumerate(value)]


def _is_plain(value: Any) -> bool:
    """Whether it is a number or a text that can be sent as it is; `_leaf` looks at the others."""
    kind = type(value)
    if kind is str:
        return bool(value.isascii())
    if kind is float:
        return math.isfinite(value)
    return kind is bool or (kind is int and _MIN_INT <= value <= _MAX_INT)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _ids(path: str, ids: Any) -> list[int]:
    """Any sequence of integers, arrays included, as a list."""
    try:
        return [int(i) for i in ids]
    except (TypeError, ValueError):
        raise RequestError(" must be a list of integers", at=path) from None


def _leaf(path: str, kind: Any, value: Any) -> Any:
    try:
        value = msgspec.convert(value, kind, str_keys=True)  # of tokens, as JSON has them
        msgspec.msgpack.encode(value)  # no lone surrogates, no integers beyond 64 bits
    except (msgspec.ValidationError, ValueError, OverflowError) as error:
        raise RequestError(f": {error}", at=path) from None
    numbers = value.values() if isinstance(value, dict) else (value,)
    if not all(math.isfinite(n) for n in numbers if isinstance(n, float)):  # JSON cannot write it
        raise RequestError(" must be a finite number", at=path)
    return value


def _json_text(value: Any) -> Any:
    """A JSON object given as a dict, as its text."""
    if not isinstance(value, dict):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return value  # the type check names it
