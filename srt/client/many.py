"""Many requests on one client: a limited number in flight, and the first failure ends all.

`Engine` and `LLM` submit batches of any size with it; the server's bounds are for other users.
Requests are submitted sorted by prompt, which is the depth-first order of the server's prefix tree:
any other order returns to prefixes that have been evicted. Results are in the caller's order.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from srt.client.generation import Client, GenerateOutput, Request
from srt.client.media import Media, MediaFile, Picture, Video, opened
from srt.tasks import all_of
from srt.wire.errors import OVERLOADED, RATE_LIMITED, RESTARTING, RequestError

T = TypeVar("T")

MAX_IN_FLIGHT = 256  # samples; more than a batch of the scheduler holds, so that it always has work
RETRY_S = 0.05  # after a refusal for load that names no time; doubled each time, up to
MAX_RETRY_S = 2.0
MAX_PAUSE_S = 10.0  # the longest that the server may ask for
MAX_RESTART_S = 60.0


class Job(NamedTuple):
    """A request that `make` makes when its turn comes. Keys sort as the prompts do; `samples` is
    its `sampling.n`."""

    key: tuple[Any, ...]
    samples: int
    make: Callable[[], Awaitable[Request]]


async def generate_many(
    client: Client, requests: Sequence[Request], media: Sequence[Sequence[Media]] = ()
) -> list[list[GenerateOutput]]:
    """The finished samples of each request; see `run_jobs`. `media` are what each of them shows,
    or nothing at all; their files are read when it is their turn."""
    shown: Sequence[Sequence[Media]] = media or [()] * len(requests)
    return await run_jobs(client, [_job(*each) for each in zip(requests, shown, strict=True)])


async def run_jobs(
    client: Client, jobs: Sequence[Job], on_done: Callable[[], Any] = lambda: None
) -> list[list[GenerateOutput]]:
    """The finished samples of each job. `on_done` is called as each finishes.

    A server that is at its limit is asked again. Raises the first RequestError, and ends the
    other requests then, as it does when it is cancelled.
    """
    slots = asyncio.Semaphore(MAX_IN_FLIGHT)
    turn = asyncio.Lock()  # two jobs that each held half of their places would wait for ever

    async def one(job: Job) -> list[GenerateOutput]:
        # A request of many samples takes the places of as many.
        places = min(job.samples, MAX_IN_FLIGHT)
        async with turn:
            for _ in range(places):
                await slots.acquire()
        try:
            outputs = await _outputs(client, await patiently(job.make))
        finally:
            for _ in range(places):
                slots.release()
        on_done()
        return outputs

    order = _order(jobs)
    outputs = await all_of(one(jobs[i]) for i in order)
    by_index = dict(zip(order, outputs, strict=True))
    return [by_index[i] for i in range(len(jobs))]


def _order(jobs: Sequence[Job]) -> Sequence[int]:
    try:
        return sorted(range(len(jobs)), key=lambda i: jobs[i].key)
    except TypeError:  # a value that is not a prompt is refused, by name, in its turn
        return range(len(jobs))


def key_of(
    text: str | None,
    ids: Sequence[int] | None = None,
    messages: object = None,
    media: Sequence[Media] = (),
) -> tuple[Any, ...]:
    """The sorting key of a prompt, given in one of these forms. Those that show the same are side
    by side: pictures are long, and mostly near the beginning."""
    if media:
        return 2, repr(_brief([media, text, ids, messages]))
    if text is not None:
        return 0, text
    return (1, list(ids)) if ids is not None else (2, repr(_brief(messages)))


def _brief(value: Any) -> Any:
    """The same with the ends of files in place of files: enough for an order."""
    if isinstance(value, Mapping):
        return {name: _brief(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_brief(each) for each in value]
    if isinstance(value, Picture | Video | MediaFile):
        return _brief(msgspec.structs.astuple(value))
    is_url = isinstance(value, str) and value[:5] == "data:"
    is_file = is_url or isinstance(value, bytes | bytearray)
    return (len(value), value[-64:]) if is_file else value


def _job(request: Request, media: Sequence[Media]) -> Job:
    async def make() -> Request:
        if not media:
            return request
        return msgspec.structs.replace(request, media=await opened(media))

    messages = (request.tools, request.messages)
    key = key_of(request.text, request.input_ids, messages, media or request.media)
    return Job((request.cache_salt, *key), request.sampling.n, make)


async def _outputs(client: Client, request: Request) -> list[GenerateOutput]:
    """All samples of one request, to their ends."""
    generations = await patiently(lambda: client.submit_samples(request))
    try:
        return await all_of(generation.result() for generation in generations)
    finally:
        for generation in generations:
            await generation.aclose()


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """The result of `ask`. A server at its limit, or that of a key, is asked again after the time
    that it names, and so is one that restarts its scheduler, for up to MAX_RESTART_S."""
    delay_s, restarts_until = RETRY_S, time.monotonic() + MAX_RESTART_S
    while True:
        try:
            return await ask()
        except RequestError as error:
            asked_s = min(error.info.retry_after_s, MAX_PAUSE_S)
            is_restarting = error.info.code == RESTARTING and time.monotonic() < restarts_until
            is_limited = error.info.code in (OVERLOADED, RATE_LIMITED)
            if not (is_limited or is_restarting):
                raise
        await asyncio.sleep(max(delay_s, asked_s))
        delay_s = min(2 * delay_s, MAX_RETRY_S)
