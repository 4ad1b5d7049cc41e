"""The JSON of the OpenAI routes. Requests list the honoured fields only; see `fields`."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from srt.gateway.wire_constraint import OpenAIConstraintFields
from srt.gateway.wire_native import Count, Int, Rid, Seed, TokenId, as_list
from srt.gateway.wire_tools import ToolCallDelta, ToolCallJson, ToolChoiceIn, ToolIn
from srt.sampling_params import SamplingParams

FinishWord = Literal["stop", "length", "abort", "tool_calls"]


class StreamOptions(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What to add to a stream."""

    include_usage: bool = False


class OpenAIRequest(OpenAIConstraintFields, kw_only=True, frozen=True):
    """The fields that completions and chat completions have in common."""

    model: Annotated[str | None, Meta(description="The served name or path.")] = None
    temperature: Annotated[float, Meta(description="0 is greedy.")] = 1.0
    top_p: Annotated[float, Meta(description="In (0, 1].")] = 1.0
    top_k: Annotated[Int, Meta(description="-1 is off.")] = -1
    min_p: Annotated[float, Meta(description="In [0, 1].")] = 0.0
    min_tokens: Annotated[Count, Meta(description="No stop before so many tokens.")] = 0
    seed: Annotated[Seed | None, Meta(description="Repeatable sampling.")] = None
    stop: Annotated[str | list[str], Meta(description="Not part of the text.")] = field(
        default_factory=list
    )
    stop_token_ids: Annotated[list[TokenId], Meta(description="Ids that end the text.")] = field(
        default_factory=list
    )
    ignore_eos: Annotated[bool, Meta(description="Go on after the end token.")] = False
    skip_special_tokens: Annotated[bool, Meta(description="Leave them out of the text.")] = True
    stream: Annotated[bool, Meta(description="Answer with server-sent events.")] = False
    stream_options: Annotated[
        StreamOptions | None, Meta(description="`include_usage` adds a last chunk.")
    ] = None
    cache_salt: Annotated[str, Meta(description="Prompts share KV under one salt only.")] = ""
    rid: Annotated[Rid | None, Meta(description="The request's id; otherwise a new one.")] = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self, max_new_tokens: int | None) -> SamplingParams:
        """The ring's own type, without the constraint; `max_new_tokens` None is all the room."""
        return SamplingParams(
            max_new_tokens=max_new_tokens,
            min_new_tokens=self.min_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            seed=self.seed,
            stop=as_list(self.stop),
            stop_token_ids=self.stop_token_ids,
            ignore_eos=self.ignore_eos,
            skip_special_tokens=self.skip_special_tokens,
        )


class CompletionRequest(OpenAIRequest, kw_only=True, frozen=True):
    """The body of /v1/completions."""

    prompt: Annotated[
        str | list[str | TokenId | list[TokenId]],
        Meta(description="A text or token ids, or a list of either: one choice each."),
    ]
    max_tokens: Annotated[Count, Meta(description="Tokens to generate at most.")] = 16


class ContentPart(Struct, frozen=True):
    """A part of a message; only type "text" is taken, the others are refused by name."""

    type: str
    text: str = ""


class Message(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A message of a chat."""

    role: Annotated[
        Literal["system", "developer", "user", "assistant", "tool"],
        Meta(description='"developer" is the newer word for "system".'),
    ]
    content: Annotated[
        str | list[ContentPart] | None,
        Meta(description="A text or text parts; may be null beside tool_calls."),
    ] = None
    tool_calls: Annotated[
        list[ToolCallJson] | None, Meta(description="assistant: the calls that it made.")
    ] = None
    tool_call_id: Annotated[str, Meta(description="tool: the call that this answers.")] = ""
    name: Annotated[str, Meta(description="tool: the function; that of the call by default.")] = ""
    reasoning_content: Annotated[
        str, Meta(description="assistant: for templates that use it; others leave it out.")
    ] = ""


class ChatRequest(OpenAIRequest, kw_only=True, frozen=True):
    """The body of /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(description="The chat so far.")]
    max_tokens: Annotated[
        Count | None, Meta(description="Tokens to generate at most; all the room by default.")
    ] = None
    max_completion_tokens: Annotated[
        Count | None, Meta(description="The newer name of max_tokens, which it overrides.")
    ] = None
    tools: Annotated[list[ToolIn], Meta(description="Functions that the model may call.")] = field(
        default_factory=list
    )
    tool_choice: Annotated[
        ToolChoiceIn | None, Meta(description='"none", "auto", "required" or one function.')
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


class PromptTokensDetails(Struct, frozen=True):
    """Prompt tokens that came from the prefix cache."""

    cached_tokens: int


class Usage(Struct, frozen=True, kw_only=True):
    """Token counts over all choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class CompletionChoice(Struct, frozen=True, kw_only=True):
    """One completion, or what is new of it in a stream."""

    index: int
    text: str
    logprobs: None = None
    finish_reason: FinishWord | None = None
    matched_stop: int | str | None = None


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
    logprobs: None = None
    finish_reason: FinishWord
    matched_stop: int | str | None = None


class ChatChunkChoice(Struct, frozen=True, kw_only=True):
    """What is new of the answer to a chat."""

    index: int
    delta: ChatDelta
    logprobs: None = None
    finish_reason: FinishWord | None = None
    matched_stop: int | str | None = None


class OpenAIResponse(Struct, frozen=True, kw_only=True):
    """A response or a chunk: both faces differ in `object` and in their choices only."""

    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice] | list[ChatChoice] | list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET


class ModelCard(Struct, frozen=True, kw_only=True):
    """An entry of /v1/models."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "srt"
    root: str
    max_model_len: int


class ModelList(Struct, frozen=True, kw_only=True):
    """The answer of /v1/models."""

    object: str = "list"
    data: list[ModelCard]
