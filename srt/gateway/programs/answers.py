"""Sessions and variables as JSON."""

from msgspec import UNSET

from srt.client.programs import Got
from srt.gateway.errors import ErrorDetail, error_body
from srt.gateway.native.answers import finish_reason
from srt.gateway.wire.programs import (
    CauseJson,
    GetAnswer,
    OutputMetaJson,
    PerfJson,
    SessionJson,
    VarJson,
)
from srt.wire.answer_meta import PROGRAMS, meta_of
from srt.wire.errors import ErrorInfo
from srt.wire.programs import OutputMeta, SessionInfo, VarInfo


def session_json(session: SessionInfo) -> SessionJson:
    return SessionJson(
        id=session.id, idle_s=session.idle_s, vars=session.vars, num_bytes=session.num_bytes
    )


def got_json(got: Got) -> GetAnswer:
    return GetAnswer(vars=[var_json(var) for var in got.vars], done=got.done)


def var_json(var: VarInfo) -> VarJson:
    perf = var.perf
    return VarJson(
        id=var.id,
        session=var.session,
        name=var.name,
        state=var.state,
        text=var.text,
        error=_error(var.error),
        causes=[
            CauseJson(var=cause.var, name=cause.name, state=cause.state, error=_error(cause.error))
            for cause in var.causes
        ],
        producer=var.producer,
        consumers=var.consumers,
        meta_info=None if var.meta is None else _meta(var.meta),
        perf=None if perf is None else PerfJson(perf.objective, perf.target_ms),
    )


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
