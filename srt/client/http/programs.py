"""`Programs` over a server's HTTP routes."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

import httpx2
import msgspec

from srt.client.http.answers import error_from, finish_of
from srt.client.http.bodies import check_tenant, sampling_fields, template_args
from srt.client.http.generation import payloads_of
from srt.client.programs import IDLE_S, Got, Piece
from srt.wire.errors import ErrorInfo, RingError
from srt.wire.messages import DraftCounts
from srt.wire.programs import (
    Call,
    Cause,
    Guard,
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


class HttpPrograms:
    """The programs of one HttpClient. `ask(method, path, read_s, **options)` gets an answer,
    `stream(path, body)` a stream of events."""

    def __init__(self, ask: Ask, stream: Ask) -> None:
        self._ask, self._stream = ask, stream

    async def open_session(
        self, idle_s: float = IDLE_S, cache_salt: str = "", tenant: str = ""
    ) -> SessionInfo:
        body = {"idle_s": idle_s, "cache_salt": cache_salt}
        return _session(await self._json(tenant, "POST", "/v1/sessions", json=body))

    async def read_session(self, session: str, tenant: str = "") -> SessionInfo:
        return _session(await self._json(tenant, "GET", f"/v1/sessions/{session}"))

    async def close_session(self, session: str, tenant: str = "") -> SessionInfo:
        return _session(await self._json(tenant, "DELETE", f"/v1/sessions/{session}"))

    async def submit_program(
        self, session: str, program: Program, key: str = "", tenant: str = ""
    ) -> dict[str, str]:
        body = {"session": session, **program_body(program)}
        headers = {"idempotency-key": key} if key else {}
        answer = await self._json(tenant, "POST", "/v1/submit", json=body, headers=headers)
        ids: dict[str, str] = answer["vars"]
        return ids

    async def get_vars(
        self,
        names: Sequence[str],
        *,
        deadline_ms: int = 0,
        perf: Perf | None = None,
        tenant: str = "",
    ) -> Got:
        check_tenant(tenant)
        body = _get_body(names, deadline_ms, perf)
        answer = await self._ask("POST", "/v1/get", GET_TIMEOUT_S, json=body)
        return _got(answer.json())

    async def stream_vars(
        self,
        names: Sequence[str],
        *,
        deadline_ms: int = 0,
        perf: Perf | None = None,
        tenant: str = "",
    ) -> AsyncGenerator[Piece | Got, None]:
        check_tenant(tenant)
        body = _get_body(names, deadline_ms, perf) | {"stream": True}
        payloads = payloads_of(await self._stream("/v1/get", body))
        try:
            async for payload in payloads:
                if "done" in payload:
                    yield _got(payload)
                    return
                yield Piece(payload["var"], payload["delta"])
        finally:
            await payloads.aclose()
        raise RingError("the server closed the stream before the end")

    async def read_var(self, var: str, tenant: str = "") -> VarInfo:
        return _var(await self._json(tenant, "GET", f"/v1/vars/{var}"))

    async def set_var(self, var: str, text: str, tenant: str = "") -> VarInfo:
        return _var(await self._json(tenant, "PUT", f"/v1/vars/{var}", json={"text": text}))

    async def cancel_var(self, var: str, tenant: str = "") -> VarInfo:
        return _var(await self._json(tenant, "DELETE", f"/v1/vars/{var}"))

    async def program_counts(self) -> dict[str, float]:
        raise RingError("over HTTP the counts of programs are in /metrics")

    async def _json(self, tenant: str, method: str, path: str, **options: Any) -> Any:
        check_tenant(tenant)
        return (await self._ask(method, path, **options)).json()


# ---- what is sent ----------------------------------------------------------------------------


def program_body(program: Program) -> dict[str, Any]:
    """The fields of a program in the body of /v1/submit."""
    return {
        "vars": program.vars,
        "calls": [_call_body(call) for call in program.calls],
        "transforms": [_transform_body(transform) for transform in program.transforms],
        "eager": program.eager,
    }


def _call_body(call: Call) -> dict[str, Any]:
    body: dict[str, Any] = {"retries": call.retries, "name": call.name, "when": _guard(call.when)}
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
    op = transform.op
    return {
        "output": transform.var,
        "op": op.__struct_config__.tag,
        "when": _guard(transform.when),
        "default": transform.default,
        **msgspec.structs.asdict(op),
    }


def _guard(guard: Guard | None) -> dict[str, Any] | None:
    if guard is None:
        return None
    fields = msgspec.structs.asdict(guard)
    return {"input": fields.pop("var"), **fields}


def _get_body(names: Sequence[str], deadline_ms: int, perf: Perf | None) -> dict[str, Any]:
    wanted = None if perf is None else msgspec.structs.asdict(perf)
    return {"vars": list(names), "deadline_ms": deadline_ms, "perf": wanted}


# ---- what is read ----------------------------------------------------------------------------


def _session(payload: Any) -> SessionInfo:
    return SessionInfo(**payload)


def _got(payload: Any) -> Got:
    return Got([_var(each) for each in payload["vars"]], payload["done"])


def _var(payload: Any) -> VarInfo:
    meta, perf = payload["meta_info"], payload["perf"]
    return VarInfo(
        id=payload["id"],
        session=payload["session"],
        name=payload["name"],
        state=payload["state"],
        text=payload["text"],
        error=_error(payload["error"]),
        causes=[
            Cause(each["var"], each["name"], each["state"], _error(each["error"]))
            for each in payload["causes"]
        ],
        producer=payload["producer"],
        consumers=payload["consumers"],
        meta=None if meta is None else _meta(meta),
        perf=None if perf is None else Perf(**perf),
    )


def _meta(payload: Any) -> OutputMeta:
    return OutputMeta(
        finish=finish_of(payload["finish_reason"]),
        prompt_tokens=payload["prompt_tokens"],
        cached_tokens=payload["cached_tokens"],
        completion_tokens=payload["completion_tokens"],
        jump_forward_tokens=payload["jump_forward_tokens"],
        forward_passes=payload["forward_passes"],
        latency_s=payload["e2e_latency"],
        attempts=payload["attempts"],
        probabilities=payload.get("probabilities", []),
        drafts=DraftCounts.of_meta(payload),
        token_origins=payload.get("token_origins", ""),
    )


def _error(payload: Any) -> ErrorInfo | None:
    return None if payload is None else error_from(payload, 500).info
