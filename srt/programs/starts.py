"""Calls that may start: which of them begins now.

Callers take turns. Where applications have `Turns`, the calls of those that came later are held
here, and do not wait in the scheduler's queue. There, each row that a call leaves would go to a
later application at once, and the next call of the first one, which comes a moment later, would
have to wait for another row: the applications would go on in step, and all end late. Pure: no
clock.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from srt.fair_queue import SlotQueue
from srt.programs.objectives import Objective, Objectives
from srt.programs.parts import Session, Work

_Urgency = tuple[int, float, str]
_LAST: _Urgency = (3, 0.0, "")  # after all ranks


class Turns(NamedTuple):
    """Applications of one caller, which is a session each, take turns: a call is held as long as
    those that go before it have as many requests as there are `rows`, but not above
    `max_wait_s`."""

    rows: int
    max_wait_s: float


@dataclass(eq=False, slots=True)
class _App:
    """The calls of a session that are held, with the time when they came, and the requests of those
    that were handed on and have not ended. The less, the sooner is its turn."""

    urgency: _Urgency = _LAST
    held: dict[Work, float] = field(default_factory=dict)
    running: int = 0


class Starts:
    """Calls that run have `max_running` requests at once, and those of one caller
    `max_of_caller`."""

    def __init__(
        self, max_running: int, max_of_caller: int, objectives: Objectives, turns: Turns | None
    ) -> None:
        self._objectives, self._turns = objectives, turns
        # Those that are not held, by caller.
        self._queue: SlotQueue[str, Work] = SlotQueue(
            max_running, max_of_caller, lambda work: work.weight
        )
        self._apps: dict[str, dict[Session, _App]] = {}  # by caller; none without calls
        self._counted: dict[Work, _App] = {}  # calls that were handed on
        self._now = 0.0
        self._is_changed = False
        self.num_running = 0

    def add(self, work: Work) -> None:
        objective = self._objectives.of(work)
        if self._turns is None or objective is None:
            self._queue.add(work.session.caller, work)
            return
        apps = self._apps.setdefault(work.session.caller, {})
        app = apps.setdefault(work.session, _App())
        app.urgency = min(app.urgency, _urgency(objective, self._turns, work.session))
        app.held[work] = self._now
        self._is_changed = True

    def take(self) -> Work | None:
        """A call that is to begin now."""
        if self._is_changed:
            self._is_changed = False
            for apps in self._apps.values():
                self._hand_on(apps.values())
        for caller in list(self._queue.askers):
            while (first := next(iter(self._queue.lane(caller)), None)) and first.ended:
                self._queue.discard(caller, first)
                self._leave(first)
        taken = self._queue.take()
        if taken is None:
            return None
        self.num_running += 1
        return taken[1]

    def done(self, work: Work) -> None:
        """A call that `take` gave has come to its end."""
        self.num_running -= 1
        self._queue.done(work.session.caller, work)
        self._leave(work)

    def tick(self, now: float) -> None:
        """Hold none for longer than it may be. `now` is in seconds, of any clock that grows."""
        self._now = now
        for caller, apps in list(self._apps.items()):
            for session, app in list(apps.items()):
                self._look(app, now)
                self._forget_empty(caller, session)

    def _look(self, app: _App, now: float) -> None:
        assert self._turns is not None
        for work, since in list(app.held.items()):
            if work.ended:
                del app.held[work]
            elif now - since > self._turns.max_wait_s:
                self._pass(app, work)

    def _hand_on(self, apps: Collection[_App]) -> None:
        """Hand on the calls of a caller whose turn it is."""
        assert self._turns is not None
        if not any(app.held for app in apps):
            return
        before = 0
        for app in sorted(apps, key=lambda app: app.urgency):
            if before >= self._turns.rows:
                return
            for work in list(app.held):
                self._pass(app, work)
            before += app.running

    def _pass(self, app: _App, work: Work) -> None:
        del app.held[work]
        if not work.ended:
            self._counted[work] = app
            app.running += work.weight
            self._queue.add(work.session.caller, work)

    def _leave(self, work: Work) -> None:
        """One that was handed on has ended, or will not begin."""
        app = self._counted.pop(work, None)
        if app is not None:
            self._is_changed = True
            app.running -= work.weight
            self._forget_empty(work.session.caller, work.session)

    def _forget_empty(self, caller: str, session: Session) -> None:
        apps = self._apps[caller]
        if not (apps[session].held or apps[session].running):
            del apps[session]
            if not apps:
                del self._apps[caller]


def _urgency(objective: Objective, turns: Turns, session: Session) -> _Urgency:
    """As the scheduler's policy `app` has it."""
    due_s = min(objective.arrival_s + turns.max_wait_s, objective.due_s)
    return objective.rank, due_s, session.id
