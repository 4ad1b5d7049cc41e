"""Arguments that models write as blocks of text, as Qwen3-Coder and GLM do, and their JSON.

    <parameter=city>
    Rome
    </parameter>

The function's schema says what the text of a block stands for. The parser and the constraint are
made from the same reading of it. A value may hold the text that ends a block: it ends only where
the next block, or the end of the call, follows that text.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from srt.answers.json_ends import StringEnd, Taken
from srt.answers.partial_tags import overlap
from srt.wire.errors import RequestError, quoted
from srt.wire.sampling import MAX_CONSTRAINT_CHARS

_MAX_HEAD_CHARS = 256
_BLANKS = "[ \\t\\r\\n]{0,64}"
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

_ANY_TEXT = {"type": "any_text"}

Schema = dict[str, Any]


class BlockForm(Struct, frozen=True):
    """One form of blocks: `head` with the parameter's name in place of NAME, the value, `end`. The
    text `closing` follows the last block. `heads` matches heads as models write them, with the name
    as its group."""

    head: str
    heads: re.Pattern[str]
    end: str
    closing: str

    def head_of(self, name: str) -> str:
        """The head of the block of parameter `name`."""
        return self.head.replace("NAME", name)

    @property
    def opener(self) -> str:
        """What all heads begin with."""
        return self.head.partition("NAME")[0]

    def text_of(self, arguments: Mapping[str, Any]) -> str:
        """The blocks of these arguments."""
        return "".join(
            self.head_of(name) + (value if isinstance(value, str) else _quoted(value)) + self.end
            for name, value in arguments.items()
        )

    def goes_on(self, text: str, at: int, order: Mapping[str, int], name: str) -> bool | None:
        """Whether text that may follow the block of `name` in a constrained call is in `text` from
        `at` on: the head of a later parameter's block, or `closing`. None: not known yet."""
        own = order.get(name, -1)
        follow = [self.head_of(other) for other, i in order.items() if i > own] + [self.closing]
        if any(text.startswith(mark, at) for mark in follow):
            return True
        after = text[at : at + max(map(len, follow))]
        return None if any(mark.startswith(after) for mark in follow) else False

    def splits(self, text: str, order: Mapping[str, int], name: str) -> bool:
        """Whether a value `text` of parameter `name` would end early in a constrained call."""
        whole, at = text + self.end, text.find(self.end)
        while at >= 0:
            if self.goes_on(whole, at + len(self.end), order, name):
                return True
            at = text.find(self.end, at + 1)
        return False


PARAMETERS = BlockForm(
    head="<parameter=NAME>\n",
    heads=re.compile(r"<parameter=([^>\n]{1,200})>(?:\n|(?=[^\n]))"),
    end="\n</parameter>\n",
    closing="</function>",
)
ARG_LINES = BlockForm(
    head="<arg_key>NAME</arg_key>\n<arg_value>",
    heads=re.compile(rf"<arg_key>([^<\n]{{1,200}})</arg_key>{_BLANKS}<arg_value>"),
    end="</arg_value>\n",
    closing="</tool_call>",
)
ARG_PAIRS = msgspec.structs.replace(
    ARG_LINES, head="<arg_key>NAME</arg_key><arg_value>", end="</arg_value>"
)


class Parameters:
    """The parameters of a function; `schema` is the text of their JSON schema, "" for none."""

    def __init__(self, schema: str) -> None:
        self._root: Schema = json.loads(schema or "{}")
        self._listed = _parameters(self._root)
        self.order = {name: i for i, name in enumerate(self._listed)}
        self._kinds: dict[str, set[str] | None] = {}

    def kinds_of(self, name: str) -> set[str] | None:
        """The types that a parameter may have, under JSON Schema's names; None: any."""
        if name in self._listed and name not in self._kinds:
            self._kinds[name] = None
            with suppress(RequestError):
                self._kinds[name] = _kinds(_options(self._listed[name], self._root))
        return self._kinds.get(name)

    def json_of(self, name: str, text: str) -> str:
        """The JSON of a block's text: a value that the parameter allows, or else a string."""
        kinds = self.kinds_of(name)
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
        return _quoted(text)


class ParameterBlocks:
    """Takes the arguments of one call of a function with these parameters. If the call is
    `constrained`, its blocks are known to be written as `blocks_format` says, and their JSON is
    given block by block. Otherwise it is given at the end, and of two blocks of one parameter the
    last one holds."""

    def __init__(self, form: BlockForm, parameters: Parameters, *, constrained: bool) -> None:
        self._form = form
        self._parameters = parameters
        self._constrained = constrained
        tag = re.escape(form.end.strip())
        line_end = "\n?" if form.end.startswith("\n") else ""
        exact, free = re.escape(form.end), line_end + tag + _BLANKS
        self._end = re.compile(exact if constrained else free)
        self._json: dict[str, str] = {}  # of the arguments so far
        self._open: str | None = None  # the parameter whose block has begun
        self._value: list[str] = []
        self._quotes: StringEnd | None = None  # of a value that is JSON

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
        is_over = self._open is None and not self._is_begun(rest)
        if is_over and self._constrained:
            found.append("}" if self._json else "{}")
        elif is_over:
            pairs = (f"{_quoted(name)}: {value}" for name, value in self._json.items())
            found.append(f"{{{', '.join(pairs)}}}")
        return Taken(at, "".join(found), is_over)

    def cut(self, rest: str) -> str:
        """The JSON of a constrained value that is cut short, when `take` has left `rest`."""
        if self._open is None:
            return ""
        kinds, text = self._parameters.kinds_of(self._open), "".join(self._value)
        if self._quotes is not None and self._quotes.in_string:
            return text + rest
        if self._end.match(rest):
            return self._parameters.json_of(self._open, text)
        return text if not text or _is_json(kinds) else _quoted(text)[:-1]

    def _head(self, rest: str, found: list[str]) -> int:
        """The length of a head, or of the blanks before one; -1 if there is none yet."""
        blanks = len(rest) - len(rest.lstrip())
        head = self._form.heads.match(rest)
        if head is None or (self._constrained and head[1] in self._json):
            return blanks or -1
        self._open, self._value = head[1], []
        if self._constrained:
            found.append(f"{', ' if self._json else '{'}{_quoted(head[1])}: ")
            self._quotes = StringEnd() if _is_json(self._parameters.kinds_of(head[1])) else None
        return head.end()

    def _block(self, rest: str, found: list[str]) -> int:
        """The length of a value's next piece, or of its end; -1 if that is not known yet."""
        end = self._end.search(rest)
        if end is None:
            tag = self._form.end if self._constrained else self._form.end.rstrip()
            held = max(overlap(rest, tag), overlap(rest, tag.lstrip()))
            return self._add(rest[: len(rest) - held])
        if end.start():
            return self._add(rest[: end.start()])
        # No JSON string has a line end. Where the end has one, it ends any value: nothing says that
        # the value is JSON if the function's arguments are not checked.
        in_string = self._quotes is not None and self._quotes.in_string
        if not in_string or "\n" in self._form.end:
            is_end = self._goes_on(rest, end.end())
            if is_end:
                self._close(found)
            if is_end is not False:
                return end.end() if is_end else -1
        return self._add(rest[:1])

    def _goes_on(self, rest: str, at: int) -> bool | None:
        """Whether the arguments go on, or end, at this place. None: not known yet."""
        if self._constrained:
            return self._form.goes_on(rest, at, self._parameters.order, self._open or "")
        marks = (self._form.opener, self._form.closing)
        if any(rest.startswith(mark, at) for mark in marks):
            return True
        return None if any(mark.startswith(rest[at:]) for mark in marks) else False

    def _add(self, text: str) -> int:
        self._value.append(text)
        if self._quotes is not None:
            self._quotes.feed(text)
        return len(text) or -1

    def _close(self, found: list[str]) -> None:
        name = self._open or ""
        self._json[name] = self._parameters.json_of(name, "".join(self._value))
        if self._constrained:
            found.append(self._json[name])
        self._open = None

    def _is_begun(self, rest: str) -> bool:
        """Whether `rest` is the beginning of a block's head, or of what follows all blocks."""
        if self._form.closing[:-1].startswith(rest) or self._form.opener.startswith(rest):
            return True
        return rest.startswith(self._form.opener) and len(rest) < _MAX_HEAD_CHARS


def _is_json(kinds: set[str] | None) -> bool:
    """Whether values of these types are written as JSON."""
    return kinds is not None and "string" not in kinds


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def blocks_format(form: BlockForm, schema: Schema, *, checked: bool) -> dict[str, Any]:
    """The format (a structural tag's) of the arguments of a function with this JSON schema: at most
    one block for each of its parameters, in their order. `checked`: those that are required are
    there, and their values match; for texts, only `enum` and `const` are checked."""
    required = _list(schema, "required") if checked else []
    blocks: list[dict[str, Any]] = []
    size = 0
    listed = _parameters(schema)
    order = {name: i for i, name in enumerate(listed)}
    for name, given in listed.items():
        head = form.heads.fullmatch(form.head_of(name))
        if head is None or head[1] != name:
            sign = form.head.partition("NAME")[2][0]
            rule = f"must have 1 to 200 characters, no line ends and no {sign!r}"
            raise RequestError(f": names of parameters {rule}: {name[:80]!r}", at="tools")
        formats: list[dict[str, Any]] = []
        for option in _options(given, schema) if checked else []:
            formats.append(_value_format(option, schema))
            size += len(msgspec.json.encode(formats[-1]))
            _check_size(size)
        if _ANY_TEXT in formats or not formats:  # which JSON is, too
            formats = [f for f in formats if "elements" in f] + [_ANY_TEXT]
        _check_values(form, name, formats, order)
        block = {
            "type": "tag",
            "begin": form.head_of(name),
            "content": {"type": "or", "elements": formats} if len(formats) > 1 else formats[0],
            "end": form.end,
        }
        is_needed = name in required
        blocks.append(block if is_needed else {"type": "optional", "content": block})
    nothing = {"type": "const_string", "value": ""}
    return {"type": "sequence", "elements": blocks or [nothing]}


def _check_values(
    form: BlockForm, name: str, formats: Sequence[dict[str, Any]], order: Mapping[str, int]
) -> None:
    """Refuse a listed value that holds what would end its block."""
    for each in formats:
        for value in each.get("elements", ()):
            if form.splits(value["value"], order, name):
                shown = quoted(value["value"])
                reason = f"holds the text that ends the block of an argument: {shown}"
                raise RequestError(f": a value of parameter {quoted(name)} {reason}", at="tools")


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
        return _ANY_TEXT
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
