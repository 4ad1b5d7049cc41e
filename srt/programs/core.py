"""The core of the part: questions in; answers, calls to start and calls to stop out.

Without I/O, clock or threads: times are given. The part around it has the `graph` and the `gets` go
on, sends `answers`, starts the calls that `next_start` gives and ends those in `stops`.
"""

import hashlib
import logging
import secrets
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any

import msgspec
from cachetools import FIFOCache

from srt.callers.names import caller_of
from srt.callers.shares import Shares
from srt.fair_queue import SlotQueue
from srt.programs.gets import Gets
from srt.programs.graph import DEFECT, Graph
from srt.programs.limits import (
    CALLER_SHARE,
    MAX_BYTES,
    MAX_ENDED,
    MAX_GET_VARS,
    MAX_IDLE_S,
    MAX_KEY_CHARS,
    MAX_SESSIONS,
)
from srt.programs.objectives import wants_of
from srt.programs.parts import (
    AHEAD_TOKENS,
    WASTED_TOKENS,
    CallWork,
    Session,
    Variable,
    Work,
)
from srt.programs.refusals import SESSION_CLOSED, SESSION_GAVE_WAY, too_much
from srt.programs.submissions import Submission
from srt.wire.errors import CONFLICT, NOT_FOUND, UNAVAILABLE, ErrorInfo, RequestError
from srt.wire.messages import RingMessage
from srt.wire.program_messages import (
    CancelVar,
    CloseSession,
    CountPrograms,
    EndGet,
    GetVars,
    OpenSession,
    ProgramCounts,
    ProgramsRefused,
    ReadSession,
    ReadVar,
    SessionTold,
    SetVar,
    SubmitProgram,
    Submitted,
    VarsTold,
)
from srt.wire.programs import SESSION_PREFIX, SessionInfo, VarState

log = logging.getLogger(__name__)

_encode = msgspec.msgpack.Encoder().encode


class Core:
    """All sessions. Calls that run have `max_running` requests at once, and those of one caller
    `max_of_caller`."""

    def __init__(self, max_running: int, max_of_caller: int) -> None:
        self.graph = Graph(self)
        self.answers: deque[tuple[bytes, RingMessage]] = deque()
        self.stops: deque[Work] = deque()
        self.is_draining = False
        self._sessions: dict[str, Session] = {}
        self._vars: dict[str, Variable] = {}
        self._open_sessions = self._shares(MAX_SESSIONS)
        self._bytes = self._shares(MAX_BYTES)
        # The tenants of sessions and variables that gave way, by id.
        self._gave_way: FIFOCache[str, str] = FIFOCache(MAX_ENDED)
        self.gets = Gets(self.graph, self.answers)
        # Calls that may start, by caller.
        self._calls: SlotQueue[str, Work] = SlotQueue(
            max_running, max_of_caller, lambda work: work.weight
        )
        self._num_running = 0
        self.totals = dict.fromkeys(_TOTALS, 0)
        self._handlers: dict[type, Callable[[bytes, Any, float], None]] = {
            OpenSession: self._open,
            ReadSession: self._read_session,
            CloseSession: self._close_session,
            SubmitProgram: self._submit,
            GetVars: self._get,
            EndGet: self._end_get,
            ReadVar: self._read,
            SetVar: self._set,
            CancelVar: self._cancel,
            CountPrograms: self._count,
        }

    # ---- events --------------------------------------------------------------------------------

    def handle(self, client: bytes, question: Any, now: float) -> None:
        """A question of a client. `now` is in seconds, of any clock that only grows."""
        try:
            self._handlers[type(question)](client, question, now)
        except RequestError as error:
            self.answers.append((client, ProgramsRefused(question.rid, error.info)))
        except Exception:  # others' sessions must not end with it
            log.exception("a defect: %s", type(question).__name__)
            self.answers.append((client, ProgramsRefused(question.rid, DEFECT)))

    @property
    def has_sessions(self) -> bool:
        """Whether `tick` has something to look at."""
        return bool(self._sessions)

    def tick(self, now: float) -> None:
        """End the gets whose time has come, and sessions that nobody uses."""
        self.gets.tick(now)
        for session in list(self._sessions.values()):
            if not _is_idle(session):
                session.used_at = now
            elif now - session.used_at > session.idle_s:
                self._close(session, SESSION_CLOSED)

    def next_start(self) -> Work | None:
        """A call, or a transform that needs tokens, that is to begin now. Callers take turns."""
        for caller in list(self._calls.askers):
            while (first := next(iter(self._calls.lane(caller)), None)) and first.ended:
                self._calls.discard(caller, first)
        taken = self._calls.take()
        if taken is None:
            return None
        self._num_running += 1
        return taken[1]

    def has_run(self, work: Work) -> None:
        """Work that `next_start` gave has come to its end."""
        self._num_running -= 1
        self._calls.done(work.session.caller, work)

    # ---- for the graph -------------------------------------------------------------------------

    def may_start(self, work: Work) -> None:
        work.session.running += 1
        self._calls.add(work.session.caller, work)

    def must_stop(self, work: Work) -> None:
        self.stops.append(work)

    def grew(self, var: Variable, delta: str) -> None:
        self.gets.grew(var, delta)

    def has_ended(self, var: Variable) -> None:
        self.totals[f"vars.{var.state}.total"] += 1
        self.gets.has_ended(var)

    def work_ended(self, work: Work) -> None:
        if isinstance(work, CallWork):
            self.totals[f"calls.{work.outputs[-1].state}.total"] += 1
        else:
            self.totals["transforms.total"] += 1
        if work.is_run:
            work.session.running -= 1

    def has_room(self, session: Session, more: int) -> bool:
        """Others' sessions may end by it, of which the graph changes none meanwhile."""
        if session.closed:
            return False
        if more < 0:
            self._bytes.give_back(session, -more)
        elif self._bytes.take(session.caller, session, more):
            return False
        session.size += more
        return True

    # ---- questions -----------------------------------------------------------------------------

    def _open(self, client: bytes, question: OpenSession, now: float) -> None:
        self._check_open()
        if not 0 < question.idle_s <= MAX_IDLE_S:
            raise RequestError(f" must be above 0, and at most {MAX_IDLE_S:g}", at="idle_s")
        session_id = SESSION_PREFIX + secrets.token_hex(16)
        if question.is_numbered:
            session_id = str(secrets.randbits(63))
        caller, salt = caller_of(client, question.tenant), question.cache_salt
        session = Session(session_id, question.tenant, caller, salt, question.idle_s, now)
        self._check_room(self._bytes, "bytes are taken by programs", caller, session.size)
        self._make_room_for_first(caller)
        self._check_room(self._open_sessions, "sessions are open", caller, 1)
        self._open_sessions.take(caller, session)
        self._bytes.take(caller, session, session.size)
        self._sessions[session_id] = session
        self._tell_session(client, question.rid, session)

    def _make_room_for_first(self, caller: str) -> None:
        """End the session that is idle for longest, if all are open and nobody has one more than
        its first, which this caller is to have too."""
        is_full = self._open_sessions.full(caller, 1) == "server"
        if is_full and not self._open_sessions.held(caller):
            idle = filter(_is_idle, self._sessions.values())
            if (oldest := min(idle, key=lambda one: one.used_at, default=None)) is not None:
                self._give_way(oldest)

    def _read_session(self, client: bytes, question: ReadSession, now: float) -> None:
        self._tell_session(client, question.rid, self._session(question, now))

    def _close_session(self, client: bytes, question: CloseSession, now: float) -> None:
        session = self._session(question, now)
        self._tell_session(client, question.rid, session)
        self._close(session, SESSION_CLOSED)

    def _submit(self, client: bytes, question: SubmitProgram, now: float) -> None:
        self._check_open()
        session, program, key = self._session(question, now), question.program, question.key
        if len(key) > MAX_KEY_CHARS:
            raise RequestError(f" must have at most {MAX_KEY_CHARS} characters", at="key")
        encoded = _encode(program)
        digest = hashlib.sha256(encoded).digest() if key else b""
        if key in session.keys:
            known, ids = session.keys[key]
            if known != digest:
                raise RequestError(" was used for another program", at="key", code=CONFLICT)
            self.answers.append((client, Submitted(question.rid, ids)))
            return
        submission = Submission(session, program, len(encoded))
        size = submission.size
        texts = sum(len(text.encode()) for _, text in submission.given)
        self._check_room(self._bytes, "bytes are taken by programs", session.caller, size + texts)
        self.has_room(session, size)
        ids = submission.take()
        self._vars |= {var_id: session.vars[var_id] for var_id in ids.values()}
        if key:
            session.keys[key] = digest, ids
        self.totals["submits.total"] += 1
        self.answers.append((client, Submitted(question.rid, ids)))
        for var, text in submission.given:
            self.graph.set(var, text)
        if program.eager:
            for variables, objective in wants_of(submission.made, None, now):
                self.graph.want(variables, objective)

    def _get(self, client: bytes, question: GetVars, now: float) -> None:
        if not 0 < len(question.vars) <= MAX_GET_VARS:
            raise RequestError(f" must have 1 to {MAX_GET_VARS} ids", at="vars")
        found = [
            self._var(name, question.tenant, now, f"vars[{i}]")
            for i, name in enumerate(question.vars)
        ]
        self.gets.begin(client, caller_of(client, question.tenant), question, found, now)

    def _end_get(self, client: bytes, question: EndGet, now: float) -> None:
        self.gets.end(client, question.rid)

    def _read(self, client: bytes, question: ReadVar, now: float) -> None:
        self._tell_var(client, question.rid, self._var_of(question, now))

    def _set(self, client: bytes, question: SetVar, now: float) -> None:
        var = self._var_of(question, now)
        self.graph.set(var, question.text)
        self._tell_var(client, question.rid, var)

    def _cancel(self, client: bytes, question: CancelVar, now: float) -> None:
        var = self._var_of(question, now)
        self.graph.cancel(var)
        self._tell_var(client, question.rid, var)

    def _count(self, client: bytes, question: CountPrograms, now: float) -> None:
        self.answers.append((client, ProgramCounts(question.rid, self.counts())))

    def counts(self) -> dict[str, float]:
        """Gauges, and totals since the start, by name."""
        running = self._num_running
        started = sum(session.running for session in self._sessions.values())
        gauges = {
            "sessions": len(self._sessions),
            "vars": len(self._vars),
            "gets": len(self.gets),
            "bytes": self._bytes.total,
            "calls.pending": max(0, started - running),
            "calls.running": running,
        }
        return {**gauges, **self.totals}

    # ---- sessions ------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.is_draining:
            raise RequestError("the server is stopping", code=UNAVAILABLE, retryable=True)

    def _session(self, question: Any, now: float) -> Session:
        session = self._sessions.get(question.session)
        if self._gave_way.get(question.session) == question.tenant:
            raise RequestError.from_info(SESSION_GAVE_WAY)
        if session is None or session.tenant != question.tenant:
            raise RequestError(": there is no such session", at="session", code=NOT_FOUND)
        session.used_at = now
        return session

    def _var_of(self, question: Any, now: float) -> Variable:
        return self._var(question.var, question.tenant, now, "var")

    def _var(self, name: str, tenant: str, now: float, at: str) -> Variable:
        var = self._vars.get(name)
        if self._gave_way.get(name) == tenant:
            raise RequestError.from_info(SESSION_GAVE_WAY)
        if var is None or var.session.tenant != tenant:
            raise RequestError(": there is no such variable", at=at, code=NOT_FOUND)
        var.session.used_at = now
        return var

    def _close(self, session: Session, error: ErrorInfo) -> None:
        """End a session; its gets are refused with this error."""
        del self._sessions[session.id]
        self.gets.end_session(session, error)
        self.graph.close(session)
        for name in session.vars:
            del self._vars[name]
        self._bytes.give_back(session)
        self._open_sessions.give_back(session)

    def _give_way(self, session: Session) -> None:
        """End a session, as another caller needs its room."""
        self._gave_way.update(dict.fromkeys((session.id, *session.vars), session.tenant))
        self.totals["sessions.gave_way.total"] += 1
        self._close(session, SESSION_GAVE_WAY)

    def _shares(self, bound: int) -> Shares[str, Session]:
        bound_of_one = int(bound * CALLER_SHARE)
        return Shares(bound, bound_of_one, give_way=self._give_way, order=_idle_first)

    def _check_room(self, shares: Shares[str, Session], what: str, caller: str, more: int) -> None:
        """Raise RequestError (429) if a bound does not allow `more` of something."""
        if whose := shares.full(caller, more):
            raise too_much(what, whose)

    def _tell_session(self, client: bytes, rid: str, session: Session) -> None:
        told = SessionInfo(session.id, session.idle_s, list(session.vars), session.size)
        self.answers.append((client, SessionTold(rid, told)))

    def _tell_var(self, client: bytes, rid: str, var: Variable) -> None:
        if not var.has_ended and var.text:
            var.is_told = True
        self.answers.append((client, VarsTold(rid, [var.info()], var.has_ended)))


def _is_idle(session: Session) -> bool:
    """Whether nothing runs in it, and nobody waits for what it makes."""
    return not (session.running or session.gets)


def _idle_first(sessions: Collection[Session]) -> Iterable[Session]:
    """The order in which one caller's sessions give way: those that are idle, the one that was used
    longest ago first, then the newest of those that work."""
    idle = sorted((one for one in sessions if _is_idle(one)), key=lambda one: one.used_at)
    return [*idle, *(one for one in reversed(list(sessions)) if not _is_idle(one))]


_STATES: tuple[VarState, ...] = ("ready", "skipped", "failed", "cancelled")
_TOTALS = (
    *(f"{what}.{state}.total" for what in ("vars", "calls") for state in _STATES),
    "transforms.total",
    "submits.total",
    "sessions.gave_way.total",
    *(AHEAD_TOKENS, WASTED_TOKENS),
)
