"""The errors for what callers hold together: a bound is reached, or it was given to others."""

from srt.callers.shares import Full
from srt.wire.errors import NOT_FOUND, OVERLOADED, ErrorInfo, RequestError

_RETRY_AFTER_S = 1.0

SESSION_CLOSED = ErrorInfo(NOT_FOUND, "the session was closed")
SESSION_GAVE_WAY = ErrorInfo(
    NOT_FOUND,
    "the session was ended to make room for another caller, as this caller held the most of this "
    "server's sessions or of their memory: open a new one, and close those that are not used",
)
GET_GAVE_WAY = ErrorInfo(
    OVERLOADED,
    "the get was ended to make room for another caller's, as this caller had the most gets waiting "
    "on this server; what it waits for goes on",
    retryable=True,
    retry_after_s=_RETRY_AFTER_S,
)


def too_much(what: str, whose: Full) -> RequestError:
    """The error (429) of one more; `what` are those that the bound allows, with a verb."""
    where = "for this caller" if whose == "caller" else "on this server"
    reason = f"as many {what} {where} as are allowed"
    return RequestError(reason, code=OVERLOADED, retryable=True, retry_after_s=_RETRY_AFTER_S)
