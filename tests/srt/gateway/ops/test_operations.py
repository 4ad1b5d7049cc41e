"""What the gateway says of the server, the model names that it accepts, and pauses."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from srt.client.generation import Request
from srt.files.model_files import DEFAULT_MODEL, resolve_model
from tests.fakes import READY, FakeClient
from tests.srt.gateway.setup import VOCAB, error_of, in_process
from tests.srt.options.command_lines import parse_args
from tests.waiting import SOON_S

GENERATE = {"text": "a b"}
SCORE = {"text": "a", "continuations": ["b"]}


async def test_health_is_503_until_the_server_was_ready_once() -> None:
    client = FakeClient()
    async with in_process(client) as http:
        for ring in (None, msgspec.structs.replace(READY, ready=False, parts={})):
            client.ring = ring
            early = await http.get("/health")
            assert (early.status_code, early.json()["status"]) == (503, "starting")
            assert "retry-after" in early.headers
        client.ring = READY
        assert (await http.get("/health")).status_code == 200
        client.ring = msgspec.structs.replace(READY, ready=False, reason="a part was lost")
        late = await http.get("/health")
        assert (late.status_code, late.json()["status"]) == (200, "ok")


@pytest.mark.parametrize("path", ["/ready", "/generate"])
async def test_health_knows_of_whoever_found_the_server_ready(path: str) -> None:
    client = FakeClient()
    async with in_process(client) as http:
        client.ring = READY
        body = GENERATE if path == "/generate" else None
        assert (await http.request("POST" if body else "GET", path, json=body)).status_code == 200
        client.ring = msgspec.structs.replace(READY, ready=False, reason="a part was lost")
        assert (await http.get("/health")).status_code == 200


def test_names_of_the_command_line() -> None:
    own = resolve_model(DEFAULT_MODEL).name
    for given, first, names in (
        ([], own, ()),
        (["--served-model-name", "a"], "a", ("a",)),
        (["--served-model-name", "a", "b,c", "a"], "a", ("a", "b", "c")),
        (["--served-model-name", "*"], own, ("*",)),
        (["--served-model-name", "*", "b", "--port", "0"], "b", ("*", "b")),
    ):
        args = parse_args(given)
        assert (args.model_name, args.model_names) == (first, names)


@pytest.mark.parametrize(
    ("names", "served", "refused"),
    [
        (("one", "two"), ("tiny", "one", "two", "/models/tiny.gguf", None), ("three", "*")),
        (("one", "*"), ("tiny", "one", "three", "gpt-4o", None), ()),
    ],
)
async def test_served_names(
    names: tuple[str, ...], served: tuple[str | None, ...], refused: tuple[str, ...]
) -> None:
    async with in_process(FakeClient(), model_names=names, strict_model=True) as http:
        listed = [card["id"] for card in (await http.get("/v1/models")).json()["data"]]
        assert listed == ["tiny", *(name for name in names if name != "*")]
        for name in served:
            body = {"model": name, "prompt": "a"}
            answer = await http.post("/v1/completions", json=body)
            assert (answer.status_code, answer.json()["model"]) == (200, name or "tiny")
            if name and not name.startswith("/"):
                assert (await http.get(f"/v1/models/{name}")).json()["id"] == name
        for name in refused:
            answer = await http.post("/v1/completions", json={"model": name, "prompt": "a"})
            assert (answer.status_code, error_of(answer)["param"]) == (404, "model")


async def test_tokenizer_info() -> None:
    async with in_process(FakeClient(), template="{{ x }}") as http:
        info = (await http.get("/tokenizer_info")).json()
    assert info == {
        "vocab_size": VOCAB.vocab_size,
        "model_max_length": 2048,
        "add_bos_token": False,
        "add_eos_token": False,
        "bos_token": None,
        "eos_token": None,
        "unk_token": None,
        "pad_token": None,
        "chat_template": "{{ x }}",
    }


async def test_pauses_are_the_servers() -> None:
    """The ring is told of each, and requests go on to it, where they wait."""
    client = FakeClient()
    async with in_process(client) as http:
        for body in ({}, {"mode": "retract"}, {"mode": "in_place"}):
            assert (await http.post("/pause_generation", json=body)).json()["status"] == "ok"
        assert (await http.post("/generate", json=GENERATE)).status_code == 200
        client.statistics = {"generation_paused": 1.0}
        assert (await http.get("/health_generate")).json()["evidence"] == "paused"
        assert (await http.post("/continue_generation")).json()["status"] == "ok"
        bad = await http.post("/pause_generation", json={"mode": "at_once"})
        assert (bad.status_code, error_of(bad)["param"]) == (400, "mode")
    assert client.pauses == ["abort", "retract", "in_place", None] and len(client.requests) == 1


class Slow(FakeClient):
    """A client that admits requests only when `may` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.may = asyncio.Event(), asyncio.Event()

    async def submit_samples(self, request: Request) -> Any:
        self.asked.set()
        await self.may.wait()
        return await super().submit_samples(request)


@pytest.mark.parametrize(
    ("path", "body"), [("/pause_generation", {}), ("/abort_request", {"abort_all": True})]
)
async def test_what_is_not_admitted_yet_is_aborted_with_all_else(
    path: str, body: dict[str, Any]
) -> None:
    """Although it has no id yet by which it could be found."""
    client = Slow()
    async with in_process(client) as http, asyncio.timeout(SOON_S):
        asked = {"text": ["a", "b"], "sampling_params": {"n": 2}}
        waiting = asyncio.ensure_future(http.post("/generate", json=asked))
        await client.asked.wait()
        assert (await http.post(path, json=body)).status_code == 200
        client.may.set()
        await waiting
        assert sorted(client.aborted) == ["r0/0", "r0/1", "r1/0", "r1/1"]
        await http.post("/continue_generation")
        await http.post("/generate", json={"text": "c"})
        assert len(client.aborted) == 4


@pytest.mark.parametrize("mode", ["in_place", "retract"])
async def test_an_abort_keeps_nothing_for_later(mode: str) -> None:
    path = "/abort_request"
    async with in_process(FakeClient()) as http:
        answer = await http.post(path, json={"mode": mode})
        assert (answer.status_code, error_of(answer)["param"]) == (400, "mode")
        answer = await http.post(path, content=_chunks(msgspec.json.encode({"mode": mode})))
        assert (answer.status_code, error_of(answer)["param"]) == (400, "mode")


async def test_an_abort_as_sglangs_programs_write_it() -> None:
    asked = {"rid": "", "abort_all": True, "finished_reason": None, "abort_message": None}
    async with in_process(FakeClient()) as http:
        assert (await http.post("/abort_request", json=asked)).json() == {"aborted": []}
        answer = await http.post("/abort_request", json=asked | {"abort_message": "no more"})
        assert (answer.status_code, error_of(answer)["param"]) == (400, "abort_message")


async def _chunks(body: bytes) -> AsyncIterator[bytes]:
    """A body without a given length."""
    for start in range(0, len(body), 4):
        yield body[start : start + 4]


@pytest.mark.parametrize(
    ("sampling", "limit"), [({}, 128), ({"max_new_tokens": None}, None), ({"max_new_tokens": 0}, 0)]
)
async def test_null_is_all_the_room(sampling: dict[str, Any], limit: int | None) -> None:
    client = FakeClient()
    async with in_process(client) as http:
        for given in (sampling, [sampling]):
            text = ["a"] if isinstance(given, list) else "a"
            answer = await http.post("/generate", json={"text": text, "sampling_params": given})
            assert answer.status_code == 200, answer.text
    assert [request.sampling.max_new_tokens for request in client.requests] == [limit] * 2
