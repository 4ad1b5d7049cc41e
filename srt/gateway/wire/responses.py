"""The JSON of /v1/responses. Requests list the honoured fields only; see `fields`."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from srt.gateway.wire.chat import Detail, PredictionIn, Verbosity
from srt.gateway.wire.native import (
    Count,
    GivenTier,
    RequestBody,
    RoutedReplica,
    SmallestFirst,
    TimeoutMs,
)
from srt.wire.answer_meta import USAGE, PrefixEnd, meta_struct
from srt.wire.hints import ServiceClass
from srt.wire.sampling import Int

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "cancelled", "failed"]


class InputPart(Struct, frozen=True, omit_defaults=True):
    """A part of a message or of a tool's result: a text, or in the messages of users and tools'
    results a picture, with its `image_url`; nothing is found by a `file_id`."""

    type: str
    text: str | UnsetType = UNSET
    image_url: str | UnsetType = UNSET
    detail: Detail = "auto"
    file_id: str | UnsetType = UNSET


class SummaryText(Struct, frozen=True):
    """A part of a summary of reasoning."""

    text: str
    type: Literal["summary_text"] = "summary_text"


class InputItem(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """An item of the input, as clients write it or as an earlier response had it."""

    type: Annotated[
        Literal[
            "message",
            "function_call",
            "function_call_output",
            "custom_tool_call",
            "custom_tool_call_output",
            "reasoning",
        ],
        Meta(description="What it is; a message by default."),
    ] = "message"
    role: Annotated[str, Meta(description="message: system, developer, user, assistant.")] = ""
    content: Annotated[
        str | list[InputPart] | None, Meta(description="message, reasoning: a text or parts.")
    ] = None
    call_id: Annotated[str, Meta(description="The call id, in both items of a call.")] = ""
    name: Annotated[str, Meta(description="Calls: the tool.")] = ""
    namespace: Annotated[str, Meta(description="Calls: the namespace of the tool.")] = ""
    arguments: Annotated[str, Meta(description="function_call: the JSON text of an object.")] = ""
    input: Annotated[str, Meta(description="custom_tool_call: the text.")] = ""
    output: Annotated[
        str | list[InputPart] | None, Meta(description="Calls' outputs: the result.")
    ] = None
    summary: Annotated[
        list[SummaryText] | None,
        Meta(description="reasoning: stands for a content that is not given."),
    ] = None
    encrypted_content: Annotated[
        str, Meta(description="reasoning: the same, as an answer had it; that of others is unread.")
    ] = ""


class TextFormatIn(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What the text must be; `schema` goes with json_schema, and is enforced whatever `strict`,
    which closes objects that list properties even with `--open-objects`."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    schema: dict[str, Any] | bool | UnsetType = UNSET
    name: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    strict: bool | UnsetType = UNSET


class TextIn(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """How the text is to be; `verbosity` is for templates that know it."""

    format: TextFormatIn = TextFormatIn()
    verbosity: Verbosity | UnsetType = UNSET


class ReasoningIn(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """How to reason."""

    effort: str | None = None


class _Tool(Struct, forbid_unknown_fields=True, frozen=True, tag_field="type"):
    """What all tools have in common."""


class FunctionTool(_Tool, tag="function", kw_only=True, frozen=True):
    """A function that the model may call; `parameters` is a JSON schema of type object."""

    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None
    strict: bool = False


class CustomFormat(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What the input of a custom tool is: any text, or one that a grammar matches, a regular
    expression (`regex`) or rules in Lark (`lark`)."""

    type: Literal["text", "grammar"] = "text"
    syntax: Literal["lark", "regex"] | UnsetType = UNSET
    definition: str | UnsetType = UNSET


class CustomTool(_Tool, tag="custom", kw_only=True, frozen=True):
    """A tool whose input is a text. Its `format` is enforced."""

    name: str
    description: str = ""
    format: CustomFormat = CustomFormat()


class NamespaceTool(_Tool, tag="namespace", kw_only=True, frozen=True):
    """Tools with a common name. The model knows each as `<name>__<tool>`; calls name both apart."""

    name: str
    description: str = ""
    tools: list[FunctionTool | CustomTool] = field(default_factory=list)


Tool = FunctionTool | CustomTool | NamespaceTool


class ToolName(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A tool of the request's. `type`: function or custom."""

    type: str
    name: str | UnsetType = UNSET
    namespace: str | UnsetType = UNSET


class ToolChoice(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The tool that must be called, of type function or custom; or with the type allowed_tools
    those of which some may be called (`mode` auto) or one must be (required)."""

    type: str
    name: str | UnsetType = UNSET
    namespace: str | UnsetType = UNSET
    mode: Literal["auto", "required"] | UnsetType = UNSET
    tools: list[ToolName] | UnsetType = UNSET


Include = Literal[
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "message.output_text.logprobs",
]


class ResponsesRequest(RequestBody, kw_only=True, frozen=True):
    """The body of /v1/responses."""

    model: Annotated[str | None, Meta(description="The served name or path.")] = None
    input: Annotated[str | list[InputItem], Meta(description="A text of the user, or items.")]
    instructions: Annotated[str | None, Meta(description="A system message in front.")] = None
    previous_response_id: Annotated[
        str | None, Meta(description="The stored response to continue.")
    ] = None
    store: Annotated[
        bool, Meta(description="Keep the response, if the server has room for any.")
    ] = True
    max_output_tokens: Annotated[
        Count | None, Meta(description="Tokens to generate at most; all the room by default.")
    ] = None
    temperature: Annotated[float | None, Meta(description="0 is greedy; null is the model's.")] = (
        None
    )
    top_p: Annotated[float | None, Meta(description="In (0, 1]; null is the model's.")] = None
    seed: Annotated[Int | None, Meta(description="Repeatable sampling.")] = None
    stream: Annotated[bool, Meta(description="Answer with server-sent events.")] = False
    text: Annotated[TextIn, Meta(description="`format`: text, json_object or json_schema.")] = (
        TextIn()
    )
    reasoning: Annotated[
        ReasoningIn, Meta(description='`effort`: for templates that know it; "none" turns it off.')
    ] = ReasoningIn()
    tools: Annotated[
        list[Tool],
        Meta(description="What the model may call: of type function, custom or namespace."),
    ] = field(default_factory=list)
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | ToolChoice,
        Meta(description='"none", "auto", "required" (or "any"), one tool, or `allowed_tools`.'),
    ] = "auto"
    parallel_tool_calls: Annotated[
        bool, Meta(description="Whether there may be more than one call.")
    ] = True
    include: Annotated[
        list[Include],
        Meta(description="`reasoning.encrypted_content`: reasoning as a text to send back."),
    ] = field(default_factory=list)
    background: Annotated[
        bool, Meta(description="Answer at once; the response is fetched later. Needs the store.")
    ] = False
    metadata: Annotated[dict[str, str], Meta(description="Given back in the answer.")] = field(
        default_factory=dict
    )
    prediction: PredictionIn = None
    timeout_ms: TimeoutMs = 0
    routed_replica: RoutedReplica = None
    priority: SmallestFirst = None
    service_tier: GivenTier = None


class OutputText(Struct, frozen=True, kw_only=True):
    """The text of a message; nothing is annotated, and log-probabilities are not given."""

    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[Any] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)


class MessageItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """A message of the assistant."""

    id: str
    role: Literal["assistant"] = "assistant"
    status: ResponseStatus
    content: list[OutputText]


class ReasoningText(Struct, frozen=True, kw_only=True):
    """The text of a reasoning."""

    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


class ReasoningItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """What the model wrote before its answer; there are no summaries. `encrypted_content`, if it
    was asked for, is the same text, encoded."""

    id: str
    summary: list[Any] = field(default_factory=list)
    status: ResponseStatus
    content: list[ReasoningText]
    encrypted_content: str | UnsetType = UNSET


class _Call(Struct, frozen=True, kw_only=True, tag_field="type"):
    """What calls of all tools have in common."""

    id: str
    call_id: str
    name: str
    namespace: str | UnsetType = UNSET
    status: ResponseStatus


class CallItem(_Call, frozen=True, kw_only=True, tag="function_call"):
    """A call of a function."""

    arguments: str


class CustomCallItem(_Call, frozen=True, kw_only=True, tag="custom_tool_call"):
    """A call of a custom tool."""

    input: str


OutputItem = MessageItem | ReasoningItem | CallItem | CustomCallItem


class InputTokensDetails(Struct, frozen=True):
    """Prompt tokens that came from the prefix cache, and those that stand for pictures, if there
    are any; and where the prompt leaves what is cached, if that was asked for."""

    cached_tokens: int
    image_tokens: int | UnsetType = UNSET
    prefix: PrefixEnd | UnsetType = UNSET


class OutputTokensDetails(meta_struct(USAGE), frozen=True, kw_only=True):  # type: ignore[call-arg,misc]
    """Tokens of the reasoning, its tags included, and further facts."""

    reasoning_tokens: int


class ResponseUsage(Struct, frozen=True, kw_only=True):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(Struct, frozen=True):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class ResponseFailure(Struct, frozen=True):
    """Why a response failed after it had begun."""

    code: str
    message: str


class ResponseObject(Struct, frozen=True, kw_only=True):
    """The answer, or its state in an event: what was asked for, and what there is of it."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: ResponseStatus
    background: bool = False
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None = None
    reasoning: ReasoningIn
    service_tier: ServiceClass | UnsetType = UNSET
    store: bool = False
    temperature: float
    text: TextIn
    tool_choice: str | ToolChoice
    tools: list[Tool]
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None


class ResponseDeleted(Struct, frozen=True, kw_only=True):
    """The answer to a DELETE of a stored response."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class ResponseTokens(Struct, frozen=True, kw_only=True):
    """The answer of /v1/responses/input_tokens."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class ResponseEvent(Struct, frozen=True, kw_only=True):
    """An event of a stream: besides these the fields that OpenAI's of this type has."""

    type: str
    sequence_number: int
