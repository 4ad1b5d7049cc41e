"""Prompts ahead of time: what is asked for while an input grows, and when it ends."""

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from srt.callers.names import caller_of
from srt.client.generation import GenerateOutput, Request, TokenizeRequest
from srt.programs.ahead import MIN_TOKENS, Ahead
from srt.programs.beginnings import beginning_of, known_chars, known_text
from srt.programs.core import Core
from srt.programs.parts import AHEAD_TOKENS, WASTED_TOKENS, CallWork
from srt.programs.prompts import request_of
from srt.wire.errors import CONTEXT_LENGTH, OVERLOADED, RequestError
from srt.wire.messages import Finish
from srt.wire.programs import (
    Call,
    Concat,
    Format,
    Guard,
    Input,
    Join,
    Majority,
    Op,
    Output,
    Program,
    Segment,
    Split,
    Strip,
    Text,
    Transform,
    Truncate,
    Turn,
)
from tests.srt.programs.driver import CLIENT, Driver
from tests.waiting import SOON_S

MAX_AT_ONCE = 4
WORDS = "the quick brown fox jumps over the lazy dog and runs on "


class Client:
    """Answers a request when it is let go on; four characters are a token."""

    ring = SimpleNamespace(ready=True)

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.probes: list[TokenizeRequest] = []
        self.is_unstable = False
        self.going: list[asyncio.Event] = []
        self.cancelled: list[str] = []
        self.error: RequestError | None = None
        self.finish = Finish("length")
        self.cached = 0

    async def tokenize(self, request: TokenizeRequest) -> list[int]:
        """A template without any surprise, of one token for each character."""
        self.probes.append(request)
        assert request.messages is not None
        written = "".join(f"<{each.role}>{each.content}</>" for each in request.messages)
        if self.is_unstable:
            written = f"{len(written)} characters: {written}"
        return [ord(character) for character in written]

    async def submit(self, request: Request) -> Any:
        self.requests.append(request)
        if self.error is not None:
            raise self.error
        event, text = asyncio.Event(), request.text or "x" * 4 * len(request.input_ids or ())
        self.going.append(event)

        async def result() -> GenerateOutput:
            await event.wait()
            told: dict[str, Any] = {
                "finish": self.finish,
                "cached_tokens": self.cached,
                "queued_s": 0.0,
            }
            return GenerateOutput(len(text) // 4, rid="r", **told)

        async def aclose() -> None:
            if not event.is_set():
                self.cancelled.append(text)

        return SimpleNamespace(result=result, aclose=aclose)


class Chain:
    """A producer that runs, and calls that wait for it."""

    def __init__(self, *consumers: Call, gets: int | None = None, **fields: Any) -> None:
        self.driver, self.client = Driver(), Client()
        client: Any = self.client
        hints = self.core.graph.objectives.hints
        self.ahead = Ahead(client, hints, self.core.totals, MAX_AT_ONCE)
        self.session = self.driver.open()
        producer = Call([Text("Write."), Output("a")])
        program = Program(calls=[producer, *consumers], **fields)
        self.ids = self.driver.submit(self.session, program)
        self.driver.get(
            [self.ids[f"b{i}"] for i in range(len(consumers) if gets is None else gets)]
        )
        while self.core.graph.has_work:
            self.core.graph.step()
        started = self.core.next_start()
        if started is None:  # nobody needs the producer
            return
        assert isinstance(started, CallWork)
        self.producer = started
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
    call = chain.core.graph.objectives.hints(chain.work(), 0)
    assert call and call.app and first.hints == replace(call, is_ahead=True)
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


async def test_texts_without_blanks_have_none() -> None:
    for text in ("x" * 50, ". \n" * 20):
        chain = Chain(consumer())
        for _ in range(30):
            await chain.grow(text)
        assert [request.text for request in chain.client.requests] in ([], ["Go on:"])
        await chain.ahead.close()


CHAT = Call(
    turns=[
        Turn("system", [Text("Be brief.")]),
        Turn("user", [Text("Sum up: "), Input("a")]),
        Turn("assistant", [Output("b0")]),
    ]
)


async def test_a_chat_is_computed_up_to_what_no_further_text_changes() -> None:
    chain = Chain(CHAT)
    text = ""
    for _ in range(30):
        await chain.grow(WORDS)
        text += WORDS
        await chain.let_go()
    asked = ["".join(map(chr, request.input_ids or ())) for request in chain.client.requests]
    assert len(asked) >= 4 and all(request.text is None for request in chain.client.requests)
    whole = f"<system>Be brief.</><user>Sum up: {text}"
    for before, after in zip(["", *asked], asked, strict=False):
        assert whole.startswith(after) and len(after) >= len(before) + MIN_TOKENS
    assert len(whole) - len(asked[-1]) < 2 * 4 * MIN_TOKENS
    await chain.ahead.close()


async def test_of_a_template_that_depends_on_what_follows_nothing_is_computed() -> None:
    chain = Chain(CHAT)
    chain.client.is_unstable = True
    for _ in range(30):
        await chain.grow(WORDS)
        await chain.let_go()
    assert len(chain.client.probes) == 2 and not chain.client.requests
    await chain.ahead.close()


async def test_the_head_of_a_call_is_computed_as_soon_as_its_producer_begins() -> None:
    chain = Chain(consumer(head=WORDS * 20), consumer(1, head="Short: "))
    chain.ahead.began(chain.producer)
    await chain.rest()
    assert [request.text for request in chain.client.requests] == [(WORDS * 20)[:-1]]
    await chain.let_go()
    await chain.end()
    assert chain.core.totals[AHEAD_TOKENS] == len((WORDS * 20)[:-1]) // 4
    assert chain.core.totals[WASTED_TOKENS] == 0


@pytest.mark.parametrize("is_near", [False, True])
async def test_a_call_that_waits_for_a_client_has_its_head_computed(is_near: bool) -> None:
    """One that waits for what has not begun does not."""
    later = Call([Text("Go."), Input("x"), Output("c")])
    head = Call([Text(WORDS * 20), Input("x" if is_near else "c"), Output("b0")])
    chain = Chain(head, later, gets=1, vars={"x": None})
    while chain.core.graph.waiting:
        chain.ahead.waits(chain.core.graph.waiting.popleft())
    await chain.rest()
    assert len(chain.client.requests) == is_near
    await chain.ahead.close()


async def test_what_is_computed_for_a_call_that_never_begins_is_wasted() -> None:
    chain = Chain(consumer(head=WORDS * 20))
    await chain.grow("x")
    await chain.let_go()
    chain.driver.cancel(chain.ids["b0"])
    chain.ahead.settle()
    assert chain.core.totals[WASTED_TOKENS] == len((WORDS * 20)[:-1]) // 4 > 0


async def test_what_a_request_had_computed_that_was_ended_for_others_is_counted_with_the_next() -> (
    None
):
    chain = Chain(consumer(head=WORDS * 20))
    chain.client.finish, chain.client.cached = Finish("abort"), 10
    await chain.grow("x")
    await chain.let_go()
    assert chain.core.totals[AHEAD_TOKENS] == 0
    chain.client.finish, chain.client.cached = Finish("length"), 74
    chain.ahead._again(chain.work())
    await chain.rest()
    await chain.let_go()
    assert chain.core.totals[AHEAD_TOKENS] == len((WORDS * 20)[:-1]) // 4 - 10
    await chain.ahead.close()


async def test_a_text_grows_through_transforms() -> None:
    for transform in (
        Transform("t", Strip("a")),
        Transform("t", Join(["a", "later"], " and ")),
        Transform("t", Format("It says: {it}.", {"it": "a"})),
    ):
        reader = Call([Text("Go on: "), Input("t"), Output("b0")])
        chain = Chain(reader, vars={"later": None}, transforms=[transform])
        for _ in range(12):
            await chain.grow(WORDS)
            await chain.let_go()
        assert len(chain.client.requests) >= 2
        chain.core.graph.finish(chain.var, None)
        if isinstance(transform.op, Join):
            chain.driver.set(chain.ids["later"], "done")
        while chain.core.graph.has_work:
            chain.core.graph.step()
        whole = request_of(chain.work(), 0).text or ""
        assert all(whole.startswith(f"{each.text} ") for each in chain.client.requests)
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
                assert text.startswith(begun.text + " ") and not begun.text[-1].isspace()
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


def test_a_known_text_is_one_that_the_whole_text_begins_with() -> None:
    """Whatever the transform is, and in whatever order its inputs come."""
    rng = random.Random(2)
    ops: list[Op] = [
        Concat(["x", "y"]),
        Join(["x", "y", "x"], "--"),
        Format("{{{a}}} and {b}", {"a": "y", "b": "x"}),
        Strip("x"),
        Strip("y", "ab"),
        Split("x", "--", 1),
        Truncate("y", chars=7),
        Truncate("x", chars=4, keep="end"),
        Split("x", "--", -1),
        Majority(["x", "y"]),
    ]
    outer_ops: list[Op] = [Strip("t"), Concat(["t"])]
    num_known = 0
    for _ in range(200):
        driver, inner = Driver(), rng.choice(ops)
        outer = rng.choice(outer_ops)
        transforms = [Transform("t", inner), Transform("u", outer)]
        calls = [Call([Text("Write."), Output(name)]) for name in "xy"]
        ids = driver.submit(driver.open(), Program(calls=calls, transforms=transforms))
        driver.get([ids["u"]])
        core, seen = driver.core, list[str]()
        var = core._vars[ids["u"]]
        made = {}
        while core.graph.has_work:
            core.graph.step()
        while (work := core.next_start()) is not None:
            assert core.graph.runs(work.outputs[0])
            made[work.outputs[0]] = rng.randrange(1, 6)
        while made:
            source = rng.choice(list(made))
            made[source] -= 1
            if made[source]:
                assert core.graph.grow(source, rng.choice(["a b", " ", "--", "-", "b ü", "\n"]))
            else:
                del made[source]
                core.graph.finish(source, None)
            while core.graph.has_work:
                core.graph.step()
            if not var.has_ended:
                seen.append(known_text(var))
        num_known += any(seen)
        assert var.state == "failed" or all(var.text.startswith(each) for each in seen)
    assert num_known > 60
