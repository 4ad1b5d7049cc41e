"""Whole models on a device against transformers: prompts, decodes, graphs, overlap, radix cache.

On a GPU models compute in bfloat16, where two ways to the same sum differ: log-probabilities are
compared within bounds, and texts up to the first token whose rival was nearly as likely.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from bench.gpu_report.steps import launch
from scheduler_proc.batch import ForwardBatch, StepResult
from scheduler_proc.core.steps.step import NO_LATE_TOKENS, LateTokens, Step
from scheduler_proc.executor import ExecutorOptions, make_executor
from scheduler_proc.executor.torch_executor import TorchExecutor
from srt.files.model_files import ModelFiles
from tests.gpu.cases import ENGINES, ON_CUDA, Engine, needs_cuda
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.models.checkpoints import random_llama, save_directory
from tests.scheduler_proc.ragged import Row, chunked_logprobs, make_batch

pytestmark = pytest.mark.full

POOL, VOCAB = 1200, 131
SHAPE = {
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 1024,
    "initializer_range": 0.05,
}
CUDA_ENGINES = [pytest.param(engine, id=engine.backend, marks=needs_cuda) for engine in ON_CUDA[1:]]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelFiles, Any]:
    """A model directory, and the same model in transformers: float32, on the CPU."""
    model = random_llama(**SHAPE)
    return save_directory(model, tmp_path_factory.mktemp("small")), model


def load(files: ModelFiles, engine: Engine, **options: Any) -> TorchExecutor:
    """An executor of the engine's backend. Skips the test if the backend is not installed."""
    if engine.backend != "reference":
        pytest.importorskip(engine.backend)
    if engine.device == "cuda":
        options = {"attention_backend": engine.backend, "max_running_requests": 16, **options}
    chosen = ExecutorOptions(max_total_tokens=POOL, device=engine.device, **options)
    executor = make_executor("torch", files, chosen)
    assert isinstance(executor, TorchExecutor)
    return executor


def random_ids(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCAB, count)


def scattered(count: int, seed: int = 1) -> np.ndarray:
    """Slots of the pool in no order."""
    return np.random.default_rng(seed).permutation(POOL)[:count]


def hf_logprobs(model: Any, ids: np.ndarray) -> np.ndarray:
    """log p of ids[1:], from transformers."""
    with torch.inference_mode():
        logits = model(torch.from_numpy(ids)[None].to(model.device)).logits[0, :-1]
    logprobs = logits.float().log_softmax(-1).cpu()
    found: np.ndarray = logprobs.gather(1, torch.from_numpy(ids)[1:, None])[:, 0].numpy()
    return found


def assert_as_near_as_transformers(
    found: np.ndarray, small: tuple[ModelFiles, Any], ids: np.ndarray, engine: Engine
) -> None:
    """To transformers in float32: on a CPU the same numbers; on CUDA in bfloat16 about as near as
    transformers in bfloat16 there is."""
    files, model = small
    exact = hf_logprobs(model, ids)
    if engine.device == "cpu":
        np.testing.assert_allclose(found, exact, atol=1e-3)
        return
    from transformers import LlamaForCausalLM

    theirs: Any = LlamaForCausalLM.from_pretrained(files.path, dtype=torch.bfloat16)
    rounded = hf_logprobs(theirs.to("cuda").eval(), ids)
    assert np.isfinite(found).all()
    assert np.abs(found - exact).mean() <= 2 * np.abs(rounded - exact).mean() + 0.01


def decoded_logprobs(executor: TorchExecutor, ids: np.ndarray, start: int) -> np.ndarray:
    """log p of ids[1:]: the first `start` ids in one extend, the others one by one, each beside two
    other decodes."""
    slots = scattered(len(ids) + 40)
    others = [slots[len(ids) : len(ids) + 20], slots[len(ids) + 20 :]]
    executor.run(make_batch([Row(random_ids(20, seed=5), other) for other in others]))
    result = executor.run(make_batch([Row(ids[:start], slots[:start], targets=ids[1 : start + 1])]))
    parts = [result.prompt_logprobs]
    for at in range(start, len(ids) - 1):
        row = Row(ids[at : at + 1], slots[: at + 1], targets=ids[at + 1 : at + 2])
        rows = [Row([7], others[0]), row, Row([9], others[1])]
        parts.append(executor.run(make_batch(rows)).prompt_logprobs)
    return np.concatenate(parts)


@pytest.mark.parametrize("engine", ENGINES)
def test_prompts_in_chunks(small: tuple[ModelFiles, Any], engine: Engine) -> None:
    executor, ids = load(small[0], engine), random_ids(700)
    found, _ = chunked_logprobs(executor, ids, scattered(700), chunk=256)
    assert_as_near_as_transformers(found, small, ids, engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_decodes(small: tuple[ModelFiles, Any], engine: Engine) -> None:
    executor, ids = load(small[0], engine), random_ids(160, seed=3)
    found = decoded_logprobs(executor, ids, start=120)
    assert_as_near_as_transformers(found, small, ids, engine)


@pytest.mark.parametrize("engine", CUDA_ENGINES)
def test_graphs_compute_what_the_calls_do(small: tuple[ModelFiles, Any], engine: Engine) -> None:
    with_graphs, without = load(small[0], engine), load(small[0], engine, disable_cuda_graph=True)
    ids = random_ids(100, seed=3)
    first, second = (decoded_logprobs(e, ids, start=60) for e in (with_graphs, without))
    np.testing.assert_allclose(first, second, atol=0.05)
    assert with_graphs._graphs is not None and with_graphs._graphs.num_replays > 30
    assert without._graphs is None


@pytest.mark.parametrize("engine", CUDA_ENGINES)
def test_a_pool_of_eight_bits(small: tuple[ModelFiles, Any], engine: Engine) -> None:
    """Keys and values with three bits after the point: near, and half the memory."""
    sixteen, eight = load(small[0], engine), load(small[0], engine, kv_cache_dtype="fp8_e4m3")
    assert sixteen.pool_bytes == 2 * eight.pool_bytes
    ids = random_ids(200, seed=4)
    first, second = (decoded_logprobs(e, ids, start=150) for e in (sixteen, eight))
    assert 0 < np.abs(first - second).mean() < 0.1


def chain_of(rows: int, steps: int) -> Iterator[tuple[ForwardBatch, LateTokens]]:
    """Prompts of `rows` requests, then decodes, with the tokens that they need of the step before:
    half of the rows draw."""
    slots = scattered(rows * 60).reshape(rows, 60)
    rng = np.random.default_rng(6)
    for step in range(steps):
        first = step == 0
        length = 20 + step
        added = [random_ids(20, seed=r) if first else [0] for r in range(rows)]
        uniform = rng.random(rows)
        batch = make_batch(
            [Row(added[r], slots[r, :length]) for r in range(rows)],
            temperature=[0.0 if r % 2 else 0.8 for r in range(rows)],
            uniform=uniform,
        )
        late = NO_LATE_TOKENS if first else LateTokens(np.arange(rows), np.arange(rows))
        yield batch, late


@pytest.mark.parametrize("engine", ENGINES)
def test_launched_steps_give_the_tokens_of_steps_that_are_run(
    small: tuple[ModelFiles, Any], engine: Engine
) -> None:
    """A step is queued before the tokens of the one before are known; its kernels are the same, so
    are the tokens."""
    run, launched = load(small[0], engine), load(small[0], engine)
    expected: list[StepResult] = []
    for batch, late in chain_of(5, 30):
        Step(batch, [], late).finalize(expected[-1] if expected else None)
        expected.append(run.run(batch))
    pending: list[Any] = []
    results: list[StepResult] = []
    for batch, late in chain_of(5, 30):
        pending.append(launch(launched, Step(batch, [], late), pending[-1] if pending else None))
        if len(pending) > 1:
            results.append(pending[-2].result())
    results.append(pending[-1].result())
    for found, wanted in zip(results, expected, strict=True):
        assert found.next_ids.tolist() == wanted.next_ids.tolist()


def served(executor: TorchExecutor, lag: int, **config: Any) -> Driver:
    """Requests with a common beginning, in two waves, so that the second finds it cached."""
    settings = {"max_total_tokens": POOL, "vocab_size": VOCAB, "chunked_prefill_size": 64}
    driver = Driver(lag, executor=executor, **(settings | config))
    common = random_ids(150, seed=8).tolist()
    for wave in range(2):
        for i in range(3):
            own = random_ids(5 + 20 * i, seed=10 * wave + i).tolist()
            prompt = common + own
            driver.add(f"{wave}{i}", prompt, 24, logprob_start=len(prompt), top_logprobs=2)
        driver.run()
    return driver


def assert_same_texts(first: Driver, second: Driver, near: float) -> None:
    """Tokens are equal up to the first one whose rival's log-probability was within `near`."""
    compared = 0
    for rid, ids in first.outputs.items():
        others = second.outputs[rid]
        assert len(ids) == len(others)
        for at, (token, other) in enumerate(zip(ids, others, strict=True)):
            if token != other:
                best, rival = first.details[rid][at].top_logprobs
                assert best - rival <= near, (rid, at, best, rival)
                break
            compared += 1
    assert compared >= 0.3 * sum(map(len, first.outputs.values()))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("lag", [0, 1])
def test_texts_do_not_depend_on_what_is_cached(
    small: tuple[ModelFiles, Any], engine: Engine, lag: int
) -> None:
    executor = load(small[0], engine)
    cached = served(executor, lag)
    alone = served(executor, lag, disable_radix_cache=True)
    assert max(cached.cached.values()) >= 150
    assert max(alone.cached.values()) == 0
    assert_same_texts(alone, cached, near=1e-3 if engine.device == "cpu" else 0.1)


@pytest.mark.parametrize("engine", ENGINES)
def test_out_of_memory_ends_the_request_whose_step_it_is(
    small: tuple[ModelFiles, Any], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt with a certain token needs more than there is; the others get all their tokens."""
    executor, poison = load(small[0], engine), 130
    forward = executor.model.forward

    def hungry(input_ids: torch.Tensor, layout: Any, pool: Any) -> torch.Tensor:
        if len(input_ids) > 16 and bool((input_ids == poison).any()):
            if engine.device == "cpu":
                raise torch.OutOfMemoryError("made to fail")
            torch.empty(1 << 46, dtype=torch.uint8, device="cuda")
        return forward(input_ids, layout, pool)

    monkeypatch.setattr(executor.model, "forward", hungry)
    driver = Driver(0, executor=executor, max_total_tokens=POOL, vocab_size=VOCAB)
    prompts = {f"r{i}": random_ids(30, seed=i) % poison for i in range(4)}
    prompts["r2"][7] = poison
    for rid, prompt in prompts.items():
        driver.add(rid, prompt.tolist(), 10)
    driver.run()
    assert {rid: len(ids) for rid, ids in driver.outputs.items()} == {"r0": 10, "r1": 10, "r3": 10}
    assert driver.finishes["r2"].error is not None
