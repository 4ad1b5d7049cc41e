"""Reads a request's body: size and time limits, JSON, the field classes, then the typed struct.

Runs before anything is submitted. Every refusal is a RequestError that names the field.
"""

import asyncio
from typing import Any, TypeVar

import msgspec
from litestar.exceptions import InternalServerException

from srt.errors import RequestError
from srt.gateway.context import HttpRequest
from srt.gateway.errors import REQUEST_TIMEOUT, ClientDisconnected, refuse_validation
from srt.gateway.fields import Kind, honoured_only

MAX_BODY_BYTES = 16 * 1024 * 1024
BODY_TIMEOUT_S = 60.0

T = TypeVar("T", bound=msgspec.Struct)


async def read_body(request: HttpRequest, struct: type[T], kind: Kind) -> T:
    """The body of `request` as `struct`, without the fields that `kind` takes care of."""
    return parse_body(await _read(request), struct, kind)


def parse_body(data: bytes, struct: type[T], kind: Kind) -> T:
    """`data` as `struct`. Raises RequestError naming the field that is wrong."""
    value = honoured_only(_json(data), kind)
    try:
        return msgspec.convert(value, struct, str_keys=True)
    except msgspec.ValidationError as exc:
        raise refuse_validation(exc) from exc


async def _read(request: HttpRequest) -> bytes:
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await request.body()
    except TimeoutError:
        message = f"the body did not arrive within {BODY_TIMEOUT_S:g} s"
        raise RequestError(message, code=REQUEST_TIMEOUT) from None
    except InternalServerException:
        # The framework's word for a client that left while it was sending.
        raise ClientDisconnected from None


def _json(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise RequestError(f"the body is not valid JSON: {exc}") from exc
    except RecursionError as exc:
        raise RequestError("the body is nested too deeply") from exc
