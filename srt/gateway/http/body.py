"""Reads a request's body: size and time limits, JSON, the field classes, then the typed struct.

Runs before anything is submitted. Every refusal is a RequestError that names the field. No body
holds the loop for long: large ones are decoded piece by piece, and other work gets a turn between
the pieces.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from srt.gateway.context import RENAMED, HttpRequest, gateway_of, ignored_in, media_rules
from srt.gateway.errors import (
    REQUEST_TIMEOUT,
    TOO_LARGE,
    ClientDisconnected,
    refuse_validation,
)
from srt.gateway.http.json_pieces import MAX_ENTRIES, PIECE_BYTES, decoded, text_too_long
from srt.gateway.limits.large_bodies import LARGE_BYTES, LargeBodies, Room
from srt.gateway.limits.tenant import tenant
from srt.gateway.wire.fields import NO_EXTRAS, Kind, Notes, honoured_only
from srt.wire.errors import RequestError

MAX_BODY_BYTES = 16 * 1024 * 1024
MAX_MEDIA_BODY_BYTES = 48 * 1024 * 1024  # of routes that take pictures, if the model sees
PACE_S = 60.0  # the time over which the pace of a body is measured; a small one may take as long

T = TypeVar("T", bound=msgspec.Struct)


async def read_body(
    request: HttpRequest,
    struct: type[T],
    kind: Kind = NO_EXTRAS,
    media_texts: Callable[[T], Iterable[str]] | None = None,
    empty: T | None = None,
    *,
    takes_others: bool = False,
    prepare: Callable[[Any, Notes | None], Any] | None = None,
    check: Callable[[bytearray], None] | None = None,
) -> T:
    """The body of `request` as `struct`, without the fields that `kind` handles. The texts of a
    body that are its `media_texts` may be as long as files; and the body, if the model sees.
    `empty`, if given, is what no body means. `takes_others`: the body may have fields of other
    servers, as `--unknown-fields` says. `check` may refuse it before it is decoded, and `prepare`
    changes the decoded body first. Raises RequestError naming the field that is wrong."""
    gateway = gateway_of(request)
    large, max_entries = gateway.large_bodies, max(MAX_ENTRIES, gateway.info.max_entries)
    long_texts: list[str] | None = None if media_texts is None else []
    sees = media_texts is not None and media_rules(gateway).kinds != frozenset()
    with large.room(tenant()) as room:
        most = MAX_MEDIA_BODY_BYTES if sees else MAX_BODY_BYTES
        data = await _read(request, room, most, gateway.info.min_body_rate)
        if empty is not None and not data:
            return empty
        if check is not None:
            check(data)
        is_large = len(data) > PIECE_BYTES
        value = await _decoded(data, large, max_entries, long_texts)
        del data
    notes = Notes(gateway.info.unknown_fields == "refuse") if takes_others else None
    if prepare is not None:
        value = prepare(value, notes)
        if notes is not None:  # it may have moved what an error is about
            request.scope[RENAMED] = notes.renamed
    value = honoured_only(value, kind, notes=notes)
    if notes is not None and notes.renamed:
        request.scope[RENAMED] = notes.renamed
    if notes is not None and notes.ignored:
        ignored_in(request).update(notes.ignored)
    if is_large:
        await asyncio.sleep(0)
    try:
        converted = msgspec.convert(value, struct, str_keys=True)
    except msgspec.ValidationError as exc:
        raise refuse_validation(exc) from exc
    if long_texts and media_texts is not None:
        _check_texts(long_texts, media_texts(converted))
    return converted


def _check_texts(long_texts: list[str], media_texts: Iterable[str]) -> None:
    """Raise RequestError (413) for a long text that is not a file. Texts are not copied when they
    are converted, so each is known by itself."""
    files = {id(text) for text in media_texts}
    if any(id(text) not in files for text in long_texts):
        raise text_too_long()


async def _read(request: HttpRequest, room: Room, max_bytes: int, min_rate: int) -> bytearray:
    """The bytes of a body, at most `max_bytes`; what is large of them takes `room`, and may give
    way. Raises RequestError (408) if less than `min_rate` bytes a second come for PACE_S."""
    try:
        async with room.giving_way(), asyncio.timeout(PACE_S) as limit:
            return await _pieces(request, room, max_bytes, min_rate, limit)
    except TimeoutError:
        reason = (
            f"less than {min_rate} bytes a second of the body arrived for {PACE_S:g} s "
            "(--min-body-rate)"
        )
        raise RequestError(reason, code=REQUEST_TIMEOUT) from None


async def _pieces(
    request: HttpRequest, room: Room, max_bytes: int, min_rate: int, limit: asyncio.Timeout
) -> bytearray:
    """The same; `limit` is put off whenever what it asks for has come."""
    data, taken, asked = bytearray(), 0, min_rate * PACE_S
    length = request.headers.get("content-length", "")[:16]
    _check_size(int(length) if length.isdecimal() else 0, max_bytes)
    has_more = True
    while has_more:
        message = await request.receive()
        if message["type"] == "http.disconnect":  # while it was sending
            raise ClientDisconnected
        data += message.get("body", b"")
        has_more = message.get("more_body", False)
        _check_size(len(data), max_bytes)
        if len(data) > LARGE_BYTES:
            room.take(len(data) - taken)
            taken = len(data)
        if len(data) >= asked:
            limit.reschedule(asyncio.get_running_loop().time() + PACE_S)
            asked = len(data) + min_rate * PACE_S
    return data


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise RequestError(f"the body has more than {max_bytes} bytes", code=TOO_LARGE)


async def _decoded(
    data: bytearray, large: LargeBodies, max_entries: int, long_texts: list[str] | None
) -> Any:
    """The value of the JSON `data`; other work gets a turn after each piece of it."""
    if len(data) <= PIECE_BYTES:
        return next(decoded(data))
    for value in decoded(data, max_entries, long_texts):
        async with large.turn:
            await asyncio.sleep(0)
        latest = value
    return latest
