"""Gets that wait for variables, and what streaming ones are told of texts that grow."""

import heapq
from collections import deque
from collections.abc import Sequence

from srt.callers.shares import Shares
from srt.programs.graph import Graph
from srt.programs.limits import CALLER_SHARE, MAX_GET_S, MAX_GETS, MAX_TOLD_BYTES
from srt.programs.objectives import wants_of
from srt.programs.parts import Get, Session, Variable, text_bytes
from srt.programs.refusals import GET_GAVE_WAY, too_much
from srt.wire.errors import ErrorInfo, RequestError
from srt.wire.messages import RingMessage
from srt.wire.program_messages import GetVars, ProgramsRefused, VarsGrew, VarsTold

# A waiting client hears something this often: each side learns so that the other one has gone.
PROBE_S = 5.0


class Gets:
    """The gets of all clients. What they are told goes to `answers`."""

    def __init__(self, graph: Graph, answers: deque[tuple[bytes, RingMessage]]) -> None:
        self._graph, self._answers = graph, answers
        self._shares: Shares[str, Get] = Shares(
            MAX_GETS, int(MAX_GETS * CALLER_SHARE), give_way=self._give_way
        )
        self._waiting: dict[tuple[bytes, str], Get] = {}
        self._deadlines: list[tuple[float, int, Get]] = []
        self._count = 0
        self._changed: dict[Get, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(
        self, client: bytes, caller: str, question: GetVars, found: Sequence[Variable], now: float
    ) -> None:
        """Answer a get of `caller` at once if all of its variables have ended; otherwise let it
        wait."""
        if question.perf is not None:
            question.perf.check("perf")
        if question.deadline_ms < 0:
            raise RequestError(" must be 0 or more", at="deadline_ms")
        if (client, question.rid) in self._waiting:
            raise RequestError(f" {question.rid!r} is already in use", at="rid")
        most_s = min(question.deadline_ms / 1e3 or MAX_GET_S, MAX_GET_S)
        get = Get(client, question.rid, found, question.stream, now + most_s, told_at=now)
        left = {var for var in found if not var.has_ended}
        if left and (whose := self._shares.take(caller, get)):
            raise too_much("gets are waiting", whose)
        for var in found:
            if question.perf is not None:
                var.perf = question.perf
        get.left = len(left)
        for var in dict.fromkeys(found):
            if get.stream:
                self._begin_text(get, var)
        if not left:
            self._finish(get)
            return
        for var in left:
            var.gets.add(get)
        for session in {var.session for var in found}:
            session.gets += 1
        self._waiting[client, get.rid] = get
        self._count += 1
        if len(self._deadlines) > 2 * len(self._waiting) + MAX_GETS:  # most have ended before
            self._deadlines = [each for each in self._deadlines if not each[2].ended]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (get.deadline, self._count, get))
        for variables, objective in wants_of(found, question.perf, now):
            self._graph.want(variables, objective)

    def grew(self, var: Variable, delta: str) -> None:
        for get in var.gets:
            if get.stream:
                self._tell_text(get, var)

    def has_ended(self, var: Variable) -> None:
        gets, var.gets = var.gets, set()
        for get in gets:
            if get.stream:
                self._tell_text(get, var)
            get.left -= 1
            if not get.left:
                self._leave(get)
                self._finish(get)

    def tell(self, now: float) -> None:
        """Add the pieces of streaming gets to the answers."""
        for get in self._changed:
            if get.pieces and not get.ended:
                self._tell_pieces(get)
                get.told_at = now
        self._changed.clear()

    def tick(self, now: float) -> None:
        """End the gets whose time has come."""
        while self._deadlines and (self._deadlines[0][0] <= now or self._deadlines[0][2].ended):
            get = heapq.heappop(self._deadlines)[2]
            if not get.ended:
                self._leave(get)
                self._finish(get)
        for get in self._waiting.values():
            if now - get.told_at > PROBE_S:
                get.told_at = now
                self._answers.append((get.client, VarsGrew(get.rid, [])))

    def end(self, client: bytes, rid: str) -> None:
        """Nobody waits for this one any more; what it wanted goes on."""
        get = self._waiting.get((client, rid))
        if get is not None:
            self._leave(get)

    def end_of(self, client: bytes) -> None:
        """The same for all of a client."""
        for get in [get for get in self._waiting.values() if get.client == client]:
            self._leave(get)

    def end_session(self, session: Session, error: ErrorInfo) -> None:
        """A session ends: its gets are refused with this error."""
        for get in {get for var in session.vars.values() for get in var.gets}:
            self._refuse(get, error)

    def _give_way(self, get: Get) -> None:
        self._refuse(get, GET_GAVE_WAY)

    def _refuse(self, get: Get, error: ErrorInfo) -> None:
        self._leave(get)
        self._answers.append((get.client, ProgramsRefused(get.rid, error)))

    def _begin_text(self, get: Get, var: Variable) -> None:
        """Tell what there is, even if it is nothing: the client learns that the get was taken."""
        get.pieces.append((var.id, var.text))
        get.told[var.id] = len(var.text)
        self._changed[get] = None
        var.is_told = var.is_told or bool(var.text)

    def _tell_text(self, get: Get, var: Variable) -> None:
        """What this one has not been told of the variable's text."""
        told = get.told.get(var.id, 0)
        if len(var.text) > told:
            get.pieces.append((var.id, var.text[told:]))
            get.told[var.id] = len(var.text)
            self._changed[get] = None
            var.is_told = True

    def _tell_pieces(self, get: Get) -> None:
        self._answers.append((get.client, VarsGrew(get.rid, get.pieces)))
        get.pieces = []

    def _leave(self, get: Get) -> None:
        """It waits no longer."""
        get.ended = True
        del self._waiting[get.client, get.rid]
        self._shares.give_back(get)
        for var in get.vars:
            var.gets.discard(get)
        for session in {var.session for var in get.vars}:
            session.gets -= 1
        self._changed.pop(get, None)

    def _finish(self, get: Get) -> None:
        """Tell it how its variables are now."""
        if get.pieces:
            self._tell_pieces(get)
        for var in get.vars:
            if not var.has_ended and var.text:
                var.is_told = True
        if sum(text_bytes(var.text) for var in get.vars) > MAX_TOLD_BYTES:
            reason = (
                f": their texts have over {MAX_TOLD_BYTES} bytes together; ask for fewer at once"
            )
            error = RequestError(reason, at="vars").info
            self._answers.append((get.client, ProgramsRefused(get.rid, error)))
            return
        done = all(var.has_ended for var in get.vars)
        told = VarsTold(get.rid, [var.info() for var in get.vars], done)
        self._answers.append((get.client, told))
