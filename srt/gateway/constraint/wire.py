"""The request fields that say how to sample, and what an answer must match, as each family of
clients names them.

`constraint.fields` makes sampling parameters of them.
"""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType, field

from srt.wire.constraint import Whitespace
from srt.wire.sampling import CommonSampling, Int

JsonText = str | dict[str, Any]


class SamplingFields(CommonSampling, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """SGLang's names, and our own for what it has none for. Empty is not given."""

    n: Annotated[Int, Meta(description="Completions of each prompt, which is computed once.")] = 1
    stop: Annotated[
        str | list[str], Meta(description="Texts that end the output, and are cut off.")
    ] = field(default_factory=list)
    stop_regex: Annotated[
        str | list[str], Meta(description="Patterns whose first match ends the output.")
    ] = field(default_factory=list)
    no_stop_trim: Annotated[
        bool, Meta(description="Keep the stop string, or what the pattern matched.")
    ] = False

    regex: Annotated[str, Meta(description="The answer matches this pattern.")] = ""
    json_schema: Annotated[
        JsonText, Meta(description="The answer is JSON that this schema (object or text) allows.")
    ] = ""
    ebnf: Annotated[str, Meta(description="The answer matches this grammar.")] = ""
    structural_tag: Annotated[
        JsonText, Meta(description="Parts of the answer match; object or text.")
    ] = ""
    choices: Annotated[
        list[str] | None, Meta(description="The answer is one of these strings.")
    ] = None
    json_whitespace: Annotated[
        Whitespace, Meta(description='"compact" JSON has no blanks between its tokens.')
    ] = "compact"
    disable_additional_properties: Annotated[
        bool | None,
        Meta(
            description="Whether objects that list properties are closed where their schema does "
            "not say so; null: as the server has it."
        ),
    ] = None
    constraint_after: Annotated[
        str | None, Meta(description="The answer is free up to and including this text.")
    ] = None
    constraint_opener: Annotated[
        str,
        Meta(
            description="With constraint_after: an answer that does not begin with this text is "
            "constrained at once."
        ),
    ] = ""


class TextFormat(Struct, forbid_unknown_fields=True, frozen=True, tag="text"):
    """Any text."""


class JsonObjectFormat(Struct, forbid_unknown_fields=True, frozen=True, tag="json_object"):
    """Any JSON object, or, as on other servers, one that `schema` allows."""

    schema: dict[str, Any] | UnsetType = UNSET


class NamedSchema(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A JSON schema. It is enforced with and without `strict`, which closes objects that list
    properties even with `--open-objects`; name and description say nothing to the model."""

    schema: dict[str, Any] | bool
    name: str = ""
    description: str = ""
    strict: bool | None = None


class JsonSchemaFormat(Struct, forbid_unknown_fields=True, frozen=True, tag="json_schema"):
    """JSON that a schema allows."""

    json_schema: NamedSchema


class StructuralTagFormat(Struct, forbid_unknown_fields=True, frozen=True, tag="structural_tag"):
    """A structural tag: `format`, or the older `structures` and `triggers`."""

    format: dict[str, Any] | UnsetType = UNSET
    structures: list[dict[str, Any]] | UnsetType = UNSET
    triggers: list[str] | UnsetType = UNSET


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat | StructuralTagFormat


class StructuredOutputs(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """vLLM's field for all kinds of constraints; one of them may be given."""

    json: Annotated[JsonText, Meta(description="A JSON schema, object or text.")] = ""
    regex: Annotated[str, Meta(description="A pattern.")] = ""
    choice: Annotated[list[str] | None, Meta(description="A list of strings.")] = None
    grammar: Annotated[str, Meta(description="A grammar, as ebnf.")] = ""
    json_object: Annotated[bool, Meta(description="Any JSON object.")] = False
    structural_tag: Annotated[JsonText, Meta(description="A tag, object or text.")] = ""
    disable_any_whitespace: Annotated[bool, Meta(description="true is compact JSON.")] = False
    disable_additional_properties: Annotated[
        bool | None, Meta(description="As the request's own field of this name.")
    ] = None
    whitespace_pattern: Annotated[
        str | None, Meta(description='"" is compact JSON, `[\\n\\t ]*` free.')
    ] = None


class OpenAISamplingFields(SamplingFields, kw_only=True, frozen=True):
    """What the OpenAI routes take on top: OpenAI's own field, and vLLM's newer and older ones."""

    response_format: Annotated[
        ResponseFormat | None,
        Meta(description="text, json_object, json_schema or structural_tag."),
    ] = None
    structured_outputs: Annotated[
        StructuredOutputs | None, Meta(description="vLLM's name for all constraints.")
    ] = None
    guided_json: Annotated[JsonText, Meta(description="Older name of json_schema.")] = ""
    guided_regex: Annotated[str, Meta(description="Older name of regex.")] = ""
    guided_choice: Annotated[list[str] | None, Meta(description="Older name of choices.")] = None
    guided_grammar: Annotated[str, Meta(description="Older name of ebnf.")] = ""
    guided_whitespace_pattern: Annotated[
        str | None, Meta(description='"" is compact JSON, `[\\n\\t ]*` free.')
    ] = None
