"""The three classes of request fields, as one table per kind of request.

* Honoured: a field of the request's struct in `wire.native` or `wire.openai`.
* `Ignored`: any value is accepted, because no value changes what this server answers.
* `OnlyNeutral`: accepted with a value that asks for nothing, refused by name with another one.

Every other name is refused as unknown. Null means "default" for every field but
those of `Kind.with_null`.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from srt.wire.errors import RequestError
from srt.wire.sampling import rules_of


class Ignored(NamedTuple):
    """A field whose value cannot matter; `why` says so in the documentation."""

    why: str


class OnlyNeutral(NamedTuple):
    """A field that is not supported; `neutral` are the values that mean "not used"."""

    neutral: tuple[Any, ...]
    why: str


FieldClass = Ignored | OnlyNeutral
Path = tuple[str | int, ...]  # names of fields and indices of lists, from the body on


class Kind(NamedTuple):
    """The fields of one kind of JSON object that are not honoured, its nested kinds, and those
    fields for which null is a value of its own."""

    fields: Mapping[str, FieldClass]
    nested: "Mapping[str, Kind]" = MappingProxyType({})
    with_null: frozenset[str] = frozenset()


MAX_OBJECTS = 4096  # in a list: to check more would hold up all other requests

_NOT_SUPPORTED = "not supported by this server"
_NO_AUDIO = "texts, pictures and videos only"
_TEXT_ANSWERS = "answers are texts"
_OLD_TOOLS = "use tools and tool_choice"

_ROUTING: dict[str, FieldClass] = {
    "lora_path": OnlyNeutral(("",), "adapters are not supported"),
    "session_params": OnlyNeutral(({},), "sessions are not supported"),
    "priority": OnlyNeutral((0,), "there is one priority"),
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

NO_EXTRAS = Kind({})

_MESSAGE = Kind(
    {
        "refusal": OnlyNeutral(("",), _NOT_SUPPORTED),
        "annotations": OnlyNeutral(([],), _NOT_SUPPORTED),
        "audio": OnlyNeutral((), _NO_AUDIO),
        "function_call": OnlyNeutral((), "use tool_calls"),
    },
    {
        "content": Kind({}, {"image_url": NO_EXTRAS, "video_url": NO_EXTRAS}),
        "tool_calls": Kind({"index": Ignored("the order says it")}, {"function": NO_EXTRAS}),
    },
)

_CHAT: dict[str, Kind] = {"messages": _MESSAGE, "tools": Kind({}, {"function": NO_EXTRAS})}

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
    "service_tier": OnlyNeutral(("auto", "default"), "there is one tier"),
    "guided_decoding_backend": Ignored("every back end enforces the same"),
    "use_beam_search": OnlyNeutral((False,), "beam search is not supported"),
    "length_penalty": OnlyNeutral((1,), "beam search is not supported"),
    "spaces_between_special_tokens": OnlyNeutral((True,), "special tokens are joined as they are"),
    "custom_params": OnlyNeutral(({},), _NOT_SUPPORTED),
}

_STREAM_OPTIONS = Kind(
    {
        "include_obfuscation": Ignored("chunks are never padded"),
    }
)

_STRUCTURED_OUTPUTS = Kind(
    {
        "disable_fallback": Ignored("a constraint never falls back to a weaker one"),
    }
)

_CONSTRAINTS: dict[str, Kind] = {
    "response_format": Kind({}, {"json_schema": NO_EXTRAS}),
    "structured_outputs": _STRUCTURED_OUTPUTS,
}

COMPLETION = Kind(
    _OPENAI
    | {
        "suffix": OnlyNeutral(("",), "the model continues text, it does not fill gaps"),
        "add_special_tokens": OnlyNeutral((True,), _NOT_SUPPORTED),
    },
    {"stream_options": _STREAM_OPTIONS, **_CONSTRAINTS},
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
        "prediction": OnlyNeutral((), _NOT_SUPPORTED),
        "moderation": OnlyNeutral((), _NOT_SUPPORTED),
        "web_search_options": OnlyNeutral((), _NOT_SUPPORTED),
        "chat_template": OnlyNeutral(("",), "the model's own template is used"),
        "add_special_tokens": OnlyNeutral((False,), "the template writes them"),
    },
    {
        "stream_options": _STREAM_OPTIONS,
        **_CHAT,
        "tool_choice": NO_EXTRAS,
        **_CONSTRAINTS,
    },
)

_NOT_STORED = "send the input, or previous_response_id"

RESPONSES = Kind(
    {
        "user": Ignored("an end-user label"),
        "safety_identifier": Ignored("an end-user label"),
        "prompt_cache_key": Ignored("a routing hint; the prefix cache needs none"),
        "prompt_cache_retention": Ignored("a hint; the prefix cache keeps what it can"),
        "prompt_cache_options": Ignored("a hint; the prefix cache keeps what it can"),
        "service_tier": OnlyNeutral(("auto", "default"), "there is one tier"),
        "stream_options": Ignored("chunks are never padded"),
        "access_programs": OnlyNeutral((), _NOT_SUPPORTED),
        "background": OnlyNeutral((False,), _NOT_SUPPORTED),
        "background_options": OnlyNeutral(({},), _NOT_SUPPORTED),
        "image": OnlyNeutral(({},), _TEXT_ANSWERS),
        "conversation": OnlyNeutral((), _NOT_STORED),
        "prompt": OnlyNeutral((), _NOT_STORED),
        "context_management": OnlyNeutral(([],), _NOT_SUPPORTED),
        "include": OnlyNeutral(([],), _NOT_SUPPORTED),
        "max_tool_calls": OnlyNeutral((), "calls are made by the client"),
        "moderation": OnlyNeutral((), _NOT_SUPPORTED),
        "top_logprobs": OnlyNeutral((0,), "use /v1/chat/completions"),
        "truncation": OnlyNeutral(("disabled",), _NOT_SUPPORTED),
    },
    {
        "text": Kind({}, {"format": NO_EXTRAS}),
        "reasoning": Kind(
            {
                "context": Ignored("the template says what it shows of earlier reasoning"),
                "mode": OnlyNeutral(("standard",), _NOT_SUPPORTED),
                "summary": Ignored("reasoning is given as it is"),
                "generate_summary": Ignored("reasoning is given as it is"),
            }
        ),
        "input": Kind(
            {
                "id": Ignored("nothing is fetched by it"),
                "status": Ignored("what is given is taken"),
                "phase": Ignored("a hint for other models"),
                "summary": OnlyNeutral(([],), _NOT_SUPPORTED),
                "encrypted_content": OnlyNeutral((), _NOT_SUPPORTED),
            },
            {"content": NO_EXTRAS, "output": NO_EXTRAS},
        ),
        "tools": NO_EXTRAS,
        "tool_choice": NO_EXTRAS,
    },
)


def honoured_only(value: Any, kind: Kind, path: Path = ()) -> Any:
    """`value` (decoded JSON) without nulls that mean a default, and fields that need no action.

    A list's objects are taken one by one; no kind has lists in lists, so the depth of this is that
    of the kinds, whatever the client sent. Raises RequestError, naming the field with its path,
    when an unsupported field has a value that asks for something, or a list is too long.
    """
    if isinstance(value, list):
        if len(value) > MAX_OBJECTS:
            where = _where(path)
            reason = f"{where or 'the body'} takes at most {MAX_OBJECTS} items"
            raise RequestError(reason, param=where or None)
        return [
            honoured_only(item, kind, (*path, i)) if isinstance(item, dict) else item
            for i, item in enumerate(value)
        ]
    if not isinstance(value, dict):
        return value
    kept = {}
    fields, nested_kinds, with_null = kind
    for name, item in value.items():
        if item is None and name not in with_null:
            continue
        if name in fields and _needs_no_action(item, fields[name], (*path, name)):
            continue
        nested = nested_kinds.get(name)
        kept[name] = honoured_only(item, nested, (*path, name)) if nested else item
    return kept


def _where(path: Path) -> str:
    """As in `messages[3].content`."""
    names = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(names).removeprefix(".")


def _needs_no_action(item: Any, field: FieldClass, path: Path) -> bool:
    if isinstance(field, Ignored) or any(_same(item, value) for value in field.neutral):
        return True
    where = _where(path)
    raise RequestError(f" is not supported with this value: {field.why}", at=where)


def _same(a: Any, b: Any) -> bool:
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


def rule_sentences(struct: type[msgspec.Struct]) -> dict[str, str]:
    """What the rules of a struct's fields say, to follow their descriptions."""
    rules: dict[str, str] = {}
    for name, rule in rules_of(struct):
        rules[name] = f"{rules.get(name, '')} {rule.words[0].upper()}{rule.words[1:]}."
    return rules
