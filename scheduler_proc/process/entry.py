"""The way into the core for requests, and out of it for what it has to report.

The scheduler's actor owns one. What enters may end at once, so after each call here the outputs are
sent, and the loop, which may sleep, is woken.
"""

import asyncio
import time
from collections.abc import Callable

from msgspec.structs import replace

from scheduler_proc.core.scheduler import Scheduler
from scheduler_proc.grammar.base import Grammar
from scheduler_proc.grammar.retokenise import Retokeniser
from scheduler_proc.process.core_lock import CoreLock
from srt.wire.errors import ErrorInfo
from srt.wire.parcels import token_batches
from srt.wire.ring_messages import Abort, GiveWay, TokenBatch, TokenizedReq


class CoreEntry:
    """Brings requests into one core, which `lock` guards. `send` sends to the detokenizer; `wake`
    is set when there may be something to do."""

    def __init__(
        self, core: Scheduler, lock: CoreLock, send: Callable[[TokenBatch], object]
    ) -> None:
        self._core, self._lock, self._send = core, lock, send
        self.wake = asyncio.Event()

    def add(
        self,
        req: TokenizedReq,
        grammar: Grammar | None = None,
        retokeniser: Retokeniser | None = None,
    ) -> None:
        """Queue a request, with its own grammar. One that lacks its grammar ends before its first
        step: it is aborted or late."""
        if grammar is None and req.grammar:
            req = replace(req, grammar="")
        with self._lock:
            self._core.add(req, time.monotonic(), grammar, retokeniser)
            self.changed()

    def left_s(self, req: TokenizedReq) -> float | None:
        """The time until a request times out; None: it never does, or not in this pause."""
        pause = self._core.state.live.pause
        if not req.deadline_s or pause.is_on:
            return None
        return req.deadline_s - pause.served_s(time.monotonic())

    def abort(self, message: Abort) -> None:
        """End a request."""
        with self._lock:
            self._core.abort(message)
            self.changed()

    def fail(self, req: TokenizedReq, error: ErrorInfo) -> None:
        """End a request that has not entered."""
        with self._lock:
            self._core.add(replace(req, grammar=""), time.monotonic())
            self._core.abort(Abort(req.client, req.rid, req.incarnation), error)
            self.changed()

    def give_way(self, message: GiveWay) -> bool:
        """End the parts of a request, unless one of them has begun; whether they have ended."""
        with self._lock:
            if not self._may_give_way(message):
                return False
            for rid in message.rids:
                abort = Abort(message.client, rid, message.incarnation)
                self._core.abort(abort, message.error)
            self.changed()
        return True

    def _may_give_way(self, message: GiveWay) -> bool:
        """Whether none of these has begun, here or at an earlier scheduler, nor ended."""
        live = self._core.state.live.by_name
        reqs = [live.get((message.client, rid)) for rid in message.rids]
        return all(req and not req.is_admitted and not req.is_resumed for req in reqs)

    def changed(self) -> None:
        """Something has entered. The caller holds the lock."""
        self.send_outputs()
        self.wake.set()

    def send_outputs(self) -> None:
        """Send what the core has to report since the last call."""
        batch = self._core.take_output(time.monotonic())
        if batch is not None:
            for part in token_batches(batch):
                self._send(part)
