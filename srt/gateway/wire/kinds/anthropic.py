"""The fields of Anthropic's routes that are not honoured, as `tables` has OpenAI's."""

from functools import partial

from srt.gateway.wire.anthropic import (
    ContentBlock,
    CountRequest,
    InputMessage,
    JsonOutput,
    MessagesRequest,
    MessagesTool,
    MessagesToolChoice,
    OutputConfig,
    ResultBlock,
    Source,
    SystemBlock,
    ThinkingConfig,
)
from srt.gateway.wire.kinds.classes import (
    FieldClass,
    Foreign,
    Hint,
    Ignored,
    Kind,
    OnlyNeutral,
    Refused,
    Renamed,
    names_of,
)
from srt.gateway.wire.kinds.others import OF_CHATS, OF_MESSAGES

# Its agents send these in every request, and have no option to leave them out.
_hint = partial(Hint, is_always_taken=True)
_CACHED = _hint("the prefixes of prompts are always cached")
_ONE_MODEL = _hint("there is one model and one provider")
_NO_BLOCK = _hint("of blocks of types that are refused")
_NO_TOOL = _hint("of tools that this server does not have")
_NOT_GENERATED = Ignored("nothing is generated")
_NO_EDITS = "no prompt is shortened"

_BLOCK_FIELDS: dict[str, FieldClass] = {
    "cache_control": _CACHED,
    "citations": _hint("answers cite nothing", ([],)),
    "caller": _hint("calls are the model's own", ({"type": "direct"},)),
    "toolset_name": _NO_TOOL,
    "transformations": _hint("pictures are shown as they are", ([], {})),
    "title": _NO_BLOCK,
    "context": _NO_BLOCK,
    "encrypted_content": _NO_BLOCK,
    "file_id": _NO_BLOCK,
    "from": _NO_BLOCK,
    "to": _NO_BLOCK,
    "mcp_server_name": _NO_BLOCK,
    "server_name": _NO_BLOCK,
    "tool": _NO_BLOCK,
    "tool_changes": _NO_BLOCK,
    "tools": _NO_BLOCK,
    "trigger": _NO_BLOCK,
}


_SOURCE = Kind({}, honoured=names_of(Source), others=OF_MESSAGES)
_RESULT = Kind(
    _BLOCK_FIELDS, {"source": _SOURCE}, honoured=names_of(ResultBlock), others=OF_MESSAGES
)
CONTENT_BLOCK = Kind(
    _BLOCK_FIELDS,
    {"source": _SOURCE, "content": _RESULT},
    honoured=names_of(ContentBlock),
    others=OF_MESSAGES,
)
MESSAGES_TOOL = Kind(
    {
        "cache_control": _CACHED,
        "eager_input_streaming": Ignored("inputs stream as they come"),
        "input_examples": _hint("the model reads the description and the schema", ([],)),
        "allowed_callers": _hint("calls are the model's own", (["direct"],)),
        "defer_loading": _hint("the model sees all tools", (False,)),
        **dict.fromkeys(
            (
                *("allowed_domains", "blocked_domains", "caching", "citations", "configs"),
                *("default_config", "display_height_px", "display_number", "display_width_px"),
                *("enable_zoom", "max_characters", "max_content_tokens", "max_tokens", "max_uses"),
                *("mcp_server_name", "model", "response_inclusion", "tools", "url_sources"),
                *("use_cache", "user_location"),
            ),
            _NO_TOOL,
        ),
    },
    honoured=names_of(MessagesTool),
    others=OF_MESSAGES,
)

_NESTED: dict[str, Kind] = {
    "messages": Kind(
        {
            "clear_at": _hint(_NO_EDITS, ("never",)),
            "output_config": _hint("output_config of the request says it"),
        },
        {"content": CONTENT_BLOCK},
        honoured=names_of(InputMessage),
        others=OF_MESSAGES,
    ),
    "system": Kind(
        {"cache_control": _CACHED, "citations": _hint("answers cite nothing", ([],))},
        honoured=names_of(SystemBlock),
        others=OF_MESSAGES,
    ),
    "tools": MESSAGES_TOOL,
    "tool_choice": Kind({}, honoured=names_of(MessagesToolChoice)),
    "thinking": Kind(
        {"block_binding": _hint("no signature is checked")}, honoured=names_of(ThinkingConfig)
    ),
    "output_config": Kind(
        {"task_budget": _hint("there are no budgets of tasks")},
        {"format": Kind({}, honoured=names_of(JsonOutput))},
        honoured=names_of(OutputConfig),
    ),
}
_FIELDS: dict[str, FieldClass] = {
    "cache_control": _CACHED,
    "metadata": Ignored("an end-user label"),
    "user_profile_id": Ignored("an end-user label"),
    "workspace_id": Ignored("there is one workspace"),
    "betas": _hint("a header of Anthropic's"),
    "service_tier": _hint("there is one tier"),
    "speed": _hint("there is one speed", ("standard",)),
    "inference_geo": _hint("the server is where it is"),
    "diagnostics": _hint("usage says what was cached"),
    "context_management": _hint(_NO_EDITS),
    "billing_policy": _hint("nothing is billed"),
    "fallback_credit_token": _hint("nothing is billed"),
    "fallbacks": _ONE_MODEL,
    "compaction": OnlyNeutral((), "conversations are summarized by clients"),
    "container": OnlyNeutral((), "tools run at the client"),
    "mcp_servers": OnlyNeutral(([],), "tools run at the client"),
    "thread": OnlyNeutral((), "no conversation is stored: send its messages"),
}
# Other servers' fields that do not rule an answer are named, as in chats.
_OTHERS: dict[str, Foreign] = {
    **{name: field for name, field in OF_CHATS.items() if isinstance(field, Hint)},
    "max_completion_tokens": Renamed("max_tokens"),
    "max_output_tokens": Renamed("max_tokens"),
    "max_new_tokens": Renamed("max_tokens"),
    "stop": Refused("stop_sequences", ([], "")),
    "reasoning_effort": Refused("output_config.effort"),
    "response_format": Refused("output_config.format"),
    "output_format": Refused("output_config.format"),
    "json_schema": Refused("output_config.format"),
    "parallel_tool_calls": Refused("tool_choice.disable_parallel_tool_use", (True,)),
}

MESSAGES = Kind(
    _FIELDS,
    _NESTED,
    honoured=names_of(MessagesRequest),
    others=_OTHERS,
    meant={"top_k": ((0, -1),)},
)
COUNT = Kind(
    _FIELDS
    | dict.fromkeys(sorted(names_of(MessagesRequest) - names_of(CountRequest)), _NOT_GENERATED),
    _NESTED,
    honoured=names_of(CountRequest),
    others={
        name: field
        for name, field in _OTHERS.items()
        if not isinstance(field, Renamed) and name != "stop"
    },
)
