"""Runs a call in slices, so that steps can be run in between: what encodes a picture, above all.

The call has a thread of its own, which keeps its stack while it is paused. So code that knows
nothing of slices, such as a vision tower of transformers', need not be written anew: it only has to
come past `pause` now and then. Whoever has it go on waits meanwhile; only one of both ever runs.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager

log = logging.getLogger(__name__)

Key = tuple[bytes, int]  # what a call encodes: an item's digest and the number of a part


class Dropped(BaseException):
    """Raised by `pause` in a call that is not to go on."""


class Slices:
    """Of one call at a time, which runs within the context that `around` makes of its `pause`, in
    its own thread. All methods but `pause` are called from one thread."""

    def __init__(
        self, around: Callable[[Callable[[float], None]], AbstractContextManager[object]]
    ) -> None:
        self._around = around
        self._thread: threading.Thread | None = None
        self._outcome: Future[None] = Future()
        self._may_go_on, self._has_stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._until_s = 0.0
        self._is_dropped = False
        self.paused: Key | None = None

    def run(self, key: Key, call: Callable[[], object], seconds: float) -> bool:
        """Go on for about this long with the call that is paused, if `key` is its own; otherwise
        drop that one and begin `call`. Returns whether the call has ended.

        Raises what the call raises.
        """
        if key != self.paused:
            self.drop()
            self._outcome, self._is_dropped = Future(), False
            work = (call, self._outcome)
            self._thread = threading.Thread(
                target=self._work, args=work, name="slices", daemon=True
            )
            self._thread.start()
        self.paused = key
        return self._go_on(seconds)

    def drop(self) -> None:
        """End the call that is paused, if there is one: it is unwound by Dropped."""
        if self.paused is not None:
            self._is_dropped = True
            try:
                self._go_on(0.0)
            except Dropped:
                pass
            except Exception:
                log.exception("a call that was given up failed while it was unwound")

    def _go_on(self, seconds: float) -> bool:
        assert self._thread is not None
        self._until_s = time.perf_counter() + seconds
        self._may_go_on.release()
        self._has_stopped.acquire()
        if not self._outcome.done():
            return False
        self._thread.join()
        self._thread = self.paused = None
        outcome, self._outcome = self._outcome, Future()  # an error holds on to the call's memory
        outcome.result()
        return True

    # ---- in the call's thread ------------------------------------------------------------------

    def pause(self, next_s: float) -> None:
        """Wait here until the call is to go on, if its time is over or would be `next_s` seconds
        from now. A slice has at least what comes between two calls of this.

        Raises Dropped if it is not to go on.
        """
        if time.perf_counter() + next_s > self._until_s and not self._is_dropped:
            self._has_stopped.release()
            self._may_go_on.acquire()
        if self._is_dropped:
            raise Dropped

    def _work(self, call: Callable[[], object], outcome: "Future[None]") -> None:
        self._may_go_on.acquire()
        try:
            with self._around(self.pause):
                call()
            outcome.set_result(None)
        except BaseException as error:
            outcome.set_exception(error)
        self._has_stopped.release()
