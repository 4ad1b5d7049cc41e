"""Runs calls: a request of the ring for each output, one after the other, and again if it failed in
a way that may pass and nobody has seen its text."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from functools import partial

from srt.client.generation import ScoreOutput, TokenizeRequest
from srt.client.ring.client import RingClient
from srt.client.ring.generation import RingGeneration
from srt.programs.ahead import Ahead
from srt.programs.answers import AnswerReader, ChatAnswers, all_of
from srt.programs.core import Core
from srt.programs.graph import DEFECT
from srt.programs.parts import CallWork, TransformWork, Variable, Work
from srt.programs.prompts import begun_turn, request_of, score_of, tokenize_of
from srt.tasks import TaskSet
from srt.wire.answer_meta import facts
from srt.wire.errors import CONFLICT, OVERLOADED, RATE_LIMITED, RESTARTING, RequestError
from srt.wire.programs import Call, OutputMeta, Truncate

log = logging.getLogger(__name__)

READY_WAIT_S = 60.0  # for a ring that restarts, before a request is given up
PATIENCE_S = 120.0  # with a ring that is at its limit
FIRST_PAUSE_S, MAX_PAUSE_S = 0.05, 2.0
TRUNCATION_RETRIES = Call().retries

Cut = Callable[[Truncate, list[int]], Awaitable[str]]
Make = Callable[[int], Awaitable[OutputMeta | None]]


class Runner:
    """Starts what the core wants to have run. `on_change` is called after each event; `answers`
    reads chats, and `cut` does truncations in tokens. `ahead` hears what grows, if there is one."""

    def __init__(
        self,
        core: Core,
        client: RingClient,
        answers: Callable[[], Awaitable[ChatAnswers]],
        cut: Cut,
        on_change: Callable[[], None],
        ahead: Ahead | None = None,
    ) -> None:
        self._core, self._client = core, client
        self._answers, self._cut = answers, cut
        self._on_change, self._ahead = on_change, ahead
        self._tasks = TaskSet(lambda error: log.error("a call failed", exc_info=error))
        self._by_work: dict[Work, asyncio.Task[None]] = {}

    def start(self, work: Work) -> None:
        """Run `work` beside the others."""
        if self._ahead is not None and isinstance(work, CallWork):
            self._ahead.began(work)
        task = self._by_work[work] = self._tasks.start(self._run(work))
        task.add_done_callback(lambda _: self._on_end(work))  # also of one that never began

    def stop(self, work: Work) -> None:
        """End its requests, if it runs."""
        task = self._by_work.get(work)
        if task is not None:
            task.cancel()

    def settle(self) -> None:
        """End what is done ahead of time for calls that have begun or ended, and begin with those
        that have come to wait."""
        waiting = self._core.graph.waiting
        if self._ahead is not None:
            self._ahead.settle()
            for work in waiting:
                self._ahead.waits(work)
        waiting.clear()

    async def close(self) -> None:
        if self._ahead is not None:
            await self._ahead.close()
        await self._tasks.close()

    async def _run(self, work: Work) -> None:
        try:
            if isinstance(work, CallWork):
                await self._outputs(work)
            elif isinstance(work, TransformWork):
                await self._truncate(work)
        except Exception:
            log.exception("a defect in the run of a call")
            for var in work.outputs:
                self._core.graph.fail(var, DEFECT)

    def _on_end(self, work: Work) -> None:
        del self._by_work[work]
        self._core.has_run(work)
        self._on_change()

    async def _outputs(self, work: CallWork) -> None:
        for index, var in enumerate(work.outputs):
            if not self._core.graph.runs(var) or not await self._output(work, index, var):
                return

    async def _output(self, work: CallWork, index: int, var: Variable) -> bool:
        """Make one output; False if there is no text to go on with."""
        make = self._choose if work.asked[index].choices else self._generate
        return await self._made(var, partial(make, work, index, var), work.call.retries)

    async def _made(self, var: Variable, make: Make, retries: int) -> bool:
        """The same by `make`, which is told how many attempts there have been."""
        pause_s, attempts, waits_since = FIRST_PAUSE_S, 0, math.inf
        while True:
            attempts += 1
            try:
                await self._until_ready()
                meta = await make(attempts)
                self._core.graph.finish(var, meta)
                self._on_change()
                return True
            except RequestError as error:
                info = error.info
                waits = info.code in (OVERLOADED, RATE_LIMITED, RESTARTING)
                attempts -= waits
                waits_since = min(waits_since, time.monotonic()) if waits else math.inf
                has_time = time.monotonic() - waits_since < PATIENCE_S
                may_pass = info.retryable and (has_time if waits else attempts <= retries)
                if not may_pass or (var.is_told and var.text) or var.has_ended:
                    self._core.graph.fail(var, info)
                    self._on_change()
                    return var.state == "ready"  # by its default, now or when it could not grow
            self._core.graph.begin_again(var)
            await asyncio.sleep(max(pause_s, min(info.retry_after_s, MAX_PAUSE_S)))
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    async def _until_ready(self) -> None:
        ring = self._client.ring
        if ring is None or not ring.ready:
            await self._client.wait_ready(READY_WAIT_S)

    async def _generate(
        self, work: CallWork, index: int, var: Variable, attempts: int
    ) -> OutputMeta:
        began, reasoning, answers = time.monotonic(), None, None
        if work.call.turns:
            answers = await self._answers()
            reasoning = answers.before_answer(begun_turn(work, index), work.call.chat)
        hints = self._core.graph.objectives.hints(work, index)
        request = request_of(work, index, reasoning, hints)
        generation = await self._client.submit(request)
        try:
            asked = request.sampling
            waited = "" if asked.constraint_opener else asked.constraint_after
            reader = answers.reader(generation, waited) if answers else all_of
            await self._read(generation, reader, var)
            output = await generation.result()
        finally:
            await generation.aclose()
        if output.finish is not None and output.finish.type == "abort":
            raise RequestError("the request was aborted", code=CONFLICT)
        return OutputMeta(
            finish=output.finish,
            **facts(output),
            latency_s=time.monotonic() - began,
            attempts=attempts,
        )

    async def _read(self, generation: RingGeneration, reader: AnswerReader, var: Variable) -> None:
        """Let the variable grow with the text. Snapshots would cost more than all of this."""
        num_read = 0
        while True:
            ended = generation.has_ended
            delta = generation.text[num_read:]
            num_read += len(delta)
            if generation.error is not None:
                return
            if not self._core.graph.grow(var, reader(delta, ended)):
                raise RequestError("its text could not grow", code=CONFLICT)  # it has ended
            if self._ahead is not None and var.text:  # before, its request may wait itself
                self._ahead.grew(var)
            self._on_change()
            if ended:
                return
            await generation.until_changed()

    async def _choose(self, work: CallWork, index: int, var: Variable, attempts: int) -> OutputMeta:
        """The choice whose tokens are the most likely on average, as `select` of the language."""
        began, ids = time.monotonic(), None
        if work.call.turns:
            ids = await self._client.tokenize(tokenize_of(work, index))
        output: ScoreOutput = await self._client.score(score_of(work, index, ids))
        means = [choice.mean for choice in output.choices]
        self._core.graph.grow(var, work.asked[index].choices[means.index(max(means))])
        return OutputMeta(
            prompt_tokens=output.prompt_tokens,
            cached_tokens=output.cached_tokens,
            latency_s=time.monotonic() - began,
            attempts=attempts,
            probabilities=output.probabilities,
        )

    async def _truncate(self, work: TransformWork) -> None:
        """A truncation in tokens, of which the ring knows how many a text has."""
        (var,), op = work.outputs, work.transform.op
        assert isinstance(op, Truncate)
        if not self._core.graph.runs(var):
            return
        request = TokenizeRequest(
            text=work.inputs[op.input].text, add_special_tokens=False, tenant=work.session.caller
        )

        async def make(attempts: int) -> None:
            ids = await self._client.tokenize(request) if request.text else []
            self._core.graph.grow(var, await self._cut(op, ids))

        await self._made(var, make, TRUNCATION_RETRIES)
