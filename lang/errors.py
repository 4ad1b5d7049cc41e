"""The language's errors. What a server refuses stays srt's RequestError, as a ProgramError's cause.

LangError
├── ProgramError      what was waited for will never come; `__cause__` says why
├── UnsupportedError  the back end cannot do what was asked; `param` names it
├── AnswerError       what the model wrote, `text`, is not what its type asks for
├── RefusalError      the model refused to answer; `text` is what it said
├── FilterError       a provider's filter withheld the answer; `reason` is its name for why
├── TraceError        a program looks at a text that need not be there yet
└── CancelledError    the program was ended by its user
"""

from typing import Any

from srt.wire.errors import SrtError


class LangError(SrtError):
    """Base of the language's own errors."""


class ProgramError(LangError):
    """A state failed, so this value will never come. `__cause__` is the original error."""


def original(error: BaseException | None) -> BaseException | None:
    """The error that a ProgramError reports; any other error itself."""
    if isinstance(error, ProgramError) and error.__cause__ is not None:
        return error.__cause__
    return error


class UnsupportedError(LangError):
    """The back end cannot do this. `param` is the argument or operation that asked for it."""

    def __init__(self, param: str, reason: str) -> None:
        super().__init__(f"{param}: {reason}")
        self.param = param

    def at(self, source: str) -> "UnsupportedError":
        """The same error, with the file and line that asked for it."""
        return UnsupportedError(self.param, f"{self.reason} ({source})")

    @property
    def reason(self) -> str:
        """Its message without the parameter."""
        return str(self).removeprefix(f"{self.param}: ")

    def __reduce__(self) -> tuple[Any, ...]:
        return UnsupportedError, (self.param, self.reason)


class AnswerError(LangError):
    """What the model wrote, `text`, is not a value that the gen asked for; usually it was cut."""

    def __init__(self, message: str, text: str) -> None:
        super().__init__(message, text)
        self.text = text

    def __str__(self) -> str:
        return str(self.args[0])


class RefusalError(LangError):
    """The model refused to answer. `text` is what it said instead, "" where it says nothing."""

    def __init__(self, message: str, text: str = "") -> None:
        super().__init__(message, text)
        self.text = text

    def __str__(self) -> str:
        return str(self.args[0])


class FilterError(LangError):
    """A provider's filter withheld the answer, or refused the prompt. `reason` is the provider's
    name for why, `text` what had come before."""

    def __init__(self, message: str, reason: str, text: str = "") -> None:
        super().__init__(message, reason, text)
        self.reason, self.text = reason, text

    def __str__(self) -> str:
        return str(self.args[0])


class TraceError(LangError):
    """A program looks at a text that need not be there yet: a reference, or a server's variable."""


class CancelledError(LangError):
    """The program was cancelled; its requests have been aborted."""
