"""Strict schemas as Gemini's `responseSchema` has them: a subset of OpenAPI's."""

from typing import Any


def response_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """A strict schema without references, in that form: types in capitals, `nullable`, the order of
    properties said, and enums of texts only (gens check the others)."""
    if "anyOf" in schema:
        return _either(schema)
    made: dict[str, Any] = {"type": schema["type"].upper()}
    for key in _AS_THEY_ARE:
        if key in schema:
            made[key] = schema[key]
    if schema["type"] == "string" and "enum" in schema:
        made |= {"format": "enum", "enum": schema["enum"]}
    if "items" in schema:
        made["items"] = response_schema(schema["items"])
    if "properties" in schema:
        names = [*schema["properties"]]
        made["properties"] = {n: response_schema(p) for n, p in schema["properties"].items()}
        made |= {"required": names, "propertyOrdering": names}
    return made


_AS_THEY_ARE = (
    *("description", "title", "format", "pattern", "minItems", "maxItems"),
    *("minLength", "maxLength", "minimum", "maximum"),
)


def _either(schema: dict[str, Any]) -> dict[str, Any]:
    parts = [part for part in schema["anyOf"] if part.get("type") != "null"]
    made = [response_schema(part) for part in parts]
    notes = {key: schema[key] for key in ("description", "title") if key in schema}
    merged = made[0] if len(made) == 1 else {"anyOf": made}
    nullable = {"nullable": True} if len(parts) < len(schema["anyOf"]) else {}
    return merged | nullable | notes
