"""Drives a scheduler core with the fake executor, at lag 0 or 1, and collects what comes out."""

import math
from collections.abc import Callable, Iterable

import numpy as np

from scheduler_proc.batch import StepResult
from scheduler_proc.executor.base import Executor
from scheduler_proc.grammar.base import Grammar
from scheduler_proc.invariants import check_invariants
from scheduler_proc.plan import Step
from scheduler_proc.scheduler import Scheduler, SchedulerConfig
from srt.messages import Abort, Finish, TokenizedReq, pack_ids, unpack_floats, unpack_ids
from srt.sampling_params import SamplingParams
from tests.scheduler_proc.fake_executor import VOCAB, FakeExecutor


class Driver:
    """One core and its executor. `outputs[rid]` and `finishes[rid]` fill as steps are run."""

    def __init__(
        self,
        lag: int = 0,
        check: bool = True,
        executor: Executor | None = None,
        **config: object,
    ) -> None:
        defaults = {"context_len": 4096, "vocab_size": VOCAB}
        self.config = SchedulerConfig(**{**defaults, **config})  # type: ignore[arg-type]
        self.core = Scheduler(self.config)
        fake = FakeExecutor(self.config.max_total_tokens, self.config.context_len)
        self.executor = fake if executor is None else executor
        self.lag = lag
        self.check = check
        self.now = 0.0
        self.outputs: dict[str, list[int]] = {}
        self.finishes: dict[str, Finish] = {}
        self.cached: dict[str, int] = {}
        self.prompt_logprobs: dict[str, list[float]] = {}
        self.logprobs: dict[str, list[float]] = {}
        self._rid_of: dict[int, str] = {}
        self.between: Callable[[], None] = lambda: None  # called while a prepared step waits
        self.fails: Callable[[], bool] = lambda: False  # whether the step being run fails
        self._running: tuple[Step, StepResult | None] | None = None

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
    ) -> None:
        wire = TokenizedReq(
            client=client,
            rid=rid,
            epoch=0,
            input_ids=pack_ids(list(prompt)),
            sampling=SamplingParams(max_new_tokens=max_new, min_new_tokens=min_new, temperature=0),
            eos_ids=list(eos),
            return_logprob=logprob_start is not None,
            logprob_start_len=-1 if logprob_start is None else logprob_start,
            cache_salt=salt,
        )
        self.core.add(wire, self.now, grammar)

    def abort(self, rid: str, client: bytes = b"c") -> None:
        self.core.abort(Abort(client, rid, 0))

    def step(self) -> bool:
        """One turn of the actor's loop; False when there was nothing to do."""
        self.now += 0.01
        plan = self.core.prepare(self.now) if self.lag or self._running is None else None
        previous, self._running = self._running, None
        was_idle = plan is None and previous is None
        self.between()
        if plan is not None and plan.deferred and previous is not None:
            if not self._settle(previous):
                self.core.drop(plan)
                plan = None
            previous = None
        step = None if plan is None else self.core.seal(plan)
        if step is not None and (previous is None or previous[1] is not None):
            self.core.finalize(step, None if previous is None else previous[1])
            self._running = (step, None if self.fails() else self.executor.run(step.batch))
        if previous is not None and not self._settle(previous) and step is not None:
            self.core.cancel(step)
        if self.lag == 0 and self._running is not None:
            self._settle(self._running)
            self._running = None
        self._collect()
        if self.check:
            check_invariants(self.core)
        return not was_idle

    def _settle(self, launched: tuple[Step, StepResult | None]) -> bool:
        """Commit the step, or tell of its failure."""
        step, result = launched
        if result is None:
            self.core.fail(step, "made to fail")
        else:
            self.core.commit(step, result)
        return result is not None

    def run(self, max_steps: int = 100_000) -> None:
        """Until everything that was added has ended."""
        for _ in range(max_steps):
            if not self.step():
                assert not self.core.has_work, "stuck: work is left but no step can be planned"
                return
        raise AssertionError(f"not done after {max_steps} steps")

    def generate(self, prompt: Iterable[int], max_new: int = 1, **kwargs: object) -> list[int]:
        """One req, start to end."""
        rid = f"r{len(self.finishes)}-{self.now}"
        self.add(rid, prompt, max_new, **kwargs)  # type: ignore[arg-type]
        self.run()
        return self.outputs.get(rid, [])

    def _collect(self) -> None:
        batch = self.core.take_output()
        if batch is None:
            return
        for start in batch.starts:
            assert start.handle not in self._rid_of, "told twice of the same req"
            self._rid_of[start.handle] = start.rid
            self.cached[start.rid] = start.cached_tokens
        ids = unpack_ids(batch.ids).tolist()
        logprobs = unpack_floats(batch.logprobs).tolist() or [math.nan] * len(ids)
        drops = {column: drop for column, drop, _ in batch.jumps}
        at = 0
        for column, (handle, count) in enumerate(zip(batch.handles, batch.counts, strict=True)):
            rid = self._rid_of[handle]
            assert rid not in self.finishes, "tokens after the end"
            output = self.outputs.setdefault(rid, [])
            del output[len(output) - drops.get(column, 0) :]
            output += ids[at : at + count]
            scores = self.logprobs.setdefault(rid, [])
            del scores[len(scores) - drops.get(column, 0) :]
            scores += logprobs[at : at + count]
            at += count
        assert at == len(ids)
        for chunk in batch.prompt_logprobs:
            known = self.prompt_logprobs.setdefault(self._rid_of[chunk.handle], [])
            known += unpack_floats(chunk.logprobs).tolist()
        for end in batch.ends:
            assert self._rid_of[end.handle] not in self.finishes, "ended twice"
            self.finishes[self._rid_of[end.handle]] = end.finish


def tree_as_text(core: Scheduler) -> list[str]:
    """The tree's edges as sorted paths of tokens, each edge in brackets: "[1 2][3]"."""

    def name(key: np.ndarray) -> str:
        return "[" + " ".join(str(t) for t in key.tolist()) + "]"

    lines = []
    for node in core.cache.nodes():
        if node.children:
            continue
        path, at = [], node
        while at.parent is not None:
            path.append(name(at.key))
            at = at.parent
        lines.append("".join(reversed(path)))
    return sorted(lines)
