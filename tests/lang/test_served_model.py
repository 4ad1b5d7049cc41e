"""What the runtime's back end asks our server for, and how it takes answers of another form."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from lang.backends.base import Prompt
from lang.backends.runtime import RuntimeEndpoint, params_of
from lang.backends.sampling import Sampling
from lang.backends.served_model import ServedModel
from lang.errors import UnsupportedError
from srt.wire.errors import RequestError, RingError
from srt.wire.hints import Hints
from tests.fakes import FakeClient
from tests.srt.gateway import setup


def served(monkeypatch: pytest.MonkeyPatch, answer: Callable[[str], Any]) -> ServedModel:
    """A model of a server that answers each path with `answer(path)`."""
    client = httpx2.AsyncClient

    def handle(request: httpx2.Request) -> httpx2.Response:
        content = answer(request.url.path)
        if isinstance(content, bytes):
            return httpx2.Response(200, content=content)
        return httpx2.Response(200, json=content)

    def faked(**options: Any) -> httpx2.AsyncClient:
        return client(transport=httpx2.MockTransport(handle), **options)

    monkeypatch.setattr(httpx2, "AsyncClient", faked)
    return ServedModel("http://server")


@pytest.mark.parametrize(
    "content", [b"<html>", b"\xff", b"", {}, [1], {"model_path": 1, "tokens": "a", "text": 3}]
)
async def test_answers_of_another_form(monkeypatch: pytest.MonkeyPatch, content: Any) -> None:
    model = served(monkeypatch, lambda path: content)
    for ask in (model.name, model.bos_id, lambda: model.texts([1]), model.media_placeholders):
        with pytest.raises(RingError, match=r"http://server/.* does not answer as our server"):
            await ask()


async def test_a_missing_text(monkeypatch: pytest.MonkeyPatch) -> None:
    model = served(monkeypatch, lambda path: {"tokens": [5], "text": ["a"]})
    with pytest.raises(RingError, match="1 texts, not 3"):
        await model.texts([1, 2])


async def test_what_our_server_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"model_path": "m", "tokens": [5], "text": ["a", "a b"], "other": None}
    model = served(monkeypatch, lambda path: answer)
    assert (await model.name(), await model.bos_id()) == ("m", None)
    assert await model.texts([7]) == {7: " b"}


async def test_placeholders_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    told = {"image": "<image>"}

    def answer(path: str) -> Any:
        asked.append(path)
        return {"model_path": "m", "media_placeholders": told}

    model = served(monkeypatch, answer)
    assert await model.media_placeholders() == await model.media_placeholders() == told
    assert asked == ["/get_model_info"]


async def test_a_server_that_is_starting_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [None, b"", {"image": "<image>"}]

    def answer(path: str) -> Any:
        told = answers.pop(0)
        return told if told == b"" else {"model_path": "m", "media_placeholders": told}

    model = served(monkeypatch, answer)
    assert await model.media_placeholders() is None
    with pytest.raises(RingError):
        await model.media_placeholders()
    assert await model.media_placeholders() == {"image": "<image>"}


async def test_servers_that_name_no_placeholders(monkeypatch: pytest.MonkeyPatch) -> None:
    model = served(monkeypatch, lambda path: {"model_path": "m"})
    assert await model.media_placeholders() == {}


async def test_a_request_has_its_place_among_others() -> None:
    place: dict[str, Any] = {"priority": -3, "service_tier": "flex", "hints": {"app": "a"}}
    fake = FakeClient()
    async with setup.served(fake) as server:
        endpoint = RuntimeEndpoint(server.url, chat_template="chatml")
        try:
            for fields in (place, {}):
                await endpoint.generate(Prompt("a"), Sampling(**fields))
            with pytest.raises(RequestError, match="service_tier"):
                await endpoint.generate(Prompt("a"), Sampling(service_tier="standard_only"))
        finally:
            await asyncio.to_thread(endpoint.close)
    seen = [(asked.priority, asked.service_tier, asked.hints) for asked in fake.requests]
    assert seen == [(-3, "flex", Hints(app="a")), (0, "", None)]
    with pytest.raises(UnsupportedError, match="hints"):  # a session's calls have their own
        params_of(Sampling(**place))
