"""Drives a scheduler core with the fake executor, at lag 0 or 1, and collects what comes out."""

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from scheduler_proc.batch import StepResult
from scheduler_proc.core.drafting.base import Source
from scheduler_proc.core.invariants import check_invariants
from scheduler_proc.core.requests.resume import reading, reported_ids
from scheduler_proc.core.scheduler import Scheduler
from scheduler_proc.core.state import SchedulerConfig
from scheduler_proc.core.steps.plan import Plan
from scheduler_proc.core.steps.step import Step
from scheduler_proc.crash.recovery import UnclearFailure, parts_of_failed
from scheduler_proc.executor.base import Executor
from scheduler_proc.grammar.base import Grammar
from scheduler_proc.grammar.retokenise import Retokeniser
from scheduler_proc.trace.recorded import RecordedScheduler
from srt.wire.errors import INTERNAL, ErrorInfo
from srt.wire.filled_params import FilledParams
from srt.wire.hints import Hints, ServiceTier
from srt.wire.messages import Finish, LogprobDetail, pack_ids, unpack_floats, unpack_ids
from srt.wire.pause import NO_PAUSE, PauseMode
from srt.wire.ring_messages import Abort, Reported, ReqStart, TokenizedReq
from srt.wire.sampling import Scoring
from tests.scheduler_proc.fake_executor import (
    VOCAB,
    Detail,
    FakeExecutor,
    changes_of,
)
from tests.scheduler_proc.media.pictures import ITEMS, item_of, pixels_of, plain, spans_of


class Driver:
    """One core and its executor. `outputs[rid]` and `finishes[rid]` fill as steps are run."""

    def __init__(
        self,
        lag: int = 0,
        check: bool = True,
        executor: Executor | None = None,
        trace: Path | None = None,
        retokeniser: Retokeniser | None = None,
        sources: Sequence[Source] = (),
        **config: Any,
    ) -> None:
        self.config = SchedulerConfig(**{"context_len": 4096, "vocab_size": VOCAB} | config)
        self.wanted: list[bytes] = []  # digests of items whose pixels are on their way
        self.encode_fails: Callable[[], bool] = lambda: False  # or the pixels do not come
        self.delays: Callable[[], bool] = lambda: False  # whether pixels take another turn
        self.pauses: Callable[[], bool] = lambda: False  # or a part does
        self.sources = sources
        self.core = self._new_core(trace, 0)
        self.retokeniser = retokeniser
        fake = FakeExecutor(self.config.max_total_tokens, self.config.context_len)
        fake.media_facts = self.config.media
        self.executor: Any = fake if executor is None else executor  # Any: tests change it
        self.lag = lag
        self.check = check
        self.now = 0.0
        self.outputs: dict[str, list[int]] = {}
        self.finishes: dict[str, Finish] = {}
        self.cached: dict[str, int] = {}
        self.prompt_logprobs: dict[str, list[float]] = {}
        self.logprobs: dict[str, list[float]] = {}
        self.prompt_details: dict[str, list[Detail]] = {}
        self.details: dict[str, list[Detail]] = {}
        self.queued_s: dict[str, float | None] = {}
        self.ttft_s: dict[str, float] = {}
        self._starts: dict[int, ReqStart] = {}
        self._firsts: set[int] = set()
        self.between: Callable[[], None] = lambda: None  # called while a prepared step waits
        self.fails: Callable[[], bool] = lambda: False  # whether the step being run fails
        self.unclear: Callable[[UnclearFailure], None] = _raise  # what ends the process
        self._running: tuple[Step, StepResult | None] | None = None
        self._error: Exception = RuntimeError("made to fail")
        self._asked: dict[str, tuple[TokenizedReq, float, Grammar | None]] = {}  # when, with what
        self._forced: set[str] = set()  # whose last tokens were
        self._aborted: set[str] = set()
        self.pause = NO_PAUSE
        self.num_resumed = 0
        self.num_early = 0  # steps that were known before their rows' tokens were committed
        self._early: Step | None = None

    def _new_core(self, trace: Path | None, incarnation: int) -> Scheduler:
        if trace is None:
            core = Scheduler(self.config, incarnation)
        else:
            core = RecordedScheduler(self.config, incarnation, str(trace))
        core.state.speculation.sources += self.sources
        return core

    def add(
        self,
        rid: str,
        prompt: Iterable[int],
        max_new: int = 1,
        client: bytes = b"c",
        salt: str = "",
        eos: Iterable[int] = (),
        min_new: int = 0,
        logprob_start: int | None = None,
        grammar: Grammar | None = None,
        sampling: FilledParams = FilledParams(),  # noqa: B008
        bad_ids: Sequence[Sequence[int]] = (),
        top_logprobs: int = 0,
        logprob_ids: Sequence[int] = (),
        healed: Sequence[int] = (),
        grammar_key: str = "",
        deadline: float = 0.0,
        caller: str = "",
        weight: float = 1.0,
        hints: Hints | None = None,
        priority: int = 0,
        tier: ServiceTier = "",
    ) -> None:
        """Add a req; `sampling` has the fields that are not given here. The prompt may have numbers
        that stand for pictures."""
        numbers = list(prompt)
        wire = TokenizedReq(
            client=client,
            rid=rid,
            incarnation=0,
            input_ids=pack_ids(plain(numbers)),
            sampling=msgspec.structs.replace(
                sampling, max_new_tokens=max_new, min_new_tokens=min_new, temperature=0
            ),
            eos_ids=list(eos),
            scoring=None
            if logprob_start is None
            else Scoring(logprob_start, top_logprobs, list(logprob_ids)),
            cache_salt=salt,
            bad_ids=[list(ids) for ids in bad_ids],
            healed_ids=pack_ids(list(healed)),
            grammar=grammar_key,
            deadline_s=deadline,
            media=spans_of(numbers),
            caller=caller,
            weight=weight,
            hints=hints,
            priority=priority,
            service_tier=tier,
        )
        self._asked[rid] = wire, self.now, None if grammar is None else grammar.fork()
        self.core.add(wire, self.now, grammar, self.retokeniser)

    def lose(self, trace: Path | None = None) -> None:
        """Lose the core and what its executor has computed. The next one, recorded in `trace`, gets
        every request that has not ended, with what was reported of it, and at every second loss
        those that ran as suspects."""
        incarnation = self.core.incarnation + 1
        ran = [req.key for req in self.core.state.running.values()]
        self.core, self._running = self._new_core(trace, incarnation), None
        self.core.pause(self.pause)
        self.core.suspect(ran if incarnation % 2 == 0 else [])
        self.executor.forget()
        self.wanted.clear()
        self._starts.clear()
        self._firsts.clear()
        for rid, (wire, arrival_s, grammar) in self._asked.items():
            if rid not in self.finishes:
                self._resume(rid, wire, arrival_s, None if grammar is None else grammar.fork())

    def _resume(
        self, rid: str, wire: TokenizedReq, arrival_s: float, grammar: Grammar | None
    ) -> None:
        reported, ids = None, self.outputs.get(rid, [])
        if rid in self.cached or rid in self._aborted:
            scored = self.prompt_logprobs.get(rid)
            start = 0 if wire.scoring is None else max(0, wire.scoring.start)
            reported = Reported(
                pack_ids(ids),
                rid in self._forced,
                0 if scored is None else start + len(scored),
                rid in self._aborted,
            )
        wire = msgspec.structs.replace(wire, reported=reported, arrival_s=arrival_s)
        if grammar is not None:
            for _ in reading(grammar, reported_ids(wire)):
                pass
        self.num_resumed += reported is not None
        self.core.add(wire, self.now, grammar, self.retokeniser)

    def close(self) -> None:
        """End the trace."""
        assert isinstance(self.core, RecordedScheduler)
        self.core.close()

    def abort(self, rid: str, client: bytes = b"c") -> None:
        self._aborted.add(rid)
        self.core.abort(Abort(client, rid, 0))

    def pause_in(self, mode: PauseMode | None) -> None:
        """Pause in a mode; None: go on."""
        if mode == "abort":
            for rid in [rid for rid in self._asked if rid not in self.finishes]:
                self.abort(rid)
        pause = self.pause
        self.pause = pause.ended(self.now) if mode is None else pause.begun(mode, self.now)
        self.core.pause(self.pause)

    def step(self) -> bool:
        """One turn of the actor's loop; False when there was nothing to do."""
        self.now += 0.01
        plan = self.core.prepare(self.now) if self.lag or self._running is None else None
        previous, self._running = self._running, None
        was_idle = not self._encode() and plan is None and previous is None
        if plan is not None and plan.deferred and previous is not None:
            plan = self._settle_deferred(plan, previous)
            previous = previous if plan is not None else None
        else:
            self.between()
        step = None if plan is None else self.core.seal(plan)
        assert self._early is None or self._early is step
        self.num_early += self._early is not None
        self._early = None
        if step is not None and (previous is None or previous[1] is not None):
            step.finalize(None if previous is None else previous[1])
            self._running = (step, self._result(step))
        if previous is not None and not self._settle(previous) and step is not None:
            self.core.cancel(step)
        if self.lag == 0 and self._running is not None:
            self._settle(self._running)
            self._running = None
        self._collect()
        if self.check:
            check_invariants(self.core)
            self._check_changes()
        return not was_idle

    def _encode(self) -> bool:
        """Have the executor forget what is dropped, get pixels and encode a part; returns whether
        there was anything to do."""
        media = self.core.state.media
        for digest in media.take_dropped():
            self.executor.drop_media(digest)
        coming = [digest for digest in self.wanted if not self.delays()]
        is_busy = bool(self.wanted)
        self.wanted = [digest for digest in self.wanted if digest not in coming]
        for digest in coming:
            if self.encode_fails():
                self.core.media_failed(digest, ErrorInfo(INTERNAL, "no picture"))
            else:
                self.core.media_came(digest, self.executor.num_parts(item_of(ITEMS[digest])))
        self.wanted += media.take_wanted()
        part = self.core.next_media()
        if part is None:
            return is_busy or bool(self.wanted)
        item, number, _ = part
        if self.encode_fails():
            self.core.media_failed(item.digest, ErrorInfo(INTERNAL, "no picture"))
        elif self.pauses():
            self.core.media_encoded(item.digest, is_done=False)
        else:
            self.executor.encode(item, pixels_of(item), number)
            self.core.media_encoded(item.digest)
        return True

    def _settle_deferred(self, plan: Plan, running: tuple[Step, StepResult | None]) -> Plan | None:
        """Give the plan the result that it waits for. If that step failed, take the plan back."""
        step, result = running
        self.core.seal_ahead(plan, step)
        self.between()
        if result is not None:
            self._early = self.core.start_early(plan, result)
            self.core.commit_deferred(plan, step, result)
            return plan
        self._settle(running)
        self.core.cancel(plan)
        return None

    def _check_changes(self) -> None:
        """Check the counts that reqs keep for their penalties against their tokens."""
        for req in self.core.state.running.values():
            if req.tokens.logit_changes is not None:
                prompt, output = np.split(req.tokens.known, [req.tokens.prompt_len])
                expected = changes_of(req.wish.sampling, prompt.tolist(), output.tolist())
                ids, repeat, add, _ = req.tokens.logit_changes.entries
                pairs = zip(repeat.tolist(), add.tolist(), strict=True)
                counted = dict(zip(ids.tolist(), pairs, strict=True))
                for token in counted.keys() | expected.keys():
                    change = np.array(expected.get(token, (1.0, 0.0)), np.float32).tolist()
                    assert list(counted.get(token, (1.0, 0.0))) == change, token

    def _result(self, step: Step) -> StepResult | None:
        """The step's result; None if the step fails, with `_error`."""
        try:
            return None if self.fails() else self.executor.run(step.batch)
        except RuntimeError as error:
            self._error = error
            return None

    def _settle(self, launched: tuple[Step, StepResult | None]) -> bool:
        """Commit the step, or run it again by halves; returns whether the step succeeded."""
        step, result = launched
        if result is not None:
            self.core.commit(step, result)
            return True
        parts = parts_of_failed(self.core, step, self._error)
        try:
            with contextlib.suppress(StopIteration):
                part = next(parts)
                while True:
                    self.between()
                    part = parts.send(self._result(part) or self._error)
        except UnclearFailure as failure:
            self.unclear(failure)
        return False

    def run(self, max_steps: int = 100_000) -> None:
        """Run steps until everything that was added has ended."""
        for _ in range(max_steps):
            if not self.step():
                assert not self.core.has_work, "stuck: work is left but no step can be planned"
                return
        raise AssertionError(f"not done after {max_steps} steps")

    def generate(self, prompt: Iterable[int], max_new: int = 1, **kwargs: object) -> list[int]:
        """Run one req from start to end; returns its output."""
        rid = f"r{len(self.finishes)}-{self.now}"
        self.add(rid, prompt, max_new, **kwargs)  # type: ignore[arg-type]
        self.run()
        return self.outputs.get(rid, [])

    def _collect(self) -> None:
        batch = self.core.take_output(self.now)
        if batch is None:
            return
        for start in batch.starts:
            assert start.handle not in self._starts, "told twice of the same req"
            self._starts[start.handle] = start
            self.cached.setdefault(start.rid, start.meta.cached_tokens)
            self.queued_s.setdefault(start.rid, start.meta.queued_s)
        for handle in batch.firsts:
            assert handle not in self._firsts, "told twice of the first token"
            self._firsts.add(handle)
            start = self._starts[handle]
            self.ttft_s.setdefault(start.rid, batch.time_s - start.arrival_s)
        ids = unpack_ids(batch.ids).tolist()
        logprobs = unpack_floats(batch.logprobs).tolist() or [math.nan] * len(ids)
        drops = {column: drop for column, drop, _ in batch.jumps}
        at = 0
        for column, (handle, count) in enumerate(zip(batch.handles, batch.counts, strict=True)):
            start, drop = self._starts[handle], drops.get(column, 0)
            assert handle in self._firsts, "tokens, but no first one"
            assert start.rid not in self.finishes, "tokens after the end"
            new = slice(at, at + count)
            (self._forced.add if column in drops else self._forced.discard)(start.rid)
            _replace_tail(self.outputs.setdefault(start.rid, []), drop, ids[new])
            _replace_tail(self.logprobs.setdefault(start.rid, []), drop, logprobs[new])
            details = _details_of(start, batch.details.get(column), count)
            _replace_tail(self.details.setdefault(start.rid, []), drop, details)
            at += count
        assert at == len(ids)
        for chunk in batch.prompt_logprobs:
            start, known = self._starts[chunk.handle], unpack_floats(chunk.logprobs).tolist()
            self.prompt_logprobs.setdefault(start.rid, []).extend(known)
            details = _details_of(start, chunk.detail, len(known))
            self.prompt_details.setdefault(start.rid, []).extend(details)
        for end in batch.ends:
            rid = self._starts[end.handle].rid
            assert rid not in self.finishes, "ended twice"
            self.finishes[rid] = end.finish


def _raise(error: Exception) -> None:
    raise error


def _replace_tail(values: list[Any], drop: int, new: list[Any]) -> None:
    del values[len(values) - drop :]
    values += new


def _details_of(start: ReqStart, detail: LogprobDetail | None, count: int) -> list[Detail]:
    """The details of `count` positions, in order; an empty list if the req asked for none."""
    scoring = start.scoring or Scoring()
    num_top, num_ids = scoring.top, len(scoring.ids)
    if detail is None:
        assert not scoring.has_details, "a detail is missing"
        return []
    top_ids = unpack_ids(detail.top_ids).reshape(count, num_top).tolist()
    top_logprobs = unpack_floats(detail.top_values).reshape(count, num_top).tolist()
    id_logprobs = unpack_floats(detail.id_values).reshape(count, num_ids).tolist()
    return [Detail(*parts) for parts in zip(top_ids, top_logprobs, id_logprobs, strict=True)]


def tree_as_text(core: Scheduler) -> list[str]:
    """The tree's edges as sorted paths of tokens, each edge in brackets: "[1 2][3]"."""

    def name(key: np.ndarray) -> str:
        return "[" + " ".join(str(t) for t in key.tolist()) + "]"

    lines = []
    for node in core.state.memory.cache.nodes():
        if node.children:
            continue
        path, at = [], node
        while at.parent is not None:
            path.append(name(at.key))
            at = at.parent
        lines.append("".join(reversed(path)))
    return sorted(lines)
