"""Prompts and sampling as bodies of the OpenAI routes, in the dialects that servers speak.

Used by the OpenAI back end. Invariant: a parameter that a dialect has no field for is refused by
name; it is left out only where its value changes nothing.
"""

import re
from collections.abc import Sequence
from typing import Any, Literal, get_args

import msgspec
from msgspec import Raw, Struct

from lang.backends.base import Image, Prompt, Turn
from lang.backends.features import refuse_missing
from lang.backends.sampling import Sampling, is_neutral
from lang.backends.schemas.strict import (
    OPENAI,
    Strict,
    strict_choice,
    strict_pattern,
    strict_schema,
)
from lang.backends.shown import data_url, message_of
from lang.chat_template import ChatTemplate
from lang.errors import UnsupportedError
from srt.wire.filled_params import NEUTRAL
from srt.wire.sampling import CommonSampling

# Whose fields a server takes: OpenAI's own only; SGLang's, which are srt's too; or vLLM's.
Dialect = Literal["openai", "sglang", "vllm"]
DIALECTS = get_args(Dialect)

_NOWHERE = (
    *("n", "token_healing", "jump_forward", "speculative", "close"),
    *("logprob_start_len", "stop_regex", "token_origins"),
)
_AS_THEY_ARE = {*CommonSampling.__struct_fields__, "min_tokens"}
_OPENAI = {"temperature", "top_p", "frequency_penalty", "presence_penalty", "logit_bias", "seed"}
_VLLM = {
    *(*_OPENAI, "top_k", "min_p", "repetition_penalty", "min_tokens", "stop_token_ids"),
    *("ignore_eos", "skip_special_tokens", "allowed_token_ids", "bad_words"),
}
_UNKNOWN_TO: dict[Dialect, set[str]] = {
    "openai": _AS_THEY_ARE - _OPENAI | {"ebnf"},
    "sglang": set(),
    "vllm": _AS_THEY_ARE - _VLLM,
}
_ADVICE = ": if the server has a field for it, name whose: dialect='sglang' or dialect='vllm'"
_ADVICE_MODEL = ": if it does, name it in `also`"
_OF_PROVIDERS = {"reasoning_effort", "verbosity", "service_tier"}
_OF_SELECTS = _OF_PROVIDERS | {"temperature", "seed", "extra_body"}
SPARE_TOKENS = 16  # for what an answer may have around a choice: quotes, braces, a word or two
THOUGHT_TOKENS = 2048  # providers count thoughts towards an answer's limit
_REGEX_META = frozenset("\\.+*?()|[]{}^$")
_REASONING = re.compile(r"(.*/)?(o\d|gpt-[5-9](?!.*chat))")  # names of models
_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"RIFF", "image/webp"),
)


def sampling_fields(
    sampling: Sampling,
    dialect: Dialect,
    is_chat: bool,
    features: frozenset[str] | None = None,
    strict: Strict | None = None,
) -> dict[str, Any]:
    """The body's fields for `sampling`. Raises UnsupportedError naming what has no field, or what a
    model with these `features` does not take, unless its value is neutral. `strict` is the
    constraint, if there is one and the dialect is OpenAI's."""
    unknown = _UNKNOWN_TO[dialect]
    refused = [name for name in unknown if not is_neutral(name, getattr(sampling, name))]
    backend = f"OpenAI(dialect={dialect!r})"
    sampling.refuse(_NOWHERE, backend)
    sampling.refuse(refused, backend, _ADVICE if dialect == "openai" else "")
    if dialect == "openai" and not is_chat:
        sampling.refuse(("json_schema", "regex"), "the completions route", _ADVICE)
    sent = sampling.set_fields() & (_AS_THEY_ARE - unknown | _OF_PROVIDERS)
    if features is not None:
        sent &= refuse_missing(sampling, features, "the model", _ADVICE_MODEL).keys()
    body: dict[str, Any] = {"max_tokens": sampling.max_tokens}
    body |= {name: getattr(sampling, name) for name in sorted(sent)}
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    body |= _logprob_fields(sampling, is_chat)
    if strict is not None:
        body["response_format"] = _json_format("answer", strict.schema)
    elif dialect != "openai":
        body |= _constraint_fields(sampling, dialect)
    return body | sampling.extra_body


def strict_of(
    sampling: Sampling, features: frozenset[str], *, is_openai: bool = True
) -> Strict | None:
    """The constraint as OpenAI's strict mode takes it; None without one. Raises UnsupportedError
    where it cannot say it, or the model has no such mode. A server that is not OpenAI's may take
    any schema: what has no strict form goes there as it is."""
    if sampling.regex is None and sampling.json_schema is None:
        return None
    if "schema" not in features:
        name = "regex" if sampling.regex is not None else "json_schema"
        raise UnsupportedError(name, f"the model takes no schemas{_ADVICE_MODEL}")
    if sampling.regex is not None:
        return strict_pattern(sampling.regex, OPENAI)
    source = str(sampling.json_schema)
    try:
        return strict_schema(source, OPENAI)
    except UnsupportedError:
        original = None if is_openai else msgspec.json.decode(source)
        if not isinstance(original, dict):
            raise
        return Strict(original, original)


def _logprob_fields(sampling: Sampling, is_chat: bool) -> dict[str, Any]:
    if not sampling.return_logprob:
        return {}
    if not is_chat:
        return {"logprobs": sampling.top_logprobs_num}
    top = {"top_logprobs": sampling.top_logprobs_num} if sampling.top_logprobs_num else {}
    return {"logprobs": True, **top}


def _constraint_fields(sampling: Sampling, dialect: Dialect) -> dict[str, Any]:
    given = {"regex": sampling.regex, "ebnf": sampling.ebnf}
    fields: dict[str, Any] = {name: text for name, text in given.items() if text is not None}
    if dialect == "vllm" and fields:
        names = {"regex": "regex", "ebnf": "grammar"}
        fields = {"structured_outputs": {names[name]: text for name, text in fields.items()}}
    if sampling.json_schema is not None:
        schema = msgspec.json.decode(sampling.json_schema)
        fields["response_format"] = _json_format("answer", schema)
    return fields


def _json_format(name: str, schema: Any) -> dict[str, Any]:
    described = {"name": name, "schema": schema, "strict": True}
    return {"type": "json_schema", "json_schema": described}


def choice_fields(choices: Sequence[str], dialect: Dialect, is_chat: bool) -> dict[str, Any] | None:
    """Fields that force the answer to be one of `choices`; None if there are no such fields.

    In the dialect "openai" the answer is the object `{"choice": ...}`.
    """
    if dialect == "sglang":
        return {"regex": "|".join(f"({_escaped(choice)})" for choice in choices)}
    if dialect == "vllm":
        return {"structured_outputs": {"choice": list(choices)}}
    if not is_chat:
        return None
    return {"response_format": _json_format("choice", strict_choice(choices))}


def select_sampling(
    choices: Sequence[str], sampling: Sampling, features: frozenset[str], *, thinks: bool
) -> Sampling:
    """What of `sampling` a select asks with: what is among `features`, and a limit that cuts no
    choice, since a token has at least one byte, nor, if the model `thinks`, most thoughts."""
    given = {
        name: getattr(sampling, name) for name in _OF_SELECTS & sampling.set_fields() & features
    }
    longest = max(len(choice.encode()) for choice in choices)
    return Sampling(
        max_tokens=longest + SPARE_TOKENS + (THOUGHT_TOKENS if thinks else 0),
        repetition_penalty=NEUTRAL.repetition_penalty,  # whatever the server's model has
        **given,
    )


def _escaped(text: str) -> str:
    return "".join("\\" + char if char in _REGEX_META else char for char in text)


def chat_messages(
    prompt: Prompt, template: ChatTemplate, *, continues: bool = False
) -> list[dict[str, Any]]:
    """The messages before the answer; the last one is its beginning if the server `continues` it.
    Raises UnsupportedError for what a chat cannot express.

    `template` is the one that the program's text was made with.
    """
    check_chat(prompt, template, continues=continues)
    messages: list[dict[str, Any]] = []
    for i, turn in enumerate(prompt.messages):
        if turn.role == "tool":
            messages[-1:] = _call_and_result(prompt.messages, i)
        else:
            messages.append(message_of(turn, _url_of))
    if prompt.open_text:
        messages.append({"role": "assistant", "content": prompt.open_text})
    return messages


def check_chat(prompt: Prompt, template: ChatTemplate, *, continues: bool = False) -> None:
    """Raise UnsupportedError for a prompt that is no chat with an assistant's turn to write, or, if
    the server `continues` one, to go on with."""
    if prompt.open_role != "assistant":
        where = f"the {prompt.open_role}'s role" if prompt.open_role else "no role"
        reason = f"a chat model answers in the assistant's role only, and this gen is in {where}"
        raise UnsupportedError("gen", reason)
    if prompt.open_text and not continues:
        reason = f"a chat model cannot continue an answer, and this one begins {prompt.open_text!r}"
        raise UnsupportedError("gen", reason)
    _refuse_stray_text(prompt, template)


def _refuse_stray_text(prompt: Prompt, template: ChatTemplate) -> None:
    """Refuse text outside turns. Blanks are not compared: messages are stripped on the left."""
    said = [template.prefix(m.role) + m.content + template.suffix(m.role) for m in prompt.messages]
    if prompt.messages and prompt.messages[0].role != "system" and template.default_system:
        marks = template.prefix("system"), template.suffix("system")
        said.insert(0, template.default_system.join(marks))
    said.append(template.prefix("assistant") + prompt.open_text)
    has_images = prompt.images or any(m.images for m in prompt.messages)  # images have marks
    if not has_images and _without_blanks("".join(said)) != _without_blanks(prompt.text):
        reason = "a chat model sees messages only, and there is text outside roles before it"
        raise UnsupportedError("gen", reason)


def _without_blanks(text: str) -> str:
    return "".join(text.split())


def _url_of(image: Image) -> str:
    if image.kind != "image":
        raise UnsupportedError(image.kind, "the OpenAI routes take images only")
    return data_url(mime_of(image), image)


def mime_of(image: Image) -> str:
    """Its media type. Raises UnsupportedError for one that no provider takes."""
    for signature, mime in _SIGNATURES:
        if image.data.startswith(signature):
            return mime
    raise UnsupportedError("image", "is not a PNG, JPEG, GIF or WebP file")


class Written(Struct, forbid_unknown_fields=True):
    """A call as agents write it into an assistant's turn."""

    tool: str
    arguments: Raw
    thought: str | None = None


def _call_and_result(turns: Sequence[Turn], at: int) -> list[dict[str, Any]]:
    """The messages of the result that is turn number `at`, and of its call, the turn before it:
    OpenAI's API takes a result only after its call. Ids are the numbers of messages, so that they
    are the same whenever the prompt is. Raises UnsupportedError if that is no call."""
    result, call_id = turns[at], f"call_{at}"
    call = call_in(turns[at - 1]) if at else None
    if call is None:
        reason = "a chat API takes what a tool returned only after its call, an assistant's turn "
        raise UnsupportedError("tool", reason + 'of {"tool": ..., "arguments": {...}}')
    if result.images:
        raise UnsupportedError(result.images[0].kind, "a chat API takes it from users only")
    function = {"name": call.tool, "arguments": bytes(call.arguments).decode()}
    called = [{"id": call_id, "type": "function", "function": function}]
    return [
        {"role": "assistant", "content": call.thought, "tool_calls": called},
        {"role": "tool", "tool_call_id": call_id, "content": result.content},
    ]


def call_in(turn: Turn) -> Written | None:
    """The call that an assistant's turn is; None for any other turn."""
    if turn.role != "assistant" or turn.images:
        return None
    try:
        written = msgspec.json.decode(turn.content, type=Written)
        msgspec.json.decode(written.arguments, type=dict)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
    return written


# ---- API speculation, and open turns -------------------------------------------------------------


def refusal_of(model_name: str) -> str | None:
    """Why `num_api_spec_tokens` is of no use for a model; None if it is of use."""
    if _REASONING.match(model_name) is None:
        return None
    return f"{model_name} reasons before it answers, and what is left early is paid for too"


def stream_fields(sampling: Sampling, dialect: Dialect) -> dict[str, Any]:
    """The fields of a stream. One with log-probabilities may be left early, as speculation does:
    then the tokens count that were there until then, where a server says so."""
    options = {"include_usage": True}
    if sampling.return_logprob and dialect != "openai":
        options["continuous_usage_stats"] = True
    return {"stream": True, "stream_options": options}


def continued_fields(prompt: Prompt, dialect: Dialect) -> dict[str, Any]:
    """The fields by which a chat's answer continues the open turn."""
    if not prompt.open_text:
        return {}
    # vLLM refuses the combination of both, and begins a turn by default.
    begins = {"add_generation_prompt": False} if dialect == "vllm" else {}
    return {"continue_final_message": True, **begins}
