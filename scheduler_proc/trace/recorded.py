"""Records everything that enters the scheduler core, so that a run can be replayed exactly.

The core is deterministic: the same messages, times and results give the same plans. What a grammar
does may depend on the CPU time that it took (`MeteredGrammar`), so its failures enter as data too.
A trace file is a sequence of msgpack records; `replay` feeds them to a fresh core and checks every
plan.
"""

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from scheduler_proc.batch import DetailLogprobs, ForwardBatch, StepResult
from scheduler_proc.core.requests.resume import reading, reported_ids
from scheduler_proc.core.scheduler import Scheduler
from scheduler_proc.core.state import SchedulerConfig
from scheduler_proc.core.steps.plan import Plan
from scheduler_proc.core.steps.step import Step
from scheduler_proc.core.steps.step_target import StepCosts
from scheduler_proc.grammar.base import Grammar
from scheduler_proc.grammar.retokenise import Retokeniser
from scheduler_proc.trace.traced_grammar import Calls, RecordedGrammar, ReplayedGrammar
from srt.machine import private
from srt.ring.crash_file import Name
from srt.wire.errors import INTERNAL, ErrorInfo
from srt.wire.media import MediaItem
from srt.wire.pause import Pause
from srt.wire.ring_messages import Abort, SchedulerMessage, TokenizedReq

_LEN_BYTES = 4


class Record(Struct, array_like=True, omit_defaults=True):
    """One event: "config", "message", "failure", "answer", "costs", "prepare", "ahead", "seal",
    "deferred", "commit", "fail", "split", "cancel", "cancel-ahead", "suspects", "flush", "pause",
    "reset", "end", or of media "media-came", "media-next", "media-encoded" or "media-failed". A
    commit, fail or split is of the oldest step or part of one that has these rows and has had none
    yet, a cancel and "deferred" of the oldest; a split puts the parts in its place. A "failure"
    says which call of which request's grammar has failed, and why, an "answer" what it gave."""

    kind: str
    now: float = 0.0
    data: Any = None


class RecordedScheduler(Scheduler):
    """A core that writes what enters it into a trace file."""

    def __init__(self, config: SchedulerConfig, incarnation: int, path: str) -> None:
        super().__init__(config, incarnation)
        self._file = open(path, "wb", opener=private)  # noqa: SIM115
        self._num_added = 0
        self._now = 0.0  # as last heard
        self._record("config", msgspec.to_builtins(config))

    def close(self) -> None:
        """End the trace: a replay checks that it ends with the same counters."""
        if not self._file.closed:
            self._record("end", msgspec.to_builtins(self.state.counters))
            self._file.close()

    def add(
        self,
        wire: TokenizedReq,
        now: float,
        grammar: Grammar | None = None,
        retokeniser: Retokeniser | None = None,
    ) -> None:
        self._now = now
        self._record("message", msgspec.msgpack.encode(wire))
        number, self._num_added = self._num_added, self._num_added + 1
        if grammar is not None:
            grammar = RecordedGrammar(
                grammar, lambda kind, *call: self._record(kind, [number, *call])
            )
        super().add(wire, now, grammar, retokeniser)

    def suspect(self, names: list[Name]) -> None:
        self._record("suspects", names)
        super().suspect(names)

    def abort(self, message: Abort, error: ErrorInfo | None = None) -> None:
        self._record("message", msgspec.msgpack.encode(message))
        super().abort(message, error)

    def pause(self, pause: Pause) -> None:
        self._record("pause", msgspec.to_builtins(pause))
        super().pause(pause)

    def reset(self, incarnation: int) -> None:
        self._record("reset", incarnation)
        super().reset(incarnation)

    def flush_cache(self) -> bool:
        flushed = super().flush_cache()
        self._record("flush", flushed)
        return flushed

    def media_came(self, digest: bytes, num_parts: int) -> bool:
        self._record("media-came", [digest, num_parts])
        return super().media_came(digest, num_parts)

    def next_media(self) -> tuple[MediaItem, int, float] | None:
        part = super().next_media()
        if part is not None:
            self._record("media-next", [part[0].digest, *part[1:]])
        return part

    def media_encoded(self, digest: bytes, is_done: bool = True) -> None:
        self._record("media-encoded", [digest, is_done])
        super().media_encoded(digest, is_done)

    def media_failed(self, digest: bytes, error: ErrorInfo) -> None:
        self._record("media-failed", digest)
        super().media_failed(digest, error)

    def measure(self, costs: StepCosts) -> None:
        self._record("costs", list(costs))
        super().measure(costs)

    def prepare(self, now: float) -> Plan | None:
        self._now = now
        plan = super().prepare(now)
        self._record("prepare", plan is not None)
        return plan

    def seal_ahead(self, plan: Plan, running: Step) -> None:
        self._record("ahead")
        super().seal_ahead(plan, running)

    def seal(self, plan: Plan) -> Step | None:
        step = super().seal(plan)
        self._record("seal", None if step is None else digest(step.batch))
        return step

    def commit_deferred(self, plan: Plan, step: Step, result: StepResult) -> None:
        self._record("deferred", _columns(result))
        super().commit_deferred(plan, step, result)

    def commit(self, step: Step, result: StepResult) -> None:
        self._record("commit", [_handles(step), _columns(result)])
        super().commit(step, result)

    def cancel(self, undone: Step | Plan) -> None:
        self._record("cancel-ahead" if isinstance(undone, Plan) else "cancel")
        super().cancel(undone)

    def split(self, step: Step) -> list[Step]:
        self._record("split", _handles(step))
        return super().split(step)

    def fail(self, step: Step, message: str) -> None:
        self._record("fail", _handles(step))
        super().fail(step, message)

    def _record(self, kind: str, data: Any = None) -> None:
        encoded = msgspec.msgpack.encode(Record(kind, self._now, data))
        self._file.write(len(encoded).to_bytes(_LEN_BYTES, "little") + encoded)


def digest(batch: ForwardBatch) -> int:
    """A checksum of what a plan computes and where (token values that come late excluded)."""
    columns = [batch.positions, batch.out_slots, batch.qo_indptr, batch.kv_indptr]
    columns += [batch.kv_indices, batch.sample_tokens, batch.samples.uniform, batch.logprob_tokens]
    columns += [batch.masks.words] if batch.masks is not None else []
    columns += batch.adjust[1:] if batch.adjust is not None else ()
    columns += [batch.details.rows, batch.details.ids] if batch.details is not None else []
    columns += batch.embeds[:3] if batch.embeds is not None else ()
    extra = (batch.grid_positions, batch.visible_until)
    columns += [column for column in extra if column is not None]
    value = zlib.crc32(b"".join(batch.embeds.digests)) if batch.embeds is not None else 0
    for column in columns:
        value = zlib.crc32(np.ascontiguousarray(column).tobytes(), value)
    return value


def replay(
    path: Path,
    grammars: Callable[[TokenizedReq], Grammar] | None = None,
    retokeniser: Retokeniser | None = None,
) -> Scheduler:
    """Run a trace on a fresh core. `grammars` gives a new grammar for a request that had one; the
    `retokeniser` is needed where the recorded core had one, for its jumps.

    Raises AssertionError at the first plan that differs, ValueError at a record of an unknown kind,
    and at a request with a grammar if there are no `grammars`.
    """
    first, *records = _read(path)
    return _Replay(msgspec.convert(first.data, SchedulerConfig), grammars, retokeniser).run(records)


class _Replay:
    """A core, and the steps that were planned and not yet committed."""

    def __init__(
        self,
        config: SchedulerConfig,
        grammars: Callable[[TokenizedReq], Grammar] | None,
        retokeniser: Retokeniser | None,
    ) -> None:
        self._core = Scheduler(config)
        self._grammars, self._retokeniser = grammars, retokeniser
        self._decode = msgspec.msgpack.Decoder(SchedulerMessage).decode
        self._calls: dict[int, Calls] = defaultdict(lambda: Calls({}, {}))
        self._num_added = 0
        self._plan: Plan | None = None
        self._planned: list[Step] = []

    def run(self, records: list[Record]) -> Scheduler:
        """Run all records. They are all read first, to know what calls of grammars will do."""
        for record in records:
            if record.kind in ("failure", "answer"):
                number, call, outcome = record.data
                calls = self._calls[number]
                (calls.failures if record.kind == "failure" else calls.answers)[call] = outcome
        for index, record in enumerate(records):
            try:
                self._apply(record)
            except AssertionError as error:
                raise AssertionError(f"record {index}, {record.kind}: {error}") from None
            self._core.take_output(record.now)
        return self._core

    def _apply(self, record: Record) -> None:
        core, planned, data = self._core, self._planned, record.data
        match record.kind:
            case "message":
                self._enter(self._decode(data), record.now)
            case "costs":
                core.measure(StepCosts(*data))
            case "prepare":
                self._plan = core.prepare(record.now)
                assert (self._plan is not None) == data, "planned or not"
            case "seal":
                step = core.seal(self._present_plan())
                got = None if step is None else digest(step.batch)
                assert got == data, "another plan than the recorded one"
                planned += [] if step is None else [step]
            case "media-came":
                core.media_came(*data)
            case "media-next":
                part = core.next_media()
                assert part is not None and [part[0].digest, *part[1:]] == data, "another part"
            case "media-encoded":
                core.media_encoded(*data)
            case "media-failed":
                core.media_failed(data, ErrorInfo(INTERNAL, "recorded failure"))
            case "ahead":
                core.seal_ahead(self._present_plan(), planned[0])
            case "deferred":
                core.commit_deferred(self._present_plan(), planned[0], _result(data))
            case "cancel-ahead":
                core.cancel(self._present_plan())
            case "commit":
                handles, columns = data
                core.commit(planned.pop(self._place(handles)), _result(columns))
            case "fail":
                core.fail(planned.pop(self._place(data)), "recorded failure")
            case "split":
                place = self._place(data)
                planned[place : place + 1] = core.split(planned[place])
            case "cancel":
                core.cancel(planned.pop(0))
            case "suspects":
                core.suspect([(client, rid) for client, rid in data])
            case "flush":
                assert core.flush_cache() == data, "flushed or not"
            case "pause":
                core.pause(msgspec.convert(data, Pause))
            case "reset":
                core.reset(data)
            case "end":
                assert data == msgspec.to_builtins(core.state.counters), "another end than recorded"
            case "failure" | "answer":
                pass  # known from the beginning
            case unknown:
                raise ValueError(f"the trace has a record of an unknown kind: {unknown!r}")

    def _place(self, handles: list[int]) -> int:
        """Where among the planned steps the oldest with these rows is."""
        found = (i for i, step in enumerate(self._planned) if _handles(step) == handles)
        place = next(found, None)
        assert place is not None, "no such step is planned"
        return place

    def _present_plan(self) -> Plan:
        assert self._plan is not None, "there is no plan"
        return self._plan

    def _enter(self, message: SchedulerMessage, now: float) -> None:
        if isinstance(message, TokenizedReq):
            grammar = self._grammar(message)
            self._core.add(message, now, grammar, self._retokeniser)
            self._num_added += 1
        elif isinstance(message, Abort):
            self._core.abort(message)

    def _grammar(self, req: TokenizedReq) -> Grammar | None:
        if not req.grammar:
            return None
        if self._grammars is None:
            raise ValueError("the trace has requests with grammars: say where these are")
        grammar = self._grammars(req)
        for _ in reading(grammar, reported_ids(req)):
            pass
        return ReplayedGrammar(grammar, self._calls[self._num_added])


def _handles(step: Step) -> list[int]:
    """Its rows, by their reqs."""
    return [row.req.handle for row in step.rows]


_RESULT_TYPES = (np.int32, np.float32, np.float32, np.int32, np.float32, np.float32)


def _columns(result: StepResult) -> list[bytes]:
    return [column.tobytes() for column in result.columns]


def _result(columns: list[bytes]) -> StepResult:
    """The result that `_columns` has recorded."""
    next_ids, logprobs, prompt_logprobs, *details = map(np.frombuffer, columns, _RESULT_TYPES)
    found = DetailLogprobs(*details) if details else None
    return StepResult(next_ids, logprobs, prompt_logprobs, found)


def _read(path: Path) -> Iterator[Record]:
    data, at = path.read_bytes(), 0
    while at + _LEN_BYTES <= len(data):
        size = int.from_bytes(data[at : at + _LEN_BYTES], "little")
        at += _LEN_BYTES
        if at + size > len(data):
            return  # cut short by a crash
        yield msgspec.msgpack.decode(data[at : at + size], type=Record)
        at += size
