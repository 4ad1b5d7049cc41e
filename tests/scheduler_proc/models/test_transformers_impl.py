"""`--model-impl transformers`: families that it runs, over ragged batches, and those it cannot."""

import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from scheduler_proc.executor import ExecutorOptions, make_executor
from srt.files.model_files import ModelFiles
from srt.wire.errors import ConfigError
from tests.running.late import late
from tests.running.profiles import some
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.models.checkpoints import random_llama, save_directory, write_gguf
from tests.scheduler_proc.models.transformers_families import (
    CONTEXT_LEN,
    FAMILIES,
    VOCAB,
    random_model,
    save,
)
from tests.scheduler_proc.ragged import Row, chunked_logprobs, make_batch

if TYPE_CHECKING:
    import safetensors.torch as safetensors_torch
    import torch
    from torch import nn
    from transformers.models.llama import modeling_llama

    from scheduler_proc.executor import torch_executor
    from scheduler_proc.models import decoder
    from scheduler_proc.models.transformers_model import loading
    from scheduler_proc.models.transformers_model import model as model_module
else:
    decoder = late("scheduler_proc.models.decoder")
    loading = late("scheduler_proc.models.transformers_model.loading")
    model_module = late("scheduler_proc.models.transformers_model.model")
    modeling_llama = late("transformers.models.llama.modeling_llama")
    nn = late("torch.nn")
    safetensors_torch = late("safetensors.torch")
    torch = late("torch")
    torch_executor = late("scheduler_proc.executor.torch_executor")


POOL = 300


def load(files: ModelFiles, **options: Any) -> "torch_executor.TorchExecutor":
    return torch_executor.TorchExecutor(
        files, max_total_tokens=POOL, **{"model_impl": "transformers", **options}
    )


def random_ids(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCAB, count)


def reference_logits(model: Any, ids: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        logits: np.ndarray = model(torch.from_numpy(ids)[None], use_cache=False).logits[0].numpy()
    return logits


class Sequence:
    """Ids and slots of one req, `done` of them computed; `logits` collects their logits."""

    def __init__(self, ids: np.ndarray, slots: np.ndarray, done: int = 0) -> None:
        self.ids, self.slots, self.done = ids, slots, done
        self.logits: list[np.ndarray] = []


def extend(executor: "torch_executor.TorchExecutor", *shares: tuple[Sequence, int]) -> None:
    """One step in which each sequence is computed up to a length."""
    rows = [Row(s.ids[s.done : end], s.slots[:end]) for s, end in shares]
    with torch.inference_mode():
        hidden = executor.forward(make_batch(rows))
        logits = executor.model.logits(hidden).numpy()
    ends = np.cumsum([len(row.ids) for row in rows])
    for (sequence, end), part in zip(shares, np.split(logits, ends[:-1]), strict=True):
        sequence.logits.append(part)
        sequence.done = end


@pytest.mark.parametrize("family", some(FAMILIES))
def test_logits_over_ragged_batches_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    """A prompt in chunks, one on a cached prefix, decodes beside both, slots in any order."""
    model = random_model(family)
    executor = load(save(model, tmp_path))
    assert isinstance(executor.model, model_module.TransformersModel)
    assert (executor.vocab_size, executor.context_len) == (VOCAB, CONTEXT_LEN)
    for pool in (*executor._pool.k, *executor._pool.v):
        pool.fill_(torch.nan)
    free = np.random.default_rng(1).permutation(POOL)
    first = Sequence(random_ids(70), free[:70])
    second_ids = np.append(first.ids[:40], random_ids(30, seed=1))
    second = Sequence(second_ids, np.append(first.slots[:40], free[70:100]), done=40)
    third = Sequence(random_ids(33, seed=2), free[100:133])
    extend(executor, (first, 40))
    extend(executor, (first, 41), (second, 60))
    for step in range(5):
        extend(executor, (first, 42 + step), (third, 6 * step + 6), (second, 61 + step))
    extend(executor, (third, 33), (first, 70))
    extend(executor, (second, 70))
    for sequence, start in ((first, 0), (second, 40), (third, 0)):
        expected = reference_logits(model, sequence.ids)[start:]
        assert np.abs(expected).max() > 0.1
        np.testing.assert_allclose(np.concatenate(sequence.logits), expected, atol=1e-3)


def test_both_implementations_of_a_family_agree(tmp_path: Path) -> None:
    """For prompt log-probabilities, which take the logits of many tokens, part by part."""
    files = save(random_model("gemma2"), tmp_path)
    ids, slots = random_ids(200), np.random.default_rng(2).permutation(POOL)[:200]
    theirs, result = chunked_logprobs(load(files), ids, slots, 64)
    ours, own_result = chunked_logprobs(load(files, model_impl="srt"), ids, slots, 200)
    np.testing.assert_allclose(theirs, ours, atol=1e-3)
    assert result.next_ids.tolist() == own_result.next_ids.tolist()


@pytest.mark.parametrize("family", some(["gpt2", "mixtral"]))
def test_sixteen_bit_weights_stay_close(tmp_path: Path, family: str) -> None:
    files, ids = save(random_model(family), tmp_path), random_ids(60)
    wide, narrow = load(files), load(files, dtype="bfloat16")
    assert narrow.pool_bytes * 2 == wide.pool_bytes
    expected, _ = chunked_logprobs(wide, ids, np.arange(60), 60)
    logprobs, _ = chunked_logprobs(narrow, ids, np.arange(60), 20)
    assert np.abs(logprobs - expected).mean() < 0.1


def test_memory_facts(tmp_path: Path) -> None:
    """Tied embeddings count once; K and V, if they differ, count with their own sizes."""
    model = random_model("gpt2")
    executor = load(save(model, tmp_path))
    assert executor.weight_bytes == 4 * sum(p.numel() for p in model.parameters())
    assert executor.pool_bytes == 4 * POOL * 3 * 2 * 48
    executor = load(save(random_model("deepseek_v2"), tmp_path))
    assert executor.pool_bytes == 4 * POOL * 3 * 6 * (16 + 12)


# ---- which implementation --------------------------------------------------------------------


def test_auto_takes_transformers_where_our_decoder_does_not_know_the_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    known = save_directory(random_llama(), tmp_path / "llama")
    with caplog.at_level(logging.WARNING, logger="scheduler_proc"):
        assert isinstance(load(known, model_impl="auto").model, decoder.Decoder)
        assert caplog.messages == []
        files = save(random_model("gpt_neox"), tmp_path / "neox")
        executor = make_executor("torch", files, ExecutorOptions(max_total_tokens=8))
    assert isinstance(executor, torch_executor.TorchExecutor)
    assert isinstance(executor.model, model_module.TransformersModel)
    assert caplog.messages == ["transformers' GPTNeoXForCausalLM computes the model"]
    with pytest.raises(ConfigError, match=r"architecture .*GPTNeoXForCausalLM.* not supported"):
        load(files, model_impl="srt")


def test_where_neither_can_both_reasons_are_told(tmp_path: Path) -> None:
    files = save(random_model("mamba"), tmp_path)
    with pytest.raises(ConfigError, match=r"MambaForCausalLM.* not supported.*no attention"):
        load(files, model_impl="auto")


def test_where_it_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_llama()
    files = save_directory(model, tmp_path)
    options = ExecutorOptions(max_total_tokens=8, model_impl="transformers")
    assert isinstance(make_executor("auto", files, options), torch_executor.TorchExecutor)
    with pytest.raises(ConfigError, match="transformers: the native executor runs our own code"):
        make_executor("native", files, options)
    with pytest.raises(ConfigError, match="needs a model directory, not a GGUF file"):
        make_executor("torch", write_gguf(model, tmp_path / "m.gguf"), options)
    with pytest.raises(ConfigError, match="--model-impl 'vllm' is not one of auto, srt"):
        load(files, model_impl="vllm")
    monkeypatch.setitem(sys.modules, model_module.TransformersModel.__module__, None)
    with pytest.raises(ConfigError, match=r"pip install 'srt-lang\[transformers\]'"):
        load(files)


# ---- what cannot run -------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "mamba": ({"state_size": 4}, "no attention that could be replaced"),
    "rwkv": ({"attention_hidden_size": 48}, "no attention that could be replaced"),
    "bloom": ({"n_layer": 2, "n_head": 6}, "computes with its attention mask"),
    "mpt": ({"d_model": 48, "n_layers": 2, "n_heads": 6}, "computes with its attention mask"),
    "bert": ({}, "mask is neither causal nor a sliding window"),
    "llama": ({"is_causal": False}, "mask is neither causal nor a sliding window"),
    "falcon": ({}, "it has no attention but its own"),
    "lfm2": ({"layer_types": ["conv", "conv", "full_attention"]}, "by other ways than attention"),
    "qwen3_next": (
        {**FAMILIES["qwen2_moe"], "head_dim": 8, "linear_num_value_heads": 4}
        | {"linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
        | {"layer_types": ["linear_attention", "full_attention", "linear_attention"]},
        "by other ways than attention",
    ),
}


@pytest.mark.parametrize("family", some(REFUSED))
def test_models_that_ragged_batches_do_not_suit(tmp_path: Path, family: str) -> None:
    changes, message = REFUSED[family]
    model = random_model(family, **changes)
    files = save(model, tmp_path)
    with pytest.raises(ConfigError, match=f"{type(model).__name__} cannot be served: .*{message}"):
        load(files)


def write_config(path: Path, **content: Any) -> ModelFiles:
    (path / "config.json").write_text(json.dumps(content), encoding="utf-8")
    return ModelFiles("tiny", "hf", path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"model_type": "t5"}, r"encoder-decoder models are not supported \(t5\)"),
        ({"model_type": "bart"}, r"encoder-decoder models are not supported \(bart\)"),
        ({"model_type": "clip"}, "clip is not a causal language model of text"),
        (
            {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]},
            "Gemma3ForConditionalGeneration is not a causal language model of text",
        ),
        (
            {"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]},
            "LlamaForSequenceClassification is not a causal language model of text",
        ),
        ({"model_type": "gpt2", "quantization_config": {"quant_method": "gptq"}}, "quantised"),
        ({"model_type": "gpt2", "n_embd": "wide"}, r"config\.json: .*n_embd"),
        ({"model_type": "gpt2"}, r"no \.safetensors file \(weights in pickles are never read\)"),
        ({"model_type": "no_such_model"}, "no_such_model"),
        ({"hidden_size": 48}, "config.json: "),
    ],
)
def test_configurations_that_are_refused(
    tmp_path: Path, content: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load(write_config(tmp_path, **content))


def test_code_in_a_model_directory_is_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    code = f"open({str(marker)!r}, 'w').close()\nclass Own: pass\n"
    (tmp_path / "own.py").write_text(code, encoding="utf-8")
    auto_map = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}
    with pytest.raises(ConfigError, match="needs code of its own, which is never run"):
        load(write_config(tmp_path, model_type="own_model", auto_map=auto_map))
    files = save(random_model("gpt2"), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    write_config(tmp_path, **config, auto_map=auto_map)
    assert load(files).vocab_size == VOCAB
    assert not marker.exists()


def test_pickled_weights_and_adapters_are_refused(tmp_path: Path) -> None:
    model = random_model("gpt2")
    files = save(model, tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError, match="adapters are not supported"):
        load(files)
    (tmp_path / "adapter_config.json").unlink()
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="weights in pickles are never read"):
        load(files)
    (tmp_path / "other.safetensors").write_bytes((tmp_path / "pytorch_model.bin").read_bytes())
    with pytest.raises(ConfigError, match=r"no file named model\.safetensors"):
        load(files)


def test_weights_elsewhere_are_not_read(tmp_path: Path) -> None:
    model = random_model("gpt2")
    files = save(model, tmp_path / "model")
    (tmp_path / "model/model.safetensors").rename(tmp_path / "other.safetensors")
    index = {
        "metadata": {},
        "weight_map": dict.fromkeys(model.state_dict(), "../other.safetensors"),
    }
    (tmp_path / "model/model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ConfigError, match="is not the name of a file next to it"):
        load(files)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("transformer.h.1.mlp.c_fc.bias", None, "h.1.mlp.c_fc.bias is missing"),
        ("transformer.h.1.extra.weight", (1,), "h.1.extra.weight does not belong"),
        ("transformer.ln_f.bias", (7,), "ln_f.bias|mismatch|size"),
    ],
)
def test_wrong_tensors_are_named(
    tmp_path: Path, name: str, shape: tuple[int, ...] | None, message: str
) -> None:
    files = save(random_model("gpt2"), tmp_path)
    tensors = safetensors_torch.load_file(tmp_path / "model.safetensors")
    if shape is None:
        del tensors[name]
    else:
        tensors[name] = torch.ones(shape)
    safetensors_torch.save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=message):
        load(files)


def test_a_model_without_a_bound_on_positions_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = save(random_model("gpt2"), tmp_path)
    assert loading.context_len(tmp_path, SimpleNamespace()) is None
    monkeypatch.setattr(f"{model_module.__name__}.context_len", lambda *_: None)
    with pytest.raises(ConfigError, match="max_position_embeddings is missing"):
        load(files)


# ---- the checks at load ----------------------------------------------------------------------


@pytest.fixture
def llama(tmp_path: Path) -> ModelFiles:
    return save_directory(random_llama(), tmp_path)


def patched(monkeypatch: pytest.MonkeyPatch, owner: "type[nn.Module]", change: Any) -> None:
    """Replace `forward` of a class by change(original)."""
    monkeypatch.setattr(owner, "forward", change(owner.forward))


def test_a_mixture_of_tokens_outside_attention_is_noticed(
    llama: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shift(original: Any) -> Any:
        def forward(self: "nn.Module", x: "torch.Tensor") -> Any:
            return original(self, x + 0.1 * x.roll(1, dims=1))

        return forward

    patched(monkeypatch, modeling_llama.LlamaMLP, shift)
    with pytest.raises(ConfigError, match="tokens reach each other by other ways than attention"):
        load(llama)


@pytest.mark.parametrize("kind", ["place", "longest"])
def test_positions_that_do_not_belong_to_the_token_are_noticed(
    llama: ModelFiles, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """These positions are counted along the batch, or stretched by its longest sequence."""

    def other_positions(original: Any) -> Any:
        def forward(self: "nn.Module", x: "torch.Tensor", position_ids: "torch.Tensor") -> Any:
            place = torch.arange(x.shape[1])[None]
            stretched = position_ids / max(1, int(position_ids.max()) // 100)
            return original(self, x, place if kind == "place" else stretched)

        return forward

    patched(monkeypatch, modeling_llama.LlamaRotaryEmbedding, other_positions)
    with pytest.raises(ConfigError, match="by the positions of others, or by its place"):
        load(llama)


def test_a_head_that_takes_more_than_hidden_states_is_noticed(
    llama: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_ids(original: Any) -> Any:
        def forward(self: "nn.Module", input_ids: "torch.Tensor", **kwargs: Any) -> Any:
            output = original(self, input_ids=input_ids, **kwargs)
            output.logits = output.logits + input_ids[..., None]
            return output

        return forward

    patched(monkeypatch, modeling_llama.LlamaForCausalLM, with_ids)
    with pytest.raises(ConfigError, match="logits of more than the last hidden states"):
        load(llama)


def test_a_model_that_attends_otherwise_than_at_load_fails_its_step(llama: ModelFiles) -> None:
    executor = load(llama)
    assert isinstance(executor.model, model_module.TransformersModel)
    batch = make_batch([Row([5, 6], [0, 1])])
    spec = executor.model.layer_kinds.pop()
    with pytest.raises(RuntimeError, match="attention call 2 is not the one"):
        executor.run(batch)
    executor.model.layer_kinds[:] = [*executor.model.layer_kinds, spec, spec]
    with pytest.raises(RuntimeError, match="3 attention calls instead of 4"):
        executor.run(batch)


# ---- served ----------------------------------------------------------------------------------


@pytest.mark.parametrize("family", some(["gpt2", "cohere2"]))
@pytest.mark.parametrize("lag", some([0, 1], 1))
def test_the_scheduler_core_serves_it_with_the_radix_cache(
    tmp_path: Path, family: str, lag: int
) -> None:
    model = random_model(family)
    executor = load(save(model, tmp_path))
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB,
        "max_total_tokens": POOL,
        "chunked_prefill_size": 16,
    }
    driver = Driver(lag, executor=executor, context_len=CONTEXT_LEN, **sizes)
    prompts = {"a": random_ids(50), "b": random_ids(30, seed=1)}
    prompts["c"] = np.append(prompts["a"][:40], prompts["b"][:5])
    driver.add("a", prompts["a"], 12)
    driver.add("b", prompts["b"], 12)
    driver.run()
    driver.add("c", prompts["c"], 12)
    driver.run()
    assert (driver.cached["a"], driver.cached["c"]) == (0, 40)
    for rid, prompt in prompts.items():
        expected = model.generate(
            torch.from_numpy(prompt)[None], max_new_tokens=12, min_new_tokens=12, do_sample=False
        )[0, len(prompt) :]
        assert driver.outputs[rid] == expected.tolist()
