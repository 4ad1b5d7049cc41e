"""JSON Schemas of types and pydantic models, for the JSON that can be read as their values.

The schemas of msgspec and pydantic have formats of their own, and msgspec's omit how times
without a zone and dict keys other than strings are written. A set's items may repeat. Objects have
no members besides those of their types: small models would invent some up to the limit.
"""

import re
from collections.abc import Iterator
from typing import Any

from msgspec import _json_schema as schemas
from msgspec import inspect as types

_DAY = r"(0[1-9]|[12][0-9]|3[01])"
_DATE = (  # without leap days
    rf"[12][0-9]{{3}}-((0[13578]|1[02])-{_DAY}|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    r"|02-(0[1-9]|1[0-9]|2[0-8]))"
)
_CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?"
_ZONE = r"(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_IN_PLACE = {"$ref", "anyOf", "oneOf", "if", "dependentSchemas", "dependencies"}
_OF_OTHERS = {"additionalProperties", "unevaluatedProperties", "patternProperties"}
_HEX = "[0-9a-f]"
_BASE64 = {
    "pattern": r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
}
_NUMBER_NAMES = {
    "integer": r"^(0|-?[1-9][0-9]{0,17})$",
    "number": r"^-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,15})?$",
}


def schema_of_type(kind: Any) -> dict[str, Any]:
    """The schema of any type that msgspec knows. Raises TypeError for others."""
    info = types.type_info(kind)
    named = schemas._collect_component_types([info])
    names = schemas._build_name_map(named)
    generator = _Generator(names)
    made = generator.to_schema(info)
    if named:
        made["$defs"] = {names[cls]: generator.to_schema(t, False) for cls, t in named.items()}
    return made


def schema_of_model(model: Any) -> dict[str, Any]:
    """The schema of a pydantic model."""
    made: dict[str, Any] = closed_objects(_of_model(model.model_json_schema()))
    return made


def closed_objects(schema: Any) -> Any:
    """A JSON Schema whose objects, where they list properties and say nothing of others, have no
    others: the server's rule for a `json_schema`, written out. Unchanged with `"x-closed": false`,
    and if several of its schemas may list properties of one object, which keywords of a single
    schema cannot say: then the rule is the server's."""
    parts = [*_dicts(schema)]
    if schema.get("x-closed") is False or any("allOf" in part or _joins(part) for part in parts):
        return schema
    for part in parts:
        if _lists(part) and part.keys().isdisjoint(_OF_OTHERS):
            part["additionalProperties"] = False
    return schema


def _dicts(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
    parts = schema.values() if isinstance(schema, dict) else schema
    for part in parts if isinstance(schema, dict | list) else ():
        yield from _dicts(part)


def _lists(part: dict[str, Any]) -> bool:
    """Whether a part of a schema lists properties, and is not itself a list of them."""
    return part.get("type") == "object" and isinstance(part.get("properties"), dict)


def _joins(part: dict[str, Any]) -> bool:
    return _lists(part) and not part.keys().isdisjoint(_IN_PLACE)


def _of_model(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_of_model(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _of_model(value) for key, value in schema.items()}
    if made.get("type") == "array":
        made.pop("uniqueItems", None)
    if version := re.fullmatch("uuid([1-8])", str(made.get("format"))):
        del made["format"]
        made["pattern"] = (
            f"^{_HEX}{{8}}-{_HEX}{{4}}-{version[1]}{_HEX}{{3}}-[89ab]{_HEX}{{3}}-{_HEX}{{12}}$"
        )
    return made


class _Generator(schemas._SchemaGenerator):
    def to_schema(self, t: types.Type, check_ref: bool = True) -> dict[str, Any]:
        made = super().to_schema(t, check_ref)
        while isinstance(t, types.Metadata):
            t = t.type
        if text := _text_of(t):
            made.pop("contentEncoding", None)
            made.pop("format", None)
            return made | text
        if "properties" in made:
            made.setdefault("additionalProperties", False)
        if isinstance(t, types.SetType | types.FrozenSetType):
            made.pop("uniqueItems")
        elif isinstance(t, types.DictType) and not isinstance(t.key_type, types.AnyType):
            made["propertyNames"] = _of_names(self.to_schema(t.key_type, False))
        return made


def text_pattern_of(t: types.Type) -> str | None:
    """The pattern of a value's text without quotes, for types whose JSON is a text of a fixed form;
    None for all others."""
    if isinstance(t, types.DateType):
        return _DATE
    text = _text_of(t)
    return None if text is None else text["pattern"].removeprefix("^").removesuffix("$")


def _text_of(t: types.Type) -> dict[str, str] | None:
    """The pattern of a value's text, if msgspec's schema does not give it."""
    match t:
        case types.BytesType() | types.ByteArrayType() | types.MemoryViewType():
            return _BASE64
        case types.DecimalType():
            return {"pattern": r"^-?[0-9]{1,20}(\.[0-9]{1,20})?$"}
        case types.TimeDeltaType():
            return {"pattern": r"^-?P([0-9]{1,4}D|([0-9]{1,4}D)?T[0-9]{1,4}[HMS])$"}
        case types.DateTimeType(tz=False):
            return {"pattern": f"^{_DATE}T{_CLOCK}$"}
        case types.DateTimeType():
            return {"pattern": f"^{_DATE}T{_CLOCK}{_ZONE}$"}
        case types.TimeType(tz=False):
            return {"pattern": f"^{_CLOCK}$"}
        case types.TimeType():
            return {"pattern": f"^{_CLOCK}{_ZONE}$"}
    return None


def _of_names(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object's member names that are read as values of `schema`."""
    if "enum" in schema:
        return {"enum": [str(value) for value in schema["enum"]]}
    if "anyOf" in schema:
        return {"anyOf": [_of_names(each) for each in schema["anyOf"]]}
    if pattern := _NUMBER_NAMES.get(schema.get("type", "")):
        return {"pattern": pattern}
    return schema
