"""Programs over HTTP: sessions, submissions, gets, and single variables."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec import UNSET
from msgspec.structs import asdict
from starlette.types import ASGIApp

from srt.client.programs import Got, Piece
from srt.gateway.context import HttpRequest, programs_of
from srt.gateway.errors import ErrorDetail, error_body
from srt.gateway.http.body import read_body
from srt.gateway.http.disconnect import while_connected
from srt.gateway.http.routing import delete, get, json_reply, name_of, post, put
from srt.gateway.http.sse import EventStream
from srt.gateway.limits.tenant import own_salt, tenant
from srt.gateway.native.answers import finish_reason
from srt.gateway.programs.reading import perf_of, program_of
from srt.gateway.wire.programs import (
    CauseJson,
    GetAnswer,
    GetBody,
    GetEvent,
    OutputMetaJson,
    SessionBody,
    SetBody,
    SubmitAnswer,
    SubmitBody,
    SubmitFrame,
    VarJson,
)
from srt.wire.answer_meta import PROGRAMS, meta_of
from srt.wire.errors import ErrorInfo, RequestError, renaming
from srt.wire.programs import OutputMeta, SessionInfo, VarInfo

KEY_HEADER = "idempotency-key"


@post("/v1/sessions", SessionBody, SessionInfo)
async def open_session(request: HttpRequest) -> ASGIApp:
    """Open a session for programs."""
    body = await read_body(request, SessionBody)
    programs = programs_of(request)
    salt = own_salt(body.cache_salt)
    return json_reply(await programs.open_session(body.idle_s, salt, tenant()))


@get("/v1/sessions/{name}", answer=SessionInfo)
async def read_session(request: HttpRequest) -> ASGIApp:
    """A session of the caller's, with the ids of its variables."""
    programs = programs_of(request)
    return json_reply(await programs.read_session(name_of(request), tenant()))


@delete("/v1/sessions/{name}", answer=SessionInfo)
async def close_session(request: HttpRequest) -> ASGIApp:
    """End a session, and all that runs in it."""
    programs = programs_of(request)
    return json_reply(await programs.close_session(name_of(request), tenant()))


@post("/v1/submit", SubmitBody, SubmitAnswer)
async def submit(request: HttpRequest) -> ASGIApp:
    """Take calls and transforms into a session, all or none."""
    body = await read_body(request, SubmitFrame)
    program, key = await program_of(body), request.headers.get(KEY_HEADER, "")
    with renaming({"key": "Idempotency-Key"}):
        ids = await programs_of(request).submit_program(body.session, program, key, tenant())
    return json_reply(SubmitAnswer(vars=ids))


@post("/v1/get", GetBody, GetAnswer, events=GetEvent)
async def get_vars(request: HttpRequest) -> ASGIApp:
    """Have variables made, and wait for them."""
    body = await read_body(request, GetBody)
    if (body.var is None) == (not body.vars):
        raise RequestError("exactly one of vars and var must be given", param="vars")
    names = body.vars if body.var is None else [body.var]
    perf = perf_of(body.perf)
    programs, deadline_ms = programs_of(request), body.deadline_ms
    if body.stream:
        items = programs.stream_vars(names, deadline_ms=deadline_ms, perf=perf, tenant=tenant())
        first = await while_connected(request.receive, anext(items))
        return EventStream(_events(first, items), items)
    waits = programs.get_vars(names, deadline_ms=deadline_ms, perf=perf, tenant=tenant())
    return json_reply(got_json(await while_connected(request.receive, waits)))


@get("/v1/vars/{name}", answer=VarJson)
async def read_var(request: HttpRequest) -> ASGIApp:
    """A variable as it is now."""
    programs = programs_of(request)
    return json_reply(var_json(await programs.read_var(name_of(request), tenant())))


@put("/v1/vars/{name}", SetBody, VarJson)
async def set_var(request: HttpRequest) -> ASGIApp:
    """Set a variable that clients set."""
    body = await read_body(request, SetBody)
    programs = programs_of(request)
    return json_reply(var_json(await programs.set_var(name_of(request), body.text, tenant())))


@delete("/v1/vars/{name}", answer=VarJson)
async def cancel_var(request: HttpRequest) -> ASGIApp:
    """Cancel a variable, what needs it, and what is made for nothing else."""
    programs = programs_of(request)
    return json_reply(var_json(await programs.cancel_var(name_of(request), tenant())))


async def _events(
    first: Piece | Got, items: AsyncGenerator[Piece | Got, None]
) -> AsyncGenerator[GetEvent, None]:
    """The first answer decides the status, so that a refusal is none of the events."""
    async with aclosing(items):
        yield _event(first)
        async for item in items:
            yield _event(item)


def _event(item: Piece | Got) -> GetEvent:
    if isinstance(item, Piece):
        return GetEvent(var=item.var, delta=item.delta)
    answer = got_json(item)
    return GetEvent(vars=answer.vars, done=answer.done)


# ---- variables as JSON -------------------------------------------------------------------------


def got_json(got: Got) -> GetAnswer:
    return GetAnswer(vars=[var_json(var) for var in got.vars], done=got.done)


def var_json(var: VarInfo) -> VarJson:
    fields = asdict(var)
    meta = fields.pop("meta")
    fields["error"] = _error(var.error)
    fields["causes"] = [
        CauseJson(**asdict(each) | {"error": _error(each.error)}) for each in var.causes
    ]
    return VarJson(**fields, meta_info=None if meta is None else _meta(meta))


def _meta(meta: OutputMeta) -> OutputMetaJson:
    return OutputMetaJson(
        finish_reason=finish_reason(meta.finish, meta.completion_tokens),
        e2e_latency=meta.latency_s,
        attempts=meta.attempts,
        probabilities=meta.probabilities or UNSET,
        **meta_of(meta, PROGRAMS),
    )


def _error(error: ErrorInfo | None) -> ErrorDetail | None:
    return None if error is None else error_body(error).error
