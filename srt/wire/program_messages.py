"""The messages between clients and the part `programs`.

Clients' questions have a `rid` of their own; every question gets one answer with it, and a
streaming Get any number of `VarsGrew` before that. `tenant` is for whom a client that serves
several asks: sessions belong to it.
"""

from srt.wire.errors import ErrorInfo
from srt.wire.messages import RingMessage
from srt.wire.programs import Perf, Program, SessionInfo, VarInfo

# ---- client -> programs (its ROUTER) ---------------------------------------------------------


class OpenSession(RingMessage, frozen=True):
    """Open a session. Answered by SessionTold. The id of one that `is_numbered` is a random number
    of 63 bits, in decimal, for clients whose ids of sessions are integers."""

    rid: str
    tenant: str = ""
    idle_s: float = 600.0
    cache_salt: str = ""
    is_numbered: bool = False


class ReadSession(RingMessage, frozen=True):
    """Answered by SessionTold."""

    rid: str
    session: str
    tenant: str = ""


class CloseSession(RingMessage, frozen=True):
    """End a session and all that runs in it. Answered by SessionTold, with what it was."""

    rid: str
    session: str
    tenant: str = ""


class SubmitProgram(RingMessage, frozen=True):
    """Take a program into a session. Answered by Submitted before anything runs.

    The same `key` and program get the same answer again, and are taken once; another program
    with a key that was used is refused (CONFLICT).
    """

    rid: str
    session: str
    program: Program
    tenant: str = ""
    key: str = ""


class GetVars(RingMessage, frozen=True):
    """Have these variables made, and wait for them. Answered by VarsTold when all have ended, or
    after `deadline_ms` (0: the server's bound) with what there is; what runs goes on."""

    rid: str
    vars: list[str]
    tenant: str = ""
    stream: bool = False
    deadline_ms: int = 0
    perf: Perf | None = None


class EndGet(RingMessage, frozen=True):
    """Nobody waits for the GetVars `rid` of this client any more. Not answered."""

    rid: str


class ReadVar(RingMessage, frozen=True):
    """Answered by VarsTold at once. Nothing begins to run."""

    rid: str
    var: str
    tenant: str = ""


class SetVar(RingMessage, frozen=True):
    """Set a variable that clients set. Answered by VarsTold."""

    rid: str
    var: str
    text: str
    tenant: str = ""


class CancelVar(RingMessage, frozen=True):
    """Cancel a variable, what needs it, and what is made for nothing else. Answered by VarsTold."""

    rid: str
    var: str
    tenant: str = ""


class CountPrograms(RingMessage, frozen=True):
    """Answered by ProgramCounts."""

    rid: str


ProgramsQuestion = (
    OpenSession
    | ReadSession
    | CloseSession
    | SubmitProgram
    | GetVars
    | EndGet
    | ReadVar
    | SetVar
    | CancelVar
    | CountPrograms
)


# ---- programs -> client ----------------------------------------------------------------------


class SessionTold(RingMessage, frozen=True):
    """The session."""

    rid: str
    session: SessionInfo


class Submitted(RingMessage, frozen=True):
    """The ids of a program's variables, by their names."""

    rid: str
    vars: dict[str, str]


class VarsGrew(RingMessage, frozen=True):
    """To a streaming Get: what variables' texts have grown by, since the last such message. The
    first one of a variable has all of its text so far."""

    rid: str
    pieces: list[tuple[str, str]]


class VarsTold(RingMessage, frozen=True):
    """Variables, in the order they were asked for; `done` says that all have ended."""

    rid: str
    vars: list[VarInfo]
    done: bool


class ProgramsRefused(RingMessage, frozen=True):
    """The question was refused."""

    rid: str
    error: ErrorInfo


class ProgramCounts(RingMessage, frozen=True):
    """Gauges and totals since the part's start, by name."""

    rid: str
    counts: dict[str, float]


ProgramsReply = SessionTold | Submitted | VarsGrew | VarsTold | ProgramsRefused | ProgramCounts
