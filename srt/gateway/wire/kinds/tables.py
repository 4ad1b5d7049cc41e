"""The fields of each kind of request that are not honoured, and the values of other servers."""

from msgspec import Struct

from srt.gateway.wire.chat import (
    ContentPart,
    ImageUrl,
    Message,
    PredictedText,
    Prediction,
    VideoUrl,
)
from srt.gateway.wire.kinds.classes import (
    NO_EXTRAS,
    FieldClass,
    Hint,
    Ignored,
    Kind,
    Meanings,
    OnlyNeutral,
    names_of,
)
from srt.gateway.wire.kinds.others import (
    OF_CHATS,
    OF_COMPLETIONS,
    OF_MESSAGES,
    OF_RESPONSES,
    OF_TOOLS,
)
from srt.gateway.wire.native import NativeRequest, NativeSampling
from srt.gateway.wire.openai import (
    ChatReasoning,
    ChatRequest,
    CompletionRequest,
    StreamOptions,
    Thinking,
)
from srt.gateway.wire.responses import (
    CustomTool,
    FunctionTool,
    InputItem,
    InputPart,
    NamespaceTool,
    ReasoningIn,
    ResponsesRequest,
    TextIn,
)
from srt.gateway.wire.tools import FunctionCall, FunctionIn, ToolCallJson, ToolIn

_NOT_SUPPORTED = "not supported by this server"
_NO_AUDIO = "texts, pictures and videos only"
_TEXT_ANSWERS = "answers are texts"
_OLD_TOOLS = "use tools and tool_choice"

_ROUTING: dict[str, FieldClass] = {
    "lora_path": OnlyNeutral(("",), "adapters are not supported"),
    "session_params": OnlyNeutral(({},), "sessions are not supported"),
    "custom_logit_processor": OnlyNeutral(("",), _NOT_SUPPORTED),
    "return_hidden_states": OnlyNeutral((False,), _NOT_SUPPORTED),
}

NATIVE_SAMPLING = Kind(
    {
        "beam_width": OnlyNeutral((0, 1), "beam search is not supported"),
        "spaces_between_special_tokens": OnlyNeutral(
            (True,), "special tokens are joined as they are"
        ),
        "custom_params": OnlyNeutral(({},), _NOT_SUPPORTED),
    },
    with_null=frozenset({"max_new_tokens"}),
)

_MESSAGE = Kind(
    {
        "refusal": OnlyNeutral(("",), _NOT_SUPPORTED),
        "annotations": OnlyNeutral(([],), _NOT_SUPPORTED),
        "audio": OnlyNeutral((), _NO_AUDIO),
        "function_call": OnlyNeutral((), "use tool_calls"),
    },
    {
        "content": Kind(
            {},
            {
                "image_url": Kind({}, honoured=names_of(ImageUrl), others=OF_MESSAGES),
                "video_url": Kind({}, honoured=names_of(VideoUrl), others=OF_MESSAGES),
            },
            honoured=names_of(ContentPart),
            others=OF_MESSAGES,
        ),
        "tool_calls": Kind(
            {"index": Ignored("the order says it")},
            {"function": Kind({}, honoured=names_of(FunctionCall), others=OF_MESSAGES)},
            honoured=names_of(ToolCallJson),
            others=OF_MESSAGES,
        ),
    },
    honoured=names_of(Message),
    others=OF_MESSAGES,
)

_FUNCTION = Kind({}, honoured=names_of(FunctionIn), others=OF_TOOLS)
_CHAT: dict[str, Kind] = {
    "messages": _MESSAGE,
    "tools": Kind({}, {"function": _FUNCTION}, honoured=names_of(ToolIn), others=OF_TOOLS),
}

NATIVE = Kind(
    _ROUTING
    | {
        "log_metrics": Ignored("metrics are always collected"),
        "no_logs": Ignored("request contents are never logged"),
        "custom_labels": Ignored("labels are for metrics only"),
        "input_embeds": OnlyNeutral(([],), "send text or input_ids"),
        "audio_data": OnlyNeutral(("", []), _NO_AUDIO),
        "return_entropy": OnlyNeutral((False,), _NOT_SUPPORTED),
        "session_id": OnlyNeutral(("",), "sessions are not supported"),
        "background": OnlyNeutral((False,), _NOT_SUPPORTED),
    },
    {"sampling_params": NATIVE_SAMPLING, **_CHAT},
)

_OPENAI: dict[str, FieldClass] = _ROUTING | {
    "user": Ignored("an end-user label"),
    "metadata": Ignored("labels for a store that does not exist here"),
    "store": Ignored("only /v1/responses stores anything"),
    "safety_identifier": Ignored("an end-user label"),
    "prompt_cache_key": Ignored("a routing hint; the prefix cache needs none"),
    "prompt_cache_retention": Ignored("a hint; the prefix cache keeps what it can"),
    "prompt_cache_options": Ignored("a hint; the prefix cache keeps what it can"),
    "guided_decoding_backend": Ignored("every back end enforces the same"),
    "use_beam_search": OnlyNeutral((False,), "beam search is not supported"),
    "length_penalty": OnlyNeutral((1,), "beam search is not supported"),
    "spaces_between_special_tokens": OnlyNeutral((True,), "special tokens are joined as they are"),
    "custom_params": OnlyNeutral(({},), _NOT_SUPPORTED),
}

_STREAM_OPTIONS = Kind(
    {
        "include_obfuscation": Ignored("chunks are never padded"),
    },
    honoured=names_of(StreamOptions),
)

_STRUCTURED_OUTPUTS = Kind(
    {
        "disable_fallback": Ignored("a constraint never falls back to a weaker one"),
    }
)

# Values of other servers: llama.cpp's and Ollama's, OpenAI's further tiers (fast is another name of
# priority there, scale an older one that has been paid for), and Mistral's tool_choice.
_TIERS: dict[str, Meanings] = {"service_tier": (("fast", "priority"), ("scale", "default"))}
_MEANT: dict[str, Meanings] = {
    "top_k": ((0, -1),),
    "seed": ((-1, None),),
    "max_tokens": ((-1, None),),
    "max_completion_tokens": ((-1, None),),
    **_TIERS,
}
_TOOL_CHOICE: dict[str, Meanings] = {"tool_choice": (("any", "required"),)}

_CONSTRAINTS: dict[str, Kind] = {
    "response_format": Kind({}, {"json_schema": NO_EXTRAS}),
    "structured_outputs": _STRUCTURED_OUTPUTS,
}
_PREDICTION = Kind(
    {},
    {"content": Kind({}, honoured=names_of(PredictedText), others=OF_MESSAGES)},
    honoured=names_of(Prediction),
)

COMPLETION = Kind(
    _OPENAI
    | {
        "suffix": OnlyNeutral(("",), "the model continues text, it does not fill gaps"),
        "add_special_tokens": OnlyNeutral((True,), _NOT_SUPPORTED),
    },
    {"stream_options": _STREAM_OPTIONS, "prediction": _PREDICTION, **_CONSTRAINTS},
    honoured=names_of(CompletionRequest),
    others=OF_COMPLETIONS,
    meant=_MEANT,
)

_REASONING = Kind(
    {
        "max_tokens": Hint("reasoning has no limit of its own"),
        "summary": Ignored("reasoning is given as it is"),
    },
    honoured=names_of(ChatReasoning),
)
_THINKING = Kind(
    {
        "budget_tokens": Hint("reasoning has no limit of its own"),
        "clear_thinking": Hint("the template says what it shows of earlier reasoning"),
    },
    honoured=names_of(Thinking),
)

CHAT = Kind(
    _OPENAI
    | {
        "stream_reasoning": OnlyNeutral((True,), "reasoning streams as it comes"),
        "functions": OnlyNeutral(([],), _OLD_TOOLS),
        "function_call": OnlyNeutral(("none", "auto"), _OLD_TOOLS),
        "echo": OnlyNeutral((False,), _NOT_SUPPORTED),
        "modalities": OnlyNeutral((["text"],), _TEXT_ANSWERS),
        "audio": OnlyNeutral((), _TEXT_ANSWERS),
        "moderation": OnlyNeutral((), _NOT_SUPPORTED),
        "web_search_options": OnlyNeutral((), _NOT_SUPPORTED),
        "chat_template": OnlyNeutral(("",), "the model's own template is used"),
        "add_special_tokens": OnlyNeutral((False,), "the template writes them"),
    },
    {
        "stream_options": _STREAM_OPTIONS,
        "prediction": _PREDICTION,
        **_CHAT,
        "tool_choice": NO_EXTRAS,
        "reasoning": _REASONING,
        "thinking": _THINKING,
        **_CONSTRAINTS,
    },
    honoured=names_of(ChatRequest),
    others=OF_CHATS,
    meant=_MEANT | _TOOL_CHOICE,
)

_INPUT_PART = Kind({}, honoured=names_of(InputPart), others=OF_MESSAGES)
_OF_FLAT_TOOLS: dict[str, FieldClass] = {
    "defer_loading": Hint("all tools are shown", (False,)),
    "allowed_callers": Hint("calls are made by the client"),
    "output_schema": Hint("results are what the client sends"),
    "async": Hint("calls are made by the client", (False,)),
}
_FLAT_TOOL = Kind(
    _OF_FLAT_TOOLS,
    {"format": NO_EXTRAS},
    honoured=names_of(FunctionTool, CustomTool) | {"type"},
    others=OF_TOOLS,
)
_NOT_STORED = "send the input, or previous_response_id"

RESPONSES = Kind(
    {
        "user": Ignored("an end-user label"),
        "safety_identifier": Ignored("an end-user label"),
        "prompt_cache_key": Ignored("a routing hint; the prefix cache needs none"),
        "prompt_cache_retention": Ignored("a hint; the prefix cache keeps what it can"),
        "prompt_cache_options": Ignored("a hint; the prefix cache keeps what it can"),
        "stream_options": Ignored("chunks are never padded"),
        "access_programs": OnlyNeutral((), _NOT_SUPPORTED),
        "background_options": OnlyNeutral(({},), _NOT_SUPPORTED),
        "image": OnlyNeutral(({},), _TEXT_ANSWERS),
        "conversation": OnlyNeutral((), _NOT_STORED),
        "prompt": OnlyNeutral((), _NOT_STORED),
        "context_management": OnlyNeutral(([],), _NOT_SUPPORTED),
        "client_metadata": Ignored("labels of the client's"),
        "max_tool_calls": OnlyNeutral((), "calls are made by the client"),
        "moderation": OnlyNeutral((), _NOT_SUPPORTED),
        "top_logprobs": OnlyNeutral((0,), "use /v1/chat/completions"),
        "truncation": Hint("no prompt is shortened", ("disabled",)),
    },
    {
        "text": Kind({}, {"format": NO_EXTRAS}, honoured=names_of(TextIn)),
        "reasoning": Kind(
            {
                "context": Ignored("the template says what it shows of earlier reasoning"),
                "mode": OnlyNeutral(("standard",), _NOT_SUPPORTED),
                "summary": Ignored("reasoning is given as it is"),
                "generate_summary": Ignored("reasoning is given as it is"),
            },
            honoured=names_of(ReasoningIn),
        ),
        "input": Kind(
            {
                "id": Ignored("nothing is fetched by it"),
                "status": Ignored("what is given is taken"),
                "phase": Ignored("a hint for other models"),
            },
            {"content": _INPUT_PART, "output": _INPUT_PART},
            honoured=names_of(InputItem),
            others=OF_MESSAGES,
        ),
        "tools": Kind(
            _OF_FLAT_TOOLS,
            {"tools": _FLAT_TOOL, "format": NO_EXTRAS},
            honoured=_FLAT_TOOL.honoured | names_of(NamespaceTool),
            others=OF_TOOLS,
        ),
        "tool_choice": Kind({}, {"tools": NO_EXTRAS}),
        "prediction": _PREDICTION,
    },
    honoured=names_of(ResponsesRequest),
    others=OF_RESPONSES,
    meant={"seed": ((-1, None),), "max_output_tokens": ((-1, None),), **_TIERS, **_TOOL_CHOICE},
)

# What some route honours, by the name of the first: never left out silently where another route
# does not have it.
_ROUTES: tuple[tuple[str, tuple[type[Struct], ...]], ...] = (
    ("/generate", (NativeRequest, NativeSampling)),
    ("/v1/responses", (ResponsesRequest,)),
    ("/v1/completions", (CompletionRequest,)),
    ("/v1/chat/completions", (ChatRequest,)),
)
OURS = {name: path for path, structs in _ROUTES for name in names_of(*structs)}
