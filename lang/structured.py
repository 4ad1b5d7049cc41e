"""Values with structure: types and schemas as constraints, and what was written as values.

A gen's variable stays a `str`; what is behind it is `.value`, and the named groups of its regex
are attributes. With `schema=` the variable is the instance itself.
"""

import dataclasses
import json
import re
from collections.abc import Callable
from typing import Any

import msgspec

from lang.ir import REGEX_BOOL, REGEX_FLOAT, REGEX_INT, REGEX_STR, Gen
from lang.patterns import Matcher
from lang.sampling import Sampling

_TYPES: dict[type, tuple[str, tuple[str, ...], Callable[[str], Any]]] = {
    int: (REGEX_INT, (" ", "\n"), lambda text: int(text.strip())),
    float: (REGEX_FLOAT, (" ", "\n"), lambda text: float(text.strip())),
    bool: (REGEX_BOOL, (), lambda text: text == "True"),
    str: (REGEX_STR, (), lambda text: text.strip().strip('"')),
}


class Text(str):
    """What a gen wrote. `value` is it as its dtype; the regex's named groups are attributes."""

    value: Any
    groups: dict[str, str | None]

    def __new__(cls, text: str, value: Any, groups: dict[str, str | None] | None = None) -> "Text":
        made = super().__new__(cls, text)
        made.value, made.groups = value, groups or {}
        return made

    def __getattr__(self, name: str) -> str | None:
        try:
            return self.__dict__["groups"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(f"the text has no group {name!r}") from None


def check_dtype(dtype: type | None) -> None:
    """Raise ValueError for a dtype that gens do not know."""
    if dtype is not None and dtype not in _TYPES:
        names = sorted(kind.__name__ for kind in _TYPES)
        raise ValueError(f"dtype must be one of {names}, not {dtype!r}")


def typed(sampling: Sampling, dtype: type) -> Sampling:
    """`sampling` constrained to texts of `dtype`."""
    regex, stops, _ = _TYPES[dtype]
    return msgspec.structs.replace(sampling, regex=regex, stop=sampling.stop + stops)


def named_groups_of(regex: str) -> bool:
    """Whether a regex has named groups. Raises re.error if it is none."""
    return bool(re.compile(regex).groupindex)


async def value_of(gen: Gen, text: str) -> Any:
    """The variable's value for what the model wrote.

    Raises msgspec's or pydantic's validation error for a text that is no instance of the schema.
    """
    if gen.convert is not None:
        return gen.convert(text)
    if gen.dtype is not None:
        return Text(text, _converted(gen.dtype, text))
    if gen.named_groups is not None:
        async with Matcher() as matcher:
            found = await matcher.find(gen.named_groups, text, full=True)
        return Text(text, text, {} if found is None else found[2])
    return text


def _converted(dtype: type, text: str) -> Any:
    """None for a text that was cut before it was a value."""
    try:
        return _TYPES[dtype][2](text)
    except ValueError:
        return None


def schema_of(schema: Any) -> tuple[str, Callable[[str], Any]]:
    """The JSON Schema's text, and what makes an instance of a text.

    `schema` is a dict (instances are plain JSON values), a msgspec Struct, a dataclass or any
    other type that msgspec knows, or a pydantic model.
    """
    if isinstance(schema, dict):
        return json.dumps(schema), json.loads
    if hasattr(schema, "model_json_schema"):
        return json.dumps(schema.model_json_schema()), schema.model_validate_json
    if isinstance(schema, type) and (
        issubclass(schema, msgspec.Struct) or dataclasses.is_dataclass(schema)
    ):
        return _of_msgspec(schema)
    raise TypeError(f"schema must be a dict, Struct, dataclass or pydantic model, not {schema!r}")


def _of_msgspec(schema: Any) -> tuple[str, Callable[[str], Any]]:
    text = json.dumps(msgspec.json.schema(schema))
    return text, lambda written: msgspec.json.decode(written, type=schema)
