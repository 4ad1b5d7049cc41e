"""Ends a process that hangs: a thread looks what the compute thread and the loop are at, and for
how long they have been at it.

Only time in which this thread runs counts, so neither does time in which the process was stopped or
the machine slept. While native code holds the interpreter it cannot run, and neither can the loop,
whose silence the supervisor notices.
"""

import asyncio
import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping

from scheduler_proc.core.steps.step import Step
from srt.ring.actor import EXIT_HANG

log = logging.getLogger(__name__)

LOOK_S = 0.2  # from one look to the next
LATE_S = 4 * LOOK_S  # a look that comes later than this after the last: nothing ran meanwhile
REPORT_S = 2.0  # for the report of a hang: writing it may hang too


Doing = Mapping[str, Callable[[], object]]


class Watch:
    """Calls `on_hang(name)` when what one of `doing` gives, by name, has been the same for
    `limit_s`; None is nothing, which may last."""

    def __init__(
        self,
        limit_s: float,
        doing: Doing,
        on_hang: Callable[[str], None],
    ) -> None:
        self._limit_s, self._doing, self._on_hang = limit_s, doing, on_hang
        self._seen: dict[str, object | None] = dict.fromkeys(doing)
        self._waited_s = dict.fromkeys(doing, 0.0)
        self._looked_s: float | None = None

    def start(self) -> None:
        """Look from now on, in a thread."""
        threading.Thread(target=self._keep_looking, name="watch", daemon=True).start()

    def look(self, now: float) -> None:
        """Look once; `now` is any monotonic clock's, in seconds."""
        passed_s = 0.0 if self._looked_s is None else now - self._looked_s
        passed_s = LOOK_S if passed_s > LATE_S else passed_s
        self._looked_s = now
        for name, doing in self._doing.items():
            at = doing()
            if at is None or at is not self._seen[name]:
                self._seen[name], self._waited_s[name] = at, 0.0
                continue
            self._waited_s[name] += passed_s
            if self._waited_s[name] >= self._limit_s:
                self._waited_s[name] = 0.0
                self._on_hang(name)

    def _keep_looking(self) -> None:
        while True:
            self.look(time.monotonic())
            time.sleep(LOOK_S)


class LoopProbe:
    """Asks the loop for an answer, and once it has come, at the next call, for another."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asked: object | None = None

    def __call__(self) -> object:
        """What the loop has not answered yet."""
        if self._asked is None and not self._loop.is_closed():
            self._asked = object()
            self._loop.call_soon_threadsafe(self._answer)
        return self._asked

    def _answer(self) -> None:
        self._asked = None


def end_process(what: str, step: Step | None, numbers: Callable[[], object]) -> None:
    """Log what hangs, the stacks of all threads, the last step and the scheduler's numbers; then
    end the process at once."""
    faulthandler.dump_traceback_later(REPORT_S, exit=True)
    faulthandler.dump_traceback(sys.stderr, all_threads=True)
    log.error("%s hangs; this process ends, and its requests go on at the next", what)
    if step is not None:
        log.error("its last step: %s", shape_of(step))
    log.error("the scheduler's numbers: %s", numbers())
    logging.shutdown()
    os._exit(EXIT_HANG)


def shape_of(step: Step) -> str:
    """Whose the step's rows are, and how many tokens of each it computes after how many."""
    rows = (f"{row.req.key[1]}: {row.extend_len} after {row.start}" for row in step.rows)
    whole = f"{len(step.rows)} rows, {len(step.batch.input_ids)} tokens, {step.num_decodes} decodes"
    return f"{whole} ({'; '.join(rows)})"
