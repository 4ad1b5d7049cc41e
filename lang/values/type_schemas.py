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
_REFERENCES = {"$ref", "$dynamicRef"}
_IN_PLACE = {
    *("allOf", "anyOf", "oneOf", "if", "then", "else"),
    *("dependentSchemas", "dependencies"),
}
_APPLYING = {*_IN_PLACE, *_REFERENCES, "required", "dependentRequired"}
_NAMED = {
    *("properties", "patternProperties", "$defs", "definitions"),
    *("dependentSchemas", "dependencies"),
}
_OF_OTHERS = {"additionalProperties", "unevaluatedProperties"}
_OF_PARTS = {*_OF_OTHERS, "items", "additionalItems", "prefixItems", "unevaluatedItems", "contains"}
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
    made: dict[str, Any] = _of_model(model.model_json_schema())
    if made.get("x-closed") is not False and not close_objects(made):
        made["x-closed"] = True
    return made


def close_objects(schema: dict[str, Any]) -> bool:
    """Write the server's rule for a `json_schema` out: objects that list properties and say nothing
    of others have no others. False, and nothing is written, if several of its schemas may list
    properties of one object, which keywords of a single schema cannot say."""
    parts = [*_listing(schema)]
    if None in parts:
        return False
    for part in filter(None, parts):
        names = [name for name in _list(part, "required") if name not in part["properties"]]
        part["properties"] |= {name: {} for name in names}
        part["additionalProperties"] = False
    return True


def _listing(schema: dict[str, Any]) -> Iterator[dict[str, Any] | None]:
    """The parts of a schema that alone list the properties of their objects and say nothing of
    others; None for each part whose objects have properties that several schemas list."""
    applied = [_names(sub) for key, sub in _subschemas(schema) if key in _IN_PLACE]
    applied += [set(_dependent(schema))] + [None] * (not schema.keys().isdisjoint(_REFERENCES))
    lists = isinstance(schema.get("properties"), dict)
    if lists:
        own = {*schema["properties"], *_list(schema, "required")}
        if any(names is None or not names <= own for names in applied):
            yield None
        elif schema.keys().isdisjoint(_OF_OTHERS):
            yield schema
    elif any(names != set() for names in applied):
        count = sum(key in _APPLYING for key in schema) + max(len(_list(schema, "allOf")) - 1, 0)
        if count > 1:
            yield None
    for key, sub in _subschemas(schema):
        if key != "if" and not (lists and key in _IN_PLACE):
            yield from _listing(sub)


def _names(schema: dict[str, Any]) -> set[str] | None:
    """The properties that a schema lists or requires of the object that it applies to; None if
    they are not known, or if it may list some of their members."""
    if not schema.keys().isdisjoint({*_REFERENCES, *_OF_OTHERS, "patternProperties"}):
        return None
    names = {*_list(schema, "required"), *_dependent(schema)}
    for key, sub in _subschemas(schema):
        more = _names(sub) if key in _IN_PLACE else set()
        has_parts = key == "properties" and (any(_subschemas(sub)) or "$ref" in sub)
        if more is None or has_parts:
            return None
        names |= more
    listed = schema.get("properties")
    return names | {*listed} if isinstance(listed, dict) else names


def _subschemas(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schemas in a schema that hold where it does, with their keywords."""
    for key, value in schema.items():
        found: Any = ()
        if key in _NAMED:
            found = value.values() if isinstance(value, dict) else ()
        elif key in _IN_PLACE or key in _OF_PARTS:
            found = value if isinstance(value, list) else [value]
        yield from ((key, sub) for sub in found if isinstance(sub, dict))


def _dependent(schema: dict[str, Any]) -> list[Any]:
    """The properties that others require."""
    given = [schema[key] for key in ("dependentRequired", "dependencies") if key in schema]
    return [
        name
        for each in given
        if isinstance(each, dict)
        for key in each
        for name in _list(each, key)
    ]


def _list(schema: dict[str, Any], key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


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
