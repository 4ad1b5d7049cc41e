"""n > 1 on the real model: one prefill, shared memory, seeds; with constraints and jumps."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from srt import AsyncClient
from srt.wire.errors import RingError
from srt.wire.sampling import sub_seed
from tests.e2e.server import Server
from tests.running.profiles import some

LENGTH = 240
PROMPT = list(range(1000, 1000 + LENGTH))


async def most_used(server: Server, count: int, n: int, turn: int = 0) -> tuple[int, int]:
    """The most slots that `count` requests of `n` samples hold at once, and the prompt tokens that
    were computed for them. The requests share nothing: each has its own salt, in each turn."""
    await asyncio.to_thread(server.wait_idle)
    sampling = {"max_new_tokens": 32, "n": n, "ignore_eos": True, "seed": 3}
    async with AsyncClient(server.ring) as client:
        before = (await client.stats())["computed_prompt_tokens_total"]
        tasks = [
            asyncio.ensure_future(
                client.generate(
                    input_ids=PROMPT, sampling=sampling, cache_salt=f"{count} x {n}, {i}, {turn}"
                )
            )
            for i in range(count)
        ]
        most = 0
        while not all(task.done() for task in tasks):
            with suppress(RingError):  # no answer in time: a long step on a busy machine
                most = max(most, (await client.stats())["num_used_tokens"])
            await asyncio.sleep(0.05)
        await asyncio.gather(*tasks)
        after = (await client.stats())["computed_prompt_tokens_total"]
    return most, after - before


async def test_eight_samples_share_one_prompt(server: Server) -> None:
    for turn in range(5):  # on a busy machine they may have ended before anybody asks
        shared, computed = await most_used(server, 1, 8, turn)
        if shared:
            break
    apart, computed_apart = await most_used(server, 8, 1)
    assert computed == LENGTH + 7  # each sample runs the prompt's last token itself
    assert computed_apart == 8 * LENGTH
    # The first of eight prompts may have ended before the last one is computed.
    assert LENGTH < shared <= LENGTH + 8 * (32 + 32) < 8 * LENGTH
    print(
        f"{shared} slots for 8 samples of one prompt, {apart} for 8 prompts: {shared / apart:.2f}"
    )


SAMPLING: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.8, "top_p": 0.9, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
    {"regex": r'\{"name": "[A-Z][a-z]{2,9}", "age": [0-9]{1,2}\}', "temperature": 1.0},
    {"stop_regex": [r"[.!?]"], "min_new_tokens": 3},
]


@pytest.mark.parametrize("sampling", some(SAMPLING, *SAMPLING[1:3]), ids=lambda s: "+".join(s))
async def test_samples_are_those_of_their_seeds(server: Server, sampling: dict[str, Any]) -> None:
    """Sample i is what a request with the i-th seed gives alone, jumps included."""
    text = "Here is a person as JSON: "
    common = {"max_new_tokens": 40, **sampling}
    async with AsyncClient(server.ring) as client:
        samples: Any = await client.generate(text, sampling={**common, "n": 4, "seed": 11})
        for i, sample in enumerate(samples):
            alone = await client.generate(text, sampling={**common, "seed": sub_seed(11, i)})
            assert sample.text == alone.text and sample.output_ids == alone.output_ids
            assert sample.jump_forward_tokens == alone.jump_forward_tokens
            assert sample.finish == alone.finish
    assert len({sample.text for sample in samples}) > 1
    assert "regex" not in sampling or all(s.jump_forward_tokens > 0 for s in samples)


async def test_prompt_logprobs_are_computed_once(server: Server) -> None:
    fields: dict[str, Any] = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs": 2}
    ids = PROMPT[::-1]
    async with AsyncClient(server.ring) as client:
        before = (await client.stats())["computed_prompt_tokens_total"]
        sampling = {"n": 3, "max_new_tokens": 2}
        samples: Any = await client.generate(input_ids=ids, sampling=sampling, **fields)
        after = (await client.stats())["computed_prompt_tokens_total"]
    assert after - before == LENGTH + 2
    first = samples[0].prompt_logprobs
    assert len(first) == LENGTH and all(sample.prompt_logprobs == first for sample in samples)
    assert all(len(sample.output_top_logprobs) == 2 for sample in samples)
