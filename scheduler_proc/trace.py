"""Records everything that enters the scheduler core, so that a run can be replayed exactly.

The core is deterministic: the same messages, times and results give the same plans. A trace file
is a sequence of msgpack records; `replay` feeds them to a fresh core and checks every plan.
"""

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from msgspec import Struct

from scheduler_proc.batch import ForwardBatch, StepResult
from scheduler_proc.grammar.base import Grammar
from scheduler_proc.grammar.retokenise import Retokeniser
from scheduler_proc.plan import Plan
from scheduler_proc.scheduler import Counters, Scheduler, SchedulerConfig
from scheduler_proc.step import Step
from scheduler_proc.step_target import StepCosts
from srt.wire.messages import Abort, ClientGone, SchedulerMessage, TokenizedReq

_LEN_BYTES = 4


class Record(Struct, array_like=True, omit_defaults=True):
    """One event: "config", "message", "costs", "prepare", "ahead", "seal", "deferred", "commit",
    "fail", "split", "cancel", "cancel-ahead", "flush", "reset" or "end". A commit, fail, split or
    cancel is of the oldest step or part of one that has had none yet, "deferred" of the oldest; a
    split puts the parts in its place."""

    kind: str
    now: float = 0.0
    data: Any = None


class TraceRecorder:
    """Writes records to `path`; does nothing if it is empty."""

    def __init__(self, path: str, config: SchedulerConfig) -> None:
        self._file: BinaryIO | None = open(path, "wb") if path else None  # noqa: SIM115
        self._write(Record("config", data=msgspec.to_builtins(config)))

    def message(self, message: SchedulerMessage, now: float) -> None:
        self._write(Record("message", now, msgspec.msgpack.encode(message)))

    def prepared(self, plan: Plan | None, now: float) -> None:
        self._write(Record("prepare", now, plan is not None))

    def measured(self, costs: StepCosts) -> None:
        self._write(Record("costs", data=list(costs)))

    def sealed(self, step: Step | None) -> None:
        if self._file is not None:
            self._write(Record("seal", data=None if step is None else digest(step.batch)))

    def sealed_ahead(self) -> None:
        self._write(Record("ahead"))

    def committed(self, result: StepResult) -> None:
        self._result("commit", result)

    def committed_deferred(self, result: StepResult) -> None:
        self._result("deferred", result)

    def cancelled_ahead(self) -> None:
        self._write(Record("cancel-ahead"))

    def failed(self) -> None:
        self._write(Record("fail"))

    def cancelled(self) -> None:
        self._write(Record("cancel"))

    def split(self) -> None:
        self._write(Record("split"))

    def flushed(self) -> None:
        self._write(Record("flush"))

    def reset(self, epoch: int) -> None:
        self._write(Record("reset", data=epoch))

    def close(self, counters: Counters | None = None) -> None:
        """End the trace; with `counters`, replay checks that it ends with the same."""
        if counters is not None:
            self._write(Record("end", data=msgspec.to_builtins(counters)))
        if self._file is not None:
            self._file.close()
            self._file = None

    def _result(self, kind: str, result: StepResult) -> None:
        if self._file is not None:
            columns = [None if column is None else column.tobytes() for column in result]
            self._write(Record(kind, data=columns))

    def _write(self, record: Record) -> None:
        if self._file is not None:
            data = msgspec.msgpack.encode(record)
            self._file.write(len(data).to_bytes(_LEN_BYTES, "little") + data)


def digest(batch: ForwardBatch) -> int:
    """A checksum of what a plan computes and where (token values that come late excluded)."""
    columns = [batch.positions, batch.out_slots, batch.qo_indptr, batch.kv_indptr]
    columns += [batch.kv_indices, batch.sample_tokens, batch.uniform, batch.logprob_tokens]
    optional = [batch.masks, batch.adjust_ids, batch.adjust_repeat, batch.adjust_add]
    optional += [batch.detail_rows, batch.detail_ids]
    columns += [column for column in optional if column is not None]
    value = 0
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

    Raises AssertionError at the first plan that differs, ValueError at a request with a grammar
    if there are no `grammars`.
    """
    records = _read(path)
    core = Scheduler(msgspec.convert(next(records).data, SchedulerConfig))
    core.retokeniser = retokeniser
    decode = msgspec.msgpack.Decoder(SchedulerMessage).decode
    plan: Plan | None = None
    planned: list[Step] = []
    for index, record in enumerate(records):
        if record.kind == "message":
            _enter(core, decode(record.data), record.now, grammars)
        elif record.kind == "costs":
            core.costs = StepCosts(*record.data)
        elif record.kind == "prepare":
            plan = core.prepare(record.now)
            assert (plan is not None) == record.data, f"record {index}: planned or not"
        elif record.kind == "seal":
            assert plan is not None, f"record {index}: no plan to seal"
            step = core.seal(plan)
            got = None if step is None else digest(step.batch)
            assert got == record.data, f"record {index}: another plan than the recorded one"
            planned += [] if step is None else [step]
        elif record.kind == "ahead":
            assert plan is not None, f"record {index}: no plan to seal"
            core.seal_ahead(plan, planned[0])
        elif record.kind == "deferred":
            assert plan is not None, f"record {index}: no plan that waits"
            core.commit_deferred(plan, planned[0], _result(record.data))
        elif record.kind == "cancel-ahead":
            assert plan is not None, f"record {index}: nothing ahead"
            core.cancel_ahead(plan)
        elif record.kind == "commit":
            core.commit(planned.pop(0), _result(record.data))
        elif record.kind == "fail":
            core.fail(planned.pop(0), "recorded failure")
        elif record.kind == "split":
            planned[:1] = core.split(planned[0])
        elif record.kind == "cancel":
            core.cancel(planned.pop(0))
        elif record.kind == "end":
            assert record.data == msgspec.to_builtins(core.counters), "another end than recorded"
        elif record.kind == "flush":
            assert core.flush_cache(), f"record {index}: not idle, as it was when recorded"
        elif record.kind == "reset":
            core.reset(record.data)
        core.take_output()
    return core


def _enter(
    core: Scheduler,
    message: SchedulerMessage,
    now: float,
    grammars: Callable[[TokenizedReq], Grammar] | None,
) -> None:
    if isinstance(message, TokenizedReq):
        core.add(message, now, _grammar(message, grammars))
    elif isinstance(message, Abort):
        core.abort(message)
    elif isinstance(message, ClientGone):
        core.drop_client(message.client)


def _grammar(
    req: TokenizedReq, grammars: Callable[[TokenizedReq], Grammar] | None
) -> Grammar | None:
    if not req.grammar:
        return None
    if grammars is None:
        raise ValueError("the trace has requests with grammars: say where these are")
    return grammars(req)


_RESULT_TYPES = (np.int32, np.float32, np.float32, np.int32, np.float32, np.float32)


def _result(columns: list[bytes | None]) -> StepResult:
    """The result that `committed` has written down."""
    next_ids, logprobs, prompt_logprobs, top_ids, top_logprobs, id_logprobs = columns
    return StepResult(
        np.frombuffer(next_ids or b"", np.int32),
        np.frombuffer(logprobs or b"", np.float32),
        np.frombuffer(prompt_logprobs or b"", np.float32),
        None if top_ids is None else np.frombuffer(top_ids, np.int32),
        None if top_logprobs is None else np.frombuffer(top_logprobs, np.float32),
        None if id_logprobs is None else np.frombuffer(id_logprobs, np.float32),
    )


def _read(path: Path) -> Iterator[Record]:
    data, at = path.read_bytes(), 0
    while at + _LEN_BYTES <= len(data):
        size = int.from_bytes(data[at : at + _LEN_BYTES], "little")
        at += _LEN_BYTES
        if at + size > len(data):
            return  # cut short by a crash
        yield msgspec.msgpack.decode(data[at : at + size], type=Record)
        at += size
