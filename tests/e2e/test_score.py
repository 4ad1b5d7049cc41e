"""Scores on the real model: exact against transformers, the prefix once, the same both ways.

The server computes in float32 (`--exact`) and takes eight requests at once, so that a test can
fill it.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import lang as sgl
from srt import AsyncClient, Engine
from srt.client.generation import ScoreOutput
from srt.files.model_files import DEFAULT_MODEL, resolve_model
from srt.files.tokenizer import Tokenizer, load_tokenizer
from srt.wire.errors import BAD_REQUEST, CONFLICT, OVERLOADED, RequestError
from tests.e2e.reference import reference_model
from tests.e2e.server import Server, running_server
from tests.running.late import late
from tests.waiting import SOON_S

if TYPE_CHECKING:
    import torch
else:
    torch = late("torch")

TOLERANCE = 1e-3
MAX_REQUESTS = 8
WAYS = pytest.mark.parametrize("way", [pytest.param("ring", marks=pytest.mark.full), "http"])
SETS = pytest.mark.parametrize(
    "count",
    [4, pytest.param(12, marks=pytest.mark.full), pytest.param(100, marks=pytest.mark.slow)],
)

PREFIXES = (
    "The capital of France is",
    "Q: What is 17 + 25?\nA:",
    "<|im_start|>user\nIs water wet?<|im_end|>\n<|im_start|>assistant\n",
    "def add(a, b):\n    return",
    "Le café est",
    "東京は日本の",
    "She looked at the sky and saw",
)
PLAIN = (" Paris", " London", "42", " yes", " no", "\n\n", " a bird", ".", "Yes, it is.")
SHARED = (" the cat", " the cat sat", " the car", " the", " theatre", " the cats of Rome")
MULTI_BYTE = (" é", "首都", "首相", "👩‍🚀", "👩‍🔬", " naïve", "\u00a0x", "ß")
WORDS = ("international", " understanding", " extraordinary", "unbelievable", " 2024", "\n    ")


def random_sets(count: int) -> list[tuple[str, list[str]]]:
    """Prefixes with two to four choices, of each kind in turn. Where a prefix ends inside a word,
    its last token merges with the choices."""
    rng = random.Random(6)
    sets = []
    for i in range(count):
        prefix, size = rng.choice(PREFIXES), rng.randint(2, 4)
        if i % 4 == 3:
            word = rng.choice(WORDS)
            cut = rng.randint(1, len(word) - 1)
            tails = [word[cut:], word[cut : cut + 1], "ing", " ", "s"]
            sets.append((prefix + word[:cut], rng.sample(tails, size)))
        else:
            sets.append((prefix, rng.sample((PLAIN, SHARED, MULTI_BYTE)[i % 4], size)))
    return sets


@pytest.fixture(scope="module")
def exact_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    limit = ("--max-queued-requests", str(MAX_REQUESTS), "--max-queue-wait", "0", "--threads", "0")
    with running_server(
        tmp_path_factory.mktemp("exact"), "--check-invariants", "--exact", *limit
    ) as server:
        yield server
        server.wait_idle()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(resolve_model(DEFAULT_MODEL))


@asynccontextmanager
async def client_by(way: str, server: Server) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.ring if way == "ring" else server.url) as client:
        yield client


# ---- exactness -----------------------------------------------------------------------------------


def expected_scores(
    tokenizer: Tokenizer, prefix: str, choices: list[str]
) -> tuple[int, list[tuple[list[int], list[float]]]]:
    """The start, and each choice's ids and log-probabilities, by the rule and transformers."""
    sequences = [tokenizer.encode(prefix + choice).tolist() for choice in choices]
    columns = zip(tokenizer.encode(prefix).tolist(), *sequences, strict=False)
    start = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
    longest = max(map(len, sequences))
    # What follows a token has no influence on it, so any padding will do.
    batch = torch.tensor([ids + [0] * (longest - len(ids)) for ids in sequences])
    with torch.inference_mode():
        logprobs = reference_model()(batch).logits.log_softmax(-1)
    scores = []
    for row, ids in zip(logprobs, sequences, strict=True):
        values = [float(row[i - 1, ids[i]]) for i in range(start, len(ids))]
        scores.append((ids[start:], values))
    return start, scores


@SETS
async def test_agreement_with_transformers(
    exact_server: Server, tokenizer: Tokenizer, count: int
) -> None:
    sets = random_sets(count)
    worst, merged, spread = 0.0, 0, []
    async with client_by("ring", exact_server) as client:
        outputs = [await client.score(prefix, choices) for prefix, choices in sets]
    for (prefix, choices), output in zip(sets, outputs, strict=True):
        start, expected = expected_scores(tokenizer, prefix, choices)
        assert output.start == start > 0, (prefix, choices)
        assert [choice.token_ids for choice in output.choices] == [ids for ids, _ in expected]
        for choice, (_, values) in zip(output.choices, expected, strict=True):
            difference = np.abs(np.array(choice.logprobs, float) - values)
            worst = max(worst, difference.max(initial=0.0))
            spread += values
        merged += output.start < output.prompt_tokens
    assert worst <= TOLERANCE
    assert merged >= 0.1 * count and np.std(spread) > 1.0
    print(f"worst difference {worst:.2e} over {len(spread)} tokens; {merged} sets merged")


@pytest.mark.full
@SETS
def test_select_agrees_with_transformers(
    exact_server: Server, tokenizer: Tokenizer, count: int
) -> None:
    """The language's select: its numbers, its distribution, and what it chooses by them."""
    sets = random_sets(count)

    @sgl.function
    def choose(s: Any, prefix: str, choices: list[str]) -> None:
        s += prefix + sgl.select("answer", choices)

    with sgl.RuntimeEndpoint(exact_server.ring) as backend:
        arguments = [{"prefix": prefix, "choices": choices} for prefix, choices in sets]
        # A select makes one request for each choice; the server takes eight.
        states = choose.run_batch(arguments, backend=backend, num_threads=2)
    for (prefix, choices), state in zip(sets, states, strict=True):
        assert state.error() is None
        _, expected = expected_scores(tokenizer, prefix, choices)
        meta = state.get_meta_info("answer")
        rows = meta["input_token_logprobs"]
        assert [[entry[1] for entry in row] for row in rows] == [ids for ids, _ in expected]
        for row, (_, values) in zip(rows, expected, strict=True):
            assert [entry[0] for entry in row] == pytest.approx(values, abs=TOLERANCE)
        means = [np.mean(values) if values else 0.0 for _, values in expected]
        chosen = choices.index(state["answer"])
        assert means[chosen] >= max(means) - 2 * TOLERANCE
        totals = np.array([sum(values) for _, values in expected])
        weights = np.exp(totals - totals.max())
        distribution = [meta["probabilities"][choice] for choice in choices]
        assert distribution == pytest.approx((weights / weights.sum()).tolist(), abs=TOLERANCE)


# ---- one answer for every way and batch ----------------------------------------------------------


CALLS: dict[str, dict[str, Any]] = {
    "texts": {"text": "The capital of France is", "continuations": [" Paris", " Rome", "n't"]},
    "merging": {"text": "It is an inter", "continuations": ["national", "esting", "view"]},
    "ids": {"input_ids": [504, 3575, 282], "continuations": [[4649], [7042, 30]]},
    "mixed": {"input_ids": [504, 3575, 282], "continuations": [" France", [7042]]},
    "from position 0": {"text": "", "continuations": ["Paris is", "<|im_end|>"]},
    "one": {"text": "One, two,", "continuations": [" three"]},
    "alike": {"text": "One, two,", "continuations": [" three", " three"]},
}


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(name, marks=() if name in ("merging", "mixed") else pytest.mark.full)
        for name in CALLS
    ],
)
async def test_both_ways_give_the_same_bits(exact_server: Server, call: str) -> None:
    """So do a warm cache and, if the start is the same, a score of each choice alone."""
    fields = CALLS[call]
    async with client_by("ring", exact_server) as ring, client_by("http", exact_server) as http:
        first = await ring.score(**fields)
        for output in (await http.score(**fields), await ring.score(**fields)):
            assert (output.choices, output.start) == (first.choices, first.start)
            assert output.prompt_tokens == first.prompt_tokens
            assert output.probabilities == first.probabilities
        for choice, continuation in zip(first.choices, fields["continuations"], strict=True):
            alone = await ring.score(**fields | {"continuations": [continuation]})
            behind = alone.start - first.start
            assert alone.choices[0].logprobs == choice.logprobs[behind:]
    is_null = [value is None for choice in first.choices for value in choice.logprobs]
    assert any(is_null) == (first.start == 0)


@pytest.mark.full
async def test_the_likely_wins(exact_server: Server) -> None:
    async with client_by("http", exact_server) as client:
        output = await client.score("The capital of France is", [" London", " Paris", " Rome"])
    assert np.argmax(output.probabilities) == 1 and sum(output.probabilities) == pytest.approx(1)


def test_the_engine_scores(engine: Engine) -> None:
    output = engine.score("The capital of France is", [" London", " Paris"])
    assert isinstance(output, ScoreOutput) and output.probabilities[1] > 0.5


# ---- the prefix once -----------------------------------------------------------------------------


@pytest.mark.full
@WAYS
async def test_the_prefix_is_computed_once(exact_server: Server, way: str) -> None:
    """Except its last token, whose logits each continuation needs; it is in several chunks."""
    rng = np.random.default_rng(0)
    prefix = rng.integers(1000, 40000, 1000).tolist()
    continuations = [rng.integers(1000, 40000, n).tolist() for n in (1, 3, 2, 5, 1, 4)]
    async with client_by(way, exact_server) as client:
        before = await client.stats()
        call = {"input_ids": prefix, "continuations": continuations, "cache_salt": way}
        output = await client.score(**call)
        after = await client.stats()
        again = await client.score(**call)
    total = 1000 + sum(map(len, continuations)) + len(continuations) - 1
    name = "computed_prompt_tokens_total"
    assert after[name] - before[name] == output.computed_tokens == total
    assert (output.start, output.prompt_tokens, output.cached_tokens) == (1000, 1000, 0)
    assert again.cached_tokens == 999 and again.computed_tokens == total - 999


async def test_salts_keep_scores_apart(exact_server: Server) -> None:
    fields: dict[str, Any] = {"text": "A secret of some length", "continuations": [" is", " was"]}
    async with client_by("ring", exact_server) as client:
        first = await client.score(**fields, cache_salt="one")
        assert (await client.score(**fields, cache_salt="one")).cached_tokens > 0
        other = await client.score(**fields, cache_salt="two")
    assert other.cached_tokens == first.cached_tokens == 0 and other.choices == first.choices


# ---- ended early ---------------------------------------------------------------------------------


def long_score(seed: int) -> dict[str, Any]:
    """Seconds of work that nothing in the cache can shorten."""
    rng = np.random.default_rng(seed)
    continuations = [rng.integers(1000, 40000, 3000).tolist() for _ in range(4)]
    return {"input_ids": rng.integers(1000, 40000, 3000).tolist(), "continuations": continuations}


async def until_running(client: AsyncClient) -> None:
    async with asyncio.timeout(SOON_S):
        while not (await client.stats())["num_running_reqs"]:
            await asyncio.sleep(0)


async def assert_little_was_computed(server: Server, before: dict[str, Any]) -> None:
    stats = await asyncio.to_thread(server.wait_idle)
    name = "computed_prompt_tokens_total"
    assert stats[name] - before[name] < 15_000
    assert stats["num_requests_total"] - before["num_requests_total"] == 4


@pytest.mark.full
@WAYS
async def test_a_cancelled_score_ends_all_its_parts(exact_server: Server, way: str) -> None:
    async with client_by(way, exact_server) as client:
        before = await client.stats()
        call = asyncio.ensure_future(client.score(**long_score(1)))
        await until_running(client)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await assert_little_was_computed(exact_server, before)
        assert (await client.score("a", ["b"])).choices


@WAYS
async def test_an_abort_by_rid_fails_the_score(exact_server: Server, way: str) -> None:
    async with client_by(way, exact_server) as client:
        before = await client.stats()
        call = asyncio.ensure_future(client.score(**long_score(2), rid=f"s-{way}"))
        await until_running(client)
        await client.abort(f"s-{way}")
        with pytest.raises(RequestError) as aborted:
            await call
        assert aborted.value.info.code == CONFLICT
        await assert_little_was_computed(exact_server, before)


@pytest.mark.full
async def test_a_client_that_closes_ends_its_score(exact_server: Server) -> None:
    async with client_by("ring", exact_server) as other:
        before = await other.stats()
        async with client_by("ring", exact_server) as client:
            call = asyncio.ensure_future(client.score(**long_score(3)))
            await until_running(other)
        with pytest.raises(RequestError):
            await call
        await assert_little_was_computed(exact_server, before)


@pytest.mark.full
@WAYS
async def test_a_score_is_admitted_whole_or_not(exact_server: Server, way: str) -> None:
    forever = {"max_new_tokens": 2000, "ignore_eos": True, "speculative": "off"}
    async with client_by(way, exact_server) as client:
        texts = [f"Count to {i}" for i in range(MAX_REQUESTS - 3)]
        held = [await client.submit(text=t, sampling=forever, stream=True) for t in texts]
        before = (await client.stats())["num_requests_total"]
        with pytest.raises(RequestError) as refused:
            await client.score("A", [" b", " c", " d", " e"])
        assert (refused.value.info.code, refused.value.info.retryable) == (OVERLOADED, True)
        assert (await client.stats())["num_requests_total"] == before
        assert len((await client.score("A", [" b", " c", " d"])).choices) == 3
        with pytest.raises(RequestError) as never:
            await client.score("A", [" b"] * (MAX_REQUESTS + 1))
        assert never.value.info.code == BAD_REQUEST
        assert never.value.info.param == "continuations"
        for generation in held:
            await generation.aclose()
    await asyncio.to_thread(exact_server.wait_idle)


@WAYS
async def test_bad_scores_are_refused_by_name(exact_server: Server, way: str) -> None:
    bad: dict[str, dict[str, Any]] = {
        "continuations": {"text": "a", "continuations": []},
        "continuations[1]": {"text": "a", "continuations": ["b", ""]},
        "text": {"continuations": ["b"]},
        "input_ids": {"input_ids": [99999], "continuations": ["b"]},
    }
    async with client_by(way, exact_server) as client:
        for param, fields in bad.items():
            with pytest.raises(RequestError) as error:
                await client.score(**fields)
            assert (error.value.info.code, error.value.info.param) == (BAD_REQUEST, param)
