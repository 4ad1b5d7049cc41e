"""Configurations and checkpoints: what is read, and what is refused by name."""

import json
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from scheduler_proc.models import checkpoint
from scheduler_proc.models.checkpoint import SafetensorsCheckpoint, open_checkpoint
from scheduler_proc.models.config import Llama3Rope
from scheduler_proc.models.gguf_config import config_from_gguf
from scheduler_proc.models.json_config import config_from_json
from srt.files.gguf import GGUFFile
from srt.files.model_files import ModelFiles
from srt.wire.errors import ConfigError
from tests.running.late import late
from tests.scheduler_proc.models.checkpoints import (
    LLAMA3_ROPE,
    SMALL,
    gguf_tensors,
    random_llama,
    save_directory,
    write_gguf,
)

if TYPE_CHECKING:
    import safetensors.torch as safetensors_torch
    import torch
    import transformers

    from scheduler_proc.models import loader
else:
    loader = late("scheduler_proc.models.loader")
    safetensors_torch = late("safetensors.torch")
    torch = late("torch")
    transformers = late("transformers")


LEGACY = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **SMALL}
SCALING = {k: v for k, v in LLAMA3_ROPE.items() if k not in ("rope_type", "rope_theta")}


def write_config(path: Path, content: dict[str, Any]) -> Path:
    file = path / "config.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    return file


def load(files: ModelFiles) -> Any:
    return loader.load_weights(open_checkpoint(files))


def test_rope_settings_of_transformers_4_and_5_read_the_same(tmp_path: Path) -> None:
    new = config_from_json(write_config(tmp_path, {**LEGACY, "rope_parameters": LLAMA3_ROPE}))
    old = {**LEGACY, "rope_theta": 10000.0, "rope_scaling": {"rope_type": "llama3", **SCALING}}
    older = {**LEGACY, "rope_theta": 10000.0, "rope_scaling": {"type": "llama3", **SCALING}}
    assert config_from_json(write_config(tmp_path, old)) == new
    assert config_from_json(write_config(tmp_path, older)) == new
    assert new.rope.scaling == Llama3Rope(4.0, 1.0, 4.0, 64)


def test_defaults_of_config_json(tmp_path: Path) -> None:
    content = {**LEGACY, "rope_theta": 5e5, "torch_dtype": "bfloat16"}
    del content["num_key_value_heads"]
    config = config_from_json(write_config(tmp_path, content))
    assert (config.kv_heads, config.head_dim, config.rope.theta) == (6, 8, 5e5)
    assert (config.rope.scaling, config.dtype) == (None, "bfloat16")
    assert not config.tie_embeddings


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, r"GPT2LMHeadModel.*not supported.*Llama"),
        ({"architectures": None, "model_type": "gpt2"}, "'gpt2' is not supported"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope scaling 'dynamic'"),
        ({"rope_scaling": {"type": "llama3", "factor": 2.0}}, "llama3 rope scaling needs"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised safetensors"),
        (
            {"quantization_config": {"kv_cache_scheme": {}, "config_groups": {"group_0": {}}}},
            "quantised safetensors",
        ),
        ({"num_key_value_heads": 4}, "6 attention heads cannot share 4"),
        ({"head_dim": 7}, "head dimension 7 is odd"),
        ({"num_hidden_layers": 0}, "layers must be positive"),
        ({"num_hidden_layers": 1 << 40}, "num_hidden_layers"),
        ({"architectures": 5}, "architectures"),
        ({"architectures": [{}]}, "architectures"),
        ({"architectures": None, "model_type": []}, "model_type"),
        ({"hidden_size": "big"}, r"Expected `int`.*hidden_size"),
    ],
)
def test_unsupported_config_json(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    file = write_config(tmp_path, {**LEGACY, **change})
    with pytest.raises(ConfigError, match=message):
        config_from_json(file)


def test_a_kv_cache_alone_may_be_quantised(tmp_path: Path) -> None:
    scheme = {"kv_cache_scheme": {"num_bits": 8, "type": "float"}, "config_groups": {}}
    scaled = config_from_json(write_config(tmp_path, {**LEGACY, "quantization_config": scheme}))
    assert scaled == config_from_json(write_config(tmp_path, LEGACY))


def test_config_json_without_a_required_key_or_without_json(tmp_path: Path) -> None:
    content = dict(LEGACY)
    del content["intermediate_size"]
    with pytest.raises(ConfigError, match="intermediate_size"):
        config_from_json(write_config(tmp_path, content))
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match="not readable as JSON"):
        config_from_json(tmp_path / "config.json")


def test_other_gguf_architectures_are_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ConfigError, match="GGUF architecture 'mamba' is not supported"):
        config_from_gguf(GGUFFile(tmp_path / "m.gguf"))


def change_safetensors(path: Path, **tensors: "torch.Tensor | None") -> None:
    """Replace, add or (None) drop tensors of model.safetensors."""
    file = path / "model.safetensors"
    content = {**safetensors_torch.load_file(file), **tensors}
    safetensors_torch.save_file({name: t for name, t in content.items() if t is not None}, file)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("model.norm.weight", None, "tensor model.norm.weight is missing"),
        ("lm_head.weight", None, "tensor lm_head.weight is missing"),
        ("model.extra.weight", (1,), "model.extra.weight does not belong"),
        ("model.layers.0.self_attn.q_proj.bias", (48,), "q_proj.bias does not belong"),
        (
            "model.layers.2.mlp.down_proj.weight",
            (80, 48),
            r"layers.2.mlp.down_proj.weight has shape \[80, 48\], expected \[48, 80\]",
        ),
    ],
)
def test_wrong_safetensors_are_named(
    tmp_path: Path, name: str, shape: tuple[int, ...] | None, message: str
) -> None:
    files = save_directory(random_llama(), tmp_path)
    change_safetensors(tmp_path, **{name: None if shape is None else torch.ones(shape)})
    with pytest.raises(ConfigError, match=message):
        load(files)


def test_derived_buffers_and_a_second_copy_of_a_tied_head_are_ignored(tmp_path: Path) -> None:
    model = random_llama(tie_word_embeddings=True)
    files = save_directory(model, tmp_path)
    extra = {
        "lm_head.weight": model.lm_head.weight.detach().clone(),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
    }
    change_safetensors(tmp_path, **extra)
    weights = load(files)
    assert weights.head is weights.embed


def test_a_head_of_its_own_counts_whatever_the_configuration_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it does in transformers; here only the last rows differ."""
    monkeypatch.setattr(checkpoint, "_COMPARED_ROWS", 32)
    model = random_llama(tie_word_embeddings=True)
    files = save_directory(model, tmp_path)
    head = model.lm_head.weight.detach().clone()
    head[-1] += 1
    change_safetensors(tmp_path, **{"lm_head.weight": head})
    weights = load(files)
    assert torch.equal(weights.head, head)
    assert torch.equal(weights.embed, model.lm_head.weight)
    theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(theirs.lm_head.weight, head)
    change_safetensors(tmp_path, **{"lm_head.weight": head[:-1]})
    with pytest.raises(ConfigError, match=r"lm_head.weight has shape \[130, 48\]"):
        load(files)


@pytest.mark.parametrize("name", ["../model.safetensors", "/model.safetensors", "a/b"])
def test_an_index_names_files_of_its_directory_only(tmp_path: Path, name: str) -> None:
    files = save_directory(random_llama(), tmp_path)
    index = json.dumps({"weight_map": {"lm_head.weight": name}})
    (tmp_path / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    with pytest.raises(ConfigError, match="is not the name of a file next to it"):
        load(files)


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    files = save_directory(random_llama(), tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not a header")
    with pytest.raises(ConfigError, match="not a readable safetensors file"):
        load(files)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"model\.safetensors is missing"):
        load(files)
    for content in ("[]", "{}", '{"weight_map": {"lm_head.weight": 5}}', "[" * 100_000):
        (tmp_path / "model.safetensors.index.json").write_text(content, encoding="utf-8")
        with pytest.raises(ConfigError, match="not a safetensors index"):
            load(files)


QUANTS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16"]


@pytest.mark.parametrize("kind", QUANTS)
def test_quantised_gguf_loads_as_the_gguf_package_dequantises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Read in several jobs, the last of an odd number of rows; q and k in half-rotation order."""
    monkeypatch.setattr(f"{loader.__name__}._JOB_ELEMENTS", 1 << 14)
    model = random_llama(hidden_size=96, intermediate_size=160, vocab_size=1031)
    quant = gguf.GGMLQuantizationType[kind]
    blocks = {n: quantize(t, quant) for n, t in gguf_tensors(model).items() if t.ndim == 2}
    norms = {n: t for n, t in gguf_tensors(model).items() if t.ndim == 1}
    quants = dict.fromkeys(blocks, quant)
    weights = load(write_gguf(model, tmp_path / "m.gguf", {**blocks, **norms}, quants))
    embed = dequantize(blocks["token_embd.weight"], quant)
    np.testing.assert_array_equal(weights.embed.numpy(), embed)
    q, k, v = torch.split(weights.layers[1].qkv.weight, [96, 32, 32])
    stored = dequantize(blocks["blk.1.attn_q.weight"], quant)
    half_order = stored.reshape(6, 8, 2, 96).swapaxes(1, 2).reshape(96, 96)
    np.testing.assert_array_equal(q.numpy(), half_order)
    np.testing.assert_array_equal(v.numpy(), dequantize(blocks["blk.1.attn_v.weight"], quant))
    original = model.model.layers[1].self_attn.k_proj.weight.detach()
    assert float((k - original).abs().max()) < 0.2


def test_weights_pass_through_little_of_the_hosts_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a device (here one without memory): no more of them is on the host at once than one job of
    each thread reads."""
    monkeypatch.setattr(f"{loader.__name__}._JOB_ELEMENTS", 1 << 10)
    files = save_directory(random_llama(), tmp_path)
    lock, live, most, total = threading.Lock(), 0, 0, 0

    def count(elements: int) -> None:
        nonlocal live, most, total
        with lock:
            live += elements
            most, total = max(most, live), total + max(0, elements)

    read = SafetensorsCheckpoint.read_rows

    def counted(*args: Any) -> "torch.Tensor":
        rows = read(*args)
        count(rows.numel())
        weakref.finalize(rows, count, -rows.numel())
        return rows

    monkeypatch.setattr(SafetensorsCheckpoint, "read_rows", counted)
    weights = loader.load_weights(open_checkpoint(files), device="meta", num_threads=3)
    assert weights.embed.device.type == "meta"
    assert total == sum(parameter.numel() for parameter in random_llama().parameters())
    assert most <= 3 * (1 << 10) < total / 10
