"""Many requests on one client: so many in flight at a time, in order, the first failure ends all.

`Engine` and `LLM` hand in batches of any size with it; the server's bounds are for strangers.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from srt.errors import OVERLOADED, RequestError
from srt.generation import Client, GenerateOutput, Request

MAX_IN_FLIGHT = 256  # samples; more than a batch of the scheduler holds, so that it never starves
RETRY_S = 0.05  # after a refusal for load, twice as long each time, up to
MAX_RETRY_S = 2.0


async def generate_many(
    client: Client, requests: Sequence[Request], on_done: Callable[[], Any] = lambda: None
) -> list[list[GenerateOutput]]:
    """The finished samples of each request. `on_done` is called as each request finishes.

    A server that is at its limit is asked again. Raises the first RequestError, and ends the
    other requests then, as it does when it is cancelled.
    """
    slots = asyncio.Semaphore(MAX_IN_FLIGHT)
    turn = asyncio.Lock()  # two that each had half of their places would wait for ever

    async def one(request: Request) -> list[GenerateOutput]:
        # A request of many samples takes the places of as many.
        places = min(request.sampling.n, MAX_IN_FLIGHT)
        async with turn:
            for _ in range(places):
                await slots.acquire()
        try:
            outputs = await _outputs(client, request)
        finally:
            for _ in range(places):
                slots.release()
        on_done()
        return outputs

    tasks = [asyncio.ensure_future(one(request)) for request in requests]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _outputs(client: Client, request: Request) -> list[GenerateOutput]:
    """All samples of one request, to their ends."""
    generations = await _submitted(client, request)
    tasks = [asyncio.ensure_future(generation.result()) for generation in generations]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for generation in generations:
            await generation.aclose()


async def _submitted(client: Client, request: Request) -> Any:
    delay_s = RETRY_S
    while True:
        try:
            return await client.submit_samples(request)
        except RequestError as error:
            if error.info.code != OVERLOADED:
                raise
        await asyncio.sleep(delay_s)
        delay_s = min(2 * delay_s, MAX_RETRY_S)
