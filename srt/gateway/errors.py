"""Turns every failure into the one error body, `{"error": {message, type, code, param, ...}}`; for
Anthropic's clients into theirs, `{"type": "error", "error": {type, message}}`; on Parrot's routes
with a `traceback` beside it, which is empty.

Nothing else in the gateway writes an error. A 500 has a request id, under which the log has
the traceback; the client never sees one.
"""

import logging
import math
import re
import uuid
from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType
from starlette.responses import Response
from starlette.types import Scope

from srt.wire.errors import (
    HTTP_STATUS,
    INTERNAL,
    MAX_QUOTED_CHARS,
    ErrorInfo,
    RequestError,
)

logger = logging.getLogger(__name__)

MODEL_NOT_FOUND = "model_not_found"
METHOD_NOT_ALLOWED = "method_not_allowed"
TOO_LARGE = "request_too_large"
REQUEST_TIMEOUT = "request_timeout"
UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
NOT_IMPLEMENTED = "not_implemented"
AT_CAPACITY = "at_capacity"  # what Anthropic's clients know as overloaded: the whole server is
_STATUS = HTTP_STATUS | {
    MODEL_NOT_FOUND: 404,
    METHOD_NOT_ALLOWED: 405,
    REQUEST_TIMEOUT: 408,
    TOO_LARGE: 413,
    UNSUPPORTED_MEDIA_TYPE: 415,
    NOT_IMPLEMENTED: 501,
    AT_CAPACITY: 529,
}
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    409: "conflict_error",
    429: "rate_limit_error",
}
_ANTHROPICS_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_RETRIED_LATER = (429, 503, 529)  # these say when to try again
ANTHROPICS_HEADER = b"anthropic-version"
ANTHROPICS_PATH = "/v1/messages"
PARROTS_PATHS = ("/v1/session", "/v1/semantic_call", "/v1/semantic_var", "/v1/py_native_call")
MAX_REASON_CHARS = 400
# What msgspec says of a value or name that a client wrote, with its beginning.
_QUOTING = re.compile(
    r"^(Invalid (?:enum )?value|Object contains unknown field) (['`])"
    rf"(.{{{MAX_QUOTED_CHARS}}}).+\2$",
    re.DOTALL,
)
RETRY_AFTER = {"Retry-After": "1"}
_AT_PATH = re.compile(r" - at (?:`key` in )?`(?:key in )?\$(?P<path>[^`]*)`$")
_UNKNOWN_FIELD = re.compile(r"^Object contains unknown field `(?P<name>[^`]*)`")
_MISSING_FIELD = re.compile(r"^Object missing required field `(?P<name>[^`]*)`")


class ClientDisconnected(Exception):
    """The peer closed the connection before the answer was complete."""


class ErrorDetail(Struct, frozen=True, kw_only=True):
    """What a client sees: `type` is OpenAI's, `code` comes from `srt.wire.errors`."""

    message: str
    type: str
    code: str
    param: str | None = None
    retryable: bool = False
    request_id: str | UnsetType = UNSET


class ErrorBody(Struct, frozen=True):
    """The body of every answer that is not a success."""

    error: ErrorDetail


class ParrotsError(ErrorBody, frozen=True):
    """The body of an error on Parrot's routes. Its client reads a `traceback` too: ours is never
    shown."""

    traceback: Literal[""] = ""


class ThreadDetails(Struct, frozen=True):
    """By this the tool runner of Anthropic's package knows that it must send whole conversations.
    It asks for a thread first."""

    error_code: Literal["thread_unsupported_request"] = "thread_unsupported_request"
    unsupported: tuple[str, ...] = ("thread",)


class AnthropicsDetail(Struct, frozen=True, kw_only=True):
    """What Anthropic's clients see; the message names the field that is wrong, and so does
    `param`."""

    type: str
    message: str
    param: str | None = None
    details: ThreadDetails | UnsetType = UNSET


class AnthropicsError(Struct, frozen=True, kw_only=True):
    """The body of an error for Anthropic's clients; a defect has the request's id."""

    type: Literal["error"] = "error"
    error: AnthropicsDetail
    request_id: str | None = None


def speaks_anthropic(scope: Scope) -> bool:
    """Whether a request is of a client of Anthropic's API, by its path or its header."""
    is_theirs = _is_below(scope["path"], ANTHROPICS_PATH)
    return is_theirs or any(name == ANTHROPICS_HEADER for name, _ in scope["headers"])


def _is_below(path: str, start: str) -> bool:
    """Repeated slashes mean nothing, as in routes: some clients add one to an address with one."""
    path = "/" + "/".join(filter(None, path.split("/")))
    return path == start or path.startswith(f"{start}/")


def anthropics_body(exc: BaseException) -> AnthropicsError:
    """The body for a failure, for Anthropic's clients. One that is no refusal is logged."""
    detail = body_of(exc).error
    status = _STATUS.get(detail.code, 500)
    kind = _ANTHROPICS_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    request_id = None if isinstance(detail.request_id, UnsetType) else detail.request_id
    details = ThreadDetails() if detail.param == "thread" else UNSET
    shown = AnthropicsDetail(type=kind, message=detail.message, param=detail.param, details=details)
    return AnthropicsError(error=shown, request_id=request_id)


def http_status(info: ErrorInfo) -> int:
    """The HTTP status that goes with an error code."""
    return _STATUS.get(info.code, 500)


def error_body(info: ErrorInfo, request_id: str | UnsetType = UNSET) -> ErrorBody:
    """The body for `info`; `request_id` is given for defects only."""
    status = http_status(info)
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    detail = ErrorDetail(
        message=info.message,
        type=kind,
        code=info.code,
        param=info.param,
        retryable=info.retryable,
        request_id=request_id,
    )
    return ErrorBody(detail)


def report_defect(exc: BaseException) -> ErrorBody:
    """Log an unexpected exception under a new request id; returns the body with that id."""
    request_id = uuid.uuid4().hex
    logger.error("request %s failed", request_id, exc_info=exc)
    return error_body(ErrorInfo(INTERNAL, f"internal error (request id {request_id})"), request_id)


def refuse_validation(exc: msgspec.ValidationError) -> RequestError:
    """The RequestError that names the field in which msgspec found an error."""
    text = str(exc)
    match = _AT_PATH.search(text)
    path = match["path"].lstrip(".").removesuffix("[...]") if match else ""
    what = text[: match.start()] if match else text
    what = _QUOTING.sub(r"\1 \2\3 ...\2", what)
    if len(what) > MAX_REASON_CHARS:  # of our own checks, which may quote too
        what = f"{what[:MAX_REASON_CHARS]} ..."
    unknown = _UNKNOWN_FIELD.match(what) or _MISSING_FIELD.match(what)
    if unknown:
        path = f"{path}.{unknown['name']}".lstrip(".")
        verb = "unknown field" if _UNKNOWN_FIELD.match(what) else "missing field"
        return RequestError(f"{verb} {path!r}", param=path)
    lowered = what[:1].lower() + what[1:].replace("`", "")
    return RequestError(f"{path or 'the body'}: {lowered}", param=path or None)


def body_of(exc: BaseException) -> ErrorBody:
    """The body for a failure. One that is no refusal is logged."""
    if isinstance(exc, RequestError) and exc.info.code != INTERNAL:
        return error_body(exc.info)
    return report_defect(exc)


def encoded_error(exc: BaseException, scope: Scope | None) -> bytes:
    """The body for a failure, in the form of the API that the request's `scope` says."""
    if scope is not None and any(_is_below(scope["path"], path) for path in PARROTS_PATHS):
        return msgspec.json.encode(ParrotsError(body_of(exc).error))
    is_anthropics = scope is not None and speaks_anthropic(scope)
    return msgspec.json.encode((anthropics_body if is_anthropics else body_of)(exc))


def failure(
    exc: Exception, headers: Mapping[str, str] | None = None, scope: Scope | None = None
) -> Response:
    """The answer to a request that ended with `exc`, in the form of the API that its `scope` says;
    without one in OpenAI's."""
    if isinstance(exc, ClientDisconnected):
        return Response(status_code=499)  # nobody reads it
    info = exc.info if isinstance(exc, RequestError) else ErrorInfo(INTERNAL, "")
    status, body = http_status(info), encoded_error(exc, scope)
    if status == 401:
        headers = {"WWW-Authenticate": "Bearer"}
    if status in _RETRIED_LATER:  # in whole seconds
        headers = {"Retry-After": str(max(1, math.ceil(info.retry_after_s)))}
    return Response(body, status, headers, "application/json")
