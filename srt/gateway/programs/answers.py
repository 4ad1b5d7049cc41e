"""Variables as JSON."""

from msgspec import UNSET
from msgspec.structs import asdict

from srt.client.programs import Got
from srt.gateway.errors import ErrorDetail, error_body
from srt.gateway.native.answers import finish_reason
from srt.gateway.wire.programs import (
    CauseJson,
    GetAnswer,
    OutputMetaJson,
    VarJson,
)
from srt.wire.answer_meta import PROGRAMS, meta_of
from srt.wire.errors import ErrorInfo
from srt.wire.programs import OutputMeta, VarInfo


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
