"""How the values of a type are written, for `gen(type=...)` and for annotated functions.

Numbers, times and the like are bare text, which a regex constrains; a type with few values, each of
which has a text, is a choice; everything else is JSON. Whatever is written is validated.
"""

from collections.abc import Callable, Mapping
from enum import EnumMeta
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from lang.values.predicates import Length, Predicate, searched
from lang.values.structured import schema_of
from lang.values.type_schemas import text_pattern_of
from srt.patterns.write import naturals
from srt.wire.constraint import GrammarError

DIGITS = 18  # of a number whose type has no bound: models may otherwise write digits without end
MAX_MULTIPLES = 1000  # that are written as alternatives
_FLOAT = r"-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,15})?"
_HEX = "[0-9a-f]"
_UUID = f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"
# Types whose texts have no fixed length, and the characters that these may have.
_OPEN = {
    inspect.DecimalType: "-0-9.",
    inspect.TimeType: "-0-9:.Z+",
    inspect.DateTimeType: "-0-9:.TZ+",
    inspect.BytesType: "A-Za-z0-9+/=",
    inspect.ByteArrayType: "A-Za-z0-9+/=",
    inspect.MemoryViewType: "A-Za-z0-9+/=",
}
_BOOLS = {"true": True, "false": False}

Convert = Callable[[str], Any]


class Form(NamedTuple):
    """How a type's values are written: as one of `choices`, which have their values, or as a text
    that `given`, arguments of a gen, and `predicate` constrain, `stop_regex` ends, and `convert`
    reads."""

    convert: Convert
    given: Mapping[str, str] = {}
    predicate: Predicate | None = None
    choices: Mapping[str, Any] | None = None
    stop_regex: str | None = None
    is_text: bool = False


def form_of(kind: Any) -> Form:
    """The form of any type that msgspec knows, or of a pydantic model. Raises TypeError for others,
    and ValueError for limits that no value meets."""
    if isinstance(kind, dict | str):
        raise TypeError(f"type must be a type, not {kind!r}: schema= takes JSON Schemas")
    if hasattr(kind, "model_json_schema"):
        return _json(kind)
    try:
        info = inspect.type_info(kind)
    except TypeError as error:
        raise _unknown(kind, error) from None
    while isinstance(info, inspect.Metadata):
        info = info.type
    match info:
        case inspect.BoolType():
            return _chosen(_BOOLS)
        case inspect.LiteralType(values) if None not in values:
            return _chosen({_text(value): value for value in values}, len(values))
        case inspect.EnumType(cls):
            return _chosen(_members(cls))
        case inspect.StrType():
            return Form(_converter(kind), predicate=_of_str(info), is_text=True)
        case inspect.IntType():
            return _of_int(info, kind)
        case inspect.FloatType():
            return _json(kind) if _is_limited(info) else _open(kind, _FLOAT, "-0-9.")
        case inspect.UUIDType():
            return _bare(kind, _UUID)
    pattern = text_pattern_of(info)
    if pattern is None:
        return _json(kind)
    chars = _OPEN.get(type(info))
    return _bare(kind, pattern) if chars is None else _open(kind, pattern, chars)


def _json(kind: Any) -> Form:
    try:
        schema, convert = schema_of(kind)
    except TypeError as error:
        raise _unknown(kind, error) from None
    return Form(convert, {"json_schema": schema})


def _unknown(kind: Any, error: TypeError) -> TypeError:
    reason = str(error).rpartition("\n")[2].removeprefix("schema must be ")
    known = "a pydantic model or a type that msgspec knows"
    return TypeError(f"type must be {known}, not {kind!r}: {reason}")


def _bare(kind: Any, pattern: str) -> Form:
    return Form(_converter(kind), {"regex": pattern})


def _open(kind: Any, pattern: str, chars: str) -> Form:
    """A value whose text might go on. The model ends it by going on with a character that no such
    value has, where the text is cut: it need not end its turn to end a number."""
    return Form(
        _converter(kind), {"regex": f"({pattern})([^{chars}][\\s\\S]*)?"}, stop_regex=f"[^{chars}]"
    )


def _converter(kind: Any) -> Convert:
    return lambda text: msgspec.convert(text, kind, strict=False)


def _chosen(values: Mapping[str, Any], count: int | None = None) -> Form:
    if count is not None and len(values) < count:
        raise ValueError(f"type: two values of the Literal have the same text: {list(values)}")
    if "" in values:
        raise ValueError("type: a value whose text is empty cannot be chosen")
    return Form(lambda text: values[text], choices=values)


def _members(cls: EnumMeta) -> dict[str, Any]:
    members: list[Any] = list(cls)
    found = {_text(member.value): member for member in members}
    if len(found) < len(members) or not members:
        raise TypeError(f"type: the members of {cls.__name__} do not have a text each")
    return found


def _text(value: Any) -> str:
    """The text of a value, as JSON has it but without quotes."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_limited(info: inspect.IntType | inspect.FloatType) -> bool:
    return any(
        limit is not None for limit in (info.gt, info.ge, info.lt, info.le, info.multiple_of)
    )


def _of_int(info: inspect.IntType, kind: Any) -> Form:
    lows = [info.ge, None if info.gt is None else info.gt + 1]
    highs = [info.le, None if info.lt is None else info.lt - 1]
    low = max((each for each in lows if each is not None), default=None)
    high = min((each for each in highs if each is not None), default=None)
    if info.multiple_of is None:
        pattern = integer_pattern(low, high)
        return _bare(kind, pattern) if has_one_length(low, high) else _open(kind, pattern, "-0-9")
    step = info.multiple_of
    if low is None or high is None or (high - low) // step > MAX_MULTIPLES:
        return _json(kind)
    numbers = range(-(-low // step) * step, high + 1, step)
    if not numbers:
        raise ValueError(f"type: there is no multiple of {step} from {low} to {high}")
    return _open(kind, "|".join(map(str, numbers)), "-0-9")


def integer_pattern(low: int | None, high: int | None) -> str:
    """The pattern of the integers from `low` to `high`, which may be None, up to 10**18 in size or
    so far beyond the other bound. Raises ValueError if there are none."""
    most = 10**DIGITS - 1
    first = min(-most, most if high is None else high - most) if low is None else low
    last = max(most, first + most) if high is None else high
    if first > last:
        raise ValueError(f"there is no integer from {first} to {last}")
    negative = naturals(max(1, -last), -first) if first < 0 else []
    alternatives = naturals(max(0, first), last) if last >= 0 else []
    alternatives += [f"-{each}" for each in negative]
    return alternatives[0] if len(alternatives) == 1 else f"({'|'.join(alternatives)})"


def has_one_length(low: int | None, high: int | None) -> bool:
    """Whether all these integers have equally many characters, so that each ends by itself."""
    if low is None or high is None:
        return False
    return len(str(low)) == len(str(high)) and (low < 0) == (high < 0)


def _of_str(info: inspect.StrType) -> Predicate | None:
    found: list[Predicate] = []
    if info.min_length is not None or info.max_length is not None:
        found.append(Length(info.min_length or 0, info.max_length))
    if info.pattern is not None:
        try:
            found.append(searched(info.pattern))
        except GrammarError as error:
            raise ValueError(f"type: the pattern {info.pattern!r}: {error}") from None
    return None if not found else found[0] if len(found) == 1 else found[0] & found[1]
