"""A fake device: an asynchronous executor over the fake model, whose steps take effect late.

A thread is its stream: it takes what was queued in order, after random delays or, if it is held,
when a test lets it. Host memory is read and written when the stream gets there and not before, so
memory that is used again too early, or a result that is read too early, gives wrong tokens.
"""

import copy
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue

import numpy as np

from scheduler_proc.batch import ForwardBatch, StepResult
from scheduler_proc.core.steps.step import LateTokens, Step
from scheduler_proc.executor.base import Pending
from scheduler_proc.executor.native_executor import empty_result
from scheduler_proc.sampling.penalties import LateChange
from tests.scheduler_proc.fake_executor import FakeExecutor

GARBAGE = -7  # in what the device has not written yet


class DeviceError(RuntimeError):
    """What a step of the fake device fails with."""


@dataclass
class FakePending:
    """A step on the stream. `result` is what the host sees once it has waited for `event`."""

    staged: int  # the staging set that its copy reads
    late: "_Late | None"
    previous: "FakePending | None"
    era: int  # steps of one era are lost if one of them fails
    fails: bool
    host: StepResult
    device: "FakeDevice"
    event: threading.Event = field(default_factory=threading.Event)
    next_ids: np.ndarray | None = None  # on the device
    error: Exception | None = None

    def result(self) -> StepResult:
        self.event.wait()
        if self.error is None:
            return self.host
        self.device.era = max(self.device.era, self.era + 1)
        raise self.error


class FakeDevice(FakeExecutor):
    """An AsyncExecutor with `sets` staging sets, used in turn. One is used again once the step that
    was copied from it has been, if it `waits`.

    `fails(number)` says whether the step of this number, from 1 on, fails "at launch" or "late".
    """

    runs_ahead = True

    def __init__(
        self,
        max_total_tokens: int,
        context_len: int,
        *,
        sets: int = 2,
        waits: bool = True,
        seed: int = 0,
        delay_s: float = 0.006,
        held: bool = False,
        fails: Callable[[int], str] = lambda number: "",
    ) -> None:
        super().__init__(max_total_tokens, context_len)
        self._waits, self._rng, self._delay_s = waits, random.Random(seed), delay_s
        self._fails = fails
        self._staging: list[ForwardBatch | None] = [None] * sets
        self._copied = [threading.Event() for _ in range(sets)]
        for copied in self._copied:
            copied.set()
        self._stream: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._held = threading.Semaphore(0) if held else None
        self._lost_era = -1
        self.era = 0
        self.launched: list[tuple[Step, bool]] = []  # with whether one before it still ran
        self.num_dropped = 0
        self.faults: list[Exception] = []  # what the model found wrong with a step
        threading.Thread(target=self._work, name="fake device", daemon=True).start()

    def release(self, count: int = 1) -> None:
        """Let a device that is held run this many steps more."""
        assert self._held is not None
        for _ in range(count):
            self._held.release()

    def close(self) -> None:
        self._stream.put(None)

    def launch(self, step: Step, previous: Pending | None) -> FakePending:
        assert previous is None or isinstance(previous, FakePending)
        number = len(self.launched) + 1
        is_behind = previous is not None and not previous.event.is_set()
        self.launched.append((step, is_behind))
        failure = self._fails(number)
        staged = number % len(self._staging)
        if self._waits:
            self._copied[staged].wait()
        self._copied[staged].clear()
        self._staging[staged] = copy.deepcopy(step.batch)
        if failure == "at launch":
            self._copied[staged].set()
            slots = step.batch.out_slots[:3].tolist()
            self._stream.put(lambda: self._scribble(slots))
            raise DeviceError("made to fail at launch")
        late = None if previous is None else _Late.of(step.late_tokens)
        host = _garbage(step.batch)
        pending = FakePending(staged, late, previous, self.era, failure == "late", host, self)
        self._stream.put(lambda: self._run(pending))
        return pending

    # ---- the stream ----------------------------------------------------------------------------

    def _work(self) -> None:
        while (call := self._stream.get()) is not None:
            if self._held is not None:
                self._held.acquire()
            elif self._rng.random() < 0.5:
                self._wait_for_next(self._rng.random() * self._delay_s)
            call()

    def _wait_for_next(self, at_most_s: float) -> None:
        """Wait until something is queued behind, as long as that may take."""
        until = time.monotonic() + at_most_s
        while self._stream.empty() and time.monotonic() < until:
            time.sleep(0.0002)

    def _scribble(self, slots: list[int]) -> None:
        for slot in slots:
            self.hash_at[slot] = self.parent_at[slot] = GARBAGE

    def _run(self, pending: FakePending) -> None:
        batch = self._staging[pending.staged]
        self._copied[pending.staged].set()
        previous = pending.previous
        try:
            is_lost = pending.era <= self._lost_era
            if is_lost or (previous is not None and previous.error is not None):
                self.num_dropped += 1
                raise DeviceError("lost with the step before")
            assert batch is not None
            if pending.late is not None:
                assert previous is not None and previous.next_ids is not None
                pending.late.fill_in(batch, previous.next_ids)
            result = self.run(batch)
            if pending.fails:
                raise DeviceError("made to fail late")
            # The plan of another step may have another number of samples.
            for column, values in zip(pending.host.columns, result.columns, strict=True):
                column[:] = values
        except Exception as error:
            if not isinstance(error, DeviceError):
                self.faults.append(error)
            self._lost_era = max(self._lost_era, pending.era)
            pending.error = error
        else:
            pending.next_ids = result.next_ids
        pending.event.set()


@dataclass
class _Late:
    """The late tokens of a step, with all that the host knows of them at its launch."""

    tokens: LateTokens
    changes: list[tuple[LateChange, np.ndarray, np.ndarray]]

    @classmethod
    def of(cls, tokens: LateTokens) -> "_Late":
        return cls(
            tokens,
            [(change, *change.changes.effects(change.counts + 1)) for change in tokens.changes],
        )

    def fill_in(self, batch: ForwardBatch, ids: np.ndarray) -> None:
        batch.input_ids[self.tokens.at] = ids[self.tokens.samples]
        for change, repeat, add in self.changes:
            assert batch.adjust is not None
            token, entries = int(ids[change.sample]), slice(change.start, change.start + len(add))
            hits = np.flatnonzero(batch.adjust.ids[entries] == token)
            number = int(hits[0]) if len(hits) else len(add) - 1
            at = change.start + number
            batch.adjust.ids[at] = token
            batch.adjust.repeat[at], batch.adjust.add[at] = repeat[number], add[number]


def _garbage(batch: ForwardBatch) -> StepResult:
    """The result's memory before the device has written it."""
    result = empty_result(batch)
    for column in result.columns:
        column[:] = GARBAGE
    return result
