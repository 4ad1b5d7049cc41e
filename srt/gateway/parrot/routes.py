"""Parrot's own routes, so that its front end runs: sessions, semantic calls and variables.

Each becomes what the routes of programs do. Parrot's native functions, which are Python code, are
refused: what a program does besides calls is a transform, or happens in the client.
"""

import secrets

import msgspec
from starlette.types import ASGIApp

from srt.client.programs import VarFailed
from srt.gateway.context import (
    HttpRequest,
    gateway_of,
    is_served,
    model_of,
    programs_of,
)
from srt.gateway.errors import PARROTS_PATHS, ParrotsError, refuse_validation
from srt.gateway.http.body import read_body
from srt.gateway.http.disconnect import while_connected
from srt.gateway.http.routing import delete, get, json_reply, name_of, post
from srt.gateway.limits.tenant import own_salt, tenant
from srt.gateway.parrot.templates import program_of
from srt.gateway.parrot.wire import (
    CALL_KIND,
    GET_KIND,
    SESSION_KIND,
    ParrotAuth,
    ParrotCall,
    ParrotCallAnswer,
    ParrotContent,
    ParrotDone,
    ParrotGet,
    ParrotParamInfo,
    ParrotSession,
    ParrotSessionAnswer,
    ParrotText,
    ParrotVar,
    ParrotVarAnswer,
    ParrotVars,
)
from srt.wire.errors import FORBIDDEN, RequestError, missing, renaming
from srt.wire.programs import Perf, Program, VarInfo

IDLE_S = 600.0  # Parrot's own
_CRITERIA = ("latency", "throughput", "ttft", "tpot")
_SESSION, _CALL, _VAR, _NATIVE = PARROTS_PATHS


@post(_SESSION, ParrotSession, ParrotSessionAnswer, kind=SESSION_KIND, error=ParrotsError)
async def open_session(request: HttpRequest) -> ASGIApp:
    """Parrot's way to open a session."""
    await read_body(request, ParrotSession, SESSION_KIND)
    programs = programs_of(request)
    session = await programs.open_session(IDLE_S, own_salt(""), tenant(), is_numbered=True)
    return json_reply(ParrotSessionAnswer(session_id=int(session.id), session_auth=session.id))


@get(f"{_SESSION}/{{name}}", answer=ParrotVars, error=ParrotsError)
async def read_session(request: HttpRequest) -> ASGIApp:
    """Parrot's way to see a session."""
    await _check_session(request)
    return json_reply(await _listed(request, name_of(request)))


@delete(f"{_SESSION}/{{name}}", answer=ParrotDone, error=ParrotsError)
async def close_session(request: HttpRequest) -> ASGIApp:
    """Parrot's way to end a session."""
    await _check_session(request)
    await programs_of(request).close_session(name_of(request), tenant())
    return json_reply(ParrotDone())


@post(_CALL, ParrotCall, ParrotCallAnswer, kind=CALL_KIND, error=ParrotsError)
async def semantic_call(request: HttpRequest) -> ASGIApp:
    """Parrot's way to hand in one call. It runs when one of its outputs is got."""
    body = await read_body(request, ParrotCall, CALL_KIND)
    gateway = gateway_of(request)
    _check_auth(body)
    if body.models and not any(is_served(model, gateway.info) for model in body.models):
        model_of(request, body.models[0])
    perf = _perf(body.output_criteria, "output_criteria")
    program, parameters, names = program_of(body, perf)
    with renaming(names):
        session, programs = str(body.session_id), programs_of(request)
        ids = await programs.submit_program(session, program, "", tenant())
    info = [
        ParrotParamInfo(
            parameter_name=each.name,
            placeholder_name=each.name,
            is_output=each.is_output,
            var_name=each.name,
            var_id=each.var_id or ids[each.name],
        )
        for each in parameters
    ]
    number = secrets.randbits(63)
    return json_reply(
        ParrotCallAnswer(request_id=number, session_id=body.session_id, param_info=info)
    )


@post(_NATIVE, answer=ParrotCallAnswer, error=ParrotsError)
async def native_call(request: HttpRequest) -> ASGIApp:
    """Refused: no code of clients runs here."""
    raise RequestError(
        "native functions are not supported: use a transform of /v1/submit, or set the variable "
        "that the function makes from the client"
    )


@post(_VAR, ParrotVar, ParrotVarAnswer, error=ParrotsError)
async def new_var(request: HttpRequest) -> ASGIApp:
    """Parrot's way to make a variable that is set later."""
    body = await read_body(request, ParrotVar)
    _check_auth(body)
    name = body.var_name
    with renaming({"session": "session_id", f"vars[{name!r}]": "var_name", "vars": "var_name"}):
        session, programs = str(body.session_id), programs_of(request)
        ids = await programs.submit_program(session, Program({name: None}), "", tenant())
    return json_reply(ParrotVarAnswer(var_id=ids[name]))


@post(f"{_VAR}/{{name}}", ParrotContent, ParrotDone, error=ParrotsError)
async def set_var(request: HttpRequest) -> ASGIApp:
    """Parrot's way to set a variable."""
    body = await read_body(request, ParrotContent)
    _check_auth(body)
    with renaming({"var": "var_id", "text": "content"}):
        await programs_of(request).set_var(name_of(request), body.content, tenant())
    return json_reply(ParrotDone())


@get(f"{_VAR}/{{name}}", answer=ParrotText, error=ParrotsError)
async def get_var(request: HttpRequest) -> ASGIApp:
    """Parrot's way to wait for a variable, which is made now; a failed one is an error."""
    body = await read_body(request, ParrotGet, GET_KIND, empty=ParrotGet())
    _check_auth(body)
    perf = _perf(body.criteria or request.query_params.get("criteria"), "criteria")
    var = await while_connected(request.receive, _ended(request, perf))
    if var.state != "ready":
        raise VarFailed(var)
    return json_reply(ParrotText(content=var.text))


@get(_VAR, answer=ParrotVars, error=ParrotsError)
async def list_vars(request: HttpRequest) -> ASGIApp:
    """Parrot's way to list the variables of a session."""
    query = dict(request.query_params)
    body = await read_body(request, ParrotAuth, empty=_converted(query))
    if body.session_id is None:
        raise missing("session_id")
    _check_auth(body)
    return json_reply(await _listed(request, str(body.session_id)))


async def _ended(request: HttpRequest, perf: Perf | None) -> VarInfo:
    """The variable that the request names, at its end. Parrot's client waits without a bound, so a
    get that has reached its own is made again."""
    programs, names = programs_of(request), [name_of(request)]
    while True:
        with renaming({"vars[0]": "var_id"}):
            got = await programs.get_vars(names, perf=perf, tenant=tenant())
        if got.done:
            return got.vars[0]


def _check_auth(body: ParrotAuth, session: str = "") -> None:
    """Raise RequestError for another word (403), or another number, than that of `session`, which
    the body itself names otherwise. Who sends none is known by the number."""
    number = session if body.session_id is None else str(body.session_id)
    if session and number != session:
        raise RequestError(" is not the one of the path", at="session_id")
    if number and body.session_auth not in (None, number):
        raise RequestError(" is not the session's", at="session_auth", code=FORBIDDEN)


async def _check_session(request: HttpRequest) -> None:
    body = await read_body(request, ParrotAuth, empty=ParrotAuth())
    _check_auth(body, name_of(request))


def _converted(query: dict[str, str]) -> ParrotAuth:
    """The fields of a body that are given in the URL."""
    try:
        return msgspec.convert(query, ParrotAuth, strict=False)
    except msgspec.ValidationError as exc:
        raise refuse_validation(exc) from exc


async def _listed(request: HttpRequest, session: str) -> ParrotVars:
    programs = programs_of(request)
    found = await programs.read_session(session, tenant())
    infos = [await programs.read_var(var, tenant()) for var in found.vars]
    return ParrotVars(vars=[{"var_id": var.id, "var_name": var.name} for var in infos])


def _perf(criteria: str | None, field: str) -> Perf | None:
    if criteria is None:
        return None
    if (word := criteria.lower()) not in _CRITERIA:
        raise RequestError(f" must be one of {', '.join(_CRITERIA)}", at=field)
    return Perf(word)  # type: ignore[arg-type]
