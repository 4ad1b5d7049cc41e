"""The JSON of the OpenAI routes. Requests list the honoured fields only; see `fields`."""

from typing import Annotated, Any, Generic, Literal, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType, field

from srt.gateway.constraint.fields import Given, sampling_of
from srt.gateway.constraint.wire import OpenAISamplingFields
from srt.gateway.wire.chat import (
    BeginsAnswer,
    Message,
    PredictionIn,
    ReasoningEffort,
    TemplateArgs,
    Tools,
    VerbosityHint,
)
from srt.gateway.wire.native import (
    Count,
    GivenHints,
    GivenTier,
    OwnRid,
    RoutedReplica,
    Salt,
    SmallestFirst,
    TimeoutMs,
    TokenId,
)
from srt.gateway.wire.tools import ToolCallDelta, ToolCallJson, ToolChoiceIn
from srt.wire.answer_meta import USAGE, PrefixEnd, meta_struct
from srt.wire.constraint import Capture
from srt.wire.hints import MAX_PRIORITY, ServiceClass, class_of
from srt.wire.sampling import Int, SamplingParams

FinishWord = Literal["stop", "length", "abort", "tool_calls"]
MAX_TOP_LOGPROBS = 20
TopCount = Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)]


class StreamOptions(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What to add to a stream."""

    include_usage: Annotated[bool, Meta(description="A last chunk with usage.")] = False
    continuous_usage_stats: Annotated[
        bool, Meta(description="Every chunk has the usage so far; needs include_usage.")
    ] = False


class ChatReasoning(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """OpenRouter's way to say how to reason; `exclude` leaves the reasoning out of the answer."""

    effort: str | None = None
    enabled: bool | None = None
    exclude: bool = False


class Thinking(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Z.ai's and DeepSeek's switch of reasoning, and Anthropic's; the last two leave it to the
    model."""

    type: Literal["enabled", "disabled", "auto", "adaptive"]


class OpenAIRequest(OpenAISamplingFields, kw_only=True, frozen=True):
    """The fields that completions and chat completions have in common."""

    model: Annotated[str | None, Meta(description="The served name or path.")] = None
    min_tokens: Annotated[Int, Meta(description="No stop before this many tokens.")] = 0
    include_stop_str_in_output: Annotated[
        bool, Meta(description="vLLM's name for no_stop_trim.")
    ] = False
    stream: Annotated[bool, Meta(description="Answer with server-sent events.")] = False
    stream_options: Annotated[StreamOptions | None, Meta(description="What to add to it.")] = None
    prompt_logprobs: Annotated[
        TopCount | None,
        Meta(description="vLLM's: the prompt's tokens with this many likely ones; not streamed."),
    ] = None
    return_token_ids: Annotated[
        bool, Meta(description="vLLM's: add the ids of the prompt and of the text.")
    ] = False
    return_tokens_as_token_ids: Annotated[
        bool, Meta(description="vLLM's: tokens in log-probabilities are written token_id:5.")
    ] = False
    prediction: PredictionIn = None
    rid: OwnRid = None
    cache_salt: Salt = ""
    timeout_ms: TimeoutMs = 0
    routed_replica: RoutedReplica = None
    hints: GivenHints = None
    priority: SmallestFirst = None
    service_tier: GivenTier = None

    def to_params(
        self, given: Given | None, after: str, max_new_tokens: int | None
    ) -> SamplingParams:
        """The ring's own type; `max_new_tokens` None is all the room."""
        return sampling_of(
            self,
            given,
            after,
            max_new_tokens=max_new_tokens,
            min_new_tokens=self.min_tokens,
            no_stop_trim=self.no_stop_trim or self.include_stop_str_in_output,
        )


def order_fields(body: OpenAIRequest) -> dict[str, Any]:
    """The fields of the client's request, where the greatest priority is first."""
    priority = min(MAX_PRIORITY, -(body.priority or 0))
    return {"priority": priority, "service_tier": body.service_tier or ""}


def used_tier(tier: GivenTier, priority: int | None) -> ServiceClass | UnsetType:
    """What an answer says of a body with these fields: the class that it was, if a tier was asked
    for."""
    return UNSET if tier is None else class_of(tier, -(priority or 0))


class CompletionRequest(OpenAIRequest, kw_only=True, frozen=True):
    """The body of /v1/completions."""

    prompt: Annotated[
        str | list[str | TokenId | list[TokenId]],
        Meta(description="A text or token ids, or a list of either: one choice each."),
    ]
    max_tokens: Annotated[
        Count | None, Meta(description="Tokens to generate at most; -1: all the room.")
    ] = 16
    best_of: Annotated[
        Count | None,
        Meta(description="How many to generate; the n likeliest are returned; not streamed."),
    ] = None
    echo: Annotated[bool, Meta(description="The text begins with the prompt.")] = False
    logprobs: Annotated[
        TopCount | None,
        Meta(description="Log-probabilities, with this many likely tokens at each place."),
    ] = None


class ChatRequest(OpenAIRequest, kw_only=True, frozen=True):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(description="The chat so far.")]
    max_tokens: Annotated[
        Count | None,
        Meta(description="Tokens to generate at most; all the room by default, and for -1."),
    ] = None
    max_completion_tokens: Annotated[
        Count | None, Meta(description="The newer name of max_tokens, which it overrides.")
    ] = None
    logprobs: Annotated[bool, Meta(description="Log-probabilities of the tokens.")] = False
    top_logprobs: Annotated[
        TopCount, Meta(description="How many likely tokens at each place; needs logprobs.")
    ] = 0
    add_generation_prompt: BeginsAnswer = None
    continue_final_message: Annotated[
        bool, Meta(description="The answer continues the last message.")
    ] = False
    chat_template_kwargs: TemplateArgs = field(default_factory=dict)
    reasoning_effort: ReasoningEffort = None
    enable_thinking: Annotated[
        bool | None, Meta(description="The template's variable of this name.")
    ] = None
    thinking: Annotated[
        Thinking | None, Meta(description="`type`: enabled or disabled; enable_thinking is first.")
    ] = None
    reasoning: Annotated[
        ChatReasoning | None,
        Meta(
            description="`effort`, `enabled` and `exclude`; the fields above and below go before "
            "them."
        ),
    ] = None
    include_reasoning: Annotated[
        bool, Meta(description="false leaves the reasoning out of the answer.")
    ] = True
    verbosity: VerbosityHint = None
    tools: Tools = field(default_factory=list)
    tool_choice: Annotated[
        ToolChoiceIn | None,
        Meta(description='"none", "auto", "required" (or "any") or one function.'),
    ] = None
    parallel_tool_calls: Annotated[
        bool, Meta(description="Whether there may be more than one call.")
    ] = True
    parse_tool_calls: Annotated[
        bool, Meta(description="false leaves calls in the content, as the model wrote them.")
    ] = True
    separate_reasoning: Annotated[
        bool, Meta(description="false leaves the reasoning in the content, with its tags.")
    ] = True


class TopLogprob(Struct, frozen=True):
    """A token of a chat with its log-probability; `bytes` are those of its text."""

    token: str
    bytes: list[int]
    logprob: float


class TokenLogprob(TopLogprob, frozen=True):
    """A generated token, and the most likely ones in its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct, frozen=True):
    """Log-probabilities of the tokens of a chat's answer, or of those that are new."""

    content: list[TokenLogprob]
    refusal: None = None


class CompletionLogprobs(Struct, frozen=True):
    """Log-probabilities of a completion, or of what is new of it: parallel lists.

    `top_logprobs` are those of the most likely tokens and of the one that is there, by their
    texts; null if none were asked for. The first token of a prompt has neither.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class RankedLogprob(Struct, frozen=True):
    """A log-probability of `prompt_logprobs`; `rank` 1 is the likeliest, null is not among those
    that were asked for."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[int, RankedLogprob] | None]


class PromptTokensDetails(Struct, frozen=True):
    """Prompt tokens that came from the prefix cache, and those that stand for pictures and videos,
    if there are any; and where the first prompt leaves what is cached, if that was asked for."""

    cached_tokens: int
    image_tokens: int | UnsetType = UNSET
    prefix: PrefixEnd | UnsetType = UNSET


class CompletionTokensDetails(meta_struct(USAGE), frozen=True, kw_only=True):  # type: ignore[call-arg,misc]
    """Drafted tokens that are in the completions, and those that are not; and further facts, each
    summed over all choices."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(Struct, frozen=True, kw_only=True):
    """Token counts over all choices; a prompt counts once for all its choices.
    `completion_tokens_details` is there if it has anything to tell."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class CompletionChoice(Struct, frozen=True, kw_only=True):
    """One completion, or what is new of it in a stream."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishWord | None = None
    matched_stop: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    steered: int | UnsetType = UNSET
    closed: bool | UnsetType = UNSET
    token_origins: str | UnsetType = UNSET
    captures: list[Capture] | UnsetType = UNSET


class ChatMessageOut(Struct, frozen=True):
    """The assistant's message; `content` is null when there are only calls or reasoning."""

    content: str | None
    role: str = "assistant"
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallJson] | UnsetType = UNSET


class ChatDelta(Struct, frozen=True, kw_only=True):
    """What is new of the assistant's message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChoice(Struct, frozen=True, kw_only=True):
    """The answer to a chat."""

    index: int
    message: ChatMessageOut
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishWord
    matched_stop: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET
    steered: int | UnsetType = UNSET
    closed: bool | UnsetType = UNSET
    token_origins: str | UnsetType = UNSET
    captures: list[Capture] | UnsetType = UNSET


class ChatChunkChoice(Struct, frozen=True, kw_only=True):
    """What is new of the answer to a chat."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishWord | None = None
    matched_stop: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET
    steered: int | UnsetType = UNSET
    closed: bool | UnsetType = UNSET
    token_origins: str | UnsetType = UNSET
    captures: list[Capture] | UnsetType = UNSET


Choice = TypeVar("Choice", CompletionChoice, ChatChoice, ChatChunkChoice)


class OpenAIResponse(Struct, Generic[Choice], frozen=True, kw_only=True):
    """A response or a chunk: both faces differ in `object` and in their choices only."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    service_tier: ServiceClass | UnsetType = UNSET
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class ModelCard(Struct, frozen=True, kw_only=True):
    """An entry of /v1/models."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "srt"
    root: str
    max_model_len: int
    has_image_understanding: bool = False


class ModelList(Struct, frozen=True, kw_only=True):
    """The answer of /v1/models."""

    object: str = "list"
    data: list[ModelCard]
