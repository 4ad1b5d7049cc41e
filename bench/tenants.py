"""`python -m bench.tenants`: what the time to a first token reveals of another API key's prompts.

One key sends a prompt of random tokens; another sends the same one, or a new one of that length, in
random order. AUC is the probability that a new prompt takes longer than an equal one: 0.5 reveals
nothing, 1.0 everything. `--share` lets the keys share the prefix cache, to see what that reveals.
"""

import argparse
import asyncio
import os
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpx2

from bench.figures import percentile
from bench.peers.catalogue import Srt
from bench.peers.process import running
from srt.files.model_files import DEFAULT_MODEL, resolve_model

PAIRS = 200
PROMPT_TOKENS = 128
TIMEOUT_S = 60.0
_VICTIM, _ATTACKER = "victim", "attacker"


def auc(equal: Sequence[float], unequal: Sequence[float]) -> float:
    """The share of pairs in which the unequal one took longer; ties count half."""
    wins = sum((b > a) + 0.5 * (b == a) for a in equal for b in unequal)
    return wins / (len(equal) * len(unequal))


async def _first_token_s(http: httpx2.AsyncClient, key: str, ids: list[int]) -> float:
    """Seconds until the first event of a stream."""
    body = {"input_ids": ids, "stream": True, "sampling_params": {"max_new_tokens": 1}}
    headers = {"authorization": f"Bearer {key}"}
    began, first = time.perf_counter(), 0.0
    async with http.stream("POST", "/generate", json=body, headers=headers) as response:
        response.raise_for_status()
        async for _ in response.aiter_raw():  # to the end, which keeps the connection
            first = first or time.perf_counter() - began
    return first


async def _measure(url: str, pairs: int, rng: random.Random) -> tuple[list[float], list[float]]:
    """The attacker's times of equal and of unequal prompts."""

    def prompt() -> list[int]:
        return [rng.randrange(1000, 40000) for _ in range(PROMPT_TOKENS)]

    equal: list[float] = []
    unequal: list[float] = []
    async with httpx2.AsyncClient(base_url=url, timeout=TIMEOUT_S) as http:
        for _ in range(5):
            await _first_token_s(http, _ATTACKER, prompt())
        for is_equal in rng.sample([True, False] * pairs, 2 * pairs):
            said = prompt()
            await _first_token_s(http, _VICTIM, said)
            asked = said if is_equal else prompt()
            times = equal if is_equal else unequal
            times.append(await _first_token_s(http, _ATTACKER, asked))
    return equal, unequal


async def _run(pairs: int, share: bool, seed: int) -> None:
    options = ["--api-key", f"{_VICTIM},{_ATTACKER}"]
    options += ["--share-cache-between-keys"] if share else []
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        async with running(Srt(), resolve_model(DEFAULT_MODEL).path, log, options) as url:
            equal, unequal = await _measure(url, pairs, random.Random(seed))
    for name, times in (("equal", equal), ("unequal", unequal)):
        shown = " / ".join(f"{1e3 * (percentile(times, q) or 0.0):.1f}" for q in (10, 50, 90))
        print(f"{name:8} p10 / p50 / p90: {shown} ms")
    print(f"AUC {auc(equal, unequal):.3f} of {pairs} pairs on {os.cpu_count()} cores")


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.tenants", description=__doc__)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--share", action="store_true", help="the keys share the prefix cache")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    asyncio.run(_run(args.pairs, args.share, args.seed))


if __name__ == "__main__":
    main()
