"""Every family of models compared with transformers, on small random checkpoints."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from msgspec.structs import replace

from scheduler_proc.executor import ExecutorOptions, make_executor
from scheduler_proc.executor.native_executor import NativeExecutor
from srt.files.model_files import ModelFiles
from srt.wire.errors import ConfigError
from tests.running.late import late
from tests.running.profiles import some
from tests.scheduler_proc.kernels.ops import load_or_skip
from tests.scheduler_proc.models.checkpoints import save_directory
from tests.scheduler_proc.models.families import (
    FAMILIES,
    MIXTURES,
    ON_NATIVE,
    random_family,
    router_gap,
)
from tests.scheduler_proc.ragged import Row, make_batch

if TYPE_CHECKING:
    import torch

    from scheduler_proc.executor import torch_executor
    from scheduler_proc.models import decoder
else:
    decoder = late("scheduler_proc.models.decoder")
    torch = late("torch")
    torch_executor = late("scheduler_proc.executor.torch_executor")


POOL = 640


class Part(NamedTuple):
    """Tokens [start, stop) of a sequence, computed in one step."""

    sequence: int
    start: int
    stop: int


# One prompt at once, which then decodes, one in chunks, and one that shares the first 50 tokens of
# the first. Windows of the families are shorter than all of them.
LENGTHS = (75, 90, 70)
SHARED = 50
STEPS = (
    (Part(0, 0, 70), Part(1, 0, 33)),
    (Part(0, 70, 71), Part(1, 33, 64), Part(2, 50, 51)),
    (Part(1, 64, 90), Part(0, 71, 72), Part(2, 51, 70)),
    (Part(0, 72, 75),),
)


class Case(NamedTuple):
    """A checkpoint, and what transformers computes for the sequences."""

    name: str
    files: ModelFiles
    model: Any
    sequences: Sequence[np.ndarray]
    logits: "Sequence[torch.Tensor]"  # of every position


# One of ours on both executors, the one that differs most, and all rules of mixtures.
IN_SHORT = ("qwen3", "gemma3", *MIXTURES)


@pytest.fixture(scope="module", params=some(FAMILIES, *IN_SHORT))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    model = random_family(request.param)
    files = save_directory(model, tmp_path_factory.mktemp("model"))
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, 131, count) for count in LENGTHS]
    sequences[2][:SHARED] = sequences[0][:SHARED]
    # Ours differ from transformers' logits of a router by about 1e-6: none may choose others by it.
    assert router_gap(model, sequences) > 1e-4
    with torch.inference_mode():
        logits = [model(torch.from_numpy(ids)[None]).logits[0] for ids in sequences]
    return Case(request.param, files, model, sequences, logits)


def steps_of(case: Case) -> Iterator[tuple[tuple[Part, ...], list[Row]]]:
    """The rows of every step; each asks for the log-probability of every token that follows."""
    order = np.random.default_rng(1).permutation(POOL)
    slots = [order[100 * i : 100 * i + count] for i, count in enumerate(LENGTHS)]
    slots[2][:SHARED] = slots[0][:SHARED]
    for parts in STEPS:
        rows = []
        for part in parts:
            ids = case.sequences[part.sequence]
            targets = ids[part.start + 1 : part.stop + 1]
            seen = slots[part.sequence][: part.stop]
            rows.append(Row(ids[part.start : part.stop], seen, targets, samples=False))
        yield parts, rows


def logprob_errors(executor: Any, case: Case) -> np.ndarray:
    """The differences from transformers' log-probabilities, of all tokens in all steps."""
    errors = []
    for parts, rows in steps_of(case):
        found = executor.run(make_batch(rows)).prompt_logprobs
        expected = []
        for part, row in zip(parts, rows, strict=True):
            logits = case.logits[part.sequence][part.start : part.start + len(row.targets)]
            targets = torch.as_tensor(row.targets)[:, None]
            expected.append(logits.log_softmax(-1).gather(1, targets)[:, 0].numpy())
        errors.append(np.abs(found - np.concatenate(expected)))
    return np.concatenate(errors)


def test_logits_of_ragged_batches(case: Case) -> None:
    executor = torch_executor.TorchExecutor(case.files, max_total_tokens=POOL)
    for parts, rows in steps_of(case):
        with torch.inference_mode():
            found = executor.model.logits(executor.forward(make_batch(rows)))
        expected = [case.logits[part.sequence][part.start : part.stop] for part in parts]
        torch.testing.assert_close(found, torch.cat(expected), atol=1e-3, rtol=0)


@pytest.mark.parametrize("case", some(ON_NATIVE, "qwen3"), indirect=True)
def test_native_exact(case: Case) -> None:
    load_or_skip()
    executor = NativeExecutor(case.files, max_total_tokens=POOL, num_threads=2, exact=True)
    assert logprob_errors(executor, case).max() < 1e-3


@pytest.mark.parametrize(("quantization", "most"), [("none", 0.01), ("q8", 0.2), ("q4", 2.0)])
@pytest.mark.parametrize("case", some(ON_NATIVE, "qwen3"), indirect=True)
def test_native_quantised(case: Case, quantization: str, most: float) -> None:
    """Weights are quantised or, with "none", only keys and values. In a mixture some tokens then
    choose other experts, which is an error of another size."""
    load_or_skip()
    most *= 2 if case.name.startswith(MIXTURES) else 1
    options: dict[str, Any] = {"quantization": quantization, "num_threads": 2}
    executor = NativeExecutor(case.files, max_total_tokens=POOL, **options)
    error = logprob_errors(executor, case).mean()
    assert most / 100 < error < most


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("gemma2", "norms after attention and MLP, .*gelu_tanh, soft caps"),
        ("gemma3", "a rope for windowed layers"),
        ("phi3, partial", "does not have partly rotated heads"),
    ],
    indirect=["case"],
)
def test_auto_runs_on_torch_what_native_lacks_and_says_why(
    case: Case, reason: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_or_skip()
    options = ExecutorOptions(max_total_tokens=8)
    with pytest.raises(ConfigError, match=f"executor native: .*{reason}"):
        make_executor("native", case.files, options)
    monkeypatch.delenv("SRT_REQUIRE_NATIVE", raising=False)
    assert make_executor("auto", case.files, options).name == "torch"
    (message,) = caplog.messages
    assert re.search(f"running on torch.*{reason}", message)


@pytest.mark.parametrize(
    "case",
    some(["llama", "qwen3", "phi3, partial", "gemma2", "gemma3", *MIXTURES], "gemma3", "olmoe"),
    indirect=True,
)
def test_sixteen_bits_are_as_close_as_those_of_transformers(case: Case) -> None:
    """Both are compared with float32; their errors come from rounding to bfloat16. The median: a
    few tokens of a mixture choose other experts."""
    executor = torch_executor.TorchExecutor(case.files, max_total_tokens=POOL, dtype="bfloat16")
    ids = case.sequences[1]
    with torch.inference_mode():
        found = executor.model.logits(executor.forward(make_batch([Row(ids, range(len(ids)))])))
        model = random_family(case.name).to(torch.bfloat16)
        theirs = model(torch.from_numpy(ids)[None]).logits[0].float()
    errors = ((x - case.logits[1]).abs().mean(-1) for x in (found, theirs))
    error, their_error = (each.median() for each in errors)
    assert 0 < error < 1.25 * their_error


# ---- every option counts -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("mistral, window", {"windowed": ()}),
        ("qwen2, windows", {"windowed": (True, True, True)}),
        ("qwen3, windows", {"windowed": (False, True, False)}),
        ("phi3", {"window": 29}),
        ("gemma2", {"windowed": (False, True, False)}),
        ("gemma2", {"attn_softcap": None}),
        ("gemma2", {"logit_softcap": None}),
        ("gemma2", {"query_scale": None}),
        ("gemma2", {"embed_scale": 1.0}),
        ("gemma3", {"activation": "silu"}),
        ("gemma3", {"window": 14}),
        ("granite", {"embed_scale": 1.0}),
        ("granite", {"residual_scale": 1.0}),
        ("granite", {"logit_scale": 1.0}),
        ("granite", {"query_scale": None}),
        ("olmoe", {"whole_qk_norms": False}),
        ("mixtral", {"experts": {"normalised": False}}),
        ("qwen2_moe", {"experts": {"normalised": True}}),
        ("olmoe", {"experts": {"normalised": True}}),
        ("granitemoe", {"experts": {"chosen_by": "scores"}}),
        ("qwen3_moe", {"experts": {"scores": "sigmoid"}}),
    ],
)
def test_an_option_changes_what_is_computed(
    tmp_path: Path, name: str, change: dict[str, Any]
) -> None:
    """Otherwise the comparisons with transformers would not test it."""
    executor = torch_executor.TorchExecutor(
        save_directory(random_family(name), tmp_path), max_total_tokens=POOL
    )
    step = make_batch([Row(np.random.default_rng(0).integers(0, 131, 80), range(80))])
    with torch.inference_mode():
        before = executor.model.logits(executor.forward(step))
        model: Any = executor.model
        if "experts" in change:
            experts = model.config.experts
            rule = replace(experts.rule, **change["experts"])
            change = {"experts": replace(experts, rule=rule)}
        executor.model = decoder.Decoder(replace(model.config, **change), model.weights)
        after = executor.model.logits(executor.forward(step))
    assert (before - after).abs().max() > 0.05


def test_rope_scalings_and_norms_change_what_is_computed(tmp_path: Path) -> None:
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, 131, 80))[None]
    plain = {"rope_type": "default", "rope_theta": 1e4}
    for name in ("llama, linear rope", "llama, llama3 rope", "qwen2, yarn", "qwen3, yarn"):
        with torch.inference_mode():
            scaled = random_family(name)(ids).logits
            difference = scaled - random_family(name, rope_parameters=plain)(ids).logits
        assert difference.abs().max() > 0.05, name
