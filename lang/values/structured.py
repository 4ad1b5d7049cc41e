"""Values with structure: types and schemas as constraints, and what was written as values.

A gen's variable stays a `str`; its value is `.value`, and the named groups of its regex
are attributes. With `schema=` the variable is the instance itself.
"""

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from lang.backends.sampling import Sampling
from lang.ir import REGEX_BOOL, REGEX_FLOAT, REGEX_INT, REGEX_STR
from lang.values.type_schemas import schema_of_model, schema_of_type
from srt.patterns.groups import GroupPattern

_TYPES: dict[type, tuple[str, tuple[str, ...], Callable[[str], Any]]] = {
    int: (REGEX_INT, (" ", "\n"), lambda text: int(text.strip())),
    float: (REGEX_FLOAT, (" ", "\n"), lambda text: float(text.strip())),
    bool: (REGEX_BOOL, (), lambda text: text == "True"),
    str: (REGEX_STR, (), lambda text: text.strip().strip('"')),
}


class Text(str):
    """What a gen wrote. `value`: the text as its dtype; the regex's named groups are attributes."""

    value: Any
    groups: dict[str, str | None]

    def __new__(cls, text: str, value: Any, groups: dict[str, str | None] | None = None) -> "Text":
        made = super().__new__(cls, text)
        made.value, made.groups = value, groups or {}
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        return str(self), self.value, self.groups

    def __getattr__(self, name: str) -> str | None:
        try:
            return self.__dict__["groups"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(f"the text has no group {name!r}") from None


def is_plain(dtype: Any) -> bool:
    """Whether texts of `dtype` are plain: those of all other types are JSON."""
    return isinstance(dtype, type) and dtype in _TYPES


def typed(sampling: Sampling, dtype: type) -> Sampling:
    """`sampling` constrained to texts of `dtype`."""
    regex, stops, _ = _TYPES[dtype]
    return msgspec.structs.replace(sampling, regex=regex, stop=sampling.stop + stops)


@lru_cache(64)
def named_groups_of(regex: str) -> GroupPattern | None:
    """The pattern that finds the named groups of a regex, if it has any. Raises re.error if it is
    not a regex, and GrammarError if the groups cannot be found in linear time."""
    return GroupPattern(regex) if re.compile(regex).groupindex else None


def converted(dtype: type, text: str) -> Any:
    """The value of a plain `dtype`; None for a text that was cut before its value was complete."""
    try:
        return _TYPES[dtype][2](text)
    except ValueError:
        return None


def schema_of(schema: Any) -> tuple[str, Callable[[str], Any]]:
    """The JSON Schema's text, and a function that makes an instance of a text.

    `schema` is a dict (instances are plain JSON values), a pydantic model, or any type that msgspec
    knows: a Struct, a dataclass, a TypedDict, list[...], a union, an Enum, a date and so on.
    """
    if isinstance(schema, dict):
        return json.dumps(schema), json.loads
    if hasattr(schema, "model_json_schema"):
        return json.dumps(schema_of_model(schema)), schema.model_validate_json
    try:
        text = json.dumps(schema_of_type(schema))
        decoder = msgspec.json.Decoder(schema)
    except TypeError as error:
        kinds = "a dict, a pydantic model or a type that msgspec knows"
        raise TypeError(f"schema must be {kinds}, not {schema!r}: {error}") from None
    return text, decoder.decode


def text_schema_of(dtype: Any) -> tuple[str, Callable[[str], Any]]:
    """`schema_of` for a `dtype`, whose texts carry their values."""
    schema, convert = schema_of(dtype)
    return schema, lambda text: Text(text, convert(text))
