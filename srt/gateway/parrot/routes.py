"""Parrot's own routes, so that its front end runs: sessions, semantic calls and variables.

Each becomes what the routes of programs do. Parrot's native functions, which are Python code, are
refused: what a program does besides calls is a transform, or happens in the client.
"""

import re
import uuid
from collections.abc import Iterator

from starlette.types import ASGIApp

from srt.client.programs import VarFailed
from srt.gateway.context import (
    HttpRequest,
    gateway_of,
    is_served,
    model_of,
    programs_of,
)
from srt.gateway.http.body import read_body
from srt.gateway.http.disconnect import while_connected
from srt.gateway.http.routing import delete, get, json_reply, name_of, post
from srt.gateway.limits.tenant import own_salt, tenant
from srt.gateway.parrot.wire import (
    CALL_KIND,
    SESSION_KIND,
    ParrotAuth,
    ParrotCall,
    ParrotCallAnswer,
    ParrotContent,
    ParrotGet,
    ParrotList,
    ParrotParameter,
    ParrotParamInfo,
    ParrotSampling,
    ParrotSession,
    ParrotSessionAnswer,
    ParrotText,
    ParrotVar,
    ParrotVarAnswer,
    ParrotVars,
)
from srt.wire.errors import FORBIDDEN, RequestError, quoted
from srt.wire.programs import Call, Input, Output, Perf, Program, Segment, Text
from srt.wire.sampling import SamplingParams

IDLE_S = 600.0
_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_CRITERIA = ("latency", "throughput", "ttft", "tpot")


@post("/v1/session", ParrotSession, ParrotSessionAnswer, kind=SESSION_KIND)
async def open_session(request: HttpRequest) -> ASGIApp:
    """Parrot's way to open a session."""
    await read_body(request, ParrotSession, SESSION_KIND)
    session = await programs_of(request).open_session(IDLE_S, own_salt(""), tenant())
    return json_reply(ParrotSessionAnswer(session_id=session.id, session_auth=session.id))


@get("/v1/session/{name}", answer=ParrotVars)
async def read_session(request: HttpRequest) -> ASGIApp:
    """Parrot's way to see a session."""
    await _auth(request)
    return json_reply(await _listed(request, name_of(request)))


@delete("/v1/session/{name}", answer=ParrotVars)
async def close_session(request: HttpRequest) -> ASGIApp:
    """Parrot's way to end a session."""
    await _auth(request)
    await programs_of(request).close_session(name_of(request), tenant())
    return json_reply({})


@post("/v1/semantic_call", ParrotCall, ParrotCallAnswer, kind=CALL_KIND)
async def semantic_call(request: HttpRequest) -> ASGIApp:
    """Parrot's way to hand in one call. It runs when one of its outputs is got."""
    body = await read_body(request, ParrotCall, CALL_KIND)
    gateway = gateway_of(request)
    check_auth(body.session_id, body.session_auth)
    if body.models and not any(is_served(model, gateway.info) for model in body.models):
        model_of(request, body.models[0])
    program = program_of(body)
    ids = await programs_of(request).submit_program(body.session_id, program, "", tenant())
    info = [
        ParrotParamInfo(
            placeholder_name=each.name,
            is_output=each.is_output,
            var_name=each.name,
            var_id=ids.get(each.name, each.var_id or ""),
        )
        for each in body.parameters
    ]
    return json_reply(ParrotCallAnswer(request_id=uuid.uuid4().hex, param_info=info))


@post("/v1/py_native_call", answer=ParrotCallAnswer)
async def native_call(request: HttpRequest) -> ASGIApp:
    """Refused: no code of clients runs here."""
    raise RequestError(
        "native functions are not supported: use a transform of /v1/submit, or set the variable "
        "that the function makes from the client"
    )


@post("/v1/semantic_var", ParrotVar, ParrotVarAnswer)
async def new_var(request: HttpRequest) -> ASGIApp:
    """Parrot's way to make a variable that is set later."""
    body = await read_body(request, ParrotVar)
    check_auth(body.session_id, body.session_auth)
    program = Program({body.var_name: None})
    ids = await programs_of(request).submit_program(body.session_id, program, "", tenant())
    return json_reply(ParrotVarAnswer(var_id=ids[body.var_name]))


@post("/v1/semantic_var/{name}", ParrotContent, ParrotText)
async def set_var(request: HttpRequest) -> ASGIApp:
    """Parrot's way to set a variable."""
    body = await read_body(request, ParrotContent)
    await programs_of(request).set_var(name_of(request), body.content, tenant())
    return json_reply({})


@get("/v1/semantic_var/{name}", answer=ParrotText)
async def get_var(request: HttpRequest) -> ASGIApp:
    """Parrot's way to wait for a variable, which is made now; a failed one is an error."""
    body = await read_body(request, ParrotGet, empty=ParrotGet())
    wanted = body.criteria or request.query_params.get("criteria")
    waits = programs_of(request).get_vars([name_of(request)], perf=_perf(wanted), tenant=tenant())
    (var,) = (await while_connected(request.receive, waits)).vars
    if var.state != "ready":
        raise VarFailed(var)
    return json_reply(ParrotText(content=var.text))


@get("/v1/semantic_var", answer=ParrotVars)
async def list_vars(request: HttpRequest) -> ASGIApp:
    """Parrot's way to list the variables of a session."""
    query = request.query_params
    asked = ParrotList(
        session_id=query.get("session_id", ""), session_auth=query.get("session_auth")
    )
    body = await read_body(request, ParrotList, empty=asked)
    check_auth(body.session_id, body.session_auth)
    return json_reply(await _listed(request, body.session_id))


def check_auth(session: str, auth: str | None) -> None:
    """Raise RequestError (403) for another word than the one that the session was opened with."""
    if auth not in (None, session):
        raise RequestError(" is not the session's", at="session_auth", code=FORBIDDEN)


async def _auth(request: HttpRequest) -> None:
    body = await read_body(request, ParrotAuth, empty=ParrotAuth())
    check_auth(name_of(request), body.session_auth)


async def _listed(request: HttpRequest, session: str) -> ParrotVars:
    programs = programs_of(request)
    found = await programs.read_session(session, tenant())
    infos = [await programs.read_var(var, tenant()) for var in found.vars]
    return ParrotVars(vars=[{"var_id": var.id, "var_name": var.name} for var in infos])


def _perf(criteria: str | None) -> Perf | None:
    if criteria is None:
        return None
    if (word := criteria.lower()) not in _CRITERIA:
        raise RequestError(f" must be one of {', '.join(_CRITERIA)}", at="criteria")
    return Perf(word)  # type: ignore[arg-type]


# ---- from a template to a program ------------------------------------------------------------


def program_of(body: ParrotCall) -> Program:
    """The call of a template. RequestError names the parameter that is wrong."""
    parameters = {each.name: each for each in body.parameters}
    if len(parameters) < len(body.parameters):
        raise RequestError(" must not repeat a name", at="parameters")
    for index, each in enumerate(body.parameters):
        _check(each, f"parameters[{index}]")
    segments = list(_segments(body, parameters))
    used = {each.var for each in segments if isinstance(each, Input | Output)}
    for each in body.parameters:
        if each.name not in used and each.var_id not in used and each.value is None:
            raise RequestError(f": the template has no {quoted(each.name)}", at="parameters")
    if body.remove_pure_fill:
        last = max((i for i, each in enumerate(segments) if isinstance(each, Output)), default=-1)
        segments = segments[: last + 1]
    later = [each.name for each in body.parameters if _is_set_later(each)]
    return Program(dict.fromkeys(later), [Call(segments, name=body.func_name)])


def _segments(body: ParrotCall, parameters: dict[str, ParrotParameter]) -> Iterator[Segment]:
    end = 0
    for found in _PLACEHOLDER.finditer(body.template):
        if found.start() > end:
            yield Text(body.template[end : found.start()])
        end, name = found.end(), found[1]
        if name not in parameters:
            raise RequestError(f": there is no parameter {quoted(name)}", at="template")
        each = parameters[name]
        if each.is_output:
            yield Output(name, _sampling(each.sampling_config or ParrotSampling()))
        elif each.value is not None:
            yield Text(each.value, literal=True)
        else:
            yield Input(each.var_id or name)
    if body.template[end:]:
        yield Text(body.template[end:])


def _is_set_later(each: ParrotParameter) -> bool:
    return not each.is_output and each.var_id is None and each.value is None


def _check(each: ParrotParameter, at: str) -> None:
    if each.is_output and each.var_id is not None:
        raise RequestError(" is not for outputs: they are new variables", at=f"{at}.var_id")
    if each.is_output and each.value is not None:
        raise RequestError(" is not for outputs", at=f"{at}.value")
    if each.var_id is not None and each.value is not None:
        raise RequestError(" and var_id exclude each other", at=f"{at}.value")
    if not each.is_output and each.sampling_config is not None:
        raise RequestError(" is for outputs only", at=f"{at}.sampling_config")


def _sampling(given: ParrotSampling) -> SamplingParams:
    return SamplingParams(
        temperature=given.temperature,
        top_p=given.top_p,
        max_new_tokens=given.max_gen_length,
        ignore_eos=given.ignore_tokenizer_eos,
        stop_token_ids=given.stop_token_ids,
        stop=[given.stop_str] if isinstance(given.stop_str, str) else given.stop_str,
        presence_penalty=given.presence_penalty,
        frequency_penalty=given.frequency_penalty,
        repetition_penalty=given.repetition_penalty,
    )
