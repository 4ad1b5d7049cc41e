"""Several completions of one prompt, and other options of requests, over the ring and HTTP."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from srt import AsyncClient
from srt.client.generation import GenerateOutput
from srt.wire.errors import RequestError
from srt.wire.sampling import sub_seed
from tests.e2e.server import Server
from tests.e2e.test_clients import CHAT, GREEDY, LONG, PROMPT, assert_soon_idle, both, facts

SEEDED = {"max_new_tokens": 8, "temperature": 1.2, "seed": 5, "ignore_eos": True}
WAYS = ["ring", "http"]


def client_of(server: Server, way: str) -> AsyncClient:
    return AsyncClient(server.ring if way == "ring" else server.url)


# ---- samples -------------------------------------------------------------------------------------


async def test_samples_are_what_their_seeds_say(server: Server) -> None:
    """Alone or together, over the ring and HTTP; the prompt's tokens are shared."""
    async with both(server) as (ring, http):
        alone = [
            await ring.generate(PROMPT, sampling={**SEEDED, "seed": sub_seed(5, i)})
            for i in range(3)
        ]
        for client in (ring, http):
            samples: Any = await client.generate(PROMPT, sampling={**SEEDED, "n": 3})
            assert [facts(output) for output in samples] == [facts(output) for output in alone]
            assert all(output.cached_tokens == output.prompt_tokens - 1 for output in samples)
    assert len({output.text for output in alone}) > 1


async def test_samples_of_a_chat(server: Server) -> None:
    async with both(server) as clients:
        sampling = {**SEEDED, "n": 3, "max_new_tokens": 5}
        outputs: list[Any] = [
            await client.generate(messages=CHAT, sampling=sampling) for client in clients
        ]
    ring, http = ([facts(output) for output in samples] for samples in outputs)
    assert ring == http
    assert [output.completion_tokens for output in outputs[1]] == [5, 5, 5]


@pytest.mark.parametrize("way", WAYS)
async def test_samples_are_aborted_together_or_one_by_one(server: Server, way: str) -> None:
    async with client_of(server, way) as client:
        rid = f"samples-{way}"
        first, second, third = await client.submit_samples(
            text=PROMPT, sampling={**LONG, "n": 3}, stream=True, rid=rid
        )
        assert [g.rid for g in (first, second, third)] == [f"{rid}/{i}" for i in range(3)]
        await second.aclose()
        snapshots = aiter(first)
        await anext(snapshots)
        await client.abort(f"{rid}/2")
        assert_aborted(await third.result())
        before = (await anext(snapshots)).completion_tokens
        assert (await anext(snapshots)).completion_tokens > before
        await client.abort(rid)
        assert_aborted([output async for output in snapshots][-1])
        await assert_soon_idle(server)
        samples: Any = await client.generate(PROMPT, sampling={**GREEDY, "n": 2}, rid=rid)
        assert samples[0].text == samples[1].text


def assert_aborted(output: GenerateOutput) -> None:
    assert output.finish is not None and output.finish.type == "abort"
    assert output.completion_tokens < 2000


@pytest.mark.parametrize("way", WAYS)
async def test_a_cancelled_call_ends_all_samples(server: Server, way: str) -> None:
    async with client_of(server, way) as client:
        for delay_s in (0.0, 0.5):
            call = asyncio.ensure_future(client.generate(PROMPT, sampling={**LONG, "n": 3}))
            await asyncio.sleep(delay_s)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await assert_soon_idle(server)


@pytest.mark.parametrize("way", WAYS)
async def test_streams_are_for_one(server: Server, way: str) -> None:
    async with client_of(server, way) as client:
        with pytest.raises(RequestError) as submitted:
            await client.submit(text=PROMPT, sampling={"n": 2})
        with pytest.raises(RequestError) as streamed:
            async with aclosing(client.stream(PROMPT, sampling={"n": 2})) as outputs:
                await anext(outputs)
        with pytest.raises(RequestError) as many:
            await client.generate(PROMPT, sampling={"n": 1000})
    assert {e.value.info.param for e in (submitted, streamed, many)} == {"n"}


async def test_a_rid_is_taken_with_those_of_its_samples(server: Server) -> None:
    async with AsyncClient(server.ring) as client:
        samples = await client.submit_samples(
            text=PROMPT, sampling={**LONG, "n": 2}, stream=True, rid="a"
        )
        for rid, n in (("a", 1), ("a", 2), ("a/1", 1)):
            with pytest.raises(RequestError) as caught:
                await client.submit_samples(text=PROMPT, sampling={"n": n}, rid=rid)
            assert caught.value.info.param == "rid"
        for generation in samples:
            await generation.aclose()
        assert (await client.generate(PROMPT, sampling=GREEDY, rid="a")).rid == "a"
    await asyncio.to_thread(server.wait_idle)


# ---- log-probabilities ---------------------------------------------------------------------------


async def test_the_prompts_log_probabilities_are_for_all_samples(server: Server) -> None:
    async with both(server) as clients:
        for client in clients:
            samples: Any = await client.generate(
                PROMPT, sampling={**SEEDED, "n": 3}, return_logprob=True, logprob_start_len=1
            )
            rows = [output.prompt_logprobs for output in samples]
            assert rows[0] is not None and len(rows[0]) == samples[0].prompt_tokens - 1
            assert rows == [rows[0]] * 3


DETAILS: dict[str, Any] = {
    "return_logprob": True,
    "logprob_start_len": 0,
    "top_logprobs": 3,
    "logprob_token_ids": [7042, 0],
}


@pytest.mark.parametrize("prompt", [{"text": PROMPT}, {"messages": CHAT}], ids=["text", "chat"])
async def test_details_by_both_ways(server: Server, prompt: dict[str, Any]) -> None:
    """The chosen token of a greedy answer is the likeliest; requested ids are in their rows."""
    async with both(server) as clients:
        outputs = [await c.generate(**prompt, sampling=GREEDY, **DETAILS) for c in clients]
    for output in outputs:
        tops, named = output.output_top_logprobs, output.output_id_logprobs
        assert tops is not None and named is not None and output.output_logprobs is not None
        assert [row[0][1] for row in tops] == output.output_ids
        assert [row[0][0] for row in tops] == pytest.approx(output.output_logprobs, abs=1e-5)
        assert [len(row) for row in tops] == [3] * 6 and [len(row) for row in named] == [2] * 6
        assert all(row == sorted(row, reverse=True) for row in tops)
        for row, values in zip(tops, named, strict=True):
            known = {token: value for value, token in row}
            for token, value in zip(DETAILS["logprob_token_ids"], values, strict=True):
                assert value <= row[0][0] + 1e-5
                assert token not in known or value == pytest.approx(known[token], abs=1e-5)
        prompt_tops, prompt_named = output.prompt_top_logprobs, output.prompt_id_logprobs
        assert prompt_tops is not None and prompt_named is not None
        assert len(prompt_tops) == len(prompt_named) == output.prompt_tokens
        assert prompt_tops[0] is None and prompt_named[0] is None
        assert all(row and len(row) == 3 for row in prompt_tops[1:])
    ring, http = outputs
    assert (ring.text, ring.output_ids) == (http.text, http.output_ids)
    for one, other in zip(
        ring.output_top_logprobs or [], http.output_top_logprobs or [], strict=True
    ):
        assert [token for _, token in one] == [token for _, token in other]
        assert [v for v, _ in one] == pytest.approx([v for v, _ in other], abs=1e-3)


# ---- chats and tokens ----------------------------------------------------------------------------

OPEN: list[Any] = [*CHAT, {"role": "assistant", "content": "Hello, my name is"}]


async def test_a_chat_goes_on_in_its_last_message(server: Server) -> None:
    """It gives the same as the plain text of the same prompt."""
    async with both(server) as (ring, http):
        chat = {"continue_final": True}
        ids = await ring.tokenize(messages=OPEN, chat=chat)
        assert ids == await http.tokenize(messages=OPEN, chat=chat)
        expected = await ring.generate(input_ids=ids, sampling=GREEDY)
        for client in (ring, http):
            output = await client.generate(messages=OPEN, chat=chat, sampling=GREEDY)
            assert (output.text, output.output_ids) == (expected.text, expected.output_ids)
        whole = await ring.tokenize(messages=OPEN, chat={"add_generation_prompt": False})
        assert whole[: len(ids)] == ids and len(whole) > len(ids)
        turn = await ring.tokenize(messages=OPEN)
        assert turn[: len(whole)] == whole and len(turn) > len(whole)


async def test_tokenize_by_both_ways(server: Server) -> None:
    name = "chat.template_args"
    async with both(server) as clients:
        for client in clients:
            assert await client.tokenize(PROMPT) == [504, 3575, 282, 4649, 314]
            assert await client.tokenize("") == []
            with pytest.raises(RequestError):
                await client.tokenize()
            chat = {"template_args": {"messages": 1}}
            for call in (client.tokenize, client.generate):
                with pytest.raises(RequestError, match=f"^{name}: 'messages' is set") as caught:
                    await call(messages=OPEN, chat=chat)
                assert caught.value.info.param == name


# ---- what ends a text ----------------------------------------------------------------------------

STOPS: list[tuple[dict[str, Any], str, Any]] = [
    ({"stop": ["ris"]}, " Pa", "ris"),
    ({"stop": ["ris"], "no_stop_trim": True}, " Paris", "ris"),
    ({"stop_regex": ["[a-z]i"]}, " Pa", "[a-z]i"),
    ({"stop_regex": ["x", "r.s"], "no_stop_trim": True}, " Paris", "r.s"),
    ({"stop_token_ids": [7042]}, "", 7042),
    ({"stop_token_ids": [7042], "no_stop_trim": True}, " Paris", 7042),
]


@pytest.mark.parametrize(("sampling", "text", "matched"), STOPS)
async def test_what_ends_a_text(
    server: Server, sampling: dict[str, Any], text: str, matched: Any
) -> None:
    async with both(server) as clients:
        for client in clients:
            output = await client.generate(PROMPT, sampling={**GREEDY, **sampling})
            assert output.text == text
            assert output.finish is not None and output.finish.matched == matched
            streamed = [s async for s in client.stream(PROMPT, sampling={**GREEDY, **sampling})]
            assert facts(streamed[-1]) == facts(output)
            assert "".join(s.delta for s in streamed) == text
            later = {**GREEDY, **sampling, "min_new_tokens": 4}
            assert (await client.generate(PROMPT, sampling=later)).completion_tokens >= 4


async def test_bad_words_are_not_written(server: Server) -> None:
    async with both(server) as clients:
        for client in clients:
            sampling = {**GREEDY, "bad_words": ["Paris"], "max_new_tokens": 12}
            output = await client.generate(PROMPT, sampling=sampling)
            assert "Paris" not in output.text and output.text
