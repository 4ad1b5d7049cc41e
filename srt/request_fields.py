"""Checks the arguments of `AsyncClient.submit`, before a transport sees them.

A part of the ring drops what it cannot decode, so a wrong type must be found on this side of the
socket: here it is a RequestError that names the field, and both transports refuse alike.
"""

import math
from collections.abc import Sequence
from typing import Any, get_type_hints

import msgspec

from srt.errors import RequestError
from srt.generation import Request
from srt.messages import ChatMessage
from srt.sampling_params import SamplingParams

_SAMPLING_TYPES = get_type_hints(SamplingParams)
_REQUEST_TYPES: dict[str, Any] = {
    "text": str | None,
    "stream": bool,
    "return_logprob": bool,
    "logprob_start_len": int,
    "cache_salt": str,
    "rid": str | None,
}


def checked_request(request: dict[str, Any]) -> Request:
    """`request` with every field of its type. `sampling` and the messages may be dicts."""
    for name in request:
        if name not in Request.__struct_fields__:
            raise RequestError(f"unknown field {name!r}", param=name)
    checked = dict(request)
    for name, kind in _REQUEST_TYPES.items():
        if name in request:
            checked[name] = _as_type(name, request[name], kind)
    if "sampling" in request:
        checked["sampling"] = _sampling(request["sampling"])
    if request.get("input_ids") is not None:
        checked["input_ids"] = _ids(request["input_ids"])
    if request.get("messages") is not None:
        checked["messages"] = [_message(i, m) for i, m in enumerate(request["messages"])]
    return Request(**checked)


def _as_type(name: str, value: Any, kind: Any) -> Any:
    try:
        value = msgspec.convert(value, kind)
        msgspec.msgpack.encode(value)  # no lone surrogates, no integers beyond 64 bits
    except (msgspec.ValidationError, ValueError, OverflowError) as error:
        raise RequestError(f"{name}: {error}", param=name) from None
    if isinstance(value, float) and not math.isfinite(value):  # JSON has no word for it
        raise RequestError(f"{name} must be a finite number", param=name)
    return value


def _sampling(given: SamplingParams | dict[str, Any]) -> SamplingParams:
    if not isinstance(given, dict | SamplingParams):
        raise RequestError("sampling must be SamplingParams or a dict", param="sampling")
    fields = given if isinstance(given, dict) else msgspec.structs.asdict(given)
    for name in fields:
        if name not in _SAMPLING_TYPES:
            raise RequestError(f"unknown sampling parameter {name!r}", param=str(name))
    checked = {name: _as_type(name, v, _SAMPLING_TYPES[name]) for name, v in fields.items()}
    return SamplingParams(**checked)


def _ids(ids: Sequence[int]) -> list[int]:
    """Any sequence of integers, arrays included, as a list."""
    try:
        return [int(i) for i in ids]
    except (TypeError, ValueError):
        raise RequestError("input_ids must be a list of integers", param="input_ids") from None


def _message(index: int, message: ChatMessage | dict[str, str]) -> ChatMessage:
    name = f"messages[{index}]"
    fields = msgspec.structs.asdict(message) if isinstance(message, ChatMessage) else message
    if not isinstance(fields, dict) or set(fields) != {"role", "content"}:
        raise RequestError(f"{name} must have role and content", param=name)
    return ChatMessage(**{key: _as_type(f"{name}.{key}", v, str) for key, v in fields.items()})
