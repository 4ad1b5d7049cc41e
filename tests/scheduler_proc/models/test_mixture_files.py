"""Files of mixtures of experts: every layout holds the same model, and what is wrong is named."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest

from scheduler_proc import executor as executors
from scheduler_proc.executor import ExecutorOptions, make_executor
from scheduler_proc.executor.native_executor import NativeExecutor
from scheduler_proc.models.checkpoint import first_layers, open_checkpoint
from scheduler_proc.models.config import RouterRule
from srt.files.model_files import ModelFiles
from srt.wire.errors import ConfigError
from tests.running.late import late
from tests.running.profiles import some
from tests.scheduler_proc.kernels.ops import load_or_skip
from tests.scheduler_proc.models.checkpoints import save_directory
from tests.scheduler_proc.models.families import MIXTURES, random_family
from tests.scheduler_proc.models.gguf_families import converted_tensors, write_family
from tests.scheduler_proc.ragged import Row, make_batch

if TYPE_CHECKING:
    import torch
    from safetensors import torch as safetensors_torch

    from scheduler_proc.models import loader
else:
    torch = late("torch")
    loader = late("scheduler_proc.models.loader")
    safetensors_torch = late("safetensors.torch")

FILE = "model.safetensors"


def logprobs(files: ModelFiles, **options: Any) -> np.ndarray:
    """What the native executor computes of 40 tokens."""
    ids = np.random.default_rng(0).integers(0, 131, 40)
    executor = NativeExecutor(files, max_total_tokens=64, num_threads=2, **options)
    return executor.run(make_batch([Row(ids, range(40), ids[1:], samples=False)])).prompt_logprobs


def rewrite(files: ModelFiles, tensors: Mapping[str, Any]) -> ModelFiles:
    safetensors_torch.save_file(
        {n: t.contiguous().clone() for n, t in tensors.items()}, files.path / FILE
    )
    return files


def as_in_memory(model: Any, path: Path) -> ModelFiles:
    """A directory with transformers' own names of tensors: those of all experts in one."""
    files = save_directory(model, path)
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    return rewrite(files, {n: t for n, t in model.state_dict().items() if n not in tied})


@pytest.mark.parametrize("family", some(MIXTURES, "mixtral", "granitemoe"))
def test_experts_in_one_tensor_are_the_same_model(tmp_path: Path, family: str) -> None:
    model = random_family(family)
    files = save_directory(model, tmp_path / "saved"), as_in_memory(model, tmp_path / "memory")
    checkpoints = [open_checkpoint(each) for each in files]
    names = [set(each.tensors) for each in checkpoints]
    assert names[0] != names[1]
    weights = [loader.load_weights(each) for each in checkpoints]
    for a, b in zip(weights[0].layers, weights[1].layers, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    load_or_skip()
    one, other = (logprobs(each) for each in files)
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("options", some([{"exact": True}, {}, {"quantization": "q8"}], {}))
def test_gate_and_up_in_one_tensor_of_a_gguf_file(tmp_path: Path, options: dict[str, Any]) -> None:
    """As the newest files of llama.cpp's converter have them, on request."""
    load_or_skip()
    model = random_family("qwen3_moe")
    tensors = converted_tensors(model)
    joined = dict(tensors)
    for index in range(model.config.num_hidden_layers):
        parts = [joined.pop(f"blk.{index}.ffn_{name}_exps.weight") for name in ("gate", "up")]
        joined[f"blk.{index}.ffn_gate_up_exps.weight"] = np.concatenate(parts, axis=1)
    files = [
        write_family(model, tmp_path / f"{name}.gguf", each)
        for name, each in (("apart", tensors), ("joined", joined))
    ]
    one, other = (logprobs(each, **options) for each in files)
    np.testing.assert_array_equal(one, other)


def test_quantised_experts_of_a_gguf_file(tmp_path: Path) -> None:
    """Blocks are packed as they are; the router stays in float32, as llama.cpp's converter has it.
    Torch computes with the same values."""
    load_or_skip()
    model = random_family("qwen2_moe")
    tensors = converted_tensors(model)
    q8 = gguf.GGMLQuantizationType.Q8_0
    quants = {n: q8 for n, t in tensors.items() if t.ndim > 1 and "_inp" not in n}
    blocks = {name: gguf.quants.quantize(tensors[name], q8) for name in quants}
    values = {name: gguf.quants.dequantize(block, q8) for name, block in blocks.items()}
    quantised = write_family(model, tmp_path / "q.gguf", tensors | blocks, quants)
    plain = write_family(model, tmp_path / "f.gguf", tensors | values)
    found, expected = (logprobs(files, exact=True) for files in (quantised, plain))
    np.testing.assert_array_equal(found, expected)
    assert np.abs(logprobs(quantised) - expected).mean() < 0.4


def test_quantization_leaves_the_router(tmp_path: Path) -> None:
    load_or_skip()
    files = save_directory(random_family("qwen2_moe"), tmp_path)
    sizes = [
        NativeExecutor(files, max_total_tokens=8, quantization=kind).weight_bytes
        for kind in ("none", "q8", "q4")
    ]
    assert sizes[0] > 3 * sizes[1] > 4 * sizes[2]
    layer = NativeExecutor(files, max_total_tokens=8, quantization="q4")._weights.layers[0]
    assert layer.experts.contents.router.format == 0
    assert {matrix.format for matrix in layer.experts.contents.gate[:6]} != {0}


def test_the_first_layers(tmp_path: Path) -> None:
    files = save_directory(random_family("qwen2_moe, some dense"), tmp_path)
    part = first_layers(open_checkpoint(files), 2)
    assert [part.config.is_mixture(index) for index in range(2)] == [False, True]
    assert len(loader.load_weights(part).layers) == 2


# ---- what is wrong -------------------------------------------------------------------------------

_LAYER = "model.layers.1.mlp"
Change = Callable[[dict[str, Any]], None]


def without(name: str) -> Change:
    def change(tensors: dict[str, Any]) -> None:
        del tensors[name]

    return change


def instead(name: str, make: Callable[[Any], Any], of: str | None = None) -> Change:
    """Tensor `name` made of itself, or of another."""

    def change(tensors: dict[str, Any]) -> None:
        tensors[name] = make(tensors[of or name])

    return change


def with_value(value: float) -> Callable[[Any], Any]:
    def make(tensor: Any) -> Any:
        changed = tensor.clone()
        changed[-1, -1] = value
        return changed

    return make


WRONG: list[tuple[Change, str]] = [
    (
        instead(f"{_LAYER}.gate.weight", lambda t: t[:-1]),
        r"mlp\.gate\.weight has shape \[5, 64\], expected \[6, 64\]",
    ),
    (
        instead(f"{_LAYER}.gate.weight", lambda t: t[:, :32]),
        r"mlp\.gate\.weight has shape \[6, 32\], expected \[6, 64\]",
    ),
    (
        without(f"{_LAYER}.experts.5.up_proj.weight"),
        r"tensor model\.layers\.1\.mlp\.experts\.5\.up_proj\.weight is missing",
    ),
    (without(f"{_LAYER}.shared_expert_gate.weight"), r"mlp\.shared_expert_gate\.weight is missing"),
    (without(f"{_LAYER}.shared_expert.down_proj.weight"), r"shared_expert\.down_proj.* is missing"),
    (
        instead(
            f"{_LAYER}.experts.6.up_proj.weight", lambda t: t, f"{_LAYER}.experts.5.up_proj.weight"
        ),
        r"mlp\.experts\.6\.up_proj\.weight does not belong to this model",
    ),
    (
        instead(f"{_LAYER}.experts.2.down_proj.weight", lambda t: t[:, :16]),
        r"mlp\.experts\.2\.down_proj\.weight has shape \[64, 16\], expected \[64, 32\]",
    ),
    (
        instead(f"{_LAYER}.gate.weight", with_value(float("nan"))),
        r"tensor model\.layers\.1\.mlp\.gate\.weight has values that are not finite",
    ),
    (
        instead(f"{_LAYER}.shared_expert_gate.weight", with_value(float("inf"))),
        r"mlp\.shared_expert_gate\.weight has values that are not finite",
    ),
]


@pytest.mark.parametrize("executor", ["native", "torch"])
@pytest.mark.parametrize(("change", "message"), some(WRONG, WRONG[0], WRONG[2], WRONG[7]))
def test_a_tensor_that_is_wrong_is_named(
    tmp_path: Path, change: Change, message: str, executor: str
) -> None:
    """In one line, by either executor."""
    if executor == "native":
        load_or_skip()
    files = save_directory(random_family("qwen2_moe"), tmp_path)
    tensors = safetensors_torch.load_file(tmp_path / FILE)
    change(tensors)
    rewrite(files, tensors)
    with pytest.raises(ConfigError, match=message) as raised:
        make_executor(executor, files, ExecutorOptions(max_total_tokens=8))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("name", "count"), [("experts.gate_up_proj", 5), ("experts.down_proj", 7)])
def test_a_stack_of_another_number_of_experts(tmp_path: Path, name: str, count: int) -> None:
    files = as_in_memory(random_family("qwen2_moe"), tmp_path)
    tensors = safetensors_torch.load_file(tmp_path / FILE)
    whole = tensors[f"{_LAYER}.{name}"]
    tensors[f"{_LAYER}.{name}"] = torch.cat((whole, whole))[:count]
    rewrite(files, tensors)
    with pytest.raises(ConfigError, match=rf"{name}\.weight has shape \[{count}, .*expected \[6, "):
        loader.load_weights(open_checkpoint(files))


def test_a_configuration_of_many_experts_takes_no_time(tmp_path: Path) -> None:
    """There are fewer tensors than it asks for: the first that is missing ends the check."""
    files = save_directory(random_family("qwen2_moe"), tmp_path)
    file = tmp_path / "config.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    content |= {"num_hidden_layers": 9999, "num_experts": 16384, "layer_types": None}
    file.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"mlp\.experts\.6\..* is missing"):
        loader.load_weights(open_checkpoint(files))


GGUF_WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("mixtral", {"expert_used_count": 5}, "a token uses 5 of 4 experts"),
    ("qwen3_moe", {"expert_count": 15}, r"mlp\.gate\.weight has shape \[16, 64\]"),
    ("qwen2_moe", {"expert_gating_func": 2}, "expert_gating_func = 2 is not supported"),
    ("qwen3_moe", {"expert_group_count": 3}, "16 experts are not in 3 groups of equal size"),
    ("olmoe", {"attention.clamp_kqv": 8.0}, r"attention\.clamp_kqv = 8\.0 is not supported"),
    ("olmoe", {"expert_count": 0}, "0 experts: 1 to"),
    ("granitemoe", {"logit_scale": -2.0}, r"logit_scale is -0\.5, not above 0"),
    ("granite", {"rope.scaling.finetuned": False}, "finetuned = False is not supported"),
    ("granite", {"expert_count": 4}, "expert_count = 4 is not supported"),
]


@pytest.mark.parametrize(("family", "keys", "message"), GGUF_WRONG)
def test_a_key_that_is_wrong_is_named(
    tmp_path: Path, family: str, keys: dict[str, Any], message: str
) -> None:
    files = write_family(random_family(family), tmp_path / "m.gguf", **keys)
    with pytest.raises(ConfigError, match=message) as raised:
        loader.load_weights(open_checkpoint(files))
    assert "\n" not in str(raised.value)


def test_a_wrong_gguf_file_is_not_tried_on_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which takes long to import, and says the same."""
    files = write_family(random_family("qwen3_moe"), tmp_path / "m.gguf", expert_used_count=17)
    monkeypatch.setattr(executors, "_make_torch", lambda *_: pytest.fail("torch was tried"))
    with pytest.raises(ConfigError, match=r"m\.gguf: a token uses 17 of 16 experts"):
        make_executor("auto", files, ExecutorOptions(max_total_tokens=8))
    load_or_skip()
    tensors = converted_tensors(random_family("qwen3_moe"))
    tensors["blk.1.ffn_gate_inp.weight"][0, 0] = np.nan
    files = write_family(random_family("qwen3_moe"), tmp_path / "nan.gguf", tensors)
    with pytest.raises(ConfigError, match=r"mlp\.gate\.weight has values that are not finite"):
        make_executor("auto", files, ExecutorOptions(max_total_tokens=8))


@pytest.mark.parametrize(
    ("family", "is_normalised"),
    [("mixtral", True), ("qwen2_moe", False), ("qwen3_moe", True), ("olmoe", False)],
)
def test_what_a_gguf_file_leaves_to_its_architecture(
    tmp_path: Path, family: str, is_normalised: bool
) -> None:
    files = write_family(random_family(family), tmp_path / "m.gguf")
    experts = open_checkpoint(files).config.experts
    assert experts is not None and experts.rule == RouterRule(normalised=is_normalised)


def test_the_first_gguf_files_of_qwen2_have_the_width_of_all_used_experts(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"expert_feed_forward_length": 0, "feed_forward_length": 96}
    keys["expert_shared_feed_forward_length"] = 64
    files = write_family(random_family("qwen2_moe"), tmp_path / "m.gguf", **keys)
    experts = open_checkpoint(files).config.experts
    assert experts is not None and (experts.width, experts.shared_width) == (32, 64)


def test_experts_that_native_cannot_have(tmp_path: Path) -> None:
    """A width that is no multiple of 16, too many of a token, and types that differ."""
    load_or_skip()
    options = ExecutorOptions(max_total_tokens=8)
    files = save_directory(random_family("qwen3_moe", moe_intermediate_size=40), tmp_path / "a")
    with pytest.raises(ConfigError, match="does not have experts of 40 channels"):
        make_executor("native", files, options)
    many = random_family("qwen3_moe", num_experts=66, num_experts_per_tok=65)
    with pytest.raises(ConfigError, match=r"does not have 65 experts of a token \(at most 64\)"):
        make_executor("native", save_directory(many, tmp_path / "c"), options)
    files = save_directory(random_family("qwen2_moe"), tmp_path / "b")
    tensors = safetensors_torch.load_file(files.path / FILE)
    name = f"{_LAYER}.experts.3.up_proj.weight"
    rewrite(files, tensors | {name: tensors[name].half()})
    with pytest.raises(ConfigError, match=r"experts whose up is of several types \(F16, F32\)"):
        make_executor("native", files, options)
