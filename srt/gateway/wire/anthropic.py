"""The JSON of /v1/messages and its neighbours. Requests list the honoured fields only; see
`fields`."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from srt.gateway.wire.native import Count, RequestBody, RoutedReplica, TimeoutMs
from srt.wire.answer_meta import PrefixEnd
from srt.wire.sampling import Int

MIN_BUDGET_TOKENS = 1024
StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
]
Effort = Literal["low", "medium", "high", "xhigh", "max"]


class Source(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Where a picture is: `base64` with its `media_type` and `data`, or the `url` of a host that
    the server fetches from."""

    type: str
    media_type: str = ""
    data: str = ""
    url: str = ""


class ResultBlock(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A part of a tool's result: a text or an image; the others are refused by name."""

    type: str
    text: str | UnsetType = UNSET
    source: Source | str | UnsetType = UNSET


class ContentBlock(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A part of a message. Types that are not listed are refused by name."""

    type: Annotated[
        str,
        Meta(
            description="text, image, tool_result (user); text, thinking, redacted_thinking, "
            "tool_use (assistant); text (system)."
        ),
    ]
    text: Annotated[str | UnsetType, Meta(description="text: the text.")] = UNSET
    source: Annotated[
        Source | str | UnsetType,
        Meta(description="image: `base64` with media_type and data, or `url` with url."),
    ] = UNSET
    thinking: Annotated[
        str | UnsetType, Meta(description="thinking: the text, for templates that show it.")
    ] = UNSET
    signature: Annotated[str, Meta(description="thinking: any; it is not checked.")] = ""
    data: Annotated[str, Meta(description="redacted_thinking: any; no template shows it.")] = ""
    id: Annotated[str, Meta(description="tool_use: the call's id.")] = ""
    name: Annotated[str, Meta(description="tool_use: the tool.")] = ""
    input: Annotated[
        dict[str, Any] | UnsetType, Meta(description="tool_use: the arguments, an object.")
    ] = UNSET
    tool_use_id: Annotated[str, Meta(description="tool_result: the call that this answers.")] = ""
    content: Annotated[
        str | list[ResultBlock], Meta(description="tool_result: a text, or text and image blocks.")
    ] = ""
    is_error: Annotated[
        bool, Meta(description='tool_result: the text that the model sees begins with "Error: ".')
    ] = False


class InputMessage(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A message of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | list[ContentBlock]


class SystemBlock(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A part of the system prompt, which is of type text."""

    type: Literal["text"]
    text: str


class MessagesTool(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A tool that the model may call."""

    type: Annotated[
        str,
        Meta(
            description="custom. Tools of other types, such as web_search_20250305, are left out "
            "and named, and `tool_choice` may not ask for one."
        ),
    ] = "custom"
    name: Annotated[str, Meta(description="Up to 128 letters, digits, underscores, hyphens.")] = ""
    description: Annotated[str, Meta(description="What the model reads of it.")] = ""
    input_schema: Annotated[
        dict[str, Any] | UnsetType, Meta(description="A JSON schema of type object.")
    ] = UNSET
    strict: Annotated[
        bool, Meta(description="Whether calls match the schema though the model need not call.")
    ] = False


class MessagesToolChoice(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """How tools are to be used; `name` goes with the type tool."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | UnsetType = UNSET
    disable_parallel_tool_use: bool = False


class ThinkingConfig(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Whether to reason: adaptive leaves it to the model."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Int | UnsetType = UNSET
    display: Literal["summarized", "omitted", "updates"] = "summarized"


class JsonOutput(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """JSON that a schema allows."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """How hard to try, and what the text must be."""

    effort: Effort | None = None
    format: JsonOutput | None = None


class MessagesPrompt(RequestBody, kw_only=True, frozen=True):
    """The fields that say what the prompt is; all of /v1/messages/count_tokens."""

    model: Annotated[str | None, Meta(description="The served name or path.")] = None
    messages: Annotated[
        list[InputMessage],
        Meta(description="The conversation so far; a last assistant's message is continued."),
    ]
    system: Annotated[
        str | list[SystemBlock],
        Meta(description="The system prompt: a text or text blocks, each a line of its own."),
    ] = ""
    tools: Annotated[list[MessagesTool], Meta(description="Tools that the model may call.")] = (
        field(default_factory=list)
    )
    tool_choice: Annotated[
        MessagesToolChoice | None,
        Meta(description="`type`: auto, any, tool (with `name`), none; disable_parallel_tool_use."),
    ] = None
    thinking: Annotated[
        ThinkingConfig | None,
        Meta(
            description="`type`: enabled, disabled, adaptive; `display` omitted leaves it out of "
            "the answer; `budget_tokens` is checked, has no effect and is named."
        ),
    ] = None
    output_config: Annotated[
        OutputConfig | None,
        Meta(
            description="`effort`: for templates that know it; `format`: a JSON schema that the "
            "text matches."
        ),
    ] = None


class CountRequest(MessagesPrompt, kw_only=True, frozen=True):
    """The body of /v1/messages/count_tokens."""


class MessagesRequest(MessagesPrompt, kw_only=True, frozen=True):
    """The body of /v1/messages."""

    max_tokens: Annotated[
        Count,
        Meta(description="Tokens to generate at most, if the context has room for so many."),
    ]
    stop_sequences: Annotated[
        list[str], Meta(description="Texts that end the answer, and are cut off.")
    ] = field(default_factory=list)
    stream: Annotated[bool, Meta(description="Answer with server-sent events.")] = False
    temperature: Annotated[
        float | None, Meta(description="0 is greedy; null is the model's own.")
    ] = None
    top_p: Annotated[float | None, Meta(description="In (0, 1]; null is the model's own.")] = None
    top_k: Annotated[
        Int | None, Meta(description="The likeliest tokens to choose from; null is the model's.")
    ] = None
    seed: Annotated[Int | None, Meta(description="Repeatable sampling.")] = None
    timeout_ms: TimeoutMs = 0
    routed_replica: RoutedReplica = None


class TextOut(Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """A text of an answer. It has no `citations`: where they are null, the AI SDK takes nothing."""

    text: str


class ThinkingOut(Struct, frozen=True, kw_only=True, tag_field="type", tag="thinking"):
    """What the model wrote before its answer."""

    thinking: str
    signature: str


class ToolUseOut(Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_use"):
    """A call of a tool; the input of one that was cut short has what was complete."""

    id: str
    name: str
    input: dict[str, Any]


BlockOut = TextOut | ThinkingOut | ToolUseOut


class MessagesUsage(Struct, frozen=True, kw_only=True):
    """Token counts: the prompt has `input_tokens` that were not cached, and those that were; and,
    if asked for, where it leaves what was."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int
    prefix: PrefixEnd | UnsetType = UNSET


class MessageOut(Struct, frozen=True, kw_only=True):
    """The answer, or what there is of it when a stream begins."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[BlockOut]
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    stop_details: None = None
    usage: MessagesUsage


class MessageEvent(Struct, frozen=True, kw_only=True):
    """An event of a stream: besides its type, the fields that Anthropic's of this type has."""

    type: str


class TokensCount(Struct, frozen=True, kw_only=True):
    """The answer of /v1/messages/count_tokens."""

    input_tokens: int


class ModelInfo(Struct, frozen=True, kw_only=True):
    """The served model as Anthropic's clients read it."""

    id: str
    type: Literal["model"] = "model"
    display_name: str
    created_at: str
    max_input_tokens: int
    max_tokens: int
    lifecycle: Literal["active"] = "active"


class ModelPage(Struct, frozen=True, kw_only=True):
    """The answer of /v1/models to Anthropic's clients: all of it is one page."""

    data: list[ModelInfo]
    has_more: bool = False
    first_id: str
    last_id: str
