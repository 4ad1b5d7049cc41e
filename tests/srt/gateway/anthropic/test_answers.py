"""The answers of /v1/messages, whole and as events, and how Anthropic's package adds these up."""

import asyncio
import random
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import msgspec
import pytest

from srt.gateway.anthropic.answers import MessageWriter, message_events
from srt.gateway.anthropic.inputs_cut import input_of
from srt.gateway.openai.chat import AnswerReading
from srt.wire.errors import RequestError
from srt.wire.messages import Finish
from tests.fakes import FakeClient
from tests.srt.gateway.anthropic.package import anthropic
from tests.srt.gateway.anthropic.setup import BODY, CALLED, ROUTE, WEATHER, answer, send
from tests.srt.gateway.setup import in_process, served

TOOLS = {"tools": [WEATHER]}
THINKS: dict[str, Any] = {"reasoning": True, "template": "<think>"}
THOUGHT = ("<think>\nhm", ", so\n</think>\n\n")


def client_of(*pieces: str) -> FakeClient:
    client = FakeClient(pieces)
    client.cached_tokens = 1
    return client


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream, each under the name of its type."""
    events = []
    for frame in text.removesuffix("\n\n").split("\n\n"):
        name, _, data = frame.partition("\n")
        events.append(msgspec.json.decode(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


async def test_a_text() -> None:
    message = await answer({}, client_of("Hello, ", "wörld"))
    assert message == {
        "id": "msg_r0",
        "type": "message",
        "role": "assistant",
        "model": "tiny",
        "content": [{"type": "text", "text": "Hello, wörld"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "stop_details": None,
        "usage": {
            "input_tokens": 0,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 1,
            "output_tokens": 2,
        },
    }


async def test_thinking_text_and_calls() -> None:
    client = client_of(*THOUGHT, "I look. ", *CALLED, "\n", *CALLED)
    message = await answer({**TOOLS, "max_tokens": 99}, client, **THINKS)
    ids = [block.pop("id") for block in message["content"][2:]]
    assert len(set(ids)) == 2 and all(each.startswith("toolu_") for each in ids)
    call = {"type": "tool_use", "name": "weather", "input": {"city": "Rome"}}
    assert message["content"][0] == {"type": "thinking", "thinking": "hm, so", "signature": "srt"}
    assert message["content"][1]["text"].strip() == "I look."
    assert message["content"][2:] == [call, call]
    assert message["stop_reason"] == "tool_use"


async def test_thinking_can_be_left_out() -> None:
    shown = {"thinking": {"type": "adaptive", "display": "omitted"}}
    message = await answer(shown, client_of(*THOUGHT, "Yes"), **THINKS)
    assert [block["type"] for block in message["content"]] == ["text"]


@pytest.mark.parametrize(
    ("finish", "reason", "sequence"),
    [
        (Finish("stop", matched=2), "end_turn", None),
        (Finish("stop", matched="END"), "stop_sequence", "END"),
        (Finish("length"), "max_tokens", None),
        (Finish("timeout"), "max_tokens", None),
        (Finish("abort"), "max_tokens", None),
    ],
)
async def test_reasons(finish: Finish, reason: str, sequence: str | None) -> None:
    client = client_of("a")
    client.finish = finish
    message = await answer({}, client)
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)
    full = await answer({"max_tokens": 2048}, client)
    is_full = finish.type == "length"
    assert full["stop_reason"] == ("model_context_window_exceeded" if is_full else reason)


async def test_a_message_is_never_empty() -> None:
    client = client_of("")
    assert (await answer({}, client))["content"] == [{"type": "text", "text": ""}]
    kinds = [event["type"] for event in events_of((await send({"stream": True}, client)).text)]
    assert kinds[2:4] == ["content_block_start", "content_block_stop"]


async def test_the_events_in_order() -> None:
    client = client_of(*THOUGHT, "Yes. ", *CALLED)
    body = {**TOOLS, "max_tokens": 99, "stream": True}
    response = await send(body, client, **THINKS)
    assert response.headers["request-id"] == "msg_r0"
    events = events_of(response.text)
    start, ping, *middle, delta, stop = events
    assert start["message"]["content"] == [] and start["message"]["stop_reason"] is None
    assert start["message"]["usage"]["cache_read_input_tokens"] == 1
    assert (ping, stop) == ({"type": "ping"}, {"type": "message_stop"})
    assert delta["delta"]["stop_reason"] == "tool_use"
    assert delta["usage"]["output_tokens"] == 6
    kinds = [event["content_block"]["type"] for event in middle if "content_block" in event]
    assert kinds == ["thinking", "text", "tool_use"]
    index = 0
    for event in middle:
        assert event["index"] == index
        index += event["type"] == "content_block_stop"
    deltas = [event["delta"] for event in middle if "delta" in event]
    assert [d["type"] for d in deltas if d["type"] == "signature_delta"] == ["signature_delta"]
    inputs = [d["partial_json"] for d in deltas if d["type"] == "input_json_delta"]
    assert msgspec.json.decode("".join(inputs)) == {"city": "Rome"}


@pytest.mark.parametrize("stream", [False, True])
async def test_the_header_of_the_id_holds_any_text(stream: bool) -> None:
    """A line break, or what HTTP has no bytes for, would break the answer."""
    async with served(FakeClient()) as server, httpx2.AsyncClient() as http:
        for rid, shown in (
            ("a_b-1.c", "a_b-1.c"),
            ("a\r\nb: c", "a%0D%0Ab%3A%20c"),
            ("🙂", "%F0%9F%99%82"),
        ):
            response = await http.post(
                server.url + ROUTE, json=BODY | {"rid": rid, "stream": stream}
            )
            assert response.status_code == 200 and response.headers["request-id"] == shown


async def test_a_call_without_arguments_has_an_object() -> None:
    client = client_of('<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>')
    deltas = [
        e.get("delta", {}) for e in events_of((await send({**TOOLS, "stream": True}, client)).text)
    ]
    assert "".join(d.get("partial_json", "") for d in deltas) == "{}"
    assert (await answer(TOOLS, client))["content"][0]["input"] == {}


async def test_a_failure_is_the_last_event() -> None:
    client = client_of("a", "b")
    client.error = RequestError("it broke", code="unavailable")
    events = events_of((await send({"stream": True}, client)).text)
    assert events[-1]["type"] == "error"
    assert events[-1]["error"]["type"] == "api_error"
    assert events[-1]["error"]["message"] == "it broke"


async def test_pings_while_a_prompt_is_computed() -> None:
    """The message begins before its first token, and what was cached comes at its end."""
    client = client_of("a")
    client.hold.clear()
    output: list[dict[str, Any]] = []

    class Batch:
        async def snapshots(self) -> Any:
            async for snapshot in client.generations[0]:
                yield 0, snapshot

    async with in_process(client) as http:
        sent = asyncio.ensure_future(http.post(ROUTE, json=BODY))
        await client.wait_submitted(1)
        writer = MessageWriter("tiny", AnswerReading(), client.generations[0])
        async for event in message_events(Batch(), writer, ping_s=0.001):  # type: ignore[arg-type]
            output.append(event)
            if len(output) == 4:
                client.hold.set()
        await sent
    kinds = [event["type"] for event in output]
    assert kinds[:4] == ["message_start", "ping", "ping", "ping"]
    assert kinds[-1] == "message_stop" and kinds.count("message_start") == 1
    assert output[0]["message"].usage.input_tokens == 1
    assert output[-2]["usage"].cache_read_input_tokens == 1


async def test_a_client_that_leaves_ends_its_request() -> None:
    client = client_of("a", "b")
    client.hold.clear()
    async with (
        served(client) as server,
        httpx2.AsyncClient() as http,
        http.stream("POST", server.url + ROUTE, json=BODY | {"stream": True}) as response,
    ):
        async for line in response.aiter_lines():
            if "text_delta" in line:
                break
        await response.aclose()
        await client.wait_aborted(1)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1, "b": "x', {"a": 1}),
        ('{"a": [1, {"b": "}"}, {"c"', {"a": [1, {"b": "}"}, {}]}),
        ('{"a": "\\"', {}),
        ('{"a": tru', {}),
        ('{"a": {"b": 12', {"a": {"b": 12}}),
        ('{"a"', {}),
        ("", {}),
        ("[1", {}),
        ('{"a": 1}', {"a": 1}),
    ],
)
def test_what_is_complete_of_an_input(text: str, value: Any) -> None:
    assert input_of(text) == value


# ---- streams that are cut anywhere ---------------------------------------------------------------

PARTS = [
    "Let me see. ",
    "wörld 🙂\r\n\n",
    '<tool_call>\n{"name": "weather", "arguments": {"c": "ö\\"", "n": [{"a": 1}]}}\n</tool_call>',
    '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>\n',
    "<tool_call> is no call ",
    "data: x\n\nevent: y\n",
]


def pieces_of(text: str, rng: random.Random) -> list[str]:
    """`text` in random pieces, as a server's tokens would be."""
    count = rng.randrange(min(len(text), 12) + 1)
    cuts = sorted(rng.sample(range(1, max(len(text), 2)), min(count, max(len(text) - 1, 0))))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def chunks_of(data: bytes, rng: random.Random) -> Iterator[bytes]:
    """`data` as a network delivers it."""
    at = 0
    while at < len(data):
        size = rng.choice((1, 2, 7, 50, 400))
        yield data[at : at + size]
        at += size


class Package:
    """The unmodified package, whose server sends the bytes of `stream` in random packets."""

    def __init__(self, rng: random.Random) -> None:
        self.stream = b""
        self._rng = rng
        http = httpx2.Client(transport=httpx2.MockTransport(self._reply))
        self._api = anthropic.Anthropic(base_url="http://x", api_key="any", http_client=http)

    def _reply(self, _: httpx2.Request) -> httpx2.Response:
        headers = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=headers, content=chunks_of(self.stream, self._rng))

    def added_up(self, stream: bytes) -> Any:
        """What it makes of the bytes of a stream."""
        self.stream = stream
        with self._api.messages.stream(**BODY) as events:
            return events.get_final_message()

    def close(self) -> None:
        self._api.close()


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    """A message without what differs from answer to answer."""
    blocks = [{k: v for k, v in block.items() if k != "id"} for block in message["content"]]
    return message | {"id": "", "content": blocks}


async def check_streams(seed: int, count: int) -> None:
    """Random texts, each in random tokens and in random packets."""
    rng = random.Random(seed)
    async with in_process(FakeClient(), **THINKS) as http, AsyncExitStack() as stack:
        package = Package(rng)
        stack.callback(package.close)
        gateway = http._transport.app.gateway  # type: ignore[attr-defined]
        for _ in range(count):
            thought = rng.choice(["", "<think>\nwhy\n not?</think>\n", "<think>never ends "])
            text = thought + "".join(rng.choices(PARTS, k=rng.randrange(4)))
            finish = rng.choice([Finish("stop", matched=2), Finish("length"), Finish("stop", "x")])
            if finish.type == "length":
                text = text[: rng.randrange(len(text) + 1)]
            client = FakeClient(pieces_of(text, rng))
            client.finish, client.cached_tokens = finish, 1
            gateway.client._client = client
            body = BODY | TOOLS | {"max_tokens": 99}
            whole = await http.post(ROUTE, json=body)
            stream = await http.post(ROUTE, json=body | {"stream": True})
            message = package.added_up(stream.content).to_dict()
            assert without_ids(message) == without_ids(whole.json()), (seed, client.pieces)


@pytest.mark.parametrize("seed", range(4))
async def test_cut_anywhere_a_stream_is_the_whole_answer(seed: int) -> None:
    await check_streams(seed, 50)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(4, 44))
async def test_many_streams_cut_anywhere(seed: int) -> None:
    """10,000 in all."""
    await check_streams(seed, 250)
