"""One transformation of JSON Schemas and patterns into what providers' strict modes take.

A root that is no object, or that is a union, is wrapped into `{"value": ...}`; every property is
required, and those that were optional may be null; keywords that a provider does not take are
dropped, since gens check each answer against the original. What cannot be dropped without another
meaning is refused, with its place. `Strict.text_of` takes an answer back to the original form.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct

from lang.errors import UnsupportedError

VALUE = "value"  # the property of a wrapped root
_NULL = {"type": "null"}
_NAMED_GROUP = re.compile(r"\\.|\[(?:\\.|[^\]\\])+\]|\(\?P<\w+>", re.DOTALL)
# What patterns of providers have no form for: looks around, references, conditions, flags, edges.
_TOO_MUCH = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?(?!:|P<)", re.DOTALL)
_REFUSED_ESCAPES = frozenset("bBAZzGkK123456789")
_TYPES_OF = ((bool, "boolean"), (str, "string"), (int, "integer"), (float, "number"))


class Rules(Struct, frozen=True):
    """What a provider takes in a schema, besides types, enums, `anyOf`, properties and items: the
    `keywords`, which of them with any value and `min_items` up to a limit, the `formats` of texts,
    and `$ref`s, if `has_references`; without, they are inlined. Types that hold themselves need
    `has_recursion` besides."""

    provider: str
    keywords: frozenset[str]
    formats: frozenset[str]
    has_references: bool = True
    has_recursion: bool = True
    max_min_items: int | None = None


_COMMON = frozenset({"description", "title"})
_FORMATS = frozenset(
    {*("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")}
)
OPENAI = Rules(
    "OpenAI",
    _COMMON
    | {
        *("pattern", "format", "minItems", "maxItems"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    },
    _FORMATS,
)
ANTHROPIC = Rules(
    "Anthropic",
    _COMMON | {"pattern", "format", "minItems"},
    _FORMATS | {"uri"},
    has_recursion=False,
    max_min_items=1,
)
GEMINI = Rules(
    "Gemini",
    _COMMON
    | {
        *("pattern", "format", "minItems", "maxItems", "minLength", "maxLength"),
        *("minimum", "maximum"),
    },
    frozenset({"date-time"}),
    has_references=False,
    has_recursion=False,
)


class Strict(Struct, frozen=True):
    """A schema that a provider takes. Unless `is_plain`, answers must be taken back, as a whole."""

    schema: dict[str, Any]
    original: dict[str, Any]
    is_wrapped: bool = False
    is_text: bool = False  # the value is a text of its own, without quotes
    has_optional: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether an answer is of the original form as it is."""
        return not self.is_wrapped and not self.has_optional

    def text_of(self, answer: str) -> str:
        """The text of the original form; one that is not of the schema's form is returned as it
        is, and fails the gen's check."""
        if self.is_plain:
            return answer
        try:
            return self._text_of_value(json.loads(answer), answer)
        except (ValueError, RecursionError):
            return answer

    def _text_of_value(self, value: Any, answer: str) -> str:
        if self.is_wrapped:
            if not isinstance(value, dict) or value.keys() != {VALUE}:
                return answer
            value = value[VALUE]
        if self.is_text:
            return value if isinstance(value, str) else answer
        if self.has_optional:
            value = _without_nulls(value, [self.original], self.original)
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@lru_cache(128)
def strict_schema(source: str, rules: Rules) -> Strict:
    """The strict form of a JSON Schema, given as text. Raises UnsupportedError, which names the
    place, for one that has none."""
    try:
        original = json.loads(source)
    except ValueError as error:
        raise UnsupportedError("json_schema", f"is not JSON: {error}") from None
    if not isinstance(original, dict):
        raise UnsupportedError("json_schema", "is not an object")
    writer = _Writer(original, rules)
    made = writer.node(original, "")
    is_wrapped = made.get("type") != "object"
    if is_wrapped:
        made = _object({VALUE: made})
    if used := _used(made, writer.definitions):
        made["$defs"] = used
    return Strict(made, original, is_wrapped, has_optional=writer.has_optional)


@lru_cache(128)
def strict_pattern(regex: str, rules: Rules) -> Strict:
    """The strict form of a regex: a text with a pattern. Raises UnsupportedError for what patterns
    of JSON Schemas cannot say everywhere."""
    pattern = f"^(?:{portable_pattern(regex)})$"
    schema = _object({VALUE: {"type": "string", "pattern": pattern}})
    return Strict(schema, {"type": "string"}, is_wrapped=True, is_text=True)


def strict_choice(choices: Sequence[str]) -> dict[str, Any]:
    """The schema of `{"choice": ...}`, one of the texts."""
    return _object({"choice": {"type": "string", "enum": list(choices)}})


def portable_pattern(regex: str) -> str:
    """`regex` without names of groups. Raises UnsupportedError for the rest that is Python's."""
    for found in _TOO_MUCH.finditer(regex):
        token = found.group()
        if token.startswith("(?") or (len(token) == 2 and token[1] in _REFUSED_ESCAPES):
            reason = f"a provider's pattern has no {token!r}, at character {found.start()}"
            raise UnsupportedError("regex", reason)
    return _NAMED_GROUP.sub(lambda m: "(" if m.group().startswith("(?P<") else m.group(), regex)


def _used(made: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """The definitions that `made` refers to, itself or through others: a root that was a reference
    is none any more."""
    used: dict[str, Any] = {}
    waiting = [json.dumps(made)]
    while waiting:
        text = waiting.pop()
        for name, definition in definitions.items():
            if name not in used and json.dumps(f"#/$defs/{name}") in text:
                used[name] = definition
                waiting.append(json.dumps(definition))
    return used


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


class _Writer:
    """Writes the strict form of one schema."""

    def __init__(self, root: dict[str, Any], rules: Rules) -> None:
        self.root, self.rules = root, rules
        self.definitions: dict[str, Any] = {}
        self.has_optional = False
        self._open: list[str] = []  # references that are being inlined

    def node(self, schema: Any, path: str) -> dict[str, Any]:
        """The form of the part at `path`, a JSON pointer."""
        if not isinstance(schema, dict):
            self._refuse(path, "a value of any kind")
        if "$ref" in schema:
            return self._reference(schema["$ref"], path)
        for union in ("anyOf", "oneOf"):
            if union in schema:
                return self._either(schema, union, path)
        if "allOf" in schema:
            parts = schema["allOf"]
            if len(parts) != 1:
                self._refuse(path, "`allOf` of several schemas")
            rest = {key: value for key, value in schema.items() if key != "allOf"}
            return self.node({**parts[0], **rest}, path)
        if "const" in schema or "enum" in schema:
            return self._enum(schema, path)
        return self._typed(schema, path)

    def _typed(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        kind = schema.get("type")
        if isinstance(kind, list):
            rest = {key: value for key, value in schema.items() if key != "type"}
            return {"anyOf": [self.node({**rest, "type": each}, path) for each in kind]}
        if kind is None and "properties" in schema:
            kind = "object"
        if kind is None:
            self._refuse(path, "a value without a type")
        made: dict[str, Any] = {"type": kind} | self._kept(schema)
        if kind == "object":
            return made | self._members(schema, path)
        if kind == "array":
            if "prefixItems" in schema or not isinstance(schema.get("items"), dict):
                self._refuse(path, "an array whose items have no one schema")
            made["items"] = self.node(schema["items"], f"{path}/items")
        return made

    def _kept(self, schema: dict[str, Any]) -> dict[str, Any]:
        kept = {key: schema[key] for key in self.rules.keywords & schema.keys()}
        if kept.get("format") not in self.rules.formats:
            kept.pop("format", None)
        limit = self.rules.max_min_items
        if limit is not None and "minItems" in kept:
            kept["minItems"] = min(kept["minItems"], limit)
        if "pattern" in kept:
            try:
                kept["pattern"] = portable_pattern(kept["pattern"])
            except UnsupportedError:
                del kept["pattern"]  # the gen's check has the original
        return {key: kept[key] for key in sorted(kept)}

    def _members(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        properties = schema.get("properties") or {}
        others = schema.get("additionalProperties")
        if (
            schema.get("patternProperties")
            or isinstance(others, dict)
            or not (properties or others is False)
        ):
            self._refuse(path, "an object whose members have no fixed names")
        required = schema.get("required") or []
        made: dict[str, Any] = {}
        for name, part in properties.items():
            made[name] = self.node(part, f"{path}/properties/{name}")
            if name not in required:
                self.has_optional = True
                if not _takes_null(part, self.root):
                    made[name] = {"anyOf": [made[name], _NULL]}
        return _object(made)

    def _either(self, schema: dict[str, Any], union: str, path: str) -> dict[str, Any]:
        branches = schema[union]
        parts = [self.node(each, f"{path}/{union}/{i}") for i, each in enumerate(branches)]
        notes = {key: schema[key] for key in sorted(_COMMON & schema.keys())}
        return parts[0] | notes if len(parts) == 1 else notes | {"anyOf": parts}

    def _enum(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        values = [schema["const"]] if "const" in schema else schema["enum"]
        groups: dict[str, list[Any]] = {}
        for value in values:
            kind = next((name for cls, name in _TYPES_OF if isinstance(value, cls)), None)
            if value is not None and kind is None:
                self._refuse(path, "a constant that is an array or object")
            groups.setdefault(kind or "null", []).append(value)
        notes = {key: schema[key] for key in sorted(_COMMON & schema.keys())}
        parts = [
            _NULL if kind == "null" else {"type": kind, "enum": each}
            for kind, each in groups.items()
        ]
        return parts[0] | notes if len(parts) == 1 else notes | {"anyOf": parts}

    def _reference(self, reference: str, path: str) -> dict[str, Any]:
        target = _resolved(reference, self.root)
        if target is None:
            self._refuse(path, f"the reference {reference!r}")
        name = reference.rpartition("/")[2].replace("~", "_")  # which is an escape there
        is_inlined = not self.rules.has_references or reference == "#"
        if reference in self._open:
            if is_inlined or not self.rules.has_recursion:
                self._refuse(path, f"a type that holds itself, {name!r},")
            return {"$ref": f"#/$defs/{name}"}
        if is_inlined or name not in self.definitions:
            self._open.append(reference)
            made = self.node(target, path if is_inlined else f"/$defs/{name}")
            self._open.pop()
            if is_inlined:
                return made
            self.definitions[name] = made
        # A root must say that it is an object, which a reference does not.
        if not path and self.definitions[name].get("type") == "object":
            return dict(self.definitions[name])
        return {"$ref": f"#/$defs/{name}"}

    def _refuse(self, path: str, what: str) -> Any:
        reason = f"{self.rules.provider} takes no schema with {what} (at {path or 'its root'})"
        raise UnsupportedError("json_schema", reason)


def _resolved(reference: Any, root: Mapping[str, Any]) -> dict[str, Any] | None:
    """The part of `root` that a local reference names; None for others."""
    if reference == "#":
        return dict(root)
    for key in ("$defs", "definitions"):
        prefix = f"#/{key}/"
        if str(reference).startswith(prefix):
            name = reference.removeprefix(prefix).replace("~1", "/").replace("~0", "~")
            found = (root.get(key) or {}).get(name)
            return found if isinstance(found, dict) else None
    return None


def _leaves(schema: Any, root: Mapping[str, Any], depth: int = 32) -> Iterator[dict[str, Any]]:
    """The schemas that `schema` stands for, through references and unions."""
    if not isinstance(schema, dict) or not depth:
        return
    if "$ref" in schema:
        yield from _leaves(_resolved(schema["$ref"], root), root, depth - 1)
        return
    if "allOf" in schema:  # of one schema: others have no strict form
        rest = {key: value for key, value in schema.items() if key != "allOf"}
        yield from _leaves({**schema["allOf"][0], **rest}, root, depth - 1)
        return
    unions = [part for key in ("anyOf", "oneOf") for part in schema.get(key) or ()]
    if not unions:
        yield schema
    for part in unions:
        yield from _leaves(part, root, depth - 1)


def _takes_null(schema: Any, root: Mapping[str, Any]) -> bool:
    for leaf in _leaves(schema, root):
        kind = leaf.get("type")
        values = [leaf["const"]] if "const" in leaf else leaf.get("enum", ())
        if kind == "null" or (isinstance(kind, list) and "null" in kind) or None in values:
            return True
    return False


def _without_nulls(value: Any, schemas: list[Any], root: Mapping[str, Any]) -> Any:
    """`value` without members that are null where the original schemas, one of which it is an
    instance of, let them be missing and not null."""
    leaves = [leaf for schema in schemas for leaf in _leaves(schema, root)]
    leaves = [leaf for leaf in leaves if _fits(value, leaf, root)]
    if isinstance(value, list):
        items = [leaf["items"] for leaf in leaves if "items" in leaf]
        return [_without_nulls(each, items, root) for each in value]
    if not isinstance(value, dict):
        return value
    made = {}
    for name, member in value.items():
        parts = [leaf["properties"][name] for leaf in leaves]
        if member is None and parts and not any(_takes_null(part, root) for part in parts):
            continue
        made[name] = _without_nulls(member, parts, root)
    return made


def _fits(value: Any, leaf: dict[str, Any], root: Mapping[str, Any]) -> bool:
    """Whether a value that a strict mode wrote is of a schema without unions: of its type and
    constants, and its parts of theirs. That tells the branches of a union apart."""
    if "const" in leaf or "enum" in leaf:
        return value in (leaf["enum"] if "enum" in leaf else [leaf["const"]])
    kind = leaf.get("type", "object")
    if not any(_is_of(value, each) for each in ([kind] if isinstance(kind, str) else kind)):
        return False
    if isinstance(value, list):
        return all(_fits_one_of(each, leaf.get("items"), root) for each in value)
    if not isinstance(value, dict):
        return True
    properties, required = leaf.get("properties") or {}, leaf.get("required") or ()
    return properties.keys() == value.keys() and all(
        (member is None and name not in required) or _fits_one_of(member, properties[name], root)
        for name, member in value.items()
    )


def _fits_one_of(value: Any, schema: Any, root: Mapping[str, Any]) -> bool:
    return any(_fits(value, leaf, root) for leaf in _leaves(schema, root))


def _is_of(value: Any, kind: str) -> bool:
    """Whether a value is of a type of JSON Schema; whole numbers are integers however written."""
    if kind in ("integer", "number"):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return is_number and (kind == "number" or value == value // 1)
    return isinstance(value, _CLASSES[kind])


_CLASSES: dict[str, type] = {
    **{"object": dict, "array": list, "string": str, "boolean": bool},
    "null": type(None),
}
