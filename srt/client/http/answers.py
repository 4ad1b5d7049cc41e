"""What the HTTP client reads: the routes' JSON, as the ring's outputs and errors."""

from collections.abc import Callable
from typing import Any

import httpx2
import msgspec

from srt.client.generation import OF_IDS, OF_PROMPT, ChoiceScore, GenerateOutput, ScoreOutput
from srt.wire.answer_meta import GENERATE, facts_of
from srt.wire.constraint import Capture
from srt.wire.errors import (
    BAD_REQUEST,
    CONFLICT,
    HTTP_STATUS,
    INTERNAL,
    RESTARTING,
    UNAVAILABLE,
    RequestError,
    RingError,
)
from srt.wire.messages import Finish

_STATUS_CODES = {status: code for code, status in HTTP_STATUS.items()} | {400: BAD_REQUEST}


def parse_output(payload: Any) -> GenerateOutput:
    """An answer of /generate, or what an event of an incremental stream has."""
    meta = payload["meta_info"]
    return GenerateOutput(
        rid=meta["id"],
        text=payload["text"],
        delta=payload["text"],
        output_ids=payload["output_ids"],
        finish=finish_of(meta["finish_reason"]),
        captures=_captures(meta),
        **facts_of(meta, GENERATE),
        **(_logprobs(meta) if "output_token_logprobs" in meta else {}),
    )


def joined(last: GenerateOutput, new: GenerateOutput, start: int) -> GenerateOutput:
    """All that is known of a sample after an event of an incremental stream, whose ids begin at the
    position `start`."""
    origins = last.token_origins[:start] + new.token_origins
    fields: dict[str, Any] = {"text": last.text + new.text, "token_origins": origins}
    for name in OF_IDS:
        before, rows = getattr(last, name), getattr(new, name)
        if before is not None or rows is not None:  # an event may have no rows
            fields[name] = [*(before or [])[:start], *(rows or [])]
    for name in OF_PROMPT:
        fields[name] = getattr(new, name) or getattr(last, name)
    return msgspec.structs.replace(new, **fields)


def _logprobs(meta: Any) -> dict[str, Any]:
    """The fields of an output that a request without log-probabilities has none of."""
    return {
        "output_logprobs": _values(meta["output_token_logprobs"]),
        "prompt_logprobs": _rows(meta, "input_token_logprobs", lambda entry: (entry[0], entry[1])),
        "output_top_logprobs": _rows(meta, "output_top_logprobs", _pairs),
        "prompt_top_logprobs": _rows(meta, "input_top_logprobs", _pairs),
        "output_id_logprobs": _rows(meta, "output_token_ids_logprobs", _values),
        "prompt_id_logprobs": _rows(meta, "input_token_ids_logprobs", _values),
    }


def _captures(meta: Any) -> list[Capture] | None:
    found = meta.get("captures")
    return None if found is None else [Capture(**capture) for capture in found]


def _rows(meta: Any, name: str, row_of: Callable[[Any], Any]) -> Any:
    """One row per position, None where a position has none; None if there are no rows."""
    rows = meta.get(name)
    return [None if row is None else row_of(row) for row in rows] if rows else None


def _pairs(entries: Any) -> list[tuple[float, int]]:
    return [(entry[0], entry[1]) for entry in entries]


def _values(entries: Any) -> list[float]:
    return [entry[0] for entry in entries]


def parse_whole(response: httpx2.Response) -> list[GenerateOutput]:
    """The answer of /generate: every sample. Raises RingError for one that cannot be read."""
    try:
        payload = msgspec.json.decode(response.content)
        samples = payload if isinstance(payload, list) else [payload]
        return [parse_output(sample) for sample in samples]
    except (msgspec.DecodeError, LookupError, TypeError, AttributeError) as exc:
        raise RingError("the server sent an answer that cannot be read") from exc


def parse_score(payload: Any) -> ScoreOutput:
    """The answer of /score_choices."""
    return ScoreOutput(
        rid=payload["id"],
        choices=[ChoiceScore(c["token_ids"], c["logprobs"]) for c in payload["choices"]],
        start=payload["start"],
        prompt_tokens=payload["prompt_tokens"],
        cached_tokens=payload["cached_tokens"],
        computed_tokens=payload["computed_tokens"],
    )


def finish_of(reason: Any) -> Finish | None:
    """The `finish_reason` of an answer."""
    if reason is None:
        return None
    error = None
    if reason["type"] == "abort":
        error = RequestError(reason.get("message") or "aborted", code=CONFLICT).info
    return Finish(reason["type"], reason.get("matched"), error, reason.get("steered", 0))


def error_of(response: httpx2.Response) -> RequestError:
    """The error that a refusal says."""
    try:
        detail = response.json()["error"]
    except (ValueError, KeyError, TypeError):
        detail = {"message": response.text[:500] or response.reason_phrase}
    return error_from(detail, response.status_code, response.headers.get("retry-after", ""))


def error_from(detail: Any, status: int, retry_after: str = "") -> RequestError:
    """An error's JSON; what it does not say follows from the status. `retry_after` is the header,
    of which dates are not read."""
    if not isinstance(detail, dict):
        detail = {"message": str(detail)}
    message = str(detail.get("message") or f"HTTP {status}")
    fallback = _STATUS_CODES.get(status, INTERNAL if status >= 500 else BAD_REQUEST)
    code = detail.get("code")
    if not isinstance(code, str):
        code = fallback
    if code in (UNAVAILABLE, RESTARTING):
        return RingError(message, code)
    retryable = bool(detail.get("retryable", status in (429, 503)))
    param = detail.get("param")
    at = param if isinstance(param, str) and message.startswith(param) else None
    return RequestError(
        message.removeprefix(at or ""),
        param=param,
        at=at,
        code=code,
        retryable=retryable,
        retry_after_s=float(retry_after) if retry_after.isdecimal() else 0.0,
    )
