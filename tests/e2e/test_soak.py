"""Mixed requests of every kind in a tiny pool: nothing leaks, and no request harms another.

The pool holds only a few requests' tokens, so that prefixes are evicted and requests retracted all
the time; the server checks its memory after every step (`--check-invariants`).
"""

import asyncio
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from srt.client.face import AsyncClient
from srt.wire.errors import CONTEXT_LENGTH, RequestError
from tests.e2e.server import Server, running_server

POOL = 1024
IN_FLIGHT = 24
ARGS = ("--max-total-tokens", str(POOL), "--max-running-requests", "24", "--check-invariants")
SHARED = ["You are a helpful assistant. " * k for k in (1, 4, 10)]
PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


def request_of(rng: random.Random) -> dict[str, Any]:
    """A request that the server can take, with random options."""
    prompt = rng.choice(SHARED) + f"Question {rng.randrange(40)}: " + "why? " * rng.randrange(30)
    sampling: dict[str, Any] = {"max_new_tokens": rng.randrange(40), "temperature": rng.random()}
    for _ in range(rng.randrange(3)):
        sampling |= rng.choice(
            [
                {"n": rng.randint(2, 4)},
                {"frequency_penalty": 0.7, "presence_penalty": -0.3},
                {"repetition_penalty": 1.3},
                {"logit_bias": {rng.randrange(40000): 5.0}, "bad_words": ["the", " a b"]},
                {"allowed_token_ids": rng.sample(range(1000, 40000), 50)},
                {"seed": rng.randrange(100), "top_p": 0.9, "top_k": 40, "min_p": 0.01},
                {"stop": [" and", "\n\n"], "no_stop_trim": rng.random() < 0.5},
                {"stop_regex": [r"[.!?] [A-Z]"]},
                {"ignore_eos": True, "skip_special_tokens": False},
                {"regex": r"(yes|no), because [a-z ]{1,20}\\."},
                {"choices": ["red", "green", "blue"]},
                {"token_healing": True},
            ]
        )
    if "regex" in sampling:
        sampling.pop("choices", None)
    if "regex" in sampling or "choices" in sampling:
        sampling.pop("allowed_token_ids", None)  # together they may allow no token
        sampling.pop("bad_words", None)
    request = {"text": prompt, "sampling": sampling, "stream": rng.random() < 0.5}
    if rng.random() < 0.2:
        start = rng.choice([-1, 0, 5])
        request |= {"return_logprob": True, "logprob_start_len": start, "top_logprobs": 3}
    if rng.random() < 0.1:
        request["cache_salt"] = "another"
    return request


def wrong_request_of(rng: random.Random) -> tuple[dict[str, Any], str]:
    """A request that must be refused, and the error's code."""
    text = "word " * rng.randint(POOL, 3 * POOL)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"text": text}, CONTEXT_LENGTH),
        ({"text": "short", "sampling": {"max_new_tokens": POOL}}, CONTEXT_LENGTH),
        ({"text": "a", "sampling": {"regex": "(unclosed"}}, "bad_request"),
        ({"text": "a", "sampling": {"top_p": -1.0}}, "bad_request"),
        ({"input_ids": [10**6]}, "bad_request"),
    ]
    return rng.choice(wrong)


class Soak:
    """Sends requests and counts how they ended."""

    def __init__(self, client: AsyncClient, seed: int) -> None:
        self._client = client
        self._rng = random.Random(seed)
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self.ends: Counter[str] = Counter()

    async def run(self, count: int) -> None:
        """Send `count` requests, at most IN_FLIGHT at once."""
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                await self._slots.acquire()
                group.create_task(self._one(self._rng.random()))

    async def _one(self, kind: float) -> None:
        try:
            async with asyncio.timeout(120):
                if kind < 0.1:
                    await self._refused()
                elif kind < 0.3:
                    await self._aborted()
                else:
                    await self._whole()
        finally:
            self._slots.release()

    async def _refused(self) -> None:
        request, code = wrong_request_of(self._rng)
        with pytest.raises(RequestError) as caught:
            await self._client.generate(**request)
        assert caught.value.info.code == code, (request, caught.value.info)
        self.ends["refused"] += 1

    async def _aborted(self) -> None:
        request = request_of(self._rng)
        request["sampling"] |= {"max_new_tokens": 300, "ignore_eos": True}
        generations = await self._client.submit_samples(**request)
        await asyncio.sleep(self._rng.random() * 2.0)
        for generation in generations:
            await generation.aclose()
        self.ends["aborted"] += 1

    async def _whole(self) -> None:
        request = request_of(self._rng)
        outputs: Any = await self._client.generate(**request)
        outputs = outputs if isinstance(outputs, list) else [outputs]
        assert len(outputs) == request["sampling"].get("n", 1)
        for output in outputs:
            assert output.finish is not None and output.finish.type in ("stop", "length")
            assert output.completion_tokens <= request["sampling"]["max_new_tokens"]
            if "choices" in request["sampling"] and output.finish.type == "stop":
                assert output.text in ("red", "green", "blue")
            self.ends[output.finish.type] += 1


def memory_mib(server: Server) -> dict[str, float]:
    """Each part's own resident memory, without files, whose pages may come and go."""
    memory = {}
    for name, pid in server.pids().items():
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
        memory[name] = (int(resident) - int(shared)) * PAGE_MIB
    return memory


async def soaked(server: Server, count: int, seed: int) -> Counter[str]:
    """The ends of `count` requests; afterwards the server is idle and its memory intact."""
    async with AsyncClient(server.ring) as client:
        soak = Soak(client, seed)
        await soak.run(count)
    await asyncio.to_thread(server.wait_idle)
    return soak.ends


@pytest.mark.full
async def test_a_short_soak(tmp_path: Path) -> None:
    with running_server(tmp_path, *ARGS) as server:
        before = server.pids()
        ends = await soaked(server, 120, seed=0)
        stats = server.stats()
        assert server.pids() == before, "a part was restarted"
        assert "ERROR" not in server.log() and "Traceback" not in server.log()
    assert set(ends) == {"refused", "aborted", "stop", "length"}
    assert stats["evicted_tokens_total"] > 0


@pytest.mark.slow
async def test_a_long_soak(tmp_path: Path) -> None:
    """5,000 requests; the last 3,000 add far less memory than they sent and received."""
    with running_server(tmp_path, *ARGS) as server:
        before = server.pids()
        await soaked(server, 2000, seed=1)
        early = memory_mib(server)
        ends = await soaked(server, 3000, seed=2)
        late = memory_mib(server)
        stats = server.stats()
        assert server.pids() == before, "a part was restarted"
    grown = {name: late[name] - early[name] for name in late}
    print({name: f"{early[name]:.0f} + {grown[name]:.1f} MiB" for name in late}, ends, stats)
    assert all(mib < 16 for mib in grown.values()), grown
    assert stats["num_retracted_reqs_total"] > 0 and stats["evicted_tokens_total"] > 10 * POOL
