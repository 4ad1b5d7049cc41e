"""The pool and the batch that memory has room for."""

import logging
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from bench.mixtures.files import QUANTIZATIONS, Shape, write_mixture
from scheduler_proc.kernels.library import Source
from scheduler_proc.models.checkpoint import RawTensor, open_checkpoint
from scheduler_proc.models.packed import for_kernels
from srt import sizing
from srt.args import ServerArgs
from srt.files.gguf import BLOCK_TYPES, GGUFTensor, open_gguf
from srt.files.model_files import resolve_model
from srt.files.sizes import (
    KEPT_TYPES,
    ModelSizes,
    kept_bytes,
    model_sizes,
    resolved_activations,
)
from srt.sizing import plan_for, sized, with_choices, without_sizes
from srt.wire.errors import ConfigError

MIB, GIB = 2**20, 2**30
# As SmolLM2-135M has them.
SIZES = ModelSizes(94 * MIB, 513 * MIB, 11520, 180, 8192, 94 * MIB)
ARGS = ServerArgs()


def test_sizes_of_the_default_model() -> None:
    files = resolve_model("smollm2")
    found, config = model_sizes(files), open_checkpoint(files).config
    assert found.kv_values == 2 * config.layers * config.kv_heads * config.head_dim
    assert found.kv_heads == 2 * config.layers * config.kv_heads
    assert found.context_len == config.context_len
    assert 0 < files.path.stat().st_size - found.weight_bytes < 4 * MIB
    assert found.float32_bytes == 4 * 134_515_008


def test_weights_count_as_the_native_executor_holds_them() -> None:
    assert {int(source) for source in Source} == KEPT_TYPES
    values = 4096
    raw = {kind: values // of.num_values * of.num_bytes for kind, of in BLOCK_TYPES.items()}
    for kind, size in raw.items():
        tensor = GGUFTensor("w", (2, values // 2), kind, memoryview(bytes(size)))
        packed = for_kernels(RawTensor(kind, tensor.shape, np.zeros(size, np.uint8), True))
        assert kept_bytes(tensor) == len(packed.data), kind


def test_torch_by_any_option() -> None:
    """What only torch has means torch, also where nobody names the executor."""
    for auto in (
        ServerArgs(dtype="bfloat16"),
        ServerArgs(kv_cache_dtype="fp8_e4m3"),
        ServerArgs(dtype="float32"),
    ):
        torch = msgspec.structs.replace(auto, executor="torch")
        assert plan_for(auto, SIZES, 4 * GIB) == plan_for(torch, SIZES, 4 * GIB)
    narrow = plan_for(ServerArgs(dtype="bfloat16"), SIZES, 4 * GIB)
    assert (narrow.weight_bytes, narrow.token_bytes) == (SIZES.float32_bytes // 2, 2 * 11520)
    eight = plan_for(ServerArgs(kv_cache_dtype="fp8_e4m3"), SIZES, 4 * GIB)
    assert (eight.weight_bytes, eight.token_bytes) == (SIZES.float32_bytes, 11520)


def test_sizes_of_a_directory(tmp_path: Path) -> None:
    config = '"num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4'
    (tmp_path / "config.json").write_text(
        f'{{{config}, "num_key_value_heads": 2, "max_position_embeddings": 128}}'
    )
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(bytes(1000))
    (tmp_path / "model-00002-of-00002.safetensors").write_bytes(bytes(500))
    files = resolve_model(str(tmp_path))
    assert model_sizes(files) == ModelSizes(1500, 3000, 2 * 3 * 2 * 16, 2 * 3 * 2, 128, 1500)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="num_hidden_layers"):
        model_sizes(files)
    (tmp_path / "config.json").write_text(f'{{{config}, "num_key_value_heads": -2}}')
    with pytest.raises(ConfigError, match="sizes that no model has"):
        model_sizes(files)


@pytest.mark.parametrize(("millions", "auto"), [(1, "12"), (1499, "12"), (1500, "auto")])
def test_activations_by_the_number_of_parameters(tmp_path: Path, millions: int, auto: str) -> None:
    config = '"num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4'
    (tmp_path / "config.json").write_text(f'{{{config}, "dtype": "bfloat16"}}')
    with (tmp_path / "model.safetensors").open("wb") as weights:
        weights.truncate(2 * millions * 10**6)
    files = resolve_model(str(tmp_path))
    found = [resolved_activations(name, files) for name in ("auto", "8", "12", "16")]
    assert found == [auto, "8", "12", "16"]


def test_half_of_what_is_left() -> None:
    plan = plan_for(ARGS, SIZES, 2 * GIB)
    assert plan.pool_bytes <= (2 * GIB - 94 * MIB - 512 * MIB) / 2 < plan.pool_bytes + 512 * 23040
    assert plan.running == 64


def test_no_more_than_is_of_use() -> None:
    """A part of each running request's context, or sixteen whole ones; the log has both figures."""
    plan = plan_for(ARGS, SIZES, 1000 * GIB)
    assert plan.pool_tokens == 64 * 2048 == 16 * 8192
    assert f"as much as is of use ({plan.room_tokens} would fit)" in str(plan)
    assert "of use" not in str(plan_for(ARGS, SIZES, 2 * GIB))
    many = ServerArgs(max_running_requests=256)
    assert plan_for(many, SIZES, 1000 * GIB).pool_tokens == 256 * 2048
    assert plan_for(many, SIZES._replace(context_len=512), 1000 * GIB).pool_tokens == 256 * 512
    long = SIZES._replace(context_len=131_072)
    assert plan_for(ARGS, long, 1000 * GIB).pool_tokens == 16 * 131_072


def test_small_contexts_and_batches() -> None:
    one = ServerArgs(max_running_requests=1)
    assert plan_for(one, SIZES, 1000 * GIB).pool_tokens == 16 * 8192
    tiny = SIZES._replace(context_len=50)
    assert plan_for(one, tiny, GIB).pool_tokens == 16 * 50
    assert plan_for(ARGS, tiny, GIB).running == 64


def test_wide_weights_and_caches() -> None:
    plain, exact = (plan_for(args, SIZES, 8 * GIB) for args in (ARGS, ServerArgs(exact=True)))
    assert exact.weight_bytes == 513 * MIB and exact.token_bytes == 4 * 11520
    kinds = {"auto": 2 * 11520 + 4 * 180, "float16": 2 * 11520, "float32": 4 * 11520}
    kinds["int16"] = kinds["auto"]
    for name, size in kinds.items():
        assert plan_for(ServerArgs(kv_cache_dtype=name), SIZES, 8 * GIB).token_bytes == size
    assert plain.token_bytes == kinds["auto"]


def test_quantised_weights() -> None:
    """As the kernels hold them, whatever the files do."""
    wide = SIZES._replace(weight_bytes=513 * MIB // 2)
    taken = {
        name: plan_for(ServerArgs(quantization=name), wide, 8 * GIB).weight_bytes / MIB
        for name in ("none", "q8", "q4")
    }
    assert taken == pytest.approx({"none": 513 / 2, "q8": 513 * 34 / 128, "q4": 513 * 20 / 128})
    exact = plan_for(ServerArgs(quantization="q4", exact=True), wide, 8 * GIB)
    assert exact.weight_bytes == 513 * MIB, "--exact quantises nothing"


def test_replicas_share() -> None:
    alone, shared = (plan_for(ServerArgs(dp=dp), SIZES, 4 * GIB).pool_tokens for dp in (1, 2))
    assert 2 * shared < alone


def test_a_short_memory_has_a_small_batch() -> None:
    plan = plan_for(ARGS, SIZES, 94 * MIB + 512 * MIB + 2 * 23040 * 2000)
    assert (plan.pool_tokens, plan.running) == (1536, 6)


def test_a_context_that_is_cut() -> None:
    plan = plan_for(ServerArgs(max_model_len=1000), SIZES, 1000 * GIB)
    assert (plan.pool_tokens, plan.context_len) == (64 * 1000, 1000)


def test_what_does_not_fit_says_the_figures() -> None:
    with pytest.raises(ConfigError, match=r"0\.59 GiB of memory are available.* 0\.09 GiB for its"):
        plan_for(ARGS, SIZES, 600 * MIB)


@given(st.integers(0, 64 * GIB), st.integers(1, 8), st.integers(1, 200))
def test_never_more_than_there_is(available: int, dp: int, running: int) -> None:
    args = ServerArgs(dp=dp, max_running_requests=running)
    try:
        plan = plan_for(args, SIZES, available)
    except ConfigError:
        return
    assert dp * (plan.weight_bytes + plan.pool_bytes) < available
    assert 1 <= plan.running <= running and plan.pool_tokens >= 512


def test_what_was_chosen_stays(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sizing, "memory_available", lambda: 700 * MIB)
    few, plan = sized(ARGS, {})
    assert plan is not None
    plan.log()
    assert few.max_total_tokens == 2048 and few.max_running_requests == 8
    assert "memory is short" in caplog.text
    assert sized(ARGS, {"max_running_requests": "a file"})[0].max_running_requests == 64
    chosen = ServerArgs(max_total_tokens=100_000)
    assert sized(chosen, {})[0] == chosen
    assert "the system may end the server" in caplog.text
    monkeypatch.setattr(sizing, "memory_available", lambda: 100 * MIB)
    assert sized(chosen, {})[0] == chosen  # whoever says the size knows better
    with pytest.raises(sizing.MemoryShort):
        sized(ARGS, {})
    assert sized(ServerArgs(device="cuda"), {}) == (ServerArgs(device="cuda"), None)


def test_another_machine_fills_in_its_own_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a user has chosen stays there too, also if it is what nobody would have to choose."""
    memory = [700 * MIB]
    monkeypatch.setattr(sizing, "memory_available", lambda: memory[0])
    choices: tuple[dict[str, Any], ...] = (
        {},
        {"max_running_requests": 64},
        {"max_running_requests": 5},
        {"max_total_tokens": 1024, "max_running_requests": 64},
        {"max_total_tokens": 0},
    )
    for fields in choices:
        memory[0] = 700 * MIB
        asked = with_choices(ServerArgs(**fields), fields)
        told = msgspec.json.decode(msgspec.json.encode(sized(asked, fields)[0]), type=ServerArgs)
        assert without_sizes(told) == asked
        memory[0] = 900 * MIB
        there = sized(without_sizes(told), told.chosen_sizes)[0]
        assert there == sized(asked, fields)[0]
        has_grown = [getattr(there, name) > getattr(told, name) for name in sizing.SIZES]
        assert has_grown == [not asked.max_total_tokens, "max_running_requests" not in fields]
    no_weights = ServerArgs(dp=0)
    assert sized(no_weights, {}) == (no_weights, None)


def test_a_model_of_unknown_size_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["MambaForCausalLM"]}')
    args = ServerArgs(model=str(tmp_path))
    with caplog.at_level(logging.INFO):
        assert sized(args, {}) == (args, None)
    assert args.pool_tokens == 32768


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_a_mixture_as_gguf_is_whole_in_memory(tmp_path: Path, quantization: str) -> None:
    """A token passes through two of eight experts, and the embedding is not the head."""
    shape = Shape("qwen3moe", 3, 256, 4, 2, 64, 8, 2, 512)
    path = tmp_path / "m.gguf"
    write_mixture(path, shape, quantization)
    found = model_sizes(resolve_model(str(path)))
    layers = [t for i in range(3) for t in shape.layer(i, QUANTIZATIONS[quantization])]
    experts = sum(t.num_bytes for t in layers if "exps" in t.name)
    assert found.expert_bytes == experts > 0
    tensors = open_gguf(path).tensors
    assert found.weight_bytes == sum(len(t.data) for t in tensors.values())
    embedding = len(tensors["token_embd.weight"].data)
    assert found.active_bytes == found.weight_bytes - embedding - experts * 6 // 8
    assert plan_for(ARGS, found, 4 * GIB).weight_bytes == found.weight_bytes


@pytest.mark.parametrize(
    ("count", "tensor"),
    [
        ("num_local_experts", "model.layers.0.block_sparse_moe.experts.3.w1.weight"),
        ("num_local_experts", "model.layers.0.block_sparse_moe.input_linear.weight"),
        ("num_experts", "model.layers.0.mlp.experts.3.gate_proj.weight"),
        ("num_experts", "model.layers.0.mlp.experts.gate_up_proj"),
        ("n_routed_experts", "model.layers.0.mlp.experts.3.down_proj.weight"),
    ],
)
def test_a_mixture_in_a_directory(tmp_path: Path, count: str, tensor: str) -> None:
    """By any family's names: 4000 bytes of experts, of which an eighth is used, and 300 others."""
    config = {"num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4}
    config |= {count: 16, "num_experts_per_tok": 2}
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(config))
    others = ("model.embed_tokens.weight", "lm_head.weight", "model.layers.0.mlp.gate.weight")
    sizes = {tensor: 4000, "model.layers.0.shared_mlp.input_linear.weight": 20} | dict.fromkeys(
        others, 100
    )
    save_file(
        {name: np.zeros(n, np.uint8) for name, n in sizes.items()}, tmp_path / "model.safetensors"
    )
    found, whole = model_sizes(resolve_model(str(tmp_path))), sum(sizes.values())
    header = found.weight_bytes - whole
    assert 0 < header < 1000 and found.expert_bytes == 4000
    assert found.active_bytes - header == whole - 3500 - 100


@pytest.mark.parametrize(("used", "count"), [(0, 8), (9, 8), (2, 0), (-1, 8), (2, -8)])
def test_experts_that_no_mixture_has(tmp_path: Path, used: int, count: int) -> None:
    """Whoever loads the model says so: here all its weights count."""
    config = {"num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4}
    config |= {"num_experts": count, "num_experts_per_tok": used}
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(config))
    weights = {"model.layers.0.mlp.experts.gate_up_proj": np.zeros(4000, np.uint8)}
    save_file(weights, tmp_path / "model.safetensors")
    found = model_sizes(resolve_model(str(tmp_path)))
    assert found.active_bytes == found.weight_bytes
