"""The torch executor against transformers, on small random checkpoints."""

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from scheduler_proc.executor import ExecutorOptions, make_executor
from scheduler_proc.executor.base import expert_counts
from srt.files.model_files import ModelFiles
from srt.files.sizes import model_sizes
from srt.sizing import OTHERS
from srt.wire.errors import ConfigError
from srt.wire.filled_params import FilledParams
from tests.running.late import late
from tests.running.profiles import some
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.models.checkpoints import (
    LLAMA3_ROPE,
    gguf_tensors,
    random_llama,
    save_directory,
    write_gguf,
)
from tests.scheduler_proc.models.families import random_family
from tests.scheduler_proc.ragged import Row, adjust_of, chunked_logprobs, details_of, make_batch

if TYPE_CHECKING:
    import torch

    from scheduler_proc.executor import torch_executor
else:
    torch = late("torch")
    torch_executor = late("scheduler_proc.executor.torch_executor")


POOL = 640
VARIANTS: dict[str, dict[str, Any]] = {
    "gqa, untied": {},
    "tied": {"tie_word_embeddings": True},
    "one kv head": {"num_key_value_heads": 1},
    "no sharing": {"num_key_value_heads": 6},
    "wide heads": {"head_dim": 12},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "llama3 rope": {"rope_parameters": LLAMA3_ROPE},
    "large theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
}


def load(files: ModelFiles, **options: Any) -> "torch_executor.TorchExecutor":
    return torch_executor.TorchExecutor(files, max_total_tokens=POOL, **options)


def hf_logits(model: Any, ids: np.ndarray) -> "torch.Tensor":
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.from_numpy(ids)[None]).logits[0]
        return logits


def hf_logprobs(model: Any, ids: np.ndarray) -> np.ndarray:
    """log p of ids[1:], from transformers."""
    logprobs = hf_logits(model, ids)[:-1].log_softmax(-1)
    return logprobs.gather(1, torch.from_numpy(ids)[1:, None])[:, 0].numpy()


def random_ids(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 131, count)


def compare(executor: "torch_executor.TorchExecutor", model: Any, ids: np.ndarray) -> float:
    """The largest difference of full logits."""
    slots = np.random.default_rng(1).permutation(POOL)[: len(ids)]
    with torch.inference_mode():
        hidden = executor.forward(make_batch([Row(ids, slots)]))
        difference = executor.model.logits(hidden) - hf_logits(model, ids)
    return float(difference.abs().max())


@pytest.mark.parametrize("variant", some(VARIANTS, "gqa, untied", "biases"))
def test_logits_match_transformers(tmp_path: Path, variant: str) -> None:
    model = random_llama(**VARIANTS[variant])
    executor = load(save_directory(model, tmp_path))
    assert executor.vocab_size == 131
    assert executor.context_len == 256
    assert compare(executor, model, random_ids(200)) <= 1e-3


def test_sharded_safetensors_match(tmp_path: Path) -> None:
    model = random_llama()
    files = save_directory(model, tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert compare(load(files), model, random_ids(50)) <= 1e-3


@pytest.mark.parametrize("variant", some(["gqa, untied", "tied", "wide heads", "biases"]))
def test_gguf_matches_transformers(tmp_path: Path, variant: str) -> None:
    model = random_llama(**VARIANTS[variant])
    wide: dict[str, Any] = {"attention.key_length": 12, "attention.value_length": 12}
    files = write_gguf(model, tmp_path / "m.gguf", **(wide if variant == "wide heads" else {}))
    assert compare(load(files), model, random_ids(200)) <= 1e-3


def test_gguf_rope_divisors_are_llama3_scaling(tmp_path: Path) -> None:
    """llama.cpp stores Llama 3.1's scaling as a tensor of divisors of the frequencies."""
    model = random_llama(rope_parameters=LLAMA3_ROPE)
    plain = 1.0 / 10000.0 ** (np.arange(0, 8, 2) / 8)
    divisors = (plain / model.model.rotary_emb.inv_freq.numpy()).astype(np.float32)
    assert divisors.max() == pytest.approx(4.0)
    tensors = {**gguf_tensors(model), "rope_freqs.weight": divisors}
    executor = load(write_gguf(model, tmp_path / "m.gguf", tensors))
    assert compare(executor, model, random_ids(200)) <= 1e-3


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelFiles, Any]:
    model = random_llama()
    return save_directory(model, tmp_path_factory.mktemp("small")), model


@pytest.mark.parametrize("chunk", some([1, 7, 64, 500], 7, 500))
def test_prompt_logprobs_in_chunks(small: tuple[ModelFiles, Any], chunk: int) -> None:
    files, model = small
    executor, ids = load(files), random_ids(120)
    slots = np.random.default_rng(2).permutation(POOL)[:120]
    logprobs, result = chunked_logprobs(executor, ids, slots, chunk)
    np.testing.assert_allclose(logprobs, hf_logprobs(model, ids), atol=1e-3)
    assert result.next_ids.tolist() == [int(hf_logits(model, ids)[-1].argmax())]
    suffix, _ = chunked_logprobs(executor, ids, slots, chunk, start=70)
    np.testing.assert_allclose(suffix, logprobs[70:], atol=1e-4)


@pytest.mark.full
def test_prompt_logprobs_over_several_head_chunks(small: tuple[ModelFiles, Any]) -> None:
    files, _ = small
    executor = load(files)
    rows = []
    for seed in range(3):
        ids = random_ids(200, seed)
        rows.append(Row(ids, range(200 * seed, 200 * seed + 200), ids[1:], samples=False))
    together = executor.run(make_batch(rows))
    assert len(together.next_ids) == 0
    alone = [executor.run(make_batch([row])).prompt_logprobs for row in rows]
    np.testing.assert_allclose(together.prompt_logprobs, np.concatenate(alone), atol=1e-4)


def test_details_are_of_the_unmodified_distribution(small: tuple[ModelFiles, Any]) -> None:
    """For samples and known tokens, over several head chunks, whatever changes the logits."""
    files, model = small
    executor, ids = load(files), random_ids(120)
    first, second = Row(ids, range(120), targets=ids[1:]), Row(ids[:40], range(120, 160))
    third = Row(random_ids(200, 1), range(200, 400), targets=random_ids(200, 1)[1:])
    batch = make_batch([first, second, third], want_logprob=True)
    asking, top = [0, 1, 3, 121, 3 + 119 + 150], [3, 0, 131, 2, 1]
    batch.details = details_of(asking, top, [[5], [130, 0], [], [], [77]])
    batch.adjust = adjust_of([{5: (2.0, 1.0), 9: (1.0, 200.0)}, {}, {3: (1.0, 200.0)}])
    result = executor.run(batch)
    assert result.next_ids.tolist() == [9, int(hf_logits(model, ids[:40])[-1].argmax()), 3]
    longer = random_ids(200, 1)
    known = hf_logits(model, ids).log_softmax(-1).numpy()
    # Positions 0 and 118 of the first row's targets, 150 of the third's.
    rows = [known[119], hf_logits(model, ids[:40]).log_softmax(-1).numpy()[39], known[0]]
    rows += [known[118], hf_logits(model, longer).log_softmax(-1).numpy()[150]]
    best = [np.argsort(-r)[:k] for r, k in zip(rows, top, strict=True)]
    found = result.details
    assert found is not None
    assert found.top_ids.tolist() == np.concatenate(best).tolist()
    want = np.concatenate([row[ids] for row, ids in zip(rows, best, strict=True)])
    np.testing.assert_allclose(found.top_logprobs, want, atol=1e-3)
    named = [rows[0][5], rows[1][130], rows[1][0], rows[4][77]]
    np.testing.assert_allclose(found.id_logprobs, named, atol=1e-3)
    np.testing.assert_allclose(result.logprobs[0], rows[0][9], atol=1e-3)


@pytest.mark.full
@pytest.mark.parametrize("lag", some([0, 1], 1))
def test_penalised_outputs_are_those_of_transformers(
    small: tuple[ModelFiles, Any], lag: int
) -> None:
    """Prompt and output both count, through the whole core: in chunks, retracted, at lag 1."""
    files, model = small
    driver = Driver(
        lag, executor=load(files), max_total_tokens=90, vocab_size=131, chunked_prefill_size=16
    )
    driver.core.state.admissions.ratio.value = 0.0
    prompts = {f"r{i}": random_ids(10 + 4 * i, seed=i) for i in range(3)}
    penalties = {"r0": 1.0, "r1": 1.3, "r2": 0.9}
    for rid, prompt in prompts.items():
        sampling = FilledParams(repetition_penalty=penalties[rid])
        driver.add(rid, prompt.tolist(), 30, sampling=sampling)
    driver.run()
    assert driver.core.state.counters.retracted > 0
    for rid, prompt in prompts.items():
        ids = torch.from_numpy(prompt)[None]
        want = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=30,
            eos_token_id=-1,
            pad_token_id=0,
            repetition_penalty=penalties[rid],
        )[0, len(prompt) :]
        assert driver.outputs[rid] == want.tolist()
    assert len(set(map(tuple, driver.outputs.values()))) == 3


def generate(model: Any, prompt: np.ndarray, count: int) -> list[int]:
    """Greedy continuation by transformers, without a cache."""
    ids = prompt
    for _ in range(count):
        ids = np.append(ids, int(hf_logits(model, ids)[-1].argmax()))
    return [int(token) for token in ids[len(prompt) :]]


def test_a_mixed_batch_generates_what_each_row_would_alone(small: tuple[ModelFiles, Any]) -> None:
    """Decodes, a late arrival in chunks, and a row on a shared prefix, in the same steps."""
    files, model = small
    executor = load(files)
    free = iter(np.random.default_rng(3).permutation(POOL).tolist())
    prompts = [random_ids(20), random_ids(45, seed=1), np.append(random_ids(20)[:15], [3, 9])]
    slots = [[next(free) for _ in p] for p in prompts]
    slots[2][:15] = slots[0][:15]
    made: list[list[int]] = [[], [], []]
    shares = [prompts[0].tolist(), prompts[1][:30].tolist(), []]
    for step in range(8):
        if step == 1:
            shares[1], shares[2] = prompts[1][30:].tolist(), prompts[2][15:].tolist()
        active = [r for r in range(3) if shares[r]]
        lengths = [30 if (r, step) == (1, 0) else len(slots[r]) for r in active]
        rows = [Row(shares[r], slots[r][:n]) for r, n in zip(active, lengths, strict=True)]
        next_ids = executor.run(make_batch(rows)).next_ids
        for r, token in zip(active, next_ids.tolist(), strict=True):
            if (r, step) != (1, 0):
                made[r].append(token)
                slots[r].append(next(free))
                shares[r] = [token]
    for prompt, tokens in zip(prompts, made, strict=True):
        assert tokens == generate(model, prompt, len(tokens))


def test_garbage_in_unlisted_slots_is_never_read(small: tuple[ModelFiles, Any]) -> None:
    files, model = small
    executor, ids = load(files), random_ids(30)
    for pool in (*executor._pool.k, *executor._pool.v):
        pool.fill_(torch.nan)
    slots = np.arange(0, 60, 2)
    logprobs, _ = chunked_logprobs(executor, ids, slots, chunk=8)
    np.testing.assert_allclose(logprobs, hf_logprobs(model, ids), atol=1e-3)


def test_a_row_with_broken_cache_breaks_no_other(small: tuple[ModelFiles, Any]) -> None:
    files, _ = small
    executor = load(files)
    good, bad = Row(random_ids(10), range(10)), Row(random_ids(10, 1), range(10, 20))
    executor.run(make_batch([good, bad]))
    step = make_batch([Row([5], range(11)), Row([5], [*range(10, 20), 20])], want_logprob=True)
    clean = executor.run(step)
    executor._pool.v[1][13] = torch.nan
    broken = executor.run(step)
    assert broken.next_ids[0] == clean.next_ids[0]
    assert broken.logprobs[0] == pytest.approx(clean.logprobs[0], abs=1e-5)
    assert 0 <= broken.next_ids[1] < 131
    assert np.isnan(broken.logprobs[1])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bit_weights_stay_close(small: tuple[ModelFiles, Any], dtype: str) -> None:
    files, model = small
    executor, ids = load(files, dtype=dtype), random_ids(60)
    assert executor.pool_bytes * 2 == load(files).pool_bytes
    logprobs, _ = chunked_logprobs(executor, ids, np.arange(60), chunk=60)
    reference = hf_logprobs(model, ids)
    assert np.abs(logprobs - reference).mean() < (0.05 if dtype == "bfloat16" else 0.01)


def test_memory_facts(small: tuple[ModelFiles, Any]) -> None:
    files, model = small
    executor = make_executor("torch", files, ExecutorOptions(10, max_model_len=20))
    parameters = sum(p.numel() for p in model.parameters())
    assert executor.name == "torch"
    assert (executor.max_total_tokens, executor.context_len) == (10, 20)
    assert executor.weight_bytes == 4 * (parameters + 4)  # 4 are the rope frequencies
    assert executor.pool_bytes == 4 * 10 * 2 * 3 * 2 * 8


def test_a_pool_that_was_planned_has_what_memory_is_left(
    small: tuple[ModelFiles, Any],
) -> None:
    """Its plan was that of the native executor, whose weights and KV are narrower."""
    files, sizes = small[0], model_sizes(small[0])
    room = 2000 * 4 * sizes.kv_values  # torch's, half of what is left
    available = OTHERS + sizes.float32_bytes + 2 * room
    options = ExecutorOptions(max_total_tokens=4000, planned_bytes=available)
    assert make_executor("torch", files, options).max_total_tokens == 1536  # in steps of 512
    options = ExecutorOptions(max_total_tokens=4000, planned_bytes=available, dtype="bfloat16")
    assert make_executor("torch", files, options).max_total_tokens == 4000
    options = ExecutorOptions(max_total_tokens=100, planned_bytes=available)
    assert make_executor("torch", files, options).max_total_tokens == 100
    options = ExecutorOptions(max_total_tokens=100, planned_bytes=OTHERS)
    with pytest.raises(ConfigError, match="of memory are available"):
        make_executor("torch", files, options)
    options = ExecutorOptions(max_total_tokens=4000)  # as somebody asked for
    assert make_executor("torch", files, options).max_total_tokens == 4000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "warp"}, "executor 'warp' is not one of"),
        ({"dtype": "int3"}, "dtype 'int3' is not one of"),
        ({"device": "toaster"}, "'toaster' is not a device"),
        ({"max_total_tokens": 0}, "at least one slot"),
        ({"exact": True}, "--exact: the torch executor does not have this"),
        ({"activations": "16"}, "--activations: the torch executor does not have this"),
        ({"kind": "auto", "dtype": "float32", "activations": "8"}, "torch executor does not have"),
        ({"kind": "native", "activations": "10"}, "--activations 10 is not one of auto, 8, 12, 16"),
        ({"kind": "native", "exact": True, "activations": "8"}, "with --exact .* are float32"),
        ({"kind": "native", "device": "cuda"}, "the native executor runs on the CPU"),
        ({"kind": "native", "dtype": "bfloat16"}, "the native executor keeps the file's weights"),
    ],
)
def test_bad_options_are_config_errors(
    small: tuple[ModelFiles, Any], options: dict[str, Any], message: str
) -> None:
    arguments: dict[str, Any] = {"kind": "torch", "max_total_tokens": 8, **options}
    with pytest.raises(ConfigError, match=message):
        make_executor(arguments.pop("kind"), small[0], ExecutorOptions(**arguments))


def test_importing_the_seam_does_not_import_torch() -> None:
    imports = "import sys, scheduler_proc.batch, scheduler_proc.executor"
    code = f"{imports}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_cuda_device_gets_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert torch_executor._torch_device("cuda") == torch.device("cuda", 0)
    assert torch_executor._torch_device("cuda:1") == torch.device("cuda", 1)


def test_uses_of_experts_are_counted(tmp_path: Path) -> None:
    """Three of six experts a token, in the two layers that are mixtures."""
    files = save_directory(random_family("qwen3_moe, some dense"), tmp_path)
    executor = load(files)
    for times in (1, 2):
        executor.run(make_batch([Row(np.arange(11), np.arange(11))]))
        counts = expert_counts(executor)
        assert counts is not None and counts.dtype == np.int64 and counts.shape == (3, 6)
        per_layer = counts.sum(axis=1)
        assert sorted(per_layer) == [0, 33 * times, 33 * times]
        assert (counts <= 11 * times).all()


def test_a_model_without_experts_counts_nothing(small: tuple[ModelFiles, Any]) -> None:
    assert expert_counts(load(small[0])) is None
