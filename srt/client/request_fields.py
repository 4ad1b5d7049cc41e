"""Checks the arguments of `AsyncClient.submit`, before a transport sees them.

A part of the ring drops what it cannot decode, so a wrong type must be found on this side of the
socket: here it is a RequestError that names the field, and both transports refuse alike.
"""

import json
import math
from collections.abc import Sequence
from typing import Any, TypeVar, get_type_hints

import msgspec

from srt.client.generation import Request, ScoreRequest, TokenizeRequest, scoring_of
from srt.wire.errors import RequestError
from srt.wire.messages import ChatMessage, ChatOptions, ToolCall, ToolSpec
from srt.wire.sampling import SamplingParams, Scoring

_SAMPLING_TYPES = get_type_hints(SamplingParams)
_JSON_FIELDS = ("json_schema", "structural_tag")  # texts, which may be given as objects
T = TypeVar("T", ToolCall, ToolSpec)
_REQUEST_TYPES: dict[str, Any] = {
    "text": str | None,
    "stream": bool,
    "cache_salt": str,
    "rid": str | None,
    "tenant": str,
    "joined": bool,
    "timeout_ms": int,
    "literal_spans": list[tuple[int, int]],
}
_SCORING_TYPES: dict[str, Any] = {
    "return_logprob": bool,
    "logprob_start_len": int,
    "top_logprobs": int,
}
_SCORING_NAMES = (*_SCORING_TYPES, "logprob_token_ids")
_CHAT_TYPES = get_type_hints(ChatOptions)


def checked_request(request: dict[str, Any]) -> Request:
    """`request` with every field of its type. `sampling` and the messages may be dicts. In the
    place of `scoring` there are the arguments of `scoring_of`."""
    scoring = {name: request[name] for name in _SCORING_NAMES if name in request}
    for name in request.keys() - scoring.keys():
        if name not in Request.__struct_fields__ or name == "scoring":
            raise RequestError(f"unknown field {name!r}", param=name)
    checked = {name: value for name, value in request.items() if name not in scoring}
    checked["scoring"] = _scoring(scoring)
    for name, kind in _REQUEST_TYPES.items():
        if name in request:
            checked[name] = _as_type(name, request[name], kind)
    if "sampling" in request:
        checked["sampling"] = _sampling(request["sampling"])
    if request.get("input_ids") is not None:
        checked["input_ids"] = _ids(request["input_ids"])
    if request.get("messages") is not None:
        checked["messages"] = [_message(i, m) for i, m in enumerate(request["messages"])]
    if "tools" in request:
        checked["tools"] = _tools(request["tools"])
    if "chat" in request:
        checked["chat"] = _chat(request["chat"])
    return Request(**checked)


def checked_tokenize(request: dict[str, Any]) -> TokenizeRequest:
    """`request` with every field of its type."""
    for name in request:
        if name not in TokenizeRequest.__struct_fields__:
            raise RequestError(f"unknown field {name!r}", param=name)
    checked = dict(request)
    for name, kind in (("text", str | None), ("add_special_tokens", bool), ("tenant", str)):
        if name in request:
            checked[name] = _as_type(name, request[name], kind)
    if request.get("messages") is not None:
        checked["messages"] = [_message(i, m) for i, m in enumerate(request["messages"])]
    if "tools" in request:
        checked["tools"] = _tools(request["tools"])
    if "chat" in request:
        checked["chat"] = _chat(request["chat"])
    return TokenizeRequest(**checked)


def checked_score(request: dict[str, Any]) -> ScoreRequest:
    """`request` with every field of its type."""
    for name in request:
        if name not in ScoreRequest.__struct_fields__:
            raise RequestError(f"unknown field {name!r}", param=name)
    checked = dict(request)
    for name in ("text", "cache_salt", "rid", "tenant", "literal_spans"):
        if name in request:
            checked[name] = _as_type(name, request[name], _REQUEST_TYPES[name])
    if request.get("input_ids") is not None:
        checked["input_ids"] = _ids(request["input_ids"])
    given = request.get("continuations", ())
    if isinstance(given, str) or not isinstance(given, Sequence):
        reason = "continuations must be a list of texts or lists of ids"
        raise RequestError(reason, param="continuations")
    checked["continuations"] = [
        _continuation(f"continuations[{i}]", value) for i, value in enumerate(given)
    ]
    return ScoreRequest(**checked)


def _continuation(name: str, given: Any) -> str | list[int]:
    if not isinstance(given, str):
        return _ids(given, name)
    text: str = _as_type(name, given, str)
    return text


def _as_type(name: str, value: Any, kind: Any) -> Any:
    try:
        value = msgspec.convert(value, kind, str_keys=True)  # of tokens, as JSON has them
        msgspec.msgpack.encode(value)  # no lone surrogates, no integers beyond 64 bits
    except (msgspec.ValidationError, ValueError, OverflowError) as error:
        raise RequestError(f"{name}: {error}", param=name) from None
    numbers = value.values() if isinstance(value, dict) else (value,)
    if not all(math.isfinite(n) for n in numbers if isinstance(n, float)):  # JSON has no word
        raise RequestError(f"{name} must be a finite number", param=name)
    return value


def _chat(given: ChatOptions | dict[str, Any]) -> ChatOptions:
    """Options, whose template arguments may be a dict."""
    fields = _fields("chat", ChatOptions, given)
    if "template_args" in fields:
        fields = fields | {"template_args": _json_text(fields["template_args"])}
    checked = {
        name: _as_type(f"chat.{name}", value, _CHAT_TYPES[name]) for name, value in fields.items()
    }
    return ChatOptions(**checked)


def _sampling(given: SamplingParams | dict[str, Any]) -> SamplingParams:
    if not isinstance(given, dict | SamplingParams):
        raise RequestError("sampling must be SamplingParams or a dict", param="sampling")
    fields = given if isinstance(given, dict) else msgspec.structs.asdict(given)
    for name in fields:
        if name not in _SAMPLING_TYPES:
            raise RequestError(f"unknown sampling parameter {name!r}", param=str(name))
    texts = {name: _json_text(fields[name]) for name in _JSON_FIELDS if name in fields}
    given = {**fields, **texts}
    checked = {name: _as_type(name, v, _SAMPLING_TYPES[name]) for name, v in given.items()}
    return SamplingParams(**checked)


def _scoring(given: dict[str, Any]) -> Scoring | None:
    for name, kind in _SCORING_TYPES.items():
        if name in given:
            given[name] = _as_type(name, given[name], kind)
    if "logprob_token_ids" in given:
        given["logprob_token_ids"] = _ids(given["logprob_token_ids"], "logprob_token_ids")
    return scoring_of(**given)


def _ids(ids: Sequence[int], name: str = "input_ids") -> list[int]:
    """Any sequence of integers, arrays included, as a list."""
    try:
        return [int(i) for i in ids]
    except (TypeError, ValueError):
        raise RequestError(f"{name} must be a list of integers", param=name) from None


def _message(index: int, message: ChatMessage | dict[str, Any]) -> ChatMessage:
    name = f"messages[{index}]"
    given = message if isinstance(message, ChatMessage | dict) else {}
    fields = _fields(name, ChatMessage, given)
    if not {"role", "content"} <= set(fields):
        raise RequestError(f"{name} must have role and content", param=name)
    calls = fields.pop("tool_calls", None) or []
    if not isinstance(calls, list):
        raise RequestError(f"{name}.tool_calls must be a list", param=f"{name}.tool_calls")
    checked = {key: _as_type(f"{name}.{key}", value, str) for key, value in fields.items()}
    made = [_of_texts(f"{name}.tool_calls[{j}]", ToolCall, c) for j, c in enumerate(calls)]
    return ChatMessage(**checked, tool_calls=made)


def _tools(tools: Any) -> list[ToolSpec]:
    if not isinstance(tools, list | tuple):
        raise RequestError("tools must be a list", param="tools")
    return [_tool(f"tools[{i}]", tool) for i, tool in enumerate(tools)]


def _tool(name: str, tool: Any) -> ToolSpec:
    """A ToolSpec, its fields, or OpenAI's JSON of a function."""
    if isinstance(tool, dict) and tool.get("type") == "function" and "function" in tool:
        tool = tool["function"]
    if isinstance(tool, dict) and "parameters" in tool:
        tool = tool | {"parameters": _json_text(tool["parameters"])}
    return _of_texts(name, ToolSpec, tool)


def _of_texts(name: str, kind: type[T], value: Any) -> T:
    """`value`, a struct or a dict, as a struct whose fields are all texts."""
    fields = _fields(name, kind, value)
    checked = {key: _as_type(f"{name}.{key}", text, str) for key, text in fields.items()}
    try:
        return kind(**checked)
    except TypeError as error:  # a field is missing
        raise RequestError(f"{name}: {error}", param=name) from None


def _fields(name: str, kind: type[msgspec.Struct], value: Any) -> dict[str, Any]:
    fields = msgspec.structs.asdict(value) if isinstance(value, kind) else value
    if not isinstance(fields, dict):
        raise RequestError(f"{name} must be a {kind.__name__} or a dict", param=name)
    for key in fields:
        if key not in kind.__struct_fields__:
            raise RequestError(f"{name}: unknown field {key!r}", param=f"{name}.{key}")
    return fields if isinstance(value, kind) else dict(fields)


def _json_text(value: Any) -> Any:
    """A JSON object given as a dict, as its text."""
    if not isinstance(value, dict):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return value  # the type check names it
