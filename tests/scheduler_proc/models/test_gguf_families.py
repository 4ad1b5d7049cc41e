"""GGUF files of every family: read as the same model, and computed as transformers computes it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from msgspec.structs import asdict, replace

from scheduler_proc.executor.native_executor import NativeExecutor
from scheduler_proc.models.checkpoint import open_checkpoint
from scheduler_proc.models.config import DecoderConfig, LinearRope, Rope
from srt.files.gguf import BLOCK_TYPES
from srt.wire.errors import ConfigError
from tests.running.late import late
from tests.running.profiles import some
from tests.scheduler_proc.kernels.ops import load_or_skip
from tests.scheduler_proc.models.checkpoints import save_directory
from tests.scheduler_proc.models.families import FAMILIES, ON_NATIVE, YARN, random_family
from tests.scheduler_proc.models.gguf_families import converted_tensors, write_family
from tests.scheduler_proc.ragged import Row, make_batch

if TYPE_CHECKING:
    import torch

    from scheduler_proc.executor import torch_executor
    from scheduler_proc.models import loader
else:
    loader = late("scheduler_proc.models.loader")
    torch = late("torch")
    torch_executor = late("scheduler_proc.executor.torch_executor")


# GGUF has no key for a ramp that is not of whole pairs, and none for layers without a mixture.
CHANGES: dict[str, dict[str, Any]] = {
    "qwen3, yarn": {"rope_parameters": {**YARN, "beta_fast": 16.0, "beta_slow": 2.0}},
    "qwen2_moe, some dense": {"decoder_sparse_step": 1},
    "qwen3_moe, some dense": {"mlp_only_layers": []},
}
# What llama.cpp knows by the architecture, and these differ in.
NORMALISED = {
    "qwen2_moe, some dense": True,
    "qwen3_moe, some dense": False,
    "olmoe, normalised": True,
}
KEYS: dict[str, dict[str, Any]] = {
    name: {"expert_weights_norm": value} for name, value in NORMALISED.items()
}


def random_model(name: str) -> Any:
    return random_family(name, **CHANGES.get(name, {}))


def logits_of(executor: "torch_executor.TorchExecutor", ids: np.ndarray) -> "torch.Tensor":
    with torch.inference_mode():
        hidden = executor.forward(make_batch([Row(ids, range(len(ids)))]))
        found: torch.Tensor = executor.model.logits(hidden)
    return found


@pytest.mark.parametrize("name", some(FAMILIES, "gemma3"))
def test_logits_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    model = random_model(name)
    executor = torch_executor.TorchExecutor(
        write_family(model, tmp_path / "m.gguf", **KEYS.get(name, {})), max_total_tokens=100
    )
    ids = np.random.default_rng(0).integers(0, 131, 90)
    with torch.inference_mode():
        expected = model(torch.from_numpy(ids)[None]).logits[0]
    torch.testing.assert_close(logits_of(executor, ids), expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize("name", some(ON_NATIVE, "qwen3"))
def test_the_native_executor_computes_the_same(tmp_path: Path, name: str) -> None:
    load_or_skip()
    model = random_model(name)
    files = write_family(model, tmp_path / "m.gguf", **KEYS.get(name, {}))
    executor = NativeExecutor(files, max_total_tokens=100, num_threads=2, exact=True)
    ids = np.random.default_rng(0).integers(0, 131, 90)
    found = executor.run(make_batch([Row(ids, range(90), ids[1:], samples=False)])).prompt_logprobs
    with torch.inference_mode():
        logits = model(torch.from_numpy(ids)[None]).logits[0, :-1]
    expected = logits.log_softmax(-1).gather(1, torch.from_numpy(ids[1:])[:, None])[:, 0]
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-3)


@pytest.mark.parametrize("name", some(FAMILIES, "phi3"))
def test_the_model_is_the_same_as_that_of_a_directory(tmp_path: Path, name: str) -> None:
    model = random_model(name)
    files = write_family(model, tmp_path / "m.gguf", **KEYS.get(name, {}))
    from_gguf = open_checkpoint(files)
    from_directory = open_checkpoint(save_directory(model, tmp_path))
    ours, theirs = comparable(from_gguf.config), comparable(from_directory.config)
    assert {key for key in ours if ours[key] != pytest.approx(theirs[key])} == set()
    weights = [loader.load_weights(checkpoint) for checkpoint in (from_gguf, from_directory)]
    assert torch.equal(weights[0].embed, weights[1].embed)
    assert torch.equal(weights[0].norm, weights[1].norm)
    for a, b in zip(weights[0].layers, weights[1].layers, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    for one, other in zip(weights[0].ropes, weights[1].ropes, strict=True):
        torch.testing.assert_close(one.frequencies, other.frequencies, rtol=1e-6, atol=0)


def comparable(config: DecoderConfig) -> dict[str, Any]:
    """Numbers and switches, without what the two kinds of files store differently."""
    scaled_by_tensor = not hasattr(config.rope.scaling, "factor") or hasattr(
        config.rope.scaling, "low_freq_factor"
    )
    rope = replace(config.rope, scaling=None) if scaled_by_tensor else config.rope
    fields = asdict(replace(config, rope=rope, norm_offset=0.0, dtype=None))
    for key in ("rope", "local_rope"):
        found: Rope | None = fields.pop(key)
        if found is not None:
            fields |= {f"{key}.{name}": value for name, value in asdict(found).items()}
    scaling = fields.pop("rope.scaling")
    fields["scaling"] = type(scaling).__name__
    fields |= {} if scaling is None else {f"scaling.{k}": v for k, v in asdict(scaling).items()}
    experts = config.experts
    fields["experts"] = None if experts is None else replace(experts, layout="separate")
    fields["windows"] = [config.layer_window(i) for i in range(config.layers)]
    fields["query_scale"] = config.attn_scale
    return {key: value for key, value in fields.items() if key not in ("window", "windowed")}


# ---- metadata ------------------------------------------------------------------------------------


def config_of(name: str, path: Path, **keys: Any) -> DecoderConfig:
    files = write_family(random_model(name), path / "m.gguf", **keys)
    return open_checkpoint(files).config


@pytest.mark.parametrize(
    ("name", "keys", "fields"),
    [
        ("llama", {"attention.head_count_kv": None}, {"kv_heads": 4}),
        ("llama", {"attention.key_length": None}, {"head_dim": 16}),
        ("llama", {"rope.scale_linear": 4.0}, {"rope": Rope(1e4, scaling=LinearRope(4.0))}),
        ("llama", {"rope.scaling.factor": 2.0}, {"rope": Rope(1e4, scaling=LinearRope(2.0))}),
        ("llama", {"rope.scaling.type": "none", "rope.scaling.factor": 2.0}, {"rope": Rope(1e4)}),
        ("llama", {"attention.sliding_window": 32}, {"windowed": (True,) * 3, "window": 32}),
        ("llama", {"attention.sliding_window": 0}, {"windowed": (), "window": None}),
        ("gemma2", {"attn_logit_softcapping": None}, {"attn_softcap": 50.0}),
        ("gemma2", {"final_logit_softcapping": None}, {"logit_softcap": 30.0}),
        ("gemma2", {"attention.sliding_window": None}, {"window": 4096}),
        (
            "gemma2",
            {"attention.sliding_window_pattern": None},
            {"windowed": (True, False, True)},
        ),
        ("gemma2", {"attention.scale": None}, {"query_scale": None}),
        (
            "gemma2",
            {"attention.scale": None, "block_count": 46, "attention.sliding_window_pattern": None},
            {"query_scale": 0.25, "windowed": (True, False) * 23},
        ),
        ("gemma3", {"final_logit_softcapping": None}, {"logit_softcap": None}),
        ("gemma3", {"rope.freq_base_swa": None}, {"local_rope": Rope(1e4)}),
        (
            "gemma3",
            {"attention.sliding_window_pattern": None},
            {"windowed": (True, True, True, True, True, False, True)},
        ),
        (
            "gemma3",
            {"attention.sliding_window_pattern": 2},
            {"windowed": (True, False, True, False, True, False, True)},
        ),
        (
            "gemma3",
            {"attention.scale": None, "block_count": 62, "attention.sliding_window": 0}
            | {"attention.sliding_window_pattern": None, "attention.head_count": 16},
            {"query_scale": 0.5, "windowed": ()},
        ),
    ],
)
def test_keys_and_what_they_are_without(
    tmp_path: Path, name: str, keys: dict[str, Any], fields: dict[str, Any]
) -> None:
    config = config_of(name, tmp_path, **keys)
    assert {key: getattr(config, key) for key in fields} == fields


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("qwen2", {"expert_count": 8}, "expert_count = 8 is not supported"),
        ("llama", {"logit_scale": 0.5}, "logit_scale = 0.5"),
        ("qwen2", {"attention.causal": False}, "attention.causal = False"),
        ("llama", {"rope.dimension_count": 4}, "whole head dimension"),
        ("qwen3", {"attention.value_length": 8}, "values of other than the head dimension"),
        ("qwen2", {"rope.scaling.type": "dynamic"}, "rope scaling 'dynamic' is not supported"),
        ("qwen2", {"rope.scaling.type": "linear", "rope.scaling.factor": 0.5}, "below 1"),
        ("gemma3", {"attention.sliding_window_pattern": [True]}, "1 layers have a kind"),
        ("llama", {"attention.head_count_kv": [2, 2, 1]}, "head_count_kv"),
        ("phi3", {"rope.scaling.type": "longrope"}, "'longrope' without the tensor rope_factors_s"),
        ("llama", {"block_count": None}, "block_count"),
        ("llama", {"block_count": 2**31}, "block_count"),
        ("llama", {"context_length": None}, "context_length"),
    ],
)
def test_what_is_refused_is_named(
    tmp_path: Path, name: str, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(name, tmp_path, **keys)


@pytest.mark.parametrize(
    ("name", "keys", "expected"),
    [
        ("llama", {}, 256),
        ("qwen2, yarn", {}, 256),
        ("qwen2, yarn", {"context_length": 64}, 256),
        ("qwen2, yarn", {"rope.scaling.factor": 8.0}, 512),
        ("phi3, longrope", {}, 256),
        ("phi3, longrope", {"rope.scaling.original_context_length": 128}, 128),
    ],
)
def test_context_length(tmp_path: Path, name: str, keys: dict[str, Any], expected: int) -> None:
    assert config_of(name, tmp_path, **keys).context_len == expected


def test_without_an_embedding(tmp_path: Path) -> None:
    model = random_model("qwen2")
    tensors = converted_tensors(model)
    del tensors["token_embd.weight"]
    files = write_family(model, tmp_path / "m.gguf", tensors)
    with pytest.raises(ConfigError, match=r"token_embd\.weight is missing"):
        open_checkpoint(files)


# ---- quantised tensors ---------------------------------------------------------------------------

# Where a block has its half-precision scales; those of other types need no care.
SCALES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82],
    "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0],
}  # fmt: skip
WIDE = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "num_hidden_layers": 2}


def random_blocks(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Blocks of a tensor of `shape`, with values of about 0.1."""
    ggml_type = GGMLQuantizationType[kind]
    num_values, num_bytes = gguf.GGML_QUANT_SIZES[ggml_type]
    blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // num_values, num_bytes), np.uint8)
    for at in SCALES.get(kind, ()):
        blocks[..., at : at + 2] = np.array([0.001], np.float16).view(np.uint8)
    spread = float(np.abs(dequantize(blocks.reshape(-1, num_bytes), ggml_type)).mean())
    for at in SCALES.get(kind, ()):
        blocks[..., at : at + 2] = np.array([1e-4 / spread], np.float16).view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


@pytest.mark.parametrize("kind", sorted(t.name for t in BLOCK_TYPES.values()))
def test_rows_are_those_of_the_gguf_package(tmp_path: Path, kind: str) -> None:
    """Any bytes are values of a type, and some of them are NaN."""
    ggml_type = GGMLQuantizationType[kind]
    num_values, num_bytes = gguf.GGML_QUANT_SIZES[ggml_type]
    blocks = np.random.default_rng(0).integers(
        0, 256, (131, 256 // num_values * num_bytes), np.uint8
    )
    model = random_model("llama")
    tensors = converted_tensors(model) | {"token_embd.weight": blocks}
    quants = {"token_embd.weight": ggml_type}
    checkpoint = open_checkpoint(write_family(model, tmp_path / "m.gguf", tensors, quants))
    with np.errstate(all="ignore"):
        expected = dequantize(blocks, ggml_type)
        for start, stop in ((0, 131), (7, 64)):
            found = checkpoint.read_rows("model.embed_tokens.weight", start, stop).numpy()
            np.testing.assert_array_equal(found, expected[start:stop])


# One family covers every type, and a few types cover every way of reading.
QUANTISED = [("llama", kind) for kind in SCALES]
QUANTISED += [(name, kind) for name in ("phi3", "gemma3") for kind in ("Q5_0", "Q4_K", "Q5_K")]


@pytest.mark.parametrize(("name", "kind"), some(QUANTISED, ("llama", "Q4_K"), ("phi3", "Q5_0")))
def test_quantised_files_compute_with_dequantised_weights(
    tmp_path: Path, name: str, kind: str
) -> None:
    model = random_family(name, **WIDE, num_attention_heads=4)
    ggml_type, rng = GGMLQuantizationType[kind], np.random.default_rng(0)
    tensors = converted_tensors(model)
    blocks = {n: random_blocks(kind, t.shape, rng) for n, t in tensors.items() if t.ndim == 2}
    values = {n: dequantize(b, ggml_type) for n, b in blocks.items()}
    quantised = write_family(
        model, tmp_path / "q.gguf", tensors | blocks, dict.fromkeys(blocks, ggml_type)
    )
    plain = write_family(model, tmp_path / "f.gguf", tensors | values)
    ids = rng.integers(0, 131, 40)
    found, expected = (
        logits_of(torch_executor.TorchExecutor(files, max_total_tokens=50), ids)
        for files in (quantised, plain)
    )
    assert expected.isfinite().all() and expected.std() > 0.01
    assert torch.equal(found, expected)
