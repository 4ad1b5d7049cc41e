"""The life of variables: what is needed, what can begin, and what follows when something ends.

A core without I/O, clock or threads. What follows from an event is done piece by piece by `step`,
so that no event holds the loop for long; there is no recursion, however long a chain is.
"""

import logging
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from srt.programs.limits import MAX_TEXT_BYTES
from srt.programs.objectives import Objective, Objectives
from srt.programs.parts import CallWork, Session, TransformWork, Variable, Work, text_bytes
from srt.programs.transforms import apply, holds, needs_tokens
from srt.wire.errors import CONFLICT, INTERNAL, ErrorInfo, RequestError
from srt.wire.programs import Concat, First, Join, Majority, Op, OutputMeta, VarState

log = logging.getLogger(__name__)

DEFECT = ErrorInfo(INTERNAL, "the part that runs programs failed (its log says why)")
MAX_WAITING = 1024  # calls; of more the oldest are left out
_CANCELLED = ErrorInfo(CONFLICT, "it was cancelled")
_TOO_LONG = f"the text has more than {MAX_TEXT_BYTES} bytes"


class Listener(Protocol):
    """Who is told of what happens. Called while the graph changes: it must not call back."""

    def may_start(self, work: Work) -> None:
        """Its inputs are there: it is to be run, and its outputs reported."""
        ...

    def must_stop(self, work: Work) -> None:
        """It was started, and is not needed any more."""
        ...

    def grew(self, var: Variable, delta: str) -> None:
        """The text of a running variable."""
        ...

    def has_ended(self, var: Variable) -> None: ...

    def work_ended(self, work: Work) -> None: ...

    def has_room(self, session: Session, more: int) -> bool:
        """Take `more` bytes for a session's texts, if there is room."""
        ...


class Graph:
    """The variables of all sessions."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self.objectives = Objectives()
        # Calls that are wanted and wait for inputs, for those who compute ahead; they empty it.
        self.waiting: deque[CallWork] = deque(maxlen=MAX_WAITING)
        self._to_look_at: deque[Work] = deque()
        self._to_release: deque[Variable] = deque()

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._to_look_at or self._to_release)

    def step(self) -> None:
        """Do one piece of what has followed from earlier events."""
        if self._to_look_at:
            work = self._to_look_at.popleft()
            try:
                self._look(work)
            except Exception:  # others' sessions must not end with it
                log.exception("a defect")
                self._fail_from(work, 0, "failed", DEFECT)
        elif self._to_release:
            self._release(self._to_release.popleft())

    # ---- events --------------------------------------------------------------------------------

    def want(self, wanted: Iterable[Variable], objective: Objective) -> None:
        """Have these made, and all that they are made of, for this."""
        stack = list(wanted)
        self.objectives.want(stack, objective)
        for var in stack:
            var.is_wanted = True
        while stack:
            work = stack.pop().work
            if work is not None and not (work.active or work.ended):
                work.active = True
                self._to_look_at.append(work)
                stack += [var for var in work.inputs.values() if not var.has_ended]

    def set(self, var: Variable, text: str) -> None:
        """A client sets a variable. RequestError if it is not for that, or has a value."""
        if var.work is not None:
            raise RequestError(" is made by the program: it cannot be set", at="var")
        if var.has_ended:
            raise RequestError(f" has been {_WORDS[var.state]} already", at="var", code=CONFLICT)
        if not self._fits(var, text):
            raise RequestError(f": {_TOO_LONG}, or there is no room for it", at="text")
        self._settle(var, "ready", text=text)

    def cancel(self, var: Variable) -> None:
        """Cancel a variable; what needs it follows, and what is made for nothing else. Nothing
        happens to one that has ended."""
        if var.has_ended:
            return
        work = var.work
        if work is None:
            self._settle(var, "cancelled", error=_CANCELLED)
            return
        later = work.outputs[work.outputs.index(var) :]
        for each in later:
            if not each.has_ended:
                self._settle(each, "cancelled", error=_CANCELLED)
        if all(each.has_ended for each in work.outputs):
            self._end(work, stops=True)

    def runs(self, var: Variable) -> bool:
        """The output of a started call is about to be asked for. False if nobody needs it, nor
        those after it, any more."""
        if var.has_ended:
            return False
        var.state = "running"
        return True

    def grow(self, var: Variable, delta: str) -> bool:
        """The text of a running variable grows. False if it has failed by that."""
        if var.has_ended:
            return False
        if delta:
            if not self._fits(var, delta):
                error = RequestError(_TOO_LONG + ", or there is no room for it")
                self.fail(var, error.info)
                return False
            var.text += delta
            self._listener.grew(var, delta)
        return True

    def begin_again(self, var: Variable) -> None:
        """The request for a running variable is made again; nobody has seen its text."""
        self._listener.has_room(var.session, -text_bytes(var.text))
        var.text, var.num_bytes = "", 0

    def finish(self, var: Variable, meta: OutputMeta | None) -> None:
        """A running variable is complete."""
        if not var.has_ended:
            self._settle(var, "ready", meta=meta)
            self._close_if_done(var)

    def fail(self, var: Variable, error: ErrorInfo, meta: OutputMeta | None = None) -> bool:
        """Making a variable has failed. True if it has a default and the call goes on; otherwise
        the later outputs have failed too."""
        work = var.work
        assert work is not None
        if var.has_ended:
            return False
        if self._use_default(var, error, meta):
            self._close_if_done(var)
            return True
        self._fail_from(work, work.outputs.index(var), "failed", error)
        return False

    def close(self, session: Session) -> None:
        """End all of a session; its variables are not looked at again."""
        session.closed = True
        for work in session.works:
            if work.is_run and not work.ended:
                self._listener.must_stop(work)
            work.ended = True
            self.objectives.forget(work)

    # ---- what follows --------------------------------------------------------------------------

    def _look(self, work: Work) -> None:
        """Start it, end it, or leave it waiting."""
        if work.ended or work.started or not work.active or work.session.closed:
            return
        if not self._is_asked(work):
            return
        if isinstance(work, TransformWork) and isinstance(work.transform.op, _GATHERING):
            self._gather(work)
            return
        lacking = next(
            (v for v in work.inputs.values() if v.has_ended and v.state != "ready"), None
        )
        if lacking is not None:
            self._lacks(work, lacking)
        elif not work.missing:
            self._start(work)
        elif isinstance(work, CallWork):
            self.waiting.append(work)

    def _is_asked(self, work: Work) -> bool:
        """Whether its guard holds. If it does not, the work ends here."""
        guard = work.guard_var
        if work.is_asked or guard is None or work.guard is None:
            return True
        if not guard.has_ended:
            return False
        if guard.state != "ready":
            self._lacks(work, guard)
            return False
        try:
            work.is_asked = holds(work.guard, guard.text)
        except RequestError as error:
            self._fail_from(work, 0, "failed", error.info)
            return False
        if not work.is_asked:
            self._skip(work)
        return work.is_asked

    def _gather(self, work: TransformWork) -> None:
        """A transform of a list: not all of it must be there."""
        op = work.transform.op
        assert isinstance(op, _GATHERING)
        inputs = [work.inputs[name] for name in dict.fromkeys(op.inputs)]
        failed = next((var for var in inputs if var.has_no_text), None)
        is_any_ready = any(var.state == "ready" for var in inputs)
        if isinstance(op, First):
            if is_any_ready:
                self._start(work)
                return
        elif failed is not None and not work.leaves_out_failed:
            self._lacks(work, failed)
            return
        if work.missing:
            return
        if is_any_ready:
            self._start(work)
        elif failed is not None:
            self._lacks(work, failed)
        else:
            self._skip(work)

    def _lacks(self, work: Work, var: Variable) -> None:
        """An input has ended without a text."""
        if var.state == "skipped":
            self._skip(work)
        else:
            self._fail_from(work, 0, var.state, _lack_of(var), var)

    def _start(self, work: Work) -> None:
        work.started = True
        if isinstance(work, CallWork) or needs_tokens(_op(work)):
            work.is_run = True
            self._listener.may_start(work)
            return
        (var,) = work.outputs
        names = {name: v.text if v.state == "ready" else None for name, v in work.inputs.items()}
        try:
            text = apply(_op(work), names)
        except RequestError as error:
            self.fail(var, error.info)
            return
        if self.runs(var) and self.grow(var, text):
            self.finish(var, None)

    def _skip(self, work: Work) -> None:
        for var in work.outputs:
            if not var.has_ended:
                self._settle(var, "skipped")
        self._end(work)

    def _fail_from(
        self,
        work: Work,
        first: int,
        state: VarState,
        error: ErrorInfo,
        cause: Variable | None = None,
    ) -> None:
        """The outputs from `first` on have no text, because of an error or of an input."""
        for var in work.outputs[first:]:
            if not var.has_ended and not self._use_default(var, error, None):
                self._settle(var, state, error=error, cause=cause)
        if all(var.has_ended for var in work.outputs):
            self._end(work)

    def _use_default(self, var: Variable, error: ErrorInfo, meta: OutputMeta | None) -> bool:
        """Give a variable the text that it has for this case, unless another one was told."""
        default = _default_of(var)
        if default is None or (var.is_told and var.text):
            return False
        self.begin_again(var)
        if not self._fits(var, default):
            return False
        self._settle(var, "ready", text=default, error=error, meta=meta)
        return True

    def _settle(
        self,
        var: Variable,
        state: VarState,
        *,
        text: str | None = None,
        error: ErrorInfo | None = None,
        cause: Variable | None = None,
        meta: OutputMeta | None = None,
    ) -> None:
        """The end of a variable. Room for `text` has been taken."""
        var.state, var.error, var.cause, var.meta = state, error, cause, meta
        if text is not None:
            var.text = text
        for work in var.consumers:
            work.missing -= 1
            if work.active and _may_decide(work, var):
                self._to_look_at.append(work)
        self._listener.has_ended(var)

    def _close_if_done(self, var: Variable) -> None:
        work = var.work
        if work is not None and all(each.has_ended for each in work.outputs):
            self._end(work)

    def _end(self, work: Work, stops: bool = False) -> None:
        if work.ended:
            return
        work.ended = True
        self.objectives.forget(work)
        self._listener.work_ended(work)
        if work.is_run and stops:
            self._listener.must_stop(work)
        self._to_release.extend(var for var in work.inputs.values() if not var.has_ended)

    def _release(self, var: Variable) -> None:
        """Cancel a variable that was made only for work that has ended, and those that go on its
        text."""
        work = var.work
        if work is None or not work.active or var.has_ended:
            return
        if not any(map(_is_needed, work.outputs[work.outputs.index(var) :])):
            self.cancel(var)

    def _fits(self, var: Variable, more: str) -> bool:
        num_bytes = len(more) if more.isascii() else len(more.encode())
        if var.num_bytes + num_bytes > MAX_TEXT_BYTES:
            return False
        if not self._listener.has_room(var.session, text_bytes(more)):
            return False
        var.num_bytes += num_bytes
        return True


_GATHERING = (Concat, Join, Majority, First)
_WORDS = {
    "ready": "set",
    "skipped": "skipped",
    "failed": "not made",
    "cancelled": "cancelled",
}


def _is_needed(var: Variable) -> bool:
    is_read = any(not work.ended for work in var.consumers)
    return not var.has_ended and (var.is_wanted or bool(var.gets) or is_read)


def _may_decide(work: Work, var: Variable) -> bool:
    """Whether the end of `var` may be the one that `work` waited for: the inputs of a large join
    are not looked at each time."""
    is_race = isinstance(work, TransformWork) and isinstance(work.transform.op, First)
    return not work.missing or var.state != "ready" or var is work.guard_var or is_race


def _op(work: Work) -> Op:
    assert isinstance(work, TransformWork)
    return work.transform.op


def _lack_of(var: Variable) -> ErrorInfo:
    """The error of what needs `var`. All that follows from one failure names its origin, and the
    causes the way from there."""
    error = var.error
    assert error is not None
    if var.cause is not None:
        return error
    words = f"its input {var.name!r} was {_WORDS[var.state]}: {error.message}"
    return ErrorInfo(error.code, words, retryable=error.retryable)


def _default_of(var: Variable) -> str | None:
    work = var.work
    if isinstance(work, TransformWork):
        return work.transform.default
    if isinstance(work, CallWork):
        return work.asked[work.outputs.index(var)].default
    return None
