"""The JSON of structural tags, in xgrammar's form and in SGLang's older one, as structs.

Decoded for the compiler of structural tags. Every field is read or refused by its place.
"""

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from scheduler_proc.grammar.base import GrammarError

MAX_SOURCE_CHARS = 2**20
MAX_REPEATS = 10_000

_Text = Annotated[str, Meta(min_length=1)]
_Texts = Annotated[list[_Text], Meta(min_length=1)]
_FIELD = re.compile(r"(?:unknown|required) field `(.*)`")


class _Format(Struct, forbid_unknown_fields=True, tag_field="type"):
    """What all formats have in common: an object whose `type` names the format."""


class ConstStringFormat(_Format, tag="const_string"):
    """This text."""

    value: str


class JsonSchemaFormat(_Format, tag="json_schema"):
    """JSON that meets a schema."""

    json_schema: msgspec.Raw
    style: Literal["json"] = "json"


class RegexFormat(_Format, tag="regex"):
    """A text that the pattern matches as a whole."""

    pattern: str


class GrammarFormat(_Format, tag="grammar"):
    """A text of a grammar in GBNF or Lark."""

    grammar: str


class AnyTextFormat(_Format, tag="any_text"):
    """Free text, up to what must follow it."""

    excludes: list[_Text] = []


class SequenceFormat(_Format, tag="sequence"):
    """One format after the other."""

    elements: Annotated[list["Format"], Meta(min_length=1)]


class OrFormat(_Format, tag="or"):
    """One of the formats."""

    elements: Annotated[list["Format"], Meta(min_length=1)]


class TagFormat(_Format, tag="tag"):
    """A content between two strings; of several ends, any."""

    begin: str
    content: "Format"
    end: str | _Texts

    @property
    def ends(self) -> list[str]:
        """One of these strings must end it; none if it ends where its content does."""
        ends = [self.end] if isinstance(self.end, str) else self.end
        return [] if ends == [""] else ends


_Tags = Annotated[list[TagFormat], Meta(min_length=1)]


class TriggeredTagsFormat(_Format, tag="triggered_tags"):
    """Free text in which a trigger is always the beginning of a tag."""

    triggers: _Texts
    tags: _Tags
    at_least_one: bool = False
    stop_after_first: bool = False
    excludes: list[_Text] = []


class SeparatedTagsFormat(_Format, tag="tags_with_separator"):
    """Tags with a text between them."""

    tags: _Tags
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False


class OptionalFormat(_Format, tag="optional"):
    """The content or nothing."""

    content: "Format"


class StarFormat(_Format, tag="star"):
    """The content, any number of times."""

    content: "Format"


class PlusFormat(_Format, tag="plus"):
    """The content, at least once."""

    content: "Format"


class RepeatFormat(_Format, tag="repeat"):
    """The content `min` to `max` times; a `max` of -1 means no bound."""

    content: "Format"
    min: Annotated[int, Meta(ge=0, le=MAX_REPEATS)]
    max: Annotated[int, Meta(ge=-1, le=MAX_REPEATS)]


Format = (
    ConstStringFormat
    | JsonSchemaFormat
    | RegexFormat
    | GrammarFormat
    | AnyTextFormat
    | SequenceFormat
    | OrFormat
    | TagFormat
    | TriggeredTagsFormat
    | SeparatedTagsFormat
    | OptionalFormat
    | StarFormat
    | PlusFormat
    | RepeatFormat
)


class _StructuralTag(Struct, forbid_unknown_fields=True):
    format: Format
    type: Literal["structural_tag"] = "structural_tag"


class _Structure(Struct, forbid_unknown_fields=True):
    begin: str
    end: str | _Texts
    schema: msgspec.Raw = msgspec.Raw(b"{}")


class _Structures(Struct, forbid_unknown_fields=True):
    """The older form."""

    structures: Annotated[list[_Structure], Meta(min_length=1)]
    triggers: _Texts
    type: Literal["structural_tag"] = "structural_tag"


def read_tag(source: str) -> tuple[Format, str]:
    """The format of a structural tag, and its place in `source`.

    Raises GrammarError at the place of what is wrong.
    """
    if len(source) > MAX_SOURCE_CHARS:
        raise GrammarError(f"the structural tag is longer than {MAX_SOURCE_CHARS} characters")
    try:
        if "format" in msgspec.json.decode(source, type=dict[str, msgspec.Raw]):
            return msgspec.json.decode(source, type=_StructuralTag).format, "format"
        given = msgspec.json.decode(source, type=_Structures)
        tags = [
            TagFormat(each.begin, JsonSchemaFormat(_unquoted(each.schema)), each.end)
            for each in given.structures
        ]
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at ")
        named = _FIELD.findall(reason)
        raise refuse_tag(".".join([path.strip("`$"), *named]), reason) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise GrammarError(f"the structural tag is not valid JSON: {error}") from None
    return TriggeredTagsFormat(given.triggers, tags), ""


def _unquoted(schema: msgspec.Raw) -> msgspec.Raw:
    """A schema that may be given as the text of its JSON."""
    is_text = bytes(schema).startswith(b'"')
    return msgspec.Raw(msgspec.json.decode(schema, type=str).encode()) if is_text else schema


def refuse_tag(place: str, reason: str) -> GrammarError:
    """The error for what stands at a place, a path."""
    return GrammarError(reason, place.removeprefix("."))
