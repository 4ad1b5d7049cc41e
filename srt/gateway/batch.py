"""Requests that came in one HTTP request: admitted together, closed together.

Native and OpenAI routes share this: `submit_all` is all or nothing, and a `Batch` gives either
the final outputs or the merged snapshots. Whoever holds a Batch must close it.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from srt.errors import RequestError
from srt.gateway.context import Gateway
from srt.generation import GenerateOutput, Generation, Request

RenameParam = Callable[[str | None, int], str | None]


class Batch:
    """Admitted requests, in the order of their prompts."""

    def __init__(self, gateway: Gateway, generations: list[Generation], started: float) -> None:
        self.generations = generations
        self.started = started
        self._gateway = gateway
        self._timers = [gateway.metrics.track(started) for _ in generations]
        gateway.live.update((g.rid, g) for g in generations)

    @property
    def latency_s(self) -> float:
        """Seconds since the HTTP request arrived."""
        return time.monotonic() - self.started

    async def results(self) -> list[GenerateOutput]:
        """The final outputs, in order. The first failure fails all."""
        tasks = [asyncio.ensure_future(self._result(i)) for i in range(len(self.generations))]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    async def _result(self, index: int) -> GenerateOutput:
        output = await self.generations[index].result()
        self._timers[index].on_result()
        return output

    async def snapshots(self) -> AsyncGenerator[tuple[int, GenerateOutput], None]:
        """(index, snapshot) pairs as they come, until every request has finished."""
        iterators = [aiter(g) for g in self.generations]
        pending: dict[asyncio.Task[Any], int] = {
            _next_task(iterator): index for index, iterator in enumerate(iterators)
        }
        try:
            while pending:
                done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    index, output = pending.pop(task), task.result()
                    if output is None:
                        continue
                    self._timers[index].on_snapshot(output)
                    yield index, output
                    pending[_next_task(iterators[index])] = index
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    async def aclose(self) -> None:
        """Abort what has not finished. Idempotent."""
        async with AsyncExitStack() as stack:
            for generation in self.generations:
                if self._gateway.live.get(generation.rid) is generation:
                    del self._gateway.live[generation.rid]
                stack.push_async_callback(generation.aclose)


def _next_task(iterator: AsyncIterator[GenerateOutput]) -> asyncio.Task[GenerateOutput | None]:
    async def advance() -> GenerateOutput | None:
        return await anext(iterator, None)

    return asyncio.ensure_future(advance())


async def submit_all(
    gateway: Gateway, requests: Sequence[Request], *, rename_param: RenameParam
) -> Batch:
    """Submit every request; if one is refused, abort the others and raise its error.

    `rename_param` translates the field that an error names, with the request's index, to the
    caller's field.
    """
    started = time.monotonic()
    async with AsyncExitStack() as admitted:
        generations = []
        for index, request in enumerate(requests):
            try:
                generation = await gateway.client.submit(request)
            except RequestError as exc:
                raise renamed(exc, rename_param, index) from exc
            admitted.push_async_callback(generation.aclose)
            generations.append(generation)
        admitted.pop_all()
    return Batch(gateway, generations, started)


def renamed(exc: RequestError, rename_param: RenameParam, index: int) -> RequestError:
    """`exc` with the caller's name of the field."""
    old, new = exc.info.param, rename_param(exc.info.param, index)
    message = exc.info.message
    if old and new and message.startswith((f"{old} ", f"{old}:")):
        message = new + message[len(old) :]
    return RequestError(message, param=new, code=exc.info.code, retryable=exc.info.retryable)
