"""Forked processes that use what their parent has used, against a server: both get the answers to
their own questions. The right answers are those of a back end that only one process has."""

import asyncio
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

import lang as sgl
from srt.client.face import AsyncClient
from tests.e2e.server import Server
from tests.lang.test_processes import in_child

NAMES = ["France", "Italy", "Spain", "Japan"]
KINDS: dict[str, Callable[[Server], Any]] = {
    "http": lambda server: sgl.RuntimeEndpoint(server.url),
    "ipc": lambda server: sgl.RuntimeEndpoint(server.ring),
    "openai": lambda server: sgl.OpenAI(
        "smollm2", False, base_url=f"{server.url}/v1", dialect="sglang"
    ),
}


@sgl.function
def capital(s: Any, country: str) -> None:
    s += f"{country}: the capital of {country} is" + sgl.gen("city", max_tokens=3, temperature=0)


def city(backend: Any, country: str, **options: Any) -> str:
    state = capital.run(country, backend=backend, **options)
    return "".join(state.text_iter("city")) if options else str(state["city"])


@pytest.fixture(scope="module")
def right(server: Server) -> list[str]:
    with sgl.RuntimeEndpoint(server.url) as alone:
        found = [city(alone, name) for name in NAMES]
    assert len(set(found)) > 2
    return found


@pytest.fixture(params=KINDS)
def backend(request: pytest.FixtureRequest, server: Server) -> Iterator[Any]:
    with KINDS[request.param](server) as made:
        yield made


shared: Any = None


def in_pool(country: str) -> str:
    return city(shared, country, stream=True, timeout_s=60)


def in_spawned(url: str, country: str) -> str:
    with sgl.RuntimeEndpoint(url) as own:
        return city(own, country)


def test_a_child_and_its_parent_get_their_own_answers(backend: Any, right: list[str]) -> None:
    global shared
    shared = backend
    assert city(backend, NAMES[0], stream=True, timeout_s=60) == right[0]
    assert [city(backend, name) for name in NAMES[:3]] == right[:3]
    assert in_child(lambda: city(backend, NAMES[3])) == right[3]
    assert [city(backend, name) for name in NAMES] == right
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
        found = pool.map(in_pool, NAMES)
        assert [city(backend, name) for name in NAMES] == right
        assert list(found) == right
    assert in_child(lambda: in_child(lambda: city(backend, NAMES[3], stream=True))) == right[3]
    assert [city(backend, name) for name in NAMES] == right


@pytest.mark.parametrize("over", ["http", "ipc"])
async def test_a_client_says_in_a_child_whose_it_is(
    server: Server, right: list[str], over: str
) -> None:
    async def ask(client: AsyncClient, country: str) -> str:
        text = f"{country}: the capital of {country} is"
        return (await client.generate(text, sampling={"max_new_tokens": 3, "temperature": 0})).text

    async with AsyncClient(server.url if over == "http" else server.ring) as client:
        assert [await ask(client, name) for name in NAMES[:3]] == right[:3]
        kind, text = in_child(lambda: asyncio.run(ask(client, NAMES[3])))
        assert kind == "ConfigError" and f"belongs to process {os.getpid()}" in text
        assert [await ask(client, name) for name in NAMES] == right


@pytest.mark.full
def test_sessions_and_batches_of_a_child(backend: Any, right: list[str]) -> None:
    rows = [{"country": name} for name in NAMES]

    def batch() -> list[Any]:
        return [state["city"] for state in capital.run_batch(rows, backend=backend)]

    assert batch() == right and in_child(batch) == right and batch() == right
    if isinstance(backend, sgl.OpenAI):
        return

    def submitted() -> list[Any]:
        with sgl.session(backend):
            return [capital.submit(name)["city"].get() for name in NAMES]

    assert [in_child(submitted), submitted()] == [right, right]
    with sgl.session(backend) as session:
        var = session.var("x")
        assert var.get() == "x"
        kind, text = in_child(var.get)
        assert kind == "ConfigError" and "belongs to process" in text


@pytest.mark.full
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_that_share_nothing(server: Server, right: list[str], method: str) -> None:
    with sgl.RuntimeEndpoint(server.url) as backend:
        assert city(backend, NAMES[0]) == right[0]
        context = multiprocessing.get_context(method)
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            assert list(pool.map(in_spawned, [server.url] * 2, NAMES)) == right[:2]
        assert [city(backend, name) for name in NAMES] == right
