"""`Programs` over a server's HTTP routes."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import httpx2
from msgspec import convert, to_builtins

from srt.client.http.answers import error_from, finish_of
from srt.client.http.bodies import check_tenant, sampling_fields, template_args
from srt.client.http.generation import payloads_of
from srt.client.programs import Programs
from srt.wire.answer_meta import PROGRAMS, facts_of
from srt.wire.errors import ErrorInfo, RingError
from srt.wire.program_messages import (
    CancelVar,
    CloseSession,
    CountPrograms,
    EndGet,
    GetVars,
    OpenSession,
    ProgramsQuestion,
    ProgramsReply,
    ReadSession,
    ReadVar,
    SessionTold,
    SetVar,
    SubmitProgram,
    Submitted,
    VarsGrew,
    VarsTold,
)
from srt.wire.programs import (
    Call,
    Cause,
    Input,
    Output,
    OutputMeta,
    Perf,
    Program,
    Segment,
    SessionInfo,
    Text,
    Transform,
    Turn,
    VarInfo,
)
from srt.wire.sampling import SamplingParams

GET_TIMEOUT_S = 660.0  # more than a server waits
Ask = Callable[..., Awaitable[httpx2.Response]]


class HttpPrograms(Programs):
    """The programs of one HttpClient. `call(method, path, read_s, **options)` gets an answer,
    `stream(path, **options)` a stream of events."""

    def __init__(self, call: Ask, stream: Ask) -> None:
        super().__init__()
        self._call, self._stream = call, stream

    async def ask(self, question: ProgramsQuestion) -> Any:
        method, path, options = _request_of(question)
        return _reply_of(question, (await self._call(method, path, **options)).json())

    async def answers(self, question: GetVars) -> AsyncGenerator[VarsGrew | VarsTold, None]:
        check_tenant(question.tenant)
        body = _get_body(question)
        if not question.stream:
            answer = await self._call("POST", "/v1/get", GET_TIMEOUT_S, json=body)
            yield _told(question.rid, answer.json())
            return
        async with aclosing(payloads_of(await self._stream("/v1/get", json=body))) as payloads:
            async for payload in payloads:
                if "done" in payload:
                    yield _told(question.rid, payload)
                    return
                yield VarsGrew(question.rid, [(payload["var"], payload["delta"])])
        raise RingError("the server closed the stream before the end")


# ---- what is sent ----------------------------------------------------------------------------


def _request_of(question: ProgramsQuestion) -> tuple[str, str, dict[str, Any]]:
    """The method, the path and the options of the request that asks this."""
    if isinstance(question, CountPrograms | GetVars | EndGet):
        raise RingError("over HTTP the counts of programs are in /metrics")
    if isinstance(question, OpenSession) and question.is_numbered:
        raise RingError("over HTTP the ids of sessions are no numbers")
    check_tenant(question.tenant)
    match question:
        case OpenSession(idle_s=idle_s, cache_salt=salt):
            return "POST", "/v1/sessions", {"json": {"idle_s": idle_s, "cache_salt": salt}}
        case ReadSession(session=session):
            return "GET", f"/v1/sessions/{session}", {}
        case CloseSession(session=session):
            return "DELETE", f"/v1/sessions/{session}", {}
        case SubmitProgram(session=session, program=program, key=key):
            headers = {"idempotency-key": key} if key else {}
            body = {"session": session, **program_body(program)}
            return "POST", "/v1/submit", {"json": body, "headers": headers}
        case ReadVar(var=var):
            return "GET", f"/v1/vars/{var}", {}
        case SetVar(var=var, text=text):
            return "PUT", f"/v1/vars/{var}", {"json": {"text": text}}
        case CancelVar(var=var):
            return "DELETE", f"/v1/vars/{var}", {}


def program_body(program: Program) -> dict[str, Any]:
    """The fields of a program in the body of /v1/submit."""
    return {
        "vars": program.vars,
        "calls": [_call_body(call) for call in program.calls],
        "transforms": [_transform_body(transform) for transform in program.transforms],
        "eager": program.eager,
    }


def _call_body(call: Call) -> dict[str, Any]:
    body: dict[str, Any] = {
        "retries": call.retries,
        "name": call.name,
        "when": to_builtins(call.when),
        "perf": to_builtins(call.perf),
    }
    if call.segments:
        body["segments"] = [_segment_body(each) for each in call.segments]
    if call.turns:
        body["messages"] = [_turn_body(each) for each in call.turns]
    if call.chat.template_args:
        body["chat_template_kwargs"] = template_args(call.chat.template_args)
    return body


def _turn_body(turn: Turn) -> dict[str, Any]:
    return {"role": turn.role, "content": [_segment_body(each) for each in turn.content]}


def _segment_body(segment: Segment) -> dict[str, Any]:
    body: dict[str, Any] = {"literal": segment.literal}
    match segment:
        case Text():
            return body | {"text": segment.text}
        case Input():
            return body | {"input": segment.var}
        case Output():
            body |= {"output": segment.var, "choices": segment.choices, "default": segment.default}
            if segment.sampling != SamplingParams():
                body["sampling_params"] = sampling_fields(segment.sampling)
            return body


def _transform_body(transform: Transform) -> dict[str, Any]:
    return {
        "output": transform.var,
        "when": to_builtins(transform.when),
        "default": transform.default,
        **to_builtins(transform.op),
    }


def _get_body(question: GetVars) -> dict[str, Any]:
    return {
        "vars": question.vars,
        "deadline_ms": question.deadline_ms,
        "perf": to_builtins(question.perf),
        "stream": question.stream,
    }


# ---- what is read ----------------------------------------------------------------------------


def _reply_of(question: ProgramsQuestion, payload: Any) -> ProgramsReply:
    rid = question.rid
    if isinstance(question, SubmitProgram):
        return Submitted(rid, payload["vars"])
    if isinstance(question, OpenSession | ReadSession | CloseSession):
        return SessionTold(rid, convert(payload, SessionInfo))
    return VarsTold(rid, [_var(payload)], True)


def _told(rid: str, payload: Any) -> VarsTold:
    return VarsTold(rid, [_var(each) for each in payload["vars"]], payload["done"])


def _var(payload: Any) -> VarInfo:
    fields = dict(payload)
    meta = fields.pop("meta_info")
    fields["error"] = _error(payload["error"])
    fields["causes"] = [
        Cause(**each | {"error": _error(each["error"])}) for each in payload["causes"]
    ]
    fields["perf"] = convert(payload["perf"], Perf | None)
    return VarInfo(**fields, meta=None if meta is None else _meta(meta))


def _meta(payload: Any) -> OutputMeta:
    return OutputMeta(
        finish=finish_of(payload["finish_reason"]),
        latency_s=payload["e2e_latency"],
        attempts=payload["attempts"],
        probabilities=payload.get("probabilities", []),
        **facts_of(payload, PROGRAMS),
    )


def _error(payload: Any) -> ErrorInfo | None:
    return None if payload is None else error_from(payload, 500).info
