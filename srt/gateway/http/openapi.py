"""The OpenAPI document, made from the routes and the wire structs that they read and write.

A body's schema also has the fields that are accepted without being honoured, from its `Kind`, and
null where the server takes it.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, get_args, get_type_hints

import msgspec
from msgspec import Struct

from srt.gateway.http.auth import PUBLIC
from srt.gateway.http.ignored import IGNORED_HEADER
from srt.gateway.http.routing import JSON, Route
from srt.gateway.wire.fields import Hint, Ignored, Kind, rule_sentences

EVENTS = "text/event-stream"
_REFS = "#/components/schemas/"
_TEXT = {"type": "string"}
_KEY, _HEADER = "key", "header"


def openapi_document(
    routes: Sequence[Route], version: str, *, has_keys: bool, takes_others: bool = True
) -> dict[str, Any]:
    """The document of all `routes`. `has_keys`: those that are not public need an API key.
    `takes_others`: bodies with fields of other servers may have any."""
    schemas = _Schemas(routes, takes_others)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        for path in sorted(route.paths):
            at = paths.setdefault(path, {})
            for method in sorted(route.methods):
                at[method.lower()] = _operation(route, path, method.lower(), schemas, has_keys)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "srt", "version": version},
        "paths": paths,
        "components": {"schemas": schemas.components},
    }
    if has_keys:
        document["components"]["securitySchemes"] = {
            _KEY: {"type": "http", "scheme": "bearer"},
            _HEADER: {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
    return document


class _Schemas:
    """The schemas of all types that the routes name."""

    def __init__(self, routes: Sequence[Route], takes_others: bool) -> None:
        types: list[Any] = []
        for route in routes:
            named = (route.body, route.answer, route.events, route.error, *route.query.values())
            types += [kind for kind in named if kind]
        template = _REFS + "{name}"
        found, self.components = msgspec.json.schema_components(types, ref_template=template)
        for struct in {struct for kind in types for struct in _structs(kind)}:
            for name, sentences in rule_sentences(struct).items():
                self.components[struct.__name__]["properties"][name]["description"] += sentences
        self._found = list(zip(types, found, strict=True))
        self._done: set[str] = set()
        for route in routes:
            if route.body is not None:
                self._widen(self.of(route.body), route.kind)
            if route.kind.others:
                self.components[route.body.__name__]["additionalProperties"] = takes_others

    def of(self, kind: Any) -> dict[str, Any]:
        """The schema of a type."""
        return next(schema for known, schema in self._found if known == kind)

    def _widen(self, schema: Any, kind: Kind) -> None:
        """Let the objects in `schema` have the fields that `kind` accepts."""
        for name in _names_in(schema):
            if name in self._done:
                continue
            self._done.add(name)
            component = self.components[name]
            properties = component.get("properties", {})
            required = component.get("required", [])
            for field, nested in kind.nested.items():
                self._widen(properties.get(field), nested)
            for field in properties:
                if field not in required:
                    properties[field] = _or_null(properties[field])
            for field in kind.meant.keys() & properties.keys():
                values = {"enum": [theirs for theirs, _ in kind.meant[field]]}
                properties[field]["anyOf"] = [*properties[field]["anyOf"], values]
            for field, treatment in kind.fields.items():
                properties.setdefault(field, _unused(treatment))


def _structs(kind: Any) -> Iterator[type[Struct]]:
    """The structs that a type names, and those that their fields name."""
    parts: Iterable[Any] = get_args(kind)
    if isinstance(kind, type) and issubclass(kind, Struct):
        yield kind
        parts = get_type_hints(kind).values()
    for part in parts:
        yield from _structs(part)


def _names_in(schema: Any) -> Iterator[str]:
    """The components that `schema` refers to directly."""
    if isinstance(schema, list):
        for item in schema:
            yield from _names_in(item)
    elif isinstance(schema, dict):
        for key, value in schema.items():
            if key == "$ref":
                yield value.removeprefix(_REFS)
            else:
                yield from _names_in(value)


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {
        key: schema[key] for key in ("description", "default") if key in schema
    }
    kinds = {key: value for key, value in schema.items() if key not in facts}
    given = kinds["anyOf"] if list(kinds) == ["anyOf"] else [kinds]
    null: dict[str, Any] = {"type": "null"}
    return {"anyOf": given if null in given else [*given, null], **facts}


def _unused(treatment: Any) -> dict[str, Any]:
    if isinstance(treatment, Ignored):
        return {"description": f"Accepted: {treatment.why}."}
    if isinstance(treatment, Hint):
        return {"description": f"Without effect: {treatment.why}."}
    values = [None, *treatment.neutral]
    return {"enum": values, "description": f"These values only: {treatment.why}."}


def _operation(
    route: Route, path: str, method: str, schemas: _Schemas, has_keys: bool
) -> dict[str, Any]:
    summary = " ".join((route.fn.__doc__ or "").split("\n\n")[0].split())
    name = path.strip("/").replace("/", "_").replace("{", "").replace("}", "")
    operation: dict[str, Any] = {"operationId": f"{method}_{name}", "summary": summary}
    parameters = [
        {"name": name, "in": "query", "required": False, "schema": schemas.of(kind)}
        for name, kind in route.query.items()
    ]
    if "{" in path:
        name = path[path.index("{") + 1 :].removesuffix("}")
        parameters.append({"name": name, "in": "path", "required": True, "schema": _TEXT})
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        content = {JSON: {"schema": schemas.of(route.body)}}
        operation["requestBody"] = {"required": True, "content": content}
    answers = {route.media_type: route.answer, EVENTS: route.events}
    headers: dict[str, Any] = {}
    if route.kind.others:
        told = {"description": "The names of fields that were ignored.", "schema": _TEXT}
        headers = {"headers": {IGNORED_HEADER: told}}
    operation["responses"] = {
        "200": {
            "description": "The answer.",
            **headers,
            "content": {at: {"schema": schemas.of(kind)} for at, kind in answers.items() if kind},
        },
        "default": {
            "description": "An error.",
            "content": {JSON: {"schema": schemas.of(route.error)}},
        },
    }
    if has_keys and route.access != PUBLIC:
        operation["security"] = [{_KEY: []}, {_HEADER: []}]
    return operation
