"""Prompts ahead of time: what is asked for while an input grows, and when it ends."""

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from srt.callers.names import caller_of
from srt.client.generation import GenerateOutput, Request
from srt.programs.ahead import MAX_AT_ONCE, MIN_TOKENS, Ahead
from srt.programs.core import Core
from srt.programs.parts import CallWork
from srt.programs.prompts import beginning_of, known_chars, request_of
from srt.wire.errors import CONTEXT_LENGTH, OVERLOADED, RequestError
from srt.wire.hints import Hints
from srt.wire.messages import Finish
from srt.wire.programs import Call, Guard, Input, Output, Program, Segment, Text, Turn
from tests.srt.programs.driver import CLIENT, Driver
from tests.waiting import SOON_S

WORDS = "the quick brown fox jumps over the lazy dog and runs on "


class Client:
    """Answers a request when it is let go on; four characters are a token."""

    ring = SimpleNamespace(ready=True)

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.going: list[asyncio.Event] = []
        self.cancelled: list[str] = []
        self.error: RequestError | None = None
        self.finish = Finish("length")

    async def submit(self, request: Request) -> Any:
        self.requests.append(request)
        if self.error is not None:
            raise self.error
        event, text = asyncio.Event(), request.text or ""
        self.going.append(event)

        async def result() -> GenerateOutput:
            await event.wait()
            return GenerateOutput(len(text) // 4, rid="r", finish=self.finish)

        async def aclose() -> None:
            if not event.is_set():
                self.cancelled.append(text)

        return SimpleNamespace(result=result, aclose=aclose)


class Chain:
    """A producer that runs, and calls that wait for it."""

    def __init__(self, *consumers: Call, **fields: Any) -> None:
        self.driver, self.client = Driver(), Client()
        client: Any = self.client
        self.ahead = Ahead(client)
        self.session = self.driver.open()
        producer = Call([Text("Write."), Output("a")])
        program = Program(calls=[producer, *consumers], **fields)
        self.ids = self.driver.submit(self.session, program)
        self.driver.get([self.ids[f"b{i}"] for i in range(len(consumers))])
        while self.core.graph.has_work:
            self.core.graph.step()
        started = self.core.next_start()
        assert started is not None
        self.var = started.outputs[0]
        assert self.core.graph.runs(self.var)

    @property
    def core(self) -> Core:
        return self.driver.core

    def work(self, number: int = 0) -> CallWork:
        work = self.core._vars[self.ids[f"b{number}"]].work
        assert isinstance(work, CallWork)
        return work

    async def grow(self, text: str) -> None:
        assert self.core.graph.grow(self.var, text)
        self.ahead.grew(self.var)
        await self.rest()

    async def end(self) -> None:
        self.core.graph.finish(self.var, None)
        while self.core.graph.has_work:
            self.core.graph.step()
        self.ahead.settle()
        await self.rest()

    async def let_go(self) -> None:
        for event in self.client.going:
            event.set()
        await self.rest()

    async def rest(self) -> None:
        async with asyncio.timeout(SOON_S):
            for _ in range(5):
                await asyncio.sleep(0)


def consumer(number: int = 0, head: str = "Go on: ", when: Guard | None = None) -> Call:
    segments: list[Segment] = [Text(head), Input("a"), Text(" End."), Output(f"b{number}")]
    return Call(segments, when=when)


async def test_what_has_grown_is_asked_for_word_by_word_and_one_piece_at_a_time() -> None:
    chain = Chain(consumer())
    text = ""
    for _ in range(40):
        await chain.grow(WORDS)
        text += WORDS
        await chain.let_go()
    asked = [request.text or "" for request in chain.client.requests]
    assert 4 <= len(asked) <= 40 * len(WORDS) / 4 / MIN_TOKENS
    for before, after in zip(["", *asked], asked, strict=False):
        assert after.startswith(before) and len(after) - len(before) >= 4 * MIN_TOKENS
        assert ("Go on: " + text).startswith(after + " ")
    first = chain.client.requests[0]
    assert first.sampling.max_new_tokens == 0 and first.joined
    assert first.hints == Hints(perf="throughput", is_ahead=True)
    assert first.tenant == caller_of(CLIENT, "")
    await chain.end()
    whole = request_of(chain.work(), 0)
    left = len(whole.text or "") - len(asked[-1])
    assert left / 4 <= MIN_TOKENS + len(WORDS)
    assert list(first.literal_spans) == [(7, len(asked[0]))]  # as in the whole prompt
    assert whole.literal_spans == [(7, 7 + len(text))]


async def test_a_second_piece_waits_for_the_first() -> None:
    chain = Chain(consumer())
    for _ in range(20):
        await chain.grow(WORDS)
    assert len(chain.client.requests) == 1
    await chain.let_go()
    await chain.grow(WORDS)
    assert len(chain.client.requests) == 2
    await chain.ahead.close()


async def test_a_long_head_is_asked_for_as_soon_as_there_is_a_text() -> None:
    chain = Chain(consumer(head=WORDS * 20))
    await chain.grow("x")
    (request,) = chain.client.requests
    assert (request.text or "") + " " == WORDS * 20
    assert not request.literal_spans
    await chain.ahead.close()


async def test_it_ends_with_its_input() -> None:
    chain = Chain(consumer())
    for _ in range(10):
        await chain.grow(WORDS)
    await chain.end()
    assert len(chain.client.cancelled) == 1
    assert not chain.ahead._calls and chain.ahead._num_running == 0


@pytest.mark.parametrize("how", ["cancel", "close"])
async def test_it_ends_with_its_call(how: str) -> None:
    chain = Chain(consumer())
    for _ in range(10):
        await chain.grow(WORDS)
    if how == "cancel":
        chain.driver.cancel(chain.ids["b0"])
    else:
        chain.driver.close(chain.session)
    chain.ahead.settle()
    await chain.rest()
    assert len(chain.client.cancelled) == 1
    assert chain.ahead._num_running == 0


async def test_a_call_that_a_guard_may_skip_is_left_alone_until_that_is_known() -> None:
    chain = Chain(consumer(when=Guard("flag", equals="yes")), vars={"flag": None})
    for _ in range(20):
        await chain.grow(WORDS)
    assert not chain.client.requests
    chain.driver.set(chain.ids["flag"], "yes")
    while chain.core.graph.has_work:
        chain.core.graph.step()
    await chain.grow(WORDS)
    assert len(chain.client.requests) == 1
    await chain.ahead.close()


async def test_a_guard_on_the_text_itself_skips_before_anything_is_asked_for() -> None:
    chain = Chain(consumer(when=Guard("a", equals="yes")))
    for _ in range(20):
        await chain.grow(WORDS)
    await chain.end()
    assert not chain.client.requests


async def test_few_run_at_once_and_a_failure_is_nobody_s() -> None:
    chain = Chain(*(consumer(i, f"Number {i}: ") for i in range(MAX_AT_ONCE + 3)))
    for _ in range(10):
        await chain.grow(WORDS)
    assert len(chain.client.requests) == MAX_AT_ONCE
    chain.client.error = RequestError("full", code=OVERLOADED)
    await chain.let_go()
    await chain.grow(WORDS * 10)
    await chain.grow(" ")
    num_asked = len(chain.client.requests)
    assert num_asked > MAX_AT_ONCE
    await chain.grow(" ")
    assert len(chain.client.requests) == num_asked  # not again before there is more
    await chain.end()
    assert chain.ahead._num_running == 0


async def test_chats_and_texts_without_blanks_have_none() -> None:
    chat = Call(turns=[Turn("user", [Input("a")]), Turn("assistant", [Output("b0")])])
    for call, text in ((chat, WORDS), (consumer(), "x" * 50), (consumer(), ". \n" * 20)):
        chain = Chain(call)
        for _ in range(30):
            await chain.grow(text)
        asked = [request.text for request in chain.client.requests]
        assert asked in ([], ["Go on:"])
        await chain.ahead.close()


def test_a_beginning_is_one_of_the_whole_prompt() -> None:
    """Also where several inputs come one after the other, and whatever the texts are."""
    rng = random.Random(1)
    for _ in range(300):
        driver = Driver()
        segments: list[Segment] = [Text("Begin here: "), Input("x"), Text(" then "), Input("y")]
        rng.shuffle(segments)
        call = Call([*segments, Output("b")])
        ids = driver.submit(driver.open(), Program({"x": None, "y": None}, [call]))
        driver.get([ids["b"]])
        work = driver.core._vars[ids["b"]].work
        assert isinstance(work, CallWork)
        beginnings = [beginning_of(work)]
        for name in rng.sample(["x", "y"], 2):
            text = "".join(rng.choices(["a", "b ", " ", "\n", ". ", "ü "], k=rng.randrange(12)))
            driver.set(ids[name], text)
            beginnings.append(beginning_of(work))
        whole = request_of(work, 0)
        text = whole.text or ""
        assert known_chars(work) == len(text)
        for begun in beginnings:
            if begun is not None:
                assert text.startswith(begun.text + " ") and begun.text[-1].isalnum()
                clipped = [
                    (start, min(stop, len(begun.text)))
                    for start, stop in whole.literal_spans
                    if start < len(begun.text)
                ]
                assert begun.literal_spans == clipped


async def test_what_was_ended_for_others_is_asked_for_again_when_there_is_more() -> None:
    chain = Chain(consumer())
    chain.client.finish = Finish("abort")
    for _ in range(6):
        await chain.grow(WORDS)
    await chain.let_go()
    await chain.grow(" x")
    assert len(chain.client.requests) == 1
    chain.client.finish = Finish("length")
    await chain.grow(WORDS * 2)
    await chain.let_go()
    assert len(chain.client.requests) == 2
    await chain.grow(WORDS * 2)
    assert len(chain.client.requests) == 2  # less than enough is new
    await chain.ahead.close()


async def test_a_prompt_that_is_refused_is_not_asked_for_again() -> None:
    chain = Chain(consumer())
    chain.client.error = RequestError("the prompt is too long", code=CONTEXT_LENGTH)
    for _ in range(40):
        await chain.grow(WORDS)
    assert len(chain.client.requests) == 1
    await chain.ahead.close()


async def test_a_prompt_is_not_counted_at_each_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have a thousand segments."""
    counted = list[CallWork]()

    def count(work: CallWork) -> int:
        counted.append(work)
        return known_chars(work)

    monkeypatch.setattr("srt.programs.ahead.known_chars", count)
    chain = Chain(consumer())
    for _ in range(400):
        await chain.grow("to ")
        await chain.let_go()
    assert len(counted) <= 1 + 400 * 3 / (MIN_TOKENS * 4 / 4)
    assert len(chain.client.requests) >= 3
    await chain.ahead.close()
