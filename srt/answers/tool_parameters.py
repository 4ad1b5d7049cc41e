"""Arguments that models write as blocks of text, as Qwen3-Coder does, and their JSON.

    <parameter=city>
    Rome
    </parameter>

The function's schema says what the text of a block stands for. The parser and the constraint are
made from the same reading of it.
"""

import json
import re
from contextlib import suppress
from typing import Any

import msgspec

from srt.answers.json_ends import Taken
from srt.answers.partial_tags import overlap
from srt.wire.errors import RequestError
from srt.wire.sampling import MAX_CONSTRAINT_CHARS

_END, FUNCTION_END = "</parameter>", "</function>"
_HEAD = re.compile(r"<parameter=([^>\n]{1,200})>(?:\n|(?=[^\n]))")
_HALF_HEAD = re.compile(r"<parameter=[^>\n]{0,200}>?")
_KINDS: dict[type, tuple[str, ...]] = {
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("integer", "number"),  # 5.0 is an integer
    str: ("string",),
    list: ("array",),
    dict: ("object",),
    type(None): ("null",),
}
_WORDS = {"true": "true", "false": "false", "none": "null", "null": "null"}
_OF_ROOTS = ("x-closed", "$defs", "definitions")  # what holds for all parts of a schema
_MAX_REFERENCES = 16  # that follow one another
_MAX_VALUES = 1024  # whose types are looked at, where the schema has no type
_MAX_CHOICES = 64  # of one parameter: through references, many parameters may have the same

Schema = dict[str, Any]


class Parameters:
    """The parameters of a function; `schema` is the text of their JSON schema, "" for none."""

    def __init__(self, schema: str) -> None:
        self._root: Schema = json.loads(schema or "{}")
        self._listed = _parameters(self._root)
        self._kinds: dict[str, set[str] | None] = {}

    def json_of(self, name: str, text: str) -> str:
        """The JSON of a block's text: a value that the parameter allows, or else a string."""
        if name in self._listed and name not in self._kinds:
            self._kinds[name] = None
            with suppress(RequestError):
                self._kinds[name] = _kinds(_options(self._listed[name], self._root))
        kinds = self._kinds.get(name)
        if kinds != {"string"}:
            written = text.strip()
            written = written if kinds is None else _WORDS.get(written.lower(), written)
            try:
                value = msgspec.json.decode(written)
            except (msgspec.MsgspecError, RecursionError, UnicodeError):
                value = text
            if kinds is None:
                is_json = value is not text
            else:  # texts are written unchanged: their quotes are their own
                is_json = type(value) is not str and not kinds.isdisjoint(_KINDS[type(value)])
            if is_json:
                return written
        return json.dumps(text, ensure_ascii=False)


class ParameterBlocks:
    """Takes the arguments of one call of a function with these parameters."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._seen: set[str] = set()
        self._open: str | None = None  # the parameter whose block has begun
        self._value: list[str] = []

    def take(self, text: str) -> Taken:
        """The next piece, which begins with what was left of the one before. Text that is not a
        block ends the arguments and is left."""
        found: list[str] = []
        at, step = 0, 0
        while step >= 0:
            at += step
            rest = text[at:]
            step = self._head(rest, found) if self._open is None else self._block(rest, found)
        rest = text[at:]
        is_over = self._open is None and not _is_begun(rest)
        if is_over:
            found.append("}" if self._seen else "{}")
        return Taken(at, "".join(found), is_over)

    def _head(self, rest: str, found: list[str]) -> int:
        """The length of a head, or of the blanks before one; -1 if there is none yet."""
        blanks = len(rest) - len(rest.lstrip())
        head = _HEAD.match(rest)
        if head is None or head[1] in self._seen:
            return blanks or -1
        found.append(f"{', ' if self._seen else '{'}{json.dumps(head[1], ensure_ascii=False)}: ")
        self._seen.add(head[1])
        self._open = head[1]
        return head.end()

    def _block(self, rest: str, found: list[str]) -> int:
        """The length of a block's next piece, without a line end that its end tag may follow."""
        before, end, _ = rest.partition(_END)
        if not end:
            held = max(overlap(rest, "\n" + _END), overlap(rest, _END))
            before = before[: len(before) - held]
            self._value.append(before)
            return len(before) or -1
        text = "".join([*self._value, before]).removesuffix("\n")
        found.append(self._parameters.json_of(self._open or "", text))
        self._open, self._value = None, []
        return len(before) + len(end)


def _is_begun(rest: str) -> bool:
    """Whether `rest` is the beginning of a block's head, or of the end of a function."""
    return FUNCTION_END[:-1].startswith(rest) or (
        "<parameter=".startswith(rest) or _HALF_HEAD.fullmatch(rest) is not None
    )


def blocks_format(schema: Schema, *, checked: bool) -> dict[str, Any]:
    """The format (a structural tag's) of the arguments of a function with this JSON schema: at most
    one block for each of its parameters, in their order. `checked`: those that are required are
    there, and their values match; for texts, only `enum` and `const` are checked."""
    required = _list(schema, "required") if checked else []
    blocks: list[dict[str, Any]] = []
    size = 0
    for name, given in _parameters(schema).items():
        if not _HEAD.fullmatch(f"<parameter={name}>\n"):
            rule = "must have 1 to 200 characters, no line ends and no '>'"
            raise RequestError(f": names of parameters {rule}: {name[:80]!r}", at="tools")
        formats = [{"type": "any_text"}]
        if checked:
            formats = []
            for option in _options(given, schema):
                formats.append(_value_format(option, schema))
                size += len(msgspec.json.encode(formats[-1]))
                _check_size(size)
        block = {
            "type": "tag",
            "begin": f"<parameter={name}>\n",
            "content": {"type": "or", "elements": formats} if len(formats) > 1 else formats[0],
            "end": f"\n{_END}\n",
        }
        is_needed = name in required
        blocks.append(block if is_needed else {"type": "optional", "content": block})
    nothing = {"type": "const_string", "value": ""}
    return {"type": "sequence", "elements": blocks or [nothing]}


def _check_size(size: int) -> None:
    """Definitions count once for each parameter, and each choice, that they are written for."""
    if size > MAX_CONSTRAINT_CHARS:
        limit = f"more than {MAX_CONSTRAINT_CHARS} characters for one function"
        reason = f"the schemas of parameters, each with all definitions, have {limit}"
        raise RequestError(f": {reason}", at="tools")


def _value_format(given: Schema, root: Schema) -> dict[str, Any]:
    if values := _values(given):
        texts = [v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values]
        return {
            "type": "or",
            "elements": [{"type": "const_string", "value": text} for text in texts],
        }
    kinds = _kinds([given])
    if kinds is None or "string" in kinds:
        return {"type": "any_text"}
    names = {name: root[name] for name in _OF_ROOTS if name in root}
    return {"type": "json_schema", "json_schema": {**given, **names}}


def _parameters(schema: Schema) -> Schema:
    """The schemas of a function's parameters by name, also of those that only `required` names."""
    schema = _resolved(schema, schema)
    listed = schema.get("properties")
    listed = listed if isinstance(listed, dict) else {}
    required = [name for name in _list(schema, "required") if isinstance(name, str)]
    return listed | {name: {} for name in required if name not in listed}


def _options(given: Any, root: Schema) -> list[Schema]:
    """The distinct schemas that a value matching `given` matches one of, references followed.
    Raises RequestError for too many."""
    found: list[Schema] = []
    pending, seen = [given], set[int]()
    for count, each in enumerate(pending):
        if count > _MAX_CHOICES:
            reason = f"a parameter has more than {_MAX_CHOICES} choices in its schema"
            raise RequestError(f": {reason}", at="tools")
        option = _resolved(each, root)
        choices = _list(option, "anyOf") or _list(option, "oneOf")
        if choices and "type" not in option:
            pending += choices if id(option) not in seen else []
        elif id(option) not in seen:
            found.append(option)
        seen.add(id(option))
    return found or [{}]


def _resolved(given: Any, root: Schema) -> Schema:
    """`given`, or what it refers to in `root`; {} for a schema that says nothing."""
    for _ in range(_MAX_REFERENCES):
        if not isinstance(given, dict):
            return {}
        reference = given.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return given
        given = root
        for key in reference[2:].split("/"):
            given = given.get(key) if isinstance(given, dict) else None
    return {}


def _kinds(options: list[Schema]) -> set[str] | None:
    """The types that a value may have, under JSON Schema's names; None: any."""
    kinds = set[str]()
    for option in options:
        named = option.get("type")
        new = {named} if isinstance(named, str) else set(map(str, _list(option, "type")))
        new = new or {_KINDS[type(value)][0] for value in _values(option)[:_MAX_VALUES]}
        if not new:
            return None
        kinds |= new
    return kinds


def _values(given: Schema) -> list[Any]:
    """The values that `given` lists."""
    return [given["const"]] if "const" in given else _list(given, "enum")


def _list(given: Schema, name: str) -> list[Any]:
    found = given.get(name)
    return found if isinstance(found, list) else []
