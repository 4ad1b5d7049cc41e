"""The attackers of `bench.hostile` over HTTP, against a gateway over a fake client."""

import asyncio
from collections import Counter

import pytest

from bench import hostile_http
from bench.hostile_http import HTTP_ATTACKS, Phase, Row, cells
from tests.fakes import FakeClient
from tests.srt.gateway.setup import served
from tests.waiting import SOON_S


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("10,000 deep", "400"),
        ("escapes", "200"),
        ("2,100 idle connections", "opened"),
        ("2,100 bodies that trickle", "opened"),
    ],
)
async def test_an_attack_goes_on_until_it_is_ended(
    name: str, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostile_http, "FLOOD", 3)
    answers = Counter[str]()
    async with served(FakeClient()) as server:
        task = asyncio.ensure_future(HTTP_ATTACKS[name](server.url, answers))
        async with asyncio.timeout(SOON_S):
            while answers[answer] < 3:
                await asyncio.sleep(0.01)
        assert not task.done() and set(answers) == {answer}
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_a_row_tells_latencies_ratio_and_failures() -> None:
    failed = Counter({"/health: 503": 2})
    busy = Phase([2.0] * 9, Counter({"/health": 5}), Counter())
    attacked = Phase([3.0] * 9, Counter({"/health": 4}), failed)
    row = Row([busy], [attacked, attacked], Counter({"413": 7}))
    middle = "2.0 to 3.0"
    expected = ["x", "7 413", middle, middle, "1.50", "8", "4 x /health: 503"]
    assert cells("x", row) == expected
