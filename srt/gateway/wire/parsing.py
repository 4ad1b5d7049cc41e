"""The JSON of /parse_function_call and /separate_reasoning."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from srt.answers.tool_format import FORMATS
from srt.gateway.wire.tools import ToolIn

# What is held back of a text is copied for each slice of it.
MAX_TEXT_CHARS = 256 * 1024


class ParseCallBody(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The body of /parse_function_call."""

    text: Annotated[str, Meta(description="What a model wrote.", max_length=MAX_TEXT_CHARS)]
    tools: Annotated[list[ToolIn], Meta(description="Functions that it may have called.")]
    tool_call_parser: Annotated[
        Literal[tuple(FORMATS)] | None,  # type: ignore[valid-type]
        Meta(description="The format of calls, by other servers' names; default: the model's."),
    ] = None


class ParsedCall(Struct, frozen=True, kw_only=True):
    """A call; `parameters` is the JSON text of its arguments, `tool_index` its place among them."""

    tool_index: int
    name: str
    parameters: str


class ParsedCalls(Struct, frozen=True, kw_only=True):
    """The answer of /parse_function_call: the text without its calls, and these."""

    normal_text: str
    calls: list[ParsedCall]


class SeparateBody(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The body of /separate_reasoning."""

    text: Annotated[str, Meta(description="What a model wrote.")]
    reasoning_parser: Annotated[
        Literal["think", "qwen3", "deepseek-r1", "gpt-oss", "mistral"] | None,
        Meta(
            description="deepseek-r1: the text begins inside the reasoning, tag or not; "
            "gpt-oss: it has channels; mistral: the tags are [THINK] and [/THINK]."
        ),
    ] = None


class Separated(Struct, frozen=True, kw_only=True):
    """The answer of /separate_reasoning; each part may be empty."""

    reasoning_text: str
    text: str
