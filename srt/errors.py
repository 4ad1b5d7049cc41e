"""The one error vocabulary of the project, in Python and on the wire.

SrtError
├── RequestError       one request, the client's fault or a limit (4xx/503); carries an ErrorInfo
├── RingError          the ring lost a part or cannot be reached; requests in flight have failed
└── ConfigError        the server cannot start as asked; one line that says what to do
"""

from msgspec import Struct

BAD_REQUEST = "bad_request"
NOT_FOUND = "not_found"
CONFLICT = "conflict"
OVERLOADED = "overloaded"
UNAVAILABLE = "unavailable"
CONTEXT_LENGTH = "context_length_exceeded"
UNAUTHORIZED = "unauthorized"
INTERNAL = "internal"

HTTP_STATUS = {
    BAD_REQUEST: 400,
    CONTEXT_LENGTH: 400,
    UNAUTHORIZED: 401,
    NOT_FOUND: 404,
    CONFLICT: 409,
    OVERLOADED: 429,
    INTERNAL: 500,
    UNAVAILABLE: 503,
}


class ErrorInfo(Struct, frozen=True, array_like=True, omit_defaults=True):
    """What went wrong: a stable `code`, a sentence, the offending field, and whether to retry."""

    code: str
    message: str
    param: str | None = None
    retryable: bool = False

    @property
    def http_status(self) -> int:
        return HTTP_STATUS.get(self.code, 500)


class SrtError(Exception):
    """Base of every error that this project raises on purpose."""


class ConfigError(SrtError):
    """The server or client was configured in a way that cannot work."""


class RequestError(SrtError):
    """One request was refused or failed; `info` is what travels to the client."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str = BAD_REQUEST,
        retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.info = ErrorInfo(code=code, message=message, param=param, retryable=retryable)

    @classmethod
    def from_info(cls, info: ErrorInfo) -> "RequestError":
        return cls(info.message, param=info.param, code=info.code, retryable=info.retryable)


class RingError(RequestError):
    """A part of the ring died, restarted or is not reachable. Safe to retry later."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code=UNAVAILABLE, retryable=True)
