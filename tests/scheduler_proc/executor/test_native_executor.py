"""The native executor against the torch one and transformers, on small random checkpoints."""

import copy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest

from bench.mixtures.files import Shape, write_mixture
from scheduler_proc.batch import ForwardBatch, Masks, Samples, StepResult
from scheduler_proc.executor import ExecutorOptions, make_executor
from scheduler_proc.executor.base import expert_counts
from scheduler_proc.executor.native_executor import NativeExecutor
from scheduler_proc.kernels.library import INPUTS
from scheduler_proc.process.construction import core_config
from srt.args import ServerArgs
from srt.files import sizes
from srt.files.model_files import ModelFiles, resolve_model
from srt.wire.errors import ConfigError
from tests.running.late import late
from tests.running.profiles import some
from tests.scheduler_proc.kernels.ops import levels, load_or_skip
from tests.scheduler_proc.models.checkpoints import (
    LLAMA3_ROPE,
    gguf_tensors,
    random_llama,
    save_directory,
    write_gguf,
)
from tests.scheduler_proc.models.families import FULL, SLIDING, random_family
from tests.scheduler_proc.ragged import Row, chunked_logprobs, int32, make_batch

if TYPE_CHECKING:
    import torch

    from scheduler_proc.executor import torch_executor
else:
    torch = late("torch")
    torch_executor = late("scheduler_proc.executor.torch_executor")


POOL = 640
SIZES = {"hidden_size": 96, "intermediate_size": 160, "head_dim": 16}
VARIANTS: dict[str, dict[str, Any]] = {
    "gqa, untied": {},
    "tied": {"tie_word_embeddings": True},
    "one kv head": {"num_key_value_heads": 1},
    "no sharing": {"num_key_value_heads": 6},
    "wide heads": {"head_dim": 80, "num_attention_heads": 2},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "llama3 rope": {"rope_parameters": LLAMA3_ROPE},
    "large theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "tiny vocabulary": {"vocab_size": 3},
    "whole blocks of ids": {"vocab_size": 160},
    "sixteenths": {"hidden_size": 48, "intermediate_size": 80},
}


def load(files: ModelFiles, **options: Any) -> NativeExecutor:
    load_or_skip()
    return NativeExecutor(files, **{"max_total_tokens": POOL, "num_threads": 2, **options})


def random_ids(count: int, vocab: int = 131, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, vocab, count)


def random_slots(count: int, seed: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).permutation(POOL)[:count]


def logprobs_of(executor: Any, ids: np.ndarray, chunk: int = 1000) -> np.ndarray:
    """log p of ids[1:], followed by the id that is then sampled greedily."""
    logprobs, result = chunked_logprobs(executor, ids, random_slots(len(ids)), chunk)
    return np.concatenate([logprobs, result.next_ids])


def transformers_logprobs(model: Any, ids: np.ndarray) -> np.ndarray:
    """The same from transformers, in float64: sums of oneDNN's float32 kernels may vary."""
    with torch.inference_mode():
        logits = copy.deepcopy(model).double()(torch.from_numpy(ids)[None]).logits[0]
    logprobs = logits.log_softmax(-1)[:-1].gather(1, torch.from_numpy(ids)[1:, None])[:, 0]
    return np.concatenate([logprobs.numpy(), [int(logits[-1].argmax())]])


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelFiles, np.ndarray]:
    """A checkpoint, and what torch computes of `random_ids(150)`."""
    files = save_directory(random_llama(**SIZES), tmp_path_factory.mktemp("small"))
    return files, logprobs_of(
        torch_executor.TorchExecutor(files, max_total_tokens=POOL), random_ids(150)
    )


def test_torch_is_not_imported(small: tuple[ModelFiles, np.ndarray]) -> None:
    """Loading it would be most of the time that a start takes."""
    load_or_skip()
    code = f"""
import sys
from scheduler_proc.executor import ExecutorOptions, make_executor
from scheduler_proc.process.warm_up import warm_up
from scheduler_proc.process.construction import core_config
from srt.args import ServerArgs
from srt.files.model_files import resolve_model

for model in ({str(small[0].path)!r}, "smollm2"):
    executor = make_executor("native", resolve_model(model), ExecutorOptions(max_total_tokens=64))
    warm_up(executor, core_config(ServerArgs(model=model), executor))
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_context_that_is_cut(small: tuple[ModelFiles, np.ndarray]) -> None:
    load_or_skip()
    executor = make_executor("native", small[0], ExecutorOptions(64, max_model_len=48))
    assert core_config(ServerArgs(), executor).context_len == 48


# ---- values -------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", some(VARIANTS, "gqa, untied", "biases"))
def test_exact_logprobs_match_transformers(tmp_path: Path, variant: str) -> None:
    model = random_llama(**{**SIZES, **VARIANTS[variant]})
    files = save_directory(model, tmp_path)
    ids = random_ids(200, model.config.vocab_size)
    expected = transformers_logprobs(model, ids)
    assert np.ptp(expected[:-1]) > 1
    np.testing.assert_allclose(logprobs_of(load(files, exact=True), ids), expected, atol=1e-3)


@pytest.mark.parametrize("isa", levels())
@pytest.mark.parametrize("threads", some([1, 2, 3], 2))
def test_every_level(small: tuple[ModelFiles, np.ndarray], isa: str, threads: int) -> None:
    files, expected = small
    executor = load(files, exact=True, isa=isa, num_threads=threads)
    np.testing.assert_allclose(logprobs_of(executor, random_ids(150)), expected, atol=1e-3)


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({}, 0.01),
        ({"kv_dtype": "float32"}, 0.001),
        ({"kv_dtype": "int16"}, 0.01),
        ({"quantization": "q8"}, 0.2),
        ({"quantization": "q4"}, 2.0),
    ],
)
def test_quantised_weights_stay_close(
    small: tuple[ModelFiles, np.ndarray], options: dict[str, str], most: float
) -> None:
    files, expected = small
    error = np.abs(logprobs_of(load(files, **options), random_ids(150)) - expected)[:-1]
    assert error.mean() < most
    if "quantization" in options:
        assert error.mean() > most / 10


@pytest.mark.parametrize(("dtype", "most"), [("bfloat16", 0.01), ("float16", 0.01)])
def test_sixteen_bit_checkpoints(tmp_path: Path, dtype: str, most: float) -> None:
    """Compared with torch in float32 on the same rounded weights."""
    files = save_directory(random_llama(**SIZES).to(getattr(torch, dtype)), tmp_path)
    ids = random_ids(150)
    expected = logprobs_of(
        torch_executor.TorchExecutor(files, max_total_tokens=POOL, dtype="float32"), ids
    )
    exact, kept = load(files, exact=True), load(files)
    np.testing.assert_allclose(logprobs_of(exact, ids), expected, atol=1e-3)
    assert np.abs(logprobs_of(kept, ids) - expected)[:-1].mean() < most
    assert kept.weight_bytes < 0.6 * exact.weight_bytes


Q = gguf.GGMLQuantizationType


@pytest.mark.parametrize(
    ("kinds", "most"),
    [
        ({}, 0.01),
        ({"": Q.F16}, 0.01),
        ({"": Q.Q8_0}, 0.2),
        ({"": Q.Q4_1}, 0.2),
        ({"": Q.Q4_0, "ffn_up": Q.Q8_0, "attn_v": Q.F32, "token_embd": Q.F16}, 0.2),
        ({"ffn_gate": Q.Q4_0, "attn_k": Q.Q8_0, "attn_output": Q.BF16}, 0.2),
    ],
)
def test_gguf_blocks(tmp_path: Path, kinds: dict[str, Any], most: float) -> None:
    """They stay in the file's formats, even several in one layer; torch dequantises them."""
    tensors, quants = gguf_tensors(random_llama(**SIZES)), {}
    for name, array in tensors.items():
        for part, kind in kinds.items():
            if array.ndim == 2 and part in name:
                quants[name] = kind
    blocks = {name: gguf.quants.quantize(tensors[name], kind) for name, kind in quants.items()}
    lengths: dict[str, Any] = {"attention.key_length": 16, "attention.value_length": 16}
    model = random_llama(**SIZES)
    path = tmp_path / "m.gguf"
    files = write_gguf(model, path, tensors | blocks, quants, **lengths)
    ids = random_ids(150)
    expected = logprobs_of(torch_executor.TorchExecutor(files, max_total_tokens=POOL), ids)
    np.testing.assert_allclose(logprobs_of(load(files, exact=True), ids), expected, atol=1e-3)
    assert np.abs(logprobs_of(load(files), ids) - expected)[:-1].mean() < most


# ---- head norms and windows ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "windowed", "chunk"),
    [
        (7, [False, False, False], 1000),
        (1, [True, False, True], 1000),
        (7, [True, False, True], 9),
        (140, [False, True, True], 1000),
    ],
)
def test_head_norms_and_windows_match_transformers(
    tmp_path: Path, window: int, windowed: list[bool], chunk: int
) -> None:
    kinds = [SLIDING if has_window else FULL for has_window in windowed]
    model = random_family("qwen3, windows", sliding_window=window, layer_types=kinds)
    executor, ids = load(save_directory(model, tmp_path), exact=True), random_ids(200)
    expected = transformers_logprobs(model, ids)
    np.testing.assert_allclose(logprobs_of(executor, ids, chunk), expected, atol=1e-3)


# ---- activations --------------------------------------------------------------------------------


@pytest.mark.parametrize("isa", levels())
def test_activations_of_more_than_eight_bits(
    tmp_path: Path, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a level has them, results hardly differ from those with float32 activations. A small
    model has them by default, for all of its inputs; others where they cost nothing."""
    model = random_llama(**SIZES)
    tensors = gguf_tensors(model)
    kinds = {
        name: Q.Q8_0 if "ffn" in name else Q.Q4_1 for name, a in tensors.items() if a.ndim == 2
    }
    blocks = {name: gguf.quants.quantize(tensors[name], kind) for name, kind in kinds.items()}
    lengths: dict[str, Any] = {"attention.key_length": 16, "attention.value_length": 16}
    files = write_gguf(model, tmp_path / "m.gguf", tensors | blocks, kinds, **lengths)
    options: dict[str, Any] = {"kv_dtype": "float32", "isa": isa}
    if load_or_skip().has_tiles(isa):
        with pytest.raises(ConfigError, match="rounds activations to bfloat16"):
            load(files, activations="16", **options)
        return
    ids = random_ids(150)
    exact = logprobs_of(load(files, exact=True), ids)[:-1]

    def error(activations: str) -> float:
        found = logprobs_of(load(files, activations=activations, **options), ids)[:-1]
        return float(np.abs(found - exact).mean())

    every = ",".join(INPUTS)
    assert error("16") < 0.01 * error("8")
    assert error("16") <= error("12") < 0.1 * error("8")
    assert error("12") == error("16") or isa == "avx512"
    assert error("16") == error(f"8:{every}")
    assert error("auto") == error("12") == error(f"8:{every}:12")
    alone = {error(f"8:{name}") for name in INPUTS}
    assert len(alone) == len(INPUTS) and not alone & {error("8"), error("16")}
    monkeypatch.setattr(sizes, "SMALL_MODEL", 1000)
    assert error("16") < error("auto") <= error("8")


# ---- the same bits in every step ----------------------------------------------------------------

QUANTIZED: list[dict[str, Any]] = [
    {"quantization": "q8"},
    {"quantization": "q8", "activations": "8"},
    {"quantization": "q8", "activations": "16"},
    {"quantization": "q4", "activations": "16"},
    {"quantization": "q4", "activations": "12"},
    {"quantization": "q4", "activations": "8:o,head"},
    {"quantization": "q8", "kv_dtype": "int16"},
]


@pytest.fixture(scope="module", params=["dense", "mixture"])
def any_kind(
    request: pytest.FixtureRequest,
    small: tuple[ModelFiles, np.ndarray],
    tmp_path_factory: pytest.TempPathFactory,
) -> ModelFiles:
    """A checkpoint whose layers have MLPs, and one whose layers have mixtures of experts, in which
    a step's tokens of the same expert are computed together."""
    if request.param == "dense":
        return small[0]
    return save_directory(random_family("qwen2_moe"), tmp_path_factory.mktemp("mixture"))


@pytest.mark.parametrize("isa", levels())
@pytest.mark.parametrize("options", some([{"exact": True}, {}, *QUANTIZED], {}, *QUANTIZED[1:3]))
def test_chunks_and_threads_do_not_change_a_bit(
    any_kind: ModelFiles, isa: str, options: dict[str, Any]
) -> None:
    files = any_kind
    if "activations" in options and load_or_skip().has_tiles(isa):
        pytest.skip("a level with tiles has activations in bfloat16 only")
    ids = random_ids(150)
    expected = logprobs_of(load(files, isa=isa, num_threads=1, **options), ids)
    for chunk in (1, 40):
        executor = load(files, isa=isa, num_threads=2, **options)
        np.testing.assert_array_equal(logprobs_of(executor, ids, chunk), expected)


@pytest.mark.parametrize("share_prefixes", [False, True])
@pytest.mark.parametrize("options", some(QUANTIZED))
def test_a_row_gets_the_same_bits_in_any_company(
    any_kind: ModelFiles, options: dict[str, str], share_prefixes: bool
) -> None:
    """Decodes on a shared prefix and an extend, together and one by one."""
    if "activations" in options and load_or_skip().has_tiles():
        pytest.skip("a level with tiles has activations in bfloat16 only")
    executor = load(any_kind, share_prefixes=share_prefixes, **options)
    prefix = random_slots(140)
    executor.run(make_batch([Row(random_ids(140), prefix)]))
    free = np.setdiff1d(np.arange(POOL), prefix)
    rows = [Row([i], [*prefix, free[i]], targets=[i + 1]) for i in range(40)]
    rows.insert(7, Row(random_ids(30, seed=1), free[100:130], targets=random_ids(30, seed=2)))
    together = executor.run(make_batch(rows, want_logprob=True))
    alone = [executor.run(make_batch([row], want_logprob=True)) for row in rows]
    for name in ("next_ids", "logprobs", "prompt_logprobs"):
        parts = [getattr(result, name) for result in alone]
        np.testing.assert_array_equal(getattr(together, name), np.concatenate(parts))


# ---- steps that cannot be run -------------------------------------------------------------------


BAD_STEPS: list[tuple[str, int, int, str]] = [
    ("input_ids", 0, -1, "input_ids"),
    ("input_ids", 11, 131, r"input_ids\[11\] = 131"),
    ("positions", 2, -5, "positions"),
    ("out_slots", 0, POOL, rf"out_slots\[0\] = {POOL}"),
    ("out_slots", 4, -1, "out_slots"),
    ("kv_indices", 3, POOL, "kv_indices"),
    ("kv_indices", 16, -1, "kv_indices"),
    ("qo_indptr", 0, 1, "qo_indptr"),
    ("qo_indptr", 1, 0, "qo_indptr"),
    ("qo_indptr", 1, 12, "qo_indptr"),
    ("qo_indptr", 2, 13, "num_tokens"),
    ("kv_indptr", 1, 17, "kv_indptr"),
    ("kv_indptr", 1, 9, "more tokens than KV"),
    ("sample_tokens", 1, 12, "sample_tokens"),
    ("sample_tokens", 0, -1, "sample_tokens"),
    ("logprob_tokens", 0, 12, "logprob_tokens"),
    ("logprob_targets", 1, 131, "logprob_targets"),
]


@pytest.fixture(scope="module")
def engine(small: tuple[ModelFiles, np.ndarray]) -> Iterator[NativeExecutor]:
    executor = load(small[0], exact=True)
    yield executor
    executor.close()


def two_rows() -> ForwardBatch:
    """Ten tokens on slots 0 to 9, and two tokens after five computed ones on slots 10 to 16."""
    first = Row(random_ids(10), range(10), targets=[3, 4])
    return make_batch([first, Row([7, 8], range(10, 17))], want_logprob=True)


@pytest.mark.parametrize(("field", "index", "value", "message"), BAD_STEPS)
def test_a_bad_step_is_refused_and_harms_nothing(
    engine: NativeExecutor, field: str, index: int, value: int, message: str
) -> None:
    engine.run(make_batch([Row(random_ids(7, seed=5), range(10, 17))]))
    good = engine.run(two_rows())
    bad = two_rows()
    getattr(bad, field)[index] = value
    with pytest.raises(RuntimeError, match=message):
        engine.run(bad)
    for before, after in zip(good.columns, engine.run(two_rows()).columns, strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(
    "field",
    [
        *("positions", "out_slots", "kv_indptr", "kv_indices", "logprob_targets", "mask_rows"),
        *Samples._fields,
    ],
)
def test_an_array_that_is_too_short_is_refused(engine: NativeExecutor, field: str) -> None:
    bad = masked(two_rows(), [0, 0])
    assert bad.masks is not None
    if field == "mask_rows":
        bad.masks = bad.masks._replace(rows=bad.masks.rows[:-1])
    elif field in Samples._fields:
        bad.samples = bad.samples._replace(**{field: getattr(bad.samples, field)[:-1]})
    else:
        setattr(bad, field, getattr(bad, field)[:-1])
    with pytest.raises(ValueError, match=field):
        engine.run(bad)


def masked(step: ForwardBatch, rows: list[int], words: int = 5) -> ForwardBatch:
    """The step with masks: `rows` index a table of one mask, which allows everything."""
    step.masks = Masks(np.full((1, words), 0xFFFFFFFF, np.uint32), int32(rows))
    return step


def test_masks_that_are_not_there_are_refused(engine: NativeExecutor) -> None:
    wanted = engine.run(two_rows())
    for rows in ([0, 0], [-1, 0]):
        found = engine.run(masked(two_rows(), rows))
        np.testing.assert_array_equal(found.next_ids, wanted.next_ids)
    with pytest.raises(ValueError, match=r"mask_rows\[1\] = 1"):
        engine.run(masked(two_rows(), [0, 1]))
    with pytest.raises(ValueError, match="masks have 4 words"):
        engine.run(masked(two_rows(), [0, 0], words=4))


def test_a_step_without_rows_is_refused(engine: NativeExecutor) -> None:
    empty, ends = int32([]), int32([0])
    nothing = make_batch([Row([1], [0], samples=False)])
    for name in ("input_ids", "positions", "out_slots", "kv_indices"):
        setattr(nothing, name, empty)
    nothing.qo_indptr = nothing.kv_indptr = ends
    with pytest.raises(RuntimeError, match="num_rows is 0"):
        engine.run(nothing)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [({"head_dim": 24}, "head size 24"), ({"intermediate_size": 72}, "multiples of 16")],
)
def test_a_model_that_the_kernels_cannot_run_is_refused(
    tmp_path: Path, overrides: dict[str, int], message: str
) -> None:
    files = save_directory(random_llama(**{**SIZES, **overrides}), tmp_path)
    with pytest.raises(ConfigError, match=message):
        load(files)


# ---- memory -------------------------------------------------------------------------------------


def test_identical_steps_need_no_more_memory(small: tuple[ModelFiles, np.ndarray]) -> None:
    executor = load(small[0], quantization="q8")
    rows = [Row(random_ids(150), range(150)), *(Row([5], [200 + i]) for i in range(9))]
    step = make_batch(rows, want_logprob=True)
    executor.run(step)
    grown = executor.num_growths
    assert grown > 0
    for _ in range(5):
        executor.run(step)
        executor.run(make_batch(rows[1:4]))
    assert executor.num_growths == grown


def test_memory_facts(small: tuple[ModelFiles, np.ndarray]) -> None:
    executor = load(small[0])
    assert (executor.vocab_size, executor.context_len) == (131, 256)
    assert executor.pool_bytes == 3 * 2 * POOL * 2 * 16 * 2
    assert load(small[0], exact=True).pool_bytes == 2 * executor.pool_bytes
    assert load(small[0], quantization="q8").weight_bytes < 0.35 * executor.weight_bytes
    executor.run(make_batch([Row([1], [0])]))
    assert 0 < sum(executor.profile().values()) < 60
    assert sum(executor.profile().values()) == 0


# ---- values that are not finite -----------------------------------------------------------------


def step_on(rows: list[list[int]]) -> ForwardBatch:
    return make_batch([Row([5], slots) for slots in rows], want_logprob=True)


def test_what_no_row_lists_is_never_read(small: tuple[ModelFiles, np.ndarray]) -> None:
    files, expected = small
    executor = load(files, exact=True)
    executor._pool.elements[:] = np.nan
    np.testing.assert_allclose(logprobs_of(executor, random_ids(150)), expected, atol=1e-3)


@pytest.mark.parametrize("options", [{}, {"quantization": "q8"}, {"kv_dtype": "int16"}])
def test_a_row_with_a_broken_cache_spoils_no_other(
    small: tuple[ModelFiles, np.ndarray], options: dict[str, str]
) -> None:
    executor = load(small[0], **options)
    executor.run(
        make_batch([Row(random_ids(10, seed=i), range(10 * i, 10 * i + 10)) for i in (0, 1)])
    )
    step = step_on([[*range(10), 20], [*range(10, 20), 21]])
    clean: StepResult = executor.run(step)
    pool = executor._pool
    (pool.elements if pool.scales is None else pool.scales)[1, 1, 13] = np.nan
    broken = executor.run(step)
    assert broken.next_ids[0] == clean.next_ids[0]
    assert broken.logprobs[0] == clean.logprobs[0]
    assert 0 <= broken.next_ids[1] < 131
    assert np.isnan(broken.logprobs[1])


def test_uses_of_experts_are_counted(tmp_path: Path) -> None:
    """Two of eight experts a token in each layer."""
    path = tmp_path / "m.gguf"
    write_mixture(path, Shape("olmoe", 2, 64, 4, 4, 16, 8, 2, 32), "Q8_0")
    executor = NativeExecutor(resolve_model(str(path)), max_total_tokens=64, num_threads=2)
    for times in (1, 2):
        executor.run(make_batch([Row(np.arange(11), np.arange(11))]))
        counts = expert_counts(executor)
        assert counts is not None and counts.dtype == np.int64
        assert counts.sum(axis=1).tolist() == [22 * times] * 2 and (counts <= 11 * times).all()
    executor.close()


def test_a_model_without_experts_counts_nothing(engine: NativeExecutor) -> None:
    assert expert_counts(engine) is None
