"""A JSON Schema document: its subschemas by number, their places, and what `$ref` leads to.

Read by the normaliser. Every subschema has a JSON pointer, for errors, and a base URI; limits on
size, depth and number are checked here, before anything is computed from the document.
"""

import json
import math
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from scheduler_proc.grammar.base import GrammarError

MAX_SOURCE_CHARS = 2**20
MAX_DEPTH = 64
MAX_SUBSCHEMAS = 20_000

Schema = dict[str, Any] | bool

# Keywords that hold one subschema, a list of them, or an object of them.
_ONE = (
    "additionalItems", "additionalProperties", "contains", "else", "if", "items", "not",
    "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_MANY = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_NAMED = (
    "$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties",
)  # fmt: skip
_DRAFTS = {"draft-03": 3, "draft-04": 4, "draft-06": 6, "draft-07": 7, "2019-09": 8, "2020-12": 9}
NEWEST = 9


def refuse(pointer: str, reason: str) -> GrammarError:
    """The error about the schema at `pointer`, a JSON pointer in URI form."""
    return GrammarError(f"JSON schema at {pointer or '#'}: {reason}")


@dataclass(frozen=True)
class Place:
    """A subschema, where it stands, and how references in it are resolved."""

    schema: Schema
    pointer: str
    base: str
    draft: int


class Document:
    """The subschemas of one source, numbered in document order; 0 is the root."""

    def __init__(self, source: str) -> None:
        """Raises GrammarError if `source` is no JSON Schema or is beyond the limits."""
        self.places: list[Place] = []
        self._numbers: dict[int, int] = {}
        self._resources: dict[str, Schema] = {}
        self._anchors: dict[str, int] = {}
        self._dynamic: dict[str, list[int]] = {}
        root = _parse(source)
        self._resources[""] = root
        self._walk(root, "#", "", NEWEST, 0)

    def add(self, schema: Schema, origin: int) -> int:
        """Number a schema that we made from the one at `origin`, whose place it takes."""
        if isinstance(schema, dict) and id(schema) in self._numbers:
            return self._numbers[id(schema)]
        place = self.places[origin]
        return self._register(schema, place.pointer, place.base, place.draft)

    def number_of(self, schema: Schema, origin: int, *steps: str | int) -> int:
        """The number of a direct subschema of `origin`, reached by `steps`."""
        known = self._numbers.get(id(schema)) if isinstance(schema, dict) else None
        if known is not None:
            return known
        place = self.places[origin]
        pointer = _extended(place.pointer, steps)
        if not isinstance(schema, dict | bool):
            raise refuse(pointer, "must be an object or a boolean")
        if isinstance(schema, bool):
            return self._register(schema, pointer, place.base, place.draft)
        return self._walk(schema, pointer, place.base, place.draft, 0)

    def resolve(self, ref: Any, origin: int, keyword: str = "$ref") -> int:
        """The number of the schema that a reference at `origin` leads to."""
        place = self.places[origin]
        if not isinstance(ref, str):
            raise refuse(place.pointer, f"{keyword} must be a string")
        uri, fragment = _resolved(place.base, ref, place.pointer, keyword)
        full = f"{uri}#{fragment}" if fragment else uri
        if full in self._anchors:
            return self._anchors[full]
        root = self._resources.get(uri)
        if root is None:
            raise refuse(place.pointer, f"{keyword} {ref!r} leads outside the schema")
        if fragment and not fragment.startswith("/"):
            raise refuse(place.pointer, f"{keyword} {ref!r}: there is no such anchor")
        return self._follow(root, unquote(fragment), origin, f"{keyword} {ref!r}")

    def dynamic_anchors(self, name: str) -> list[int]:
        """The schemas that have `$dynamicAnchor` `name`."""
        return self._dynamic.get(name, [])

    def _follow(self, root: Schema, fragment: str, origin: int, what: str) -> int:
        node: Any = root
        number = self._numbers[id(root)] if isinstance(root, dict) else 0
        pending: list[str | int] = []
        for raw in fragment.split("/")[1:]:
            step = raw.replace("~1", "/").replace("~0", "~")
            try:
                node = node[int(step)] if isinstance(node, list) else node[step]
            except (KeyError, IndexError, ValueError, TypeError):
                raise refuse(self.places[origin].pointer, f"{what} leads nowhere") from None
            pending.append(step)
            if isinstance(node, dict) and id(node) in self._numbers:
                number, pending = self._numbers[id(node)], []
        return self.number_of(node, number, *pending) if pending else number

    def _register(self, schema: Schema, pointer: str, base: str, draft: int) -> int:
        if len(self.places) >= MAX_SUBSCHEMAS:
            raise refuse(pointer, f"more than {MAX_SUBSCHEMAS} subschemas")
        self.places.append(Place(schema, pointer, base, draft))
        if isinstance(schema, dict):
            self._numbers[id(schema)] = len(self.places) - 1
        return len(self.places) - 1

    def _walk(self, schema: Schema, pointer: str, base: str, draft: int, depth: int) -> int:
        """Number a schema and all below it; its number."""
        if depth > MAX_DEPTH:
            raise refuse(pointer, f"nested deeper than {MAX_DEPTH} schemas")
        if not isinstance(schema, dict):
            return self._register(schema, pointer, base, draft)
        draft = _draft_of(schema, pointer, draft)
        base = self._identify(schema, base, draft, pointer)
        number = self._register(schema, pointer, base, draft)
        self._note_anchors(schema, base, number, draft)
        if draft <= 7 and isinstance(schema.get("$ref"), str):
            children = {k: v for k, v in schema.items() if k in ("$defs", "definitions")}
        else:
            children = schema
        for steps, child in subschemas(children):
            if isinstance(child, dict) and id(child) not in self._numbers:
                self._walk(child, _extended(pointer, steps), base, draft, depth + 1)
        return number

    def _identify(self, schema: dict[str, Any], base: str, draft: int, pointer: str) -> str:
        """The base URI within `schema`, which may be a resource of its own."""
        keyword = "id" if draft <= 4 else "$id"
        name = schema.get(keyword)
        ignored = draft <= 7 and "$ref" in schema
        if not isinstance(name, str) or name.startswith("#") or ignored:
            return base
        uri = _resolved(base, name, pointer, keyword)[0]
        self._resources.setdefault(uri, schema)
        return uri

    def _note_anchors(self, schema: dict[str, Any], base: str, number: int, draft: int) -> None:
        old = schema.get("id" if draft <= 4 else "$id")
        if draft <= 7 and isinstance(old, str) and old.startswith("#"):
            self._anchors[base + old] = number
        for key in ("$anchor", "$dynamicAnchor"):
            name = schema.get(key)
            if isinstance(name, str):
                self._anchors.setdefault(f"{base}#{name}", number)
        dynamic = schema.get("$dynamicAnchor")
        if isinstance(dynamic, str):
            self._dynamic.setdefault(dynamic, []).append(number)


def _parse(source: str) -> Schema:
    if len(source) > MAX_SOURCE_CHARS:
        raise GrammarError(f"the JSON schema is longer than {MAX_SOURCE_CHARS} characters")
    try:
        root = json.loads(source, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        raise GrammarError("the JSON schema is nested too deeply") from None
    except ValueError as error:
        raise GrammarError(f"the JSON schema is not valid JSON: {error}") from None
    if not isinstance(root, dict | bool):
        raise refuse("#", "must be an object or a boolean")
    return root


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _draft_of(schema: dict[str, Any], pointer: str, draft: int) -> int:
    uri = schema.get("$schema")
    if uri is None:
        return draft
    if not isinstance(uri, str):
        raise refuse(pointer, "$schema must be a string")
    for name, number in _DRAFTS.items():
        if "json-schema.org" in uri and name in uri:
            return number
    if "json-schema.org" in uri:
        return draft
    raise refuse(pointer, f"$schema {uri!r} is not known")


def _resolved(base: str, ref: str, pointer: str, keyword: str) -> tuple[str, str]:
    """The URI that `ref` means within `base`, and its fragment."""
    try:
        uri, fragment = urldefrag(base + ref if ref.startswith("#") else urljoin(base, ref))
    except ValueError:
        raise refuse(pointer, f"{keyword} {ref[:60]!r} is no URI") from None
    return uri, fragment


def subschemas(schema: dict[str, Any]) -> "list[tuple[tuple[str | int, ...], Any]]":
    """The subschemas directly in `schema`, with the steps that lead to them."""
    found: list[tuple[tuple[str | int, ...], Any]] = []
    for key, value in schema.items():
        if key in _ONE and isinstance(value, dict):
            found.append(((key,), value))
        elif key in _MANY and isinstance(value, list):
            found += [((key, i), item) for i, item in enumerate(value)]
        elif key in _NAMED and isinstance(value, dict):
            found += [((key, name), item) for name, item in value.items()]
    return found


def _extended(pointer: str, steps: "tuple[str | int, ...]") -> str:
    parts = [str(step).replace("~", "~0").replace("/", "~1") for step in steps]
    return "/".join([pointer, *parts])
