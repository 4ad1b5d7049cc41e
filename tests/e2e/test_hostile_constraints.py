"""Constraints that are made to do harm: each gets an answer in bounded time, and a stream beside
them gives its usual text."""

import asyncio
from collections.abc import Iterator

import pytest

from bench.hostile_inputs import ATTACKS
from srt.client.face import AsyncClient
from srt.wire.constraint import CONSTRAINT_KINDS
from srt.wire.errors import OVERLOADED, RequestError
from tests.e2e.server import Server, running_server

BOUND_S = 60.0  # for one answer; far above what any takes
STEADY = {"max_new_tokens": 100, "ignore_eos": True, "temperature": 0.0}
HOSTILE = {"max_new_tokens": 24, "temperature": 1.0, "seed": 1}
FIELDS = {name: next(iter(attack(0))) for name, attack in ATTACKS.items()}
# One for each kind of harm: time, memory, depth, size, slow to load, and slow to follow.
SHORT = (
    *("regex, optional branches", "regex, 2^200 states", "regex, 10,000 deep", "choices, 40,000"),
    *("schema, $ref bomb", "schema, 10,000 deep", "schema, refers to itself"),
    *("schema, 10,000 enum values", "schema, 2,000 optional", "schema, 5,000 required"),
    *("ebnf, left recursion", "ebnf, ambiguous", "ebnf, recursive letters", "tags, 400"),
)
TOO_LONG = "compiling it took longer than 0.5 s"
REFUSED = {
    "regex, 10,000 deep": "nested more than 200 deep at position 200",
    "schema, 10,000 deep": "nested too deeply",
    "schema, refers to itself": "refers to itself",
    "schema, 5,000 required": "too large",
    "schema, 2,000 optional": "cannot be followed|too large",
    "ebnf, ambiguous": "cannot be followed",
}


pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    tmp = tmp_path_factory.mktemp("hostile")
    with running_server(tmp, "--grammar-compile-timeout", "0.5") as running:
        yield running


async def answer(client: AsyncClient, name: str, serial: int) -> str:
    """The reason of a refusal, which names the field; empty if the request was served."""
    sampling = {**HOSTILE, **ATTACKS[name](serial)}
    try:
        async with asyncio.timeout(BOUND_S):
            output = await client.generate("The answer:", sampling=sampling)
    except RequestError as error:
        info = error.info
        if info.code == OVERLOADED:  # on a busy machine
            return info.message
        assert (info.http_status, info.param) == (400, FIELDS[name]), (name, info)
        assert not info.retryable and info.message.startswith(f"{FIELDS[name]}: "), (name, info)
        return info.message
    assert output.finish is not None and output.finish.type in ("stop", "length"), name
    return ""


async def check(server: Server, names: tuple[str, ...], serial: int) -> dict[str, str]:
    """The answer to every attack; two run at a time, beside steady requests."""
    over = asyncio.Event()
    places = asyncio.Semaphore(2)

    async def one(client: AsyncClient, name: str) -> tuple[str, str]:
        async with places:
            return name, await answer(client, name, serial)

    async with AsyncClient(server.ring) as client, AsyncClient(server.ring) as attacker:
        expected = await client.generate("Once upon a time", sampling=STEADY)

        async def steady() -> int:
            rounds = 0
            while not over.is_set() or rounds == 0:
                output = await client.generate("Once upon a time", sampling=STEADY)
                assert output.text == expected.text
                rounds += 1
            return rounds

        beside = asyncio.create_task(steady())
        try:
            answers = dict(await asyncio.gather(*(one(attacker, name) for name in names)))
        finally:
            over.set()
        assert await asyncio.wait_for(beside, BOUND_S) > 0
        after = await client.generate("It is", sampling={**HOSTILE, "regex": "yes|no"})
        assert after.text in ("yes", "no")
        ring = client._transport.ring
        assert ring is not None and ring.ready and ring.epoch == 1
    await asyncio.to_thread(server.wait_idle)
    return answers


def test_every_kind_of_constraint_is_attacked() -> None:
    assert set(FIELDS.values()) == {FIELDS[name] for name in SHORT} == set(CONSTRAINT_KINDS)


async def test_each_is_answered_and_a_steady_client_notices_nothing(server: Server) -> None:
    answers = await check(server, SHORT, serial=1)
    for name, reason in REFUSED.items():
        # On a slow or busy machine it may end in another way.
        possible = (*reason.split("|"), TOO_LONG, "the server is at its limit")
        assert any(words in answers[name] for words in possible), (name, answers[name])


@pytest.mark.slow
async def test_all_of_them(server: Server) -> None:
    for serial in (2, 3):
        assert set(await check(server, tuple(ATTACKS), serial)) == set(ATTACKS)
