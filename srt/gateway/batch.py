"""The requests of one HTTP request: admitted together, closed together.

Native and OpenAI routes share this: `submit_all` is all or nothing, and a `Batch` gives either
the final outputs or the merged snapshots. Whoever holds a Batch must close it. The samples of a
prompt (`n` > 1) are next to each other, prompt after prompt.
"""

import asyncio
import time
import uuid
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, aclosing, contextmanager
from functools import partial
from itertools import chain

import msgspec

from srt.client.generation import GenerateOutput, Generation, Request, TokenizeRequest
from srt.client.media import MediaFile
from srt.gateway.context import Gateway, Refusal, abortable, media_rules
from srt.gateway.limits.large_bodies import Room
from srt.gateway.limits.tenant import Name, tenant
from srt.gateway.media.given import MediaList
from srt.tasks import all_of
from srt.wire.errors import OVERLOADED, RATE_LIMITED, ErrorInfo, Names, RequestError, renaming

MAX_REFUSAL_S = 0.25  # for this long, the ring's last refusal for load still counts
MAX_REFUSALS = 1024  # callers whose refusals are remembered


class Batch:
    """Admitted requests, in the order of their prompts: `samples` for each prompt. What is `held`
    for them is given back when they are closed. `fields` maps the ring's fields to the caller's, in
    errors after admission."""

    def __init__(
        self,
        gateway: Gateway,
        generations: list[Generation],
        started: float,
        samples: int,
        fields: Callable[[int], Names],
    ) -> None:
        self._fields = fields
        self.generations = generations
        self.started = started
        self.samples = samples
        self.held = ExitStack()
        self._gateway = gateway
        self._timers = [gateway.metrics.track(started) for _ in generations]
        self._tenant = tenant()
        self._names: list[Name] = []
        gateway.live.update(((self._tenant, g.rid), g) for g in generations)

    def name(self, name: str, generations: Sequence[Generation]) -> None:
        """Let an abort find all of `generations` under `name`, unless the name is in use."""
        mine = (self._tenant, name)
        if mine not in self._gateway.groups:
            self._gateway.groups[mine] = [g.rid for g in generations]
            self._names.append(mine)

    @property
    def latency_s(self) -> float:
        """Seconds since the HTTP request arrived."""
        return time.monotonic() - self.started

    @property
    def prompt_tokens(self) -> int:
        """The tokens of all prompts, each counted once."""
        return sum(g.meta.prompt_tokens for g in self.generations[:: self.samples])

    @property
    def media_tokens(self) -> int:
        """Those of the prompts' tokens that stand for pictures and videos."""
        return sum(g.meta.media_tokens for g in self.generations[:: self.samples])

    async def results(self) -> list[GenerateOutput]:
        """The final outputs, in order. The first failure fails all."""
        return await all_of(self._result(i) for i in range(len(self.generations)))

    async def _result(self, index: int) -> GenerateOutput:
        with renaming(lambda: self._fields(index // self.samples)):
            output = await self.generations[index].result()
        self._timers[index].on_result()
        return output

    async def snapshots(
        self, intervals: Sequence[int | None] = ()
    ) -> AsyncGenerator[tuple[int, GenerateOutput], None]:
        """(index, snapshot) pairs as they arrive, until every request has finished.

        With an interval of k tokens, a request gives its first snapshot, its last one, and those
        that are k tokens further than the one before. None is the server's interval.
        """
        default = self._gateway.info.stream_interval
        given = intervals or [None] * len(self.generations)
        pairs = zip(self.generations, given, strict=True)
        iterators = [_spaced(g, interval or default) for g, interval in pairs]
        try:
            async with aclosing(_merged(iterators)) as merged:
                async for index, output in merged:
                    self._timers[index].on_snapshot(output)
                    yield index, output
        except RequestError as error:
            if len(self.generations) > self.samples:  # of one of several prompts
                raise
            raise error.renamed(self._fields(0)) from error

    async def aclose(self) -> None:
        """Abort what has not finished. Idempotent."""
        self.held.close()
        while self._names:
            del self._gateway.groups[self._names.pop()]
        for generation in self.generations:
            if self._gateway.live.get((self._tenant, generation.rid)) is generation:
                del self._gateway.live[self._tenant, generation.rid]
        await _close(self.generations)


def _spaced(generation: Generation, interval: int) -> AsyncIterator[GenerateOutput]:
    """The first and the last snapshot of `generation`, and those `interval` tokens apart; the
    `delta` of each is the text that the one before it did not have."""
    return aiter(generation) if interval == 1 else _with_gaps(generation, interval)


async def _with_gaps(generation: Generation, interval: int) -> AsyncIterator[GenerateOutput]:
    told, held = 0, ""
    async for output in generation:
        held += output.delta
        if told and output.finish is None and output.completion_tokens < told + interval:
            continue
        told = output.completion_tokens
        yield msgspec.structs.replace(output, delta=held)
        held = ""


async def _merged(
    iterators: Sequence[AsyncIterator[GenerateOutput]],
) -> AsyncGenerator[tuple[int, GenerateOutput], None]:
    """The items of all of them as they arrive, each with the index of its source."""
    if len(iterators) == 1:  # as in most streams: no task for each token
        async for output in iterators[0]:
            yield 0, output
        return
    came = asyncio.Event()
    done: deque[asyncio.Task[GenerateOutput | None]] = deque()
    pending: dict[asyncio.Task[GenerateOutput | None], int] = {}

    def on_done(task: asyncio.Task[GenerateOutput | None]) -> None:
        done.append(task)
        came.set()

    def ask(index: int) -> None:
        task = asyncio.ensure_future(anext(iterators[index], None))
        pending[task] = index
        task.add_done_callback(on_done)

    try:
        for index in range(len(iterators)):
            ask(index)
        while pending:
            await came.wait()
            came.clear()
            while done:
                task = done.popleft()
                index, latest = pending.pop(task), task.result()
                if latest is not None:
                    yield index, latest
                    ask(index)
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


def check_size(num_prompts: int, samples: int, limit: int, name: str) -> None:
    """Raise RequestError if several prompts, given in the field `name`, want more than `limit`
    samples together, which could never be in flight at once."""
    if num_prompts > 1 and num_prompts * samples > limit:
        asked = f"{num_prompts} prompts" + (f", {samples} times each" if samples > 1 else "")
        raise RequestError(f" asks for {asked}; the limit is {limit} in all", at=name)


def check_prediction(prediction: str, num_prompts: int) -> None:
    """Raise RequestError if there is a prediction for several prompts: each would have all of it,
    so that a small body would be a large batch."""
    if prediction and num_prompts > 1:
        raise RequestError(" goes with one prompt only", at="prediction")


async def prompt_ids_of(gateway: Gateway, request: Request) -> list[int]:
    """The ids of a prompt, which the server makes of a text or of messages."""
    if request.input_ids is not None:
        return list(request.input_ids)
    names = ("text", "messages", "tools", "chat")
    asked = TokenizeRequest(**{name: getattr(request, name) for name in names})
    return await gateway.client.tokenize(asked)


async def submit_all(
    gateway: Gateway,
    requests: Sequence[Request],
    *,
    names: Callable[[int], Names],
    name: str | None = None,
    media: Sequence[MediaList] = (),
) -> Batch:
    """Submit every request; if one is refused, abort the others and raise its error.

    All must want the same number of samples. `names` maps, for the request of an index, the
    ring's fields to the caller's. An abort of `name` ends all of them, and an abort of a
    request's rid all its samples. `media`, which are loaded first, has a list for each request,
    or none at all.
    """
    started = time.monotonic()
    check_load(gateway, is_latency=_is_latency(requests[0]))
    requests = [_named(request) for request in requests]
    with ExitStack() as held:
        room = held.enter_context(gateway.media.room(tenant()))
        with _announced(gateway, requests, name):
            prompts = await _with_media(gateway, requests, names, media, room)
        gateway.was_ready = True
        generations = [sample for samples in prompts for sample in samples]
        batch = Batch(gateway, generations, started, len(prompts[0]), names)
        if any(each.keeps for each in media):
            room.on_give_way = partial(_forget, media)
            batch.held = held.pop_all()
    for request, samples in zip(requests, prompts, strict=True):
        if request.rid is not None and len(samples) > 1:
            batch.name(request.rid, samples)
    if name is not None:
        batch.name(name, generations)
    return batch


def _forget(media: Sequence[MediaList]) -> None:
    for each in media:
        each.forget()


def _is_latency(request: Request) -> bool:
    return request.hints is not None and request.hints.perf == "latency"


def _remember(gateway: Gateway, error: ErrorInfo, request: Request) -> None:
    """Keep a caller's refusal for load, or for its key's limits, so that the ring is not asked
    again for that caller while it holds. Others may have less to wait for."""
    if error.code in (OVERLOADED, RATE_LIMITED) and error.retry_after_s > 0:
        hold_s = min(error.retry_after_s, MAX_REFUSAL_S)
        if len(gateway.refusals) >= MAX_REFUSALS:
            gateway.refusals.clear()
        spares_latency = error.code == OVERLOADED and not _is_latency(request)
        until = time.monotonic() + hold_s
        gateway.refusals[tenant()] = Refusal(error, until, spares_latency)


def check_load(gateway: Gateway, *, is_latency: bool = False) -> None:
    """Raise the caller's last refusal for load, if it still holds, also for a request that may be
    of the class `latency`: refusing must cost next to nothing. Routes that generate ask before they
    read a body, and those that take hints also before they decode it (`check_load_of`)."""
    refusal = gateway.refusals.get(tenant())
    if refusal is not None and time.monotonic() < refusal.until:
        if not (is_latency and refusal.spares_latency):
            raise RequestError.from_info(refusal.error)


def check_load_of(gateway: Gateway, body: bytearray) -> None:
    """The same for a request with these bytes, which name its class if it has one."""
    check_load(gateway, is_latency=b'"latency"' in body)


def _named(request: Request) -> Request:
    """`request` with a rid, if its admission may take long because a grammar is compiled first."""
    if request.rid is not None or request.sampling.constraint is None:
        return request
    return msgspec.structs.replace(request, rid=uuid.uuid4().hex)


@contextmanager
def _announced(gateway: Gateway, requests: Sequence[Request], name: str | None) -> Iterator[None]:
    """Let an abort find the requests by their rids while they wait for admission."""
    named = {(tenant(), r.rid): r for r in requests if r.rid is not None}
    announced = {mine: r for mine, r in named.items() if mine not in gateway.live}
    gateway.live.update(announced)
    group = (tenant(), name or "")
    is_new = name is not None and group not in gateway.groups
    if is_new:
        gateway.groups[group] = [rid for _, rid in announced]
    try:
        yield
    finally:
        for mine, request in announced.items():
            # Another request may have been admitted under the rid of one that was still waiting.
            if gateway.live.get(mine) is request:
                del gateway.live[mine]
        if is_new:
            del gateway.groups[group]


async def _with_media(
    gateway: Gateway,
    requests: Sequence[Request],
    names: Callable[[int], Names],
    media: Sequence[MediaList],
    room: Room,
) -> list[Sequence[Generation]]:
    """The samples of each request, which shows its `media`. Aborted while these are loaded, none
    begins."""
    if not any(each.given for each in media):
        return await _admitted(gateway, requests, names)
    rids = [request.rid for request in requests if request.rid is not None]
    async with room.giving_way():
        files = await load_media(gateway, media, rids, room)
        showing = [
            msgspec.structs.replace(request, media=tuple(its_files))
            for request, its_files in zip(requests, files, strict=True)
        ]
        del files
        return await _admitted(gateway, showing, lambda i: {**names(i), **media[i].names})


async def load_media(
    gateway: Gateway, media: Sequence[MediaList], rids: Sequence[str], room: Room
) -> list[list[MediaFile]]:
    """The files of each list, in their `room`. An abort of one of the caller's `rids` ends it."""
    async with abortable(gateway, {(tenant(), rid) for rid in rids}):
        domains = media_rules(gateway).domains
        return await gateway.media.load(media, domains, tenant(), room)


async def _admitted(
    gateway: Gateway, requests: Sequence[Request], names: Callable[[int], Names]
) -> list[Sequence[Generation]]:
    """The samples of each request. If one is refused, the others are ended."""
    num_aborts = gateway.num_aborts
    prompts: list[Sequence[Generation]] = []
    try:
        for index, request in enumerate(requests):
            try:
                if index > 0:  # all of the batch is admitted, however long it is
                    request = msgspec.structs.replace(request, joined=True)
                samples = await gateway.client.submit_samples(request)
            except RequestError as exc:
                _remember(gateway, exc.info, request)
                raise exc.renamed(names(index)) from exc
            prompts.append(samples)
        if gateway.num_aborts > num_aborts:  # an abort of everything, while these had no names yet
            for sample in chain.from_iterable(prompts):
                await gateway.client.abort(sample.rid, tenant())
    except BaseException:
        await _close([*chain.from_iterable(prompts)])
        raise
    return prompts


async def _close(generations: Sequence[Generation]) -> None:
    """Close all, the last ones first, even if that fails for some."""
    if len(generations) == 1:
        await generations[0].aclose()
        return
    async with AsyncExitStack() as stack:
        for generation in generations:
            stack.push_async_callback(generation.aclose)
