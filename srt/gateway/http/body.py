"""Reads a request's body: size and time limits, JSON, the field classes, then the typed struct.

Runs before anything is submitted. Every refusal is a RequestError that names the field. No body
holds the loop for long: large ones are decoded piece by piece, and other work gets a turn between
the pieces.
"""

import asyncio
from typing import Any, TypeVar

import msgspec
from litestar.exceptions import InternalServerException

from srt.gateway.callers.tenant import tenant
from srt.gateway.context import HttpRequest, gateway_of
from srt.gateway.errors import REQUEST_TIMEOUT, ClientDisconnected, refuse_validation
from srt.gateway.http.json_pieces import MAX_ENTRIES, PIECE_BYTES, decoded
from srt.gateway.large_bodies import LARGE_BYTES, LargeBodies
from srt.gateway.wire.fields import Kind, honoured_only
from srt.wire.errors import RequestError

MAX_BODY_BYTES = 16 * 1024 * 1024
BODY_TIMEOUT_S = 60.0

T = TypeVar("T", bound=msgspec.Struct)


async def read_body(request: HttpRequest, struct: type[T], kind: Kind) -> T:
    """The body of `request` as `struct`, without the fields that `kind` handles. Raises
    RequestError naming the field that is wrong."""
    gateway = gateway_of(request)
    large, max_entries = gateway.large_bodies, max(MAX_ENTRIES, gateway.info.max_entries)
    body = _Body(large)
    try:
        data = await body.read(request)
        value = await _decoded(data, large, max_entries)
    finally:
        body.release()
    value = honoured_only(value, kind)
    if len(data) > PIECE_BYTES:
        await asyncio.sleep(0)
    try:
        return msgspec.convert(value, struct, str_keys=True)
    except msgspec.ValidationError as exc:
        raise refuse_validation(exc) from exc


class _Body:
    """The bytes of one body, and the room that they take among large bodies."""

    def __init__(self, large: LargeBodies) -> None:
        self._large = large
        self._tenant = tenant()
        self._taken = 0

    async def read(self, request: HttpRequest) -> bytes:
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                return await self._pieces(request)
        except TimeoutError:
            message = f"the body did not arrive within {BODY_TIMEOUT_S:g} s"
            raise RequestError(message, code=REQUEST_TIMEOUT) from None
        except InternalServerException:
            # The framework's exception for a client that left while it was sending.
            raise ClientDisconnected from None

    async def _pieces(self, request: HttpRequest) -> bytes:
        data = bytearray()
        async for piece in request.stream():
            data += piece
            more = len(data) - self._taken
            if len(data) > LARGE_BYTES and more > 0:
                self._large.take(more, self._tenant)
                self._taken += more
        return bytes(data)

    def release(self) -> None:
        self._large.give_back(self._taken, self._tenant)


async def _decoded(data: bytes, large: LargeBodies, max_entries: int) -> Any:
    """The value of the JSON `data`; other work gets a turn after each piece of it."""
    if len(data) <= PIECE_BYTES:
        return next(decoded(data))
    for value in decoded(data, max_entries):
        async with large.turn:
            await asyncio.sleep(0)
        latest = value
    return latest
