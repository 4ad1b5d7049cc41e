"""Requests of every kind outlive their scheduler: it is killed, and their answers are the same."""

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

import lang as sgl
from srt.client.face import AsyncClient
from srt.client.many import patiently
from srt.wire.errors import RingError
from srt.wire.programs import Call as ProgramCall
from srt.wire.programs import Output, Program, Text
from srt.wire.sampling import SamplingParams
from tests.e2e.sacrificial import Sacrificial
from tests.e2e.server import Server, running_server
from tests.waiting import SOON_S

SCHEMA = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 12},
        "age_in_years": {"type": "integer", "minimum": 0, "maximum": 120},
        "favourite_colours": {
            "type": "array",
            "items": {"enum": ["red", "green", "blue"]},
            "minItems": 2,
            "maxItems": 4,
        },
    },
    "required": ["first_name", "age_in_years", "favourite_colours"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "register_person", "parameters": SCHEMA}}
CHAT = [{"role": "user", "content": "Register Ada, who is 36 and likes red and blue."}]
GREEDY: dict[str, Any] = {"temperature": 0.0}
SAMPLINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": ("Once upon a time", {"max_new_tokens": 100, "ignore_eos": True}),
    "drawn": ("My name is", {"max_new_tokens": 80, "temperature": 0.9, "seed": 7}),
    "regex": ("A list:\n", {"max_new_tokens": 80, "regex": r"(- [a-z]{3,9}\n){12,30}"}),
    "schema": ("As JSON: ", {"max_new_tokens": 120, "json_schema": SCHEMA}),
    "free, then regex": (
        "I think\n",
        {"max_new_tokens": 90, "regex": "([a-z]{3,9} ){30}", "constraint_after": "."},
    ),
    "penalties": (
        "I think that",
        {"max_new_tokens": 80, "repetition_penalty": 1.2, "frequency_penalty": 0.4},
    ),
    "bias": ("One two", {"max_new_tokens": 80, "logit_bias": {"28": 3.0}}),
    "bad words": ("It was a", {"max_new_tokens": 80, "bad_words": ["the", " and a"]}),
    "stop": ("1, 2, 3,", {"max_new_tokens": 200, "stop": [" 36"]}),
    "minimum": ("Hello", {"max_new_tokens": 90, "min_new_tokens": 60}),
    "healed": ("The URL is http:", {"max_new_tokens": 60, "token_healing": True}),
}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "samples": ("completions", {"prompt": "Yes, and", "n": 4, "temperature": 0.8, "logprobs": 2}),
    "echo": ("completions", {"prompt": "Tell me more", "echo": True}),
    "chat": ("chat/completions", {"messages": CHAT, "logprobs": True}),
    "tools": (
        "chat/completions",
        {"messages": CHAT, "tools": [TOOL], "tool_choice": "required"},
    ),
}
Call = Callable[[], Coroutine[Any, Any, Any]]


@pytest.fixture(scope="module")
def undisturbed(sacrificial_server: Sacrificial) -> Any:
    """The answers of a round in which nothing happens."""
    return asyncio.run(round_of(sacrificial_server.whole(), nothing))


@sgl.function
def program(s: Any) -> None:
    s += "A story of three friends.\n"
    forks = s.fork(2)
    forks += lambda i: f"Part {i}:" + sgl.gen("part", max_tokens=60, temperature=0.0)
    for fork in forks:
        s += fork["part"]
    s += "\nThe best friend is " + sgl.select("best", ["a dog", "a cat", "a horse"])
    s += "\nIn digits: " + sgl.gen(
        "digits", regex="([0-9]{3} ){20}", max_tokens=90, temperature=0.0
    )


class Calls:
    """The requests of a round, by name: each call gives what must not change."""

    def __init__(self, server: Server, http: httpx2.AsyncClient, client: AsyncClient) -> None:
        self._server, self._http, self._client = server, http, client

    def all(self) -> dict[str, Call]:
        calls: dict[str, Call] = {"program": self._program, "ring, scores": self._scores}
        for number, (name, (text, sampling)) in enumerate(SAMPLINGS.items()):
            fields = {"text": text, "sampling": GREEDY | sampling, "stream": number % 2 == 0}
            calls[f"ring, {name}"] = self._generation(fields)
        calls["ring, log-probabilities"] = self._generation(
            {
                "text": "A long prompt to be scored: " + "one two three " * 60,
                "sampling": GREEDY | {"max_new_tokens": 60, "json_schema": SCHEMA},
                "stream": True,
                "return_logprob": True,
                "logprob_start_len": 0,
                "top_logprobs": 3,
            }
        )
        for name, (path, body) in BODIES.items():
            body = {"max_tokens": 60, "temperature": 0.0, "seed": 3, **body}
            calls[f"http, {name}"] = self._answer(f"/v1/{path}", body)
            calls[f"http, {name}, streamed"] = self._stream(f"/v1/{path}", body | {"stream": True})
        return calls

    def _generation(self, fields: dict[str, Any]) -> Call:
        async def call() -> Any:
            output = await (await patiently(lambda: self._client.submit(**fields))).result()
            known = msgspec.structs.asdict(output)
            times = ("queued_s", "ttft_s", "decode_s")
            drafts = ("verified", "drafted", "accepted", "retractions")
            for name in ("rid", "delta", "cached_tokens", "routed_replica", *drafts, *times):
                del known[name]
            if output.finish is not None:
                known["finish"] = msgspec.structs.replace(output.finish, steered=0)
            return known

        return call

    async def _scores(self) -> Any:
        continuations = [f" is the number {i}" * 30 for i in range(6)]
        scores = await patiently(lambda: self._client.score("What follows", continuations))
        return [(each.token_ids, each.logprobs) for each in scores.choices]

    async def _program(self) -> Any:
        backend = sgl.RuntimeEndpoint(self._server.url)
        try:
            state = await asyncio.to_thread(program.run, backend=backend)
            assert state.error() is None
            return [state.text(), state["best"], state["digits"]]
        finally:
            await asyncio.to_thread(backend.close)

    def _answer(self, path: str, body: dict[str, Any]) -> Call:
        async def call() -> Any:
            answer = await self._http.post(path, json=body)
            while is_refused(answer, answer.content):
                await asyncio.sleep(0.1)
                answer = await self._http.post(path, json=body)
            assert answer.status_code == 200, answer.text
            return unchanging(answer.json())

        return call

    def _stream(self, path: str, body: dict[str, Any]) -> Call:
        async def call() -> Any:
            """The deltas put together: where the stream is cut into them depends on the time."""
            texts: dict[str, str] = {}
            async with self._http.stream("POST", path, json=body) as answer:
                if is_refused(answer, await answer.aread() if answer.is_error else b""):
                    await asyncio.sleep(0.1)
                    return await call()
                assert answer.status_code == 200
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        for choice in json.loads(line[6:])["choices"]:
                            collect(f"{choice.pop('index')}", choice, texts)
            return texts

        return call


def is_refused(answer: httpx2.Response, content: bytes) -> bool:
    """Whether it came when there was no scheduler, and is to be sent again."""
    return answer.status_code == 503 and json.loads(content)["error"]["code"] == "restarting"


def collect(name: str, value: Any, texts: dict[str, str]) -> None:
    """Append each text in a delta to what came under its name before."""
    if isinstance(value, dict):
        for key, each in value.items():
            if key not in ("id", "index", "steered", "closed"):
                collect(f"{name}.{key}", each, texts)
    elif isinstance(value, list):
        for each in value:
            is_call = isinstance(each, dict) and "function" in each
            collect(f"{name}[{each['index'] if is_call else '*'}]", each, texts)
    elif value is not None:
        texts[name] = texts.get(name, "") + str(value)


def unchanging(value: Any) -> Any:
    """An answer without what differs from one time to the next."""
    if isinstance(value, dict):
        details = ("prompt_tokens_details", "completion_tokens_details")
        volatile = ("id", "created", "steered", "closed", *details)
        return {key: unchanging(each) for key, each in value.items() if key not in volatile}
    return [unchanging(each) for each in value] if isinstance(value, list) else value


async def round_of(server: Server, disturb: Callable[[], Coroutine[Any, Any, None]]) -> Any:
    """The answers of all calls, made together."""
    async with (
        httpx2.AsyncClient(base_url=server.url, timeout=SOON_S) as http,
        AsyncClient(server.ring) as client,
    ):
        calls = Calls(server, http, client).all()
        tasks = [asyncio.ensure_future(call()) for call in calls.values()]
        await disturb()
        return dict(zip(calls, await asyncio.gather(*tasks), strict=True))


async def nothing() -> None:
    """No disturbance."""


async def kill_scheduler(server: Server, steps: int, starting_s: list[float]) -> None:
    """Kill it after so many more steps, if it has that much work, and each of those that follow so
    many seconds after its start; wait for the next one."""
    async with AsyncClient(server.ring) as client, asyncio.timeout(SOON_S):
        first = (await client.stats())["forward_steps_total"]
        while (stats := await client.stats())["forward_steps_total"] < first + steps:
            if stats["num_running_reqs"] == 0 < stats["forward_steps_total"] - first:
                break
            await asyncio.sleep(0.002)
        for wait_s in [0.0, *starting_s]:
            await asyncio.sleep(wait_s)
            before, pid = client._transport.ring.incarnation, server.pids()["scheduler"]
            os.kill(pid, signal.SIGKILL)
            while client._transport.ring.incarnation == before:
                await asyncio.sleep(0.002)
            while server.pids().get("scheduler", pid) == pid:
                await asyncio.sleep(0.002)
        await client._transport.wait_ready()


@pytest.mark.full
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
async def test_killed_in_the_middle(sacrificial: Server, undisturbed: Any, seed: int) -> None:
    await kills(sacrificial, undisturbed, random.Random(seed), rounds=1)


@pytest.mark.slow
async def test_killed_in_the_middle_again_and_again(sacrificial: Server, undisturbed: Any) -> None:
    await kills(sacrificial, undisturbed, random.Random(2), rounds=20)


async def kills(server: Server, expected: Any, rng: random.Random, rounds: int) -> None:
    """Kill the scheduler once or twice in each round, at the first admissions or later, and
    perhaps also the next one while it starts; nobody's answer changes."""
    for _ in range(rounds):

        async def disturb() -> None:
            for _ in range(rng.randint(1, 2)):
                starting_s = [rng.uniform(0.0, 1.0)] if rng.random() < 0.5 else []
                await kill_scheduler(server, rng.choice([0, rng.randint(1, 60)]), starting_s)

        answers = await round_of(server, disturb)
        for name, answer in expected.items():
            assert answers[name] == answer, name
        await asyncio.to_thread(server.wait_idle)


LONG: dict[str, Any] = {
    "max_new_tokens": 600,
    "ignore_eos": True,
    "temperature": 0.0,
    "speculative": "off",
}


async def killed(server: Server, client: AsyncClient, *parts: str) -> None:
    """Kill these parts, and wait until the ring has noticed."""
    before = client._transport.ring
    for part in parts:
        os.kill(server.pids()[part], signal.SIGKILL)
    async with asyncio.timeout(SOON_S):
        while client._transport.ring.incarnation == before.incarnation:
            await asyncio.sleep(0.002)


async def test_a_stream_goes_on_at_the_next_scheduler(sacrificial: Server) -> None:
    """With what it would have been without the loss, token by token."""
    sampling = LONG | {"max_new_tokens": 200}
    async with AsyncClient(sacrificial.ring) as client:
        expected = await client.generate("Once more", sampling=sampling)
        outputs = aiter(await client.submit(text="Once more", sampling=sampling, stream=True))
        seen = [await anext(outputs)]
        await killed(sacrificial, client, "scheduler")
        seen += [output async for output in outputs]
    assert seen[-1].output_ids == expected.output_ids and seen[-1].text == expected.text
    assert "".join(output.delta for output in seen) == expected.text
    await asyncio.to_thread(sacrificial.wait_idle)


TALES = ("Once more", "Twice more", "Thrice more")


@pytest.fixture
def pausable(sacrificial: Server) -> Iterator[Server]:
    yield sacrificial
    httpx2.post(f"{sacrificial.url}/continue_generation")


async def test_a_pause_outlives_a_gateway_and_a_scheduler(pausable: Server) -> None:
    """For a client of the ring, a program's call and one over HTTP: no step before the end of the
    pause, and the texts of no pause."""
    short = GREEDY | {"max_new_tokens": 12, "ignore_eos": True}
    long = short | {"max_new_tokens": 100}
    drawn = {"max_new_tokens": 24, "temperature": 0.9, "seed": 7, "ignore_eos": True}
    output = Output("x", SamplingParams(**short))
    asked = [(TALES[0], long), (TALES[1], short), (TALES[2], short), ("My name is", drawn)]

    async def outlasted(count: int, steps: float) -> None:
        """So many requests wait, and there was no further step."""
        async with asyncio.timeout(SOON_S):
            while (stats := await client.stats())["num_queue_reqs"] < count:
                await asyncio.sleep(0.01)
        assert stats["generation_paused"] == 1 and stats["num_running_reqs"] == 0
        assert stats["forward_steps_total"] == steps

    async with (
        AsyncClient(pausable.ring) as client,
        await client.session() as session,
        httpx2.AsyncClient(base_url=pausable.url, timeout=SOON_S) as http,
    ):
        made = await asyncio.gather(*(client.generate(text, sampling=s) for text, s in asked))
        outputs = aiter(await client.submit(text=TALES[0], sampling=long, stream=True))
        await anext(outputs)
        draw = await client.submit(text="My name is", sampling=drawn)
        for _ in range(2):
            paused = await http.post("/pause_generation", json={"mode": "retract"})
            assert paused.status_code == 200, paused.text
        steps = (await client.stats())["forward_steps_total"]
        assert (await http.post("/flush_cache")).status_code == 200
        program = Program(calls=[ProgramCall([Text(TALES[1]), output])], eager=True)
        ids = await session.submit(program)
        late = await client.submit(text=TALES[2], sampling=short)
        await outlasted(4, steps)
        before = pausable.pids()["gateway"]
        await killed(pausable, client, "gateway", "scheduler")
        await client._transport.wait_ready()
        async with asyncio.timeout(SOON_S):
            while pausable.pids().get("gateway", before) == before:
                await asyncio.sleep(0.01)
        await asyncio.to_thread(pausable.wait_ready)
        body = {"text": TALES[2], "sampling_params": short}
        answer = asyncio.ensure_future(http.post("/generate", json=body))
        await outlasted(5, 0)
        for _ in range(2):
            assert (await http.post("/continue_generation")).status_code == 200
        texts = [[each async for each in outputs][-1].text]
        texts += [var.text for var in (await session.get_all([*ids.values()])).vars]
        texts += [(await late.result()).text, (await draw.result()).text]
        assert texts == [each.text for each in made]
        assert (await answer).json()["text"] == texts[2]
    await asyncio.to_thread(pausable.wait_idle)


@pytest.mark.full
async def test_an_abort_and_a_leave_during_the_pause(sacrificial: Server) -> None:
    async with AsyncClient(sacrificial.ring) as client:
        async with AsyncClient(sacrificial.ring) as leaving:
            gone = aiter(await leaving.submit(text="Once", sampling=LONG, stream=True))
            await anext(gone)
            aborted = await client.submit(text="Twice", sampling=LONG, stream=True, rid="mine")
            outputs = aiter(aborted)
            await anext(outputs)
            kept = await client.submit(text="Thrice", sampling=LONG)
            await killed(sacrificial, client, "scheduler")
            await client.abort("mine")
        output = [output async for output in outputs][-1]
        assert output.finish is not None and output.finish.type == "abort"
        assert output.completion_tokens < 600
        assert (await kept.result()).completion_tokens == 600
    await asyncio.to_thread(sacrificial.wait_idle)


@pytest.mark.full
async def test_both_ends_killed_fail_everything_at_once(sacrificial: Server) -> None:
    async with AsyncClient(sacrificial.ring) as client:
        running = await client.submit(text="Once", sampling=LONG)
        await killed(sacrificial, client, "scheduler", "detokenizer")
        with pytest.raises(RingError):
            await running.result()
        await client._transport.wait_ready()
        short = GREEDY | {"max_new_tokens": 4}
        assert (await client.generate("Once", sampling=short)).completion_tokens == 4
    await asyncio.to_thread(sacrificial.wait_idle)


@pytest.mark.full
async def test_times_go_on_from_the_first_scheduler(sacrificial: Server) -> None:
    """The pause belongs to the time after the first token, which came before it."""
    async with AsyncClient(sacrificial.ring) as client:
        began = time.monotonic()
        outputs = aiter(await client.submit(text="Once more", sampling=LONG, stream=True))
        await anext(outputs)
        seen_s = time.monotonic() - began
        await killed(sacrificial, client, "scheduler")
        *_, last = [output async for output in outputs]
        latency_s = time.monotonic() - began
    assert last.completion_tokens == 600
    queued_s, ttft_s, decode_s = last.queued_s, last.ttft_s, last.decode_s
    assert queued_s is not None and ttft_s is not None and decode_s is not None
    assert 0 <= queued_s <= ttft_s <= seen_s and ttft_s + decode_s <= latency_s


@pytest.mark.full
def test_killed_while_draining(tmp_path: Path) -> None:
    """The request in flight goes on at another scheduler, and the server ends as it should."""

    async def scenario(server: Server) -> None:
        async with AsyncClient(server.ring) as client:
            sampling = LONG | {"max_new_tokens": 1000}
            running = await client.submit(text="Hello", sampling=sampling)
            server.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(SOON_S):
                while not client._transport.ring.draining:
                    await asyncio.sleep(0.002)
            os.kill(server.pids()["scheduler"], signal.SIGKILL)
            assert (await running.result()).completion_tokens == 1000

    with running_server(tmp_path, "--drain-timeout", str(2 * SOON_S)) as server:
        asyncio.run(scenario(server))
        assert server.process.wait(SOON_S) == 0, server.log()
