"""The one error vocabulary of the project, in Python and on the wire.

SrtError
├── RequestError       one request, the client's fault or a limit (4xx/503); carries an ErrorInfo
├── RingError          the ring lost a part or cannot be reached; requests in flight have failed
└── ConfigError        the server cannot start as asked; one line that says what to do
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from typing import Self

import msgspec
from msgspec import Struct

BAD_REQUEST = "bad_request"
NOT_FOUND = "not_found"
CONFLICT = "conflict"
OVERLOADED = "overloaded"
RATE_LIMITED = "rate_limited"  # by the limits of a key, whatever the load is
TIMED_OUT = "timed_out"
UNAVAILABLE = "unavailable"
RESTARTING = "restarting"  # the scheduler only: requests in flight go on, and new ones can soon
CONTEXT_LENGTH = "context_length_exceeded"
UNAUTHORIZED = "unauthorized"
FORBIDDEN = "forbidden"
INTERNAL = "internal"

HTTP_STATUS = {
    BAD_REQUEST: 400,
    CONTEXT_LENGTH: 400,
    UNAUTHORIZED: 401,
    FORBIDDEN: 403,
    NOT_FOUND: 404,
    CONFLICT: 409,
    OVERLOADED: 429,
    RATE_LIMITED: 429,
    INTERNAL: 500,
    UNAVAILABLE: 503,
    RESTARTING: 503,
    TIMED_OUT: 504,
}


MAX_QUOTED_CHARS = 80


def quoted(text: str) -> str:
    """What a client wrote, in quotes, as errors repeat it: its beginning if it is long."""
    is_long = len(text) > MAX_QUOTED_CHARS
    return f"{text[:MAX_QUOTED_CHARS]!r}{' ...' if is_long else ''}"


# An API's own field for each path (or beginning of a path) of the ring or of another API.
Names = Mapping[str | None, str]
_ENDS = re.compile(r"(?=[.\[])|\Z")  # of the parts of a path


def renamed(path: str | None, names: Names) -> str | None:
    """The caller's name of a field: the longest part of its path, from the left, that `names` has
    is replaced. None stands for an error that names no field."""
    name = path
    heads = [None] if path is None else [path[: m.start()] for m in _ENDS.finditer(path)]
    for head in heads:
        if head in names:
            name = names[head] + (path or "")[len(head or "") :]
    return name


# How sentences begin that name their field themselves.
_ABOUT_FIELDS = ("{}: ", "missing field {!r}", "unknown field {!r}")


class ErrorInfo(Struct, frozen=True, array_like=True, omit_defaults=True):
    """What went wrong: a stable `code`, the reason, the offending field, and whether to retry;
    `retry_after_s` is how long the server asks to wait before that, 0 if it does not know.

    The reason is a whole sentence, or with `follows_param` the text after the field's name.
    """

    code: str
    reason: str
    param: str | None = None
    retryable: bool = False
    retry_after_s: float = 0.0
    follows_param: bool = False

    @property
    def message(self) -> str:
        """The sentence, with the field's name."""
        return f"{self.param}{self.reason}" if self.follows_param else self.reason

    @property
    def http_status(self) -> int:
        return HTTP_STATUS.get(self.code, 500)


TIMED_OUT_EARLY = ErrorInfo(
    TIMED_OUT, "the request timed out before it had a token", "timeout_ms", retryable=True
)
DUE_EARLIER = ErrorInfo(
    TIMED_OUT, "the deadline had passed before the request was read", "hints.deadline_ms", True
)


class SrtError(Exception):
    """Base of every error that this project raises on purpose."""


class ConfigError(SrtError):
    """The server or client was configured in a way that cannot work."""


def check_process(pid: int, what: str) -> None:
    """Raise ConfigError in a process that was forked from `pid`, where `what` was made: its threads
    and sockets are not there, and a call would wait for ever."""
    if os.getpid() != pid:
        raise ConfigError(
            f"this {what} belongs to process {pid} and cannot be used in {os.getpid()}, which was "
            f"forked from it: make one there, or start processes with 'spawn'"
        )


class RequestError(SrtError):
    """One request was refused or failed; `info` is what travels to the client."""

    def __init__(
        self,
        reason: str,
        *,
        param: str | None = None,
        at: str | None = None,
        code: str = BAD_REQUEST,
        retryable: bool = False,
        retry_after_s: float = 0.0,
    ) -> None:
        """`reason` is a whole sentence about `param`, or what follows the field's name, `at`."""
        field, follows = (param, False) if at is None else (at, True)
        self.info = ErrorInfo(code, reason, field, retryable, retry_after_s, follows)
        super().__init__(self.info.message)

    def copy(self) -> Self:
        """The same error, to be raised again: an exception keeps the traceback of each raise."""
        return copy(self)

    @classmethod
    def from_info(cls, info: ErrorInfo) -> "RequestError":
        error = cls(info.message)
        error.info = info
        return error

    def renamed(self, names: Names) -> "RequestError":
        """The same with the caller's name of the field (see `renamed`)."""
        name, reason = renamed(self.info.param, names), self.info.reason
        for sentence in _ABOUT_FIELDS:
            begin = sentence.format(self.info.param)
            if name is not None and reason.startswith(begin):
                reason = sentence.format(name) + reason.removeprefix(begin)
        return RequestError.from_info(msgspec.structs.replace(self.info, param=name, reason=reason))


@contextmanager
def renaming(names: Names | Callable[[], Names]) -> Iterator[None]:
    """Errors of the block have the caller's names of their fields (see `renamed`)."""
    try:
        yield
    except RequestError as error:
        found = names() if callable(names) else names
        if renamed(error.info.param, found) == error.info.param:
            raise
        raise error.renamed(found) from error


def missing(field: str) -> RequestError:
    """The error of a field that must be given."""
    return RequestError(f"missing field {field!r}", param=field)


class RingError(RequestError):
    """A part of the ring died, restarted or is not reachable. Safe to retry later."""

    def __init__(self, message: str, code: str = UNAVAILABLE) -> None:
        super().__init__(message, code=code, retryable=True)
