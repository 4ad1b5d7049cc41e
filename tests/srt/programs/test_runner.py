"""How calls are run: their requests, when one is made again, and what ends them."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from srt.answers.reasoning import THINK
from srt.client.generation import GenerateOutput, Request, TokenizeRequest
from srt.programs.answers import ChatAnswers
from srt.programs.core import Core
from srt.programs.limits import MAX_TEXT_BYTES
from srt.programs.runner import Runner
from srt.wire.errors import (
    BAD_REQUEST,
    CONFLICT,
    OVERLOADED,
    RATE_LIMITED,
    RESTARTING,
    RequestError,
    RingError,
)
from srt.wire.messages import ChatOptions, Finish
from srt.wire.program_messages import GetVars, OpenSession, ReadVar, SubmitProgram
from srt.wire.programs import (
    Call,
    Input,
    Output,
    Program,
    Segment,
    Text,
    Transform,
    Truncate,
    Turn,
    VarInfo,
)
from srt.wire.sampling import SamplingParams
from tests.waiting import SOON_S

Step = str | RequestError | Finish  # a piece of text, a failure, or the end


class Generation:
    """A request that goes through `steps`, one each time that its reader waits."""

    opens_reasoning = closes_reasoning = False

    def __init__(self, steps: list[Step]) -> None:
        self.steps: asyncio.Queue[Step] = asyncio.Queue()
        for step in steps:
            self.steps.put_nowait(step)
        self.text = ""
        self.error: RequestError | None = None
        self.finish: Finish | None = None
        self.is_closed = False

    @property
    def has_ended(self) -> bool:
        return self.error is not None or self.finish is not None

    async def until_changed(self) -> None:
        step: Any = await self.steps.get()
        if isinstance(step, str):
            self.text += step
        elif isinstance(step, Finish):
            self.finish = step
        else:
            self.error = step
        await asyncio.sleep(0)

    async def result(self) -> GenerateOutput:
        if self.error is not None:
            raise self.error
        return GenerateOutput(2, 1, 1, rid="r", text=self.text, output_ids=[1], finish=self.finish)

    async def aclose(self) -> None:
        self.is_closed = True


class Client:
    """Answers each request with the next of `answers`."""

    ring = SimpleNamespace(ready=True)

    def __init__(self, answers: list[list[Step] | RequestError]) -> None:
        self._answers = [*answers]
        self.requests: list[Request] = []
        self.generations: list[Generation] = []

    async def submit(self, request: Request) -> Generation:
        self.requests.append(request)
        answer = self._answers.pop(0)
        if isinstance(answer, RequestError):
            raise answer
        self.generations.append(Generation(answer))
        return self.generations[-1]

    async def tokenize(self, request: TokenizeRequest) -> list[int]:
        answer = self._answers.pop(0)
        if isinstance(answer, RequestError):
            raise answer
        return [*(request.text or "").encode()]


class Bench:
    """A core and a runner on a fake client, without a process around them."""

    def __init__(self, *answers: list[Step] | RequestError, template: str = "") -> None:
        self.client, self.core = Client([*answers]), Core(8, 8)
        chat = ChatAnswers("auto", template)

        async def read_chats() -> ChatAnswers:
            return chat

        client: Any = self.client
        self.runner = Runner(self.core, client, read_chats, self._cut, self.work)
        self._last = 0
        self.session = self.ask(OpenSession).session.id

    async def _cut(self, op: Truncate, ids: list[int]) -> str:
        return "".join(map(chr, ids[: op.tokens]))

    def ask(self, kind: Callable[..., Any], *args: Any) -> Any:
        self._last += 1
        self.core.handle(b"c", kind(str(self._last), *args), 0.0)
        answer = self.core.answers[-1][1]
        self.work()
        return answer

    def work(self) -> None:
        while self.core.graph.has_work:
            self.core.graph.step()
        while self.core.stops:
            self.runner.stop(self.core.stops.popleft())
        while (work := self.core.next_start()) is not None:
            self.runner.start(work)

    def submit(self, *calls: Call) -> dict[str, str]:
        return self.submit_all(Program(calls=[*calls], eager=True))

    def submit_all(self, program: Program) -> dict[str, str]:
        ids: dict[str, str] = self.ask(SubmitProgram, self.session, program).vars
        return ids

    def read(self, var: str) -> VarInfo:
        info: VarInfo = self.ask(ReadVar, var).vars[0]
        return info

    async def end_of(self, var: str) -> VarInfo:
        async with asyncio.timeout(SOON_S):
            while not self.core._vars[var].has_ended:
                await asyncio.sleep(0.001)
        return self.read(var)


LOST = RingError("a part was lost")
END = Finish("stop")


def call(retries: int = 2, default: str | None = None) -> Call:
    return Call([Text("x"), Output("a", default=default)], retries=retries)


async def test_a_loss_is_retried_while_nobody_has_seen_a_text() -> None:
    bench = Bench(LOST, ["te", LOST], ["text", END])
    var = await bench.end_of(bench.submit(call())["a"])
    assert (var.state, var.text) == ("ready", "text")
    assert var.meta is not None and var.meta.attempts == 3
    assert all(generation.is_closed for generation in bench.client.generations)
    assert bench.core.counts()["calls.running"] == 0


async def test_each_request_has_hints() -> None:
    bench = Bench(["x", LOST], ["x", END], ["y", END])
    ids = bench.submit(Call([Output("a"), Output("b")]))
    await bench.end_of(ids["b"])
    hints = [request.hints for request in bench.client.requests]
    assert [each and each.depth for each in hints] == [1, 1, 0]
    assert len({each and each.app for each in hints}) == 1


async def test_who_works_ahead_hears_what_grows_and_what_has_changed() -> None:
    heard = list[str]()
    bench = Bench(["te", "xt", END])
    ahead: Any = SimpleNamespace(
        grew=lambda var: heard.append(var.text),
        settle=lambda: heard.append("settle"),
        began=lambda work: heard.append("began"),
        waits=lambda work: heard.append("waits"),
    )
    bench.runner._ahead = ahead
    later = Call([Input("a"), Output("b")])
    bench.submit_all(Program(calls=[call(), later], eager=True))
    async with asyncio.timeout(SOON_S):
        while "text" not in heard:
            await asyncio.sleep(0)
    # Not before the request was admitted.
    assert list(dict.fromkeys(heard)) == ["began", "te", "text"]
    bench.runner.settle()
    assert heard[-2:] == ["settle", "waits"]
    bench.runner.settle()
    assert heard[-1] == "settle"


async def test_retries_have_an_end() -> None:
    bench = Bench(LOST, LOST)
    var = await bench.end_of(bench.submit(call(retries=1))["a"])
    assert var.state == "failed" and var.error == LOST.info


async def test_an_error_of_the_request_is_not_retried() -> None:
    bench = Bench(RequestError("no", at="regex", code=BAD_REQUEST))
    var = await bench.end_of(bench.submit(call())["a"])
    assert var.state == "failed" and var.error is not None and var.error.param == "regex"


async def test_what_was_told_is_not_made_again() -> None:
    bench = Bench(["te", "xt"], ["other", END])
    ids = bench.submit(call(default="default"))
    bench.ask(GetVars, [ids["a"]], "", True)
    while bench.core._vars[ids["a"]].text != "text":
        await asyncio.sleep(0.001)
    bench.core.gets.tell(0.0)
    bench.client.generations[0].steps.put_nowait(LOST)
    var = await bench.end_of(ids["a"])
    assert (var.state, var.text) == ("failed", "text") and var.error == LOST.info
    assert len(bench.client.requests) == 1 and bench.client.generations[0].is_closed


async def test_a_full_ring_is_asked_again_without_end_of_retries() -> None:
    full = RequestError("full", code=OVERLOADED, retryable=True)
    limited = RequestError("60 a minute", code=RATE_LIMITED, retryable=True)
    bench = Bench(full, limited, full, limited, ["text", END])
    var = await bench.end_of(bench.submit(call(retries=0))["a"])
    assert var.state == "ready" and var.meta is not None and var.meta.attempts == 1


async def test_patience_begins_when_the_ring_cannot_take_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request may have run for longer before that."""
    monkeypatch.setattr("srt.programs.runner.PATIENCE_S", 0.2)
    bench = Bench([], RingError("starts", RESTARTING), ["text", END])
    ids = bench.submit(call())
    await asyncio.sleep(0.3)
    bench.client.generations[0].steps.put_nowait(LOST)
    assert (await bench.end_of(ids["a"])).text == "text"


async def test_patience_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("srt.programs.runner.PATIENCE_S", 0.1)
    full = RequestError("full", code=OVERLOADED, retryable=True)
    bench = Bench(*[full] * 9)
    var = await bench.end_of(bench.submit(call())["a"])
    assert var.state == "failed" and var.error == full.info


@pytest.mark.parametrize("losses", [2, 3])
async def test_a_truncation_in_tokens_survives_losses(losses: int) -> None:
    bench = Bench(*[LOST] * losses, [])
    cut = Transform("cut", Truncate("v", tokens=2))
    ids = bench.submit_all(Program(vars={"v": "abc"}, transforms=[cut], eager=True))
    var = await bench.end_of(ids["cut"])
    assert (var.state, var.text) == (("ready", "ab") if losses == 2 else ("failed", ""))


async def test_an_abort_is_a_failure() -> None:
    bench = Bench(["te", Finish("abort")])
    var = await bench.end_of(bench.submit(call())["a"])
    assert var.state == "failed" and var.error is not None and var.error.code == CONFLICT


async def test_a_cancelled_call_closes_its_request() -> None:
    bench = Bench(["te"])
    ids = bench.submit(call())
    while not bench.core._vars[ids["a"]].text:
        await asyncio.sleep(0.001)
    bench.core.graph.cancel(bench.core._vars[ids["a"]])
    bench.work()
    while bench.core.counts()["calls.running"]:
        await asyncio.sleep(0.001)
    assert bench.client.generations[0].is_closed
    assert bench.read(ids["a"]).state == "cancelled"


async def test_later_outputs_go_on_the_text() -> None:
    bench = Bench(["one", END], ["two", END])
    both = Call([Text("x"), Output("a"), Text("y"), Output("b")])
    ids = bench.submit(both)
    await bench.end_of(ids["b"])
    assert [request.text for request in bench.client.requests] == ["x", "xoney"]
    assert bench.client.requests[1].literal_spans == [(1, 4)]


@pytest.mark.parametrize(
    ("template", "text", "content"),
    [
        ("<think>", "<think>Hm, so.</think>\n\nYes.", "Yes."),
        ("[THINK]", "[THINK]Hm.[/THINK]Yes.", "Yes."),
        ("", "<think>Hm.</think>Yes.", "<think>Hm.</think>Yes."),
        (
            "<|channel|>analysis",
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
            "Yes.",
        ),
    ],
)
async def test_a_chats_output_is_its_content(template: str, text: str, content: str) -> None:
    """Without the reasoning, however the text is cut; a constraint waits for its end."""
    for cut in range(len(text)):
        bench = Bench([text[:cut], text[cut:], END], template=template)
        turns = [Turn("user", [Text("x")])]
        output = Output("a", SamplingParams(regex="Yes."))
        ids = bench.submit(Call(turns=[*turns, Turn("assistant", [output])]))
        var = await bench.end_of(ids["a"])
        assert (var.state, var.text) == ("ready", content)
        (request,) = bench.client.requests
        assert bool(request.sampling.constraint_after) == bool(template)


async def test_a_text_that_cannot_grow_leaves_the_call_to_go_on_with_its_default() -> None:
    bench = Bench(["x" * (MAX_TEXT_BYTES + 1)], ["text", END])
    outputs = Output("a", default="default"), Output("b")
    ids = bench.submit(Call([Text("x"), outputs[0], Text("y"), outputs[1]]))
    assert (await bench.end_of(ids["b"])).text == "text"
    assert [request.text for request in bench.client.requests] == ["x", "xdefaulty"]
    assert bench.client.generations[0].is_closed and bench.core.counts()["calls.pending"] == 0


@pytest.mark.parametrize(
    ("begun", "after"),
    [("", "</think>"), (" \n", "</think>"), ("<think>\nSo", "</think>"), ("The answer: ", "")],
)
async def test_a_constraint_waits_for_reasoning_that_a_message_has_begun(
    begun: str, after: str
) -> None:
    """As it does in /v1/chat/completions."""
    bench = Bench(["Yes.", END], template="<think>")
    content: list[Segment] = [Text(begun), Output("a", SamplingParams(regex="Yes."))]
    turns = [Turn("user", [Text("x")]), Turn("assistant", content)]
    await bench.end_of(bench.submit(Call(turns=turns))["a"])
    (request,) = bench.client.requests
    assert request.sampling.constraint_after == after
    assert request.chat.continue_final == bool(begun)


def test_what_a_constraint_waits_for() -> None:
    """A turn that goes on inside its reasoning ends it first, whatever the switch says."""
    answers, off = ChatAnswers("think", None), ChatOptions('{"enable_thinking": false}')
    for begun, expected in (("", None), ("<think>a", THINK), ("<think>a</think>", None)):
        assert answers.before_answer(begun, off) == expected
    assert answers.before_answer("", ChatOptions()) == THINK
