"""The report on CUDA, at toy scale on the CPU: it must not fail on a GPU for a slip of its own."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bench.gpu_report import __main__ as report
from bench.gpu_report.bars import BARS, judged
from bench.gpu_report.kernels import compared, fused
from bench.gpu_report.outcomes import run_file
from bench.gpu_report.sections import Context, Sink
from bench.gpu_report.shape import LLAMA_3_8B, TOY, linear_parameters, random_decoder
from bench.gpu_report.steps import FULL
from bench.gpu_report.timing import Clock
from tests.waiting import SOON_S

pytestmark = pytest.mark.full

TESTS = """
import pytest

def test_good():
    assert True

def test_bad():
    assert 1 == 2

@pytest.mark.parametrize("n", [1, 2])
def test_skipped(n):
    pytest.skip("no device")
"""


def run(path: Path, *sections: str, status: int = 0) -> dict[str, Any]:
    """The report of these sections at toy scale."""
    tests = path / "tests"
    tests.mkdir(exist_ok=True)
    (tests / "test_toy.py").write_text(TESTS)
    options = ["--device", "cpu", "--scale", "toy", "--out", str(path / "report.json")]
    options += ["--tests", str(tests), "--sections", *sections]
    assert report.main(options) == status
    found: dict[str, Any] = msgspec.json.decode((path / "report.json").read_bytes())
    return found


@pytest.mark.parametrize(
    "left_out", [{"model, triton"}, pytest.param(set(), marks=pytest.mark.slow)]
)
def test_sections_run_at_toy_scale(tmp_path: Path, left_out: set[str]) -> None:
    """In short without an interpreted model, which is slow."""
    names = [name for name in report.SECTIONS if name not in left_out]
    found = run(tmp_path, *names)
    sections = {name: section["figures"] for name, section in found["sections"].items()}
    assert list(sections) == names
    assert sections["ceilings"]["copy_bytes_s"] > 0
    assert sections["ceilings"]["matmul_flop_s"] > 0
    assert sections["ceilings"]["versions"]["torch"] == torch.__version__
    for backend in {"flashinfer", "triton"} - {name.rpartition(" ")[2] for name in left_out}:
        model = sections[f"model, {backend}"]
        assert model["decode 1"]["share_of_copy"] > 0
        assert model["decode 3"]["wall_s"] > 0
        assert model["prefill 20"]["share_of_matmul"] > 0
        assert model["cascade"].keys() >= {"speedup"} or backend == "triton"
        assert "layer_s" in model["without graphs"]
    assert sections["tests"]["counts"] == {"passed": 1, "failed": 1, "skipped": 2}
    tests = sections["tests"]["test_toy.py"]["tests"]
    assert "assert 1 == 2" in tests["test_bad"]["reason"]
    assert tests["test_skipped[2]"]["reason"] == "Skipped: no device"
    assert {"page size", "fused"} <= set(sections["kernels"])
    assert sections["server"]["cpu"]["figures"]["single"]["errors"] == 0
    assert set(found["bars"]) == {bar.name for bar in BARS}


def test_a_section_that_hangs_or_fails_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has measured stays, and the report is written."""
    hang = "import time; print('begun', flush=True); time.sleep(600)"
    part = tmp_path / "part.json"
    Sink(part).put("first", 1)
    with (tmp_path / "log").open("w+") as log:
        status = report._status_of([sys.executable, "-c", hang], log, 1.5)
    assert status == "ended after 2 s"
    assert msgspec.json.decode(part.read_bytes()) == {"first": 1}
    failing = report.SECTIONS["ceilings"]._replace(limit_s=0.0)
    monkeypatch.setitem(report.SECTIONS, "ceilings", failing)
    found = run(tmp_path, "ceilings", status=1)
    assert found["sections"]["ceilings"] == {"status": "no time left", "seconds": 0, "figures": {}}
    assert found["bars"]["triton: decode 1"]["passed"] is None


def test_a_failed_section_has_its_output(tmp_path: Path) -> None:
    args = report.parse_args(
        ["--out", str(tmp_path / "r.json"), "--device", "nonsense", "--scale", "toy"]
    )
    section = report._section(args, "ceilings", float("inf"))
    assert section["status"] == "failed: exit status 1"
    assert "nonsense" in section["output"]


def test_a_figures_file_is_always_whole(tmp_path: Path) -> None:
    sink = Sink(tmp_path / "part.json")
    for number in range(3):
        sink.put(str(number), {"x": np.float64(number).item()})
        assert len(msgspec.json.decode((tmp_path / "part.json").read_bytes())) == number + 1
    assert os.listdir(tmp_path) == ["part.json"]


def test_bars_are_judged_by_the_figures() -> None:
    figures: dict[str, Any] = {
        "model, triton": {"decode 1": {"share_of_copy": 0.8, "exposed": 0.03}},
        "kernels": {"page size": {"loss": 0.02}},
    }
    verdicts = {name: bar["passed"] for name, bar in judged(figures).items()}
    assert verdicts["triton: decode 1"] is True
    assert verdicts["triton: exposed at 1"] is False
    assert verdicts["pages of one slot"] is True
    assert verdicts["flashinfer: decode 1"] is None
    assert verdicts["triton: cascade"] is None


def test_every_bar_reads_a_figure_that_a_section_writes() -> None:
    for bar in BARS:
        section, name, _ = bar.path
        assert section in report.SECTIONS
        measured = {*FULL.decodes, *(f"prefill {n}" for n in FULL.prefills), "cascade"}
        assert name in measured | {"page size"}


def test_outcomes_are_kept_of_a_file_that_ends_early(tmp_path: Path) -> None:
    path = tmp_path / "test_early.py"
    path.write_text(
        "import os\n\ndef test_one():\n    pass\n\ndef test_early():\n    os._exit(7)\n"
    )
    found, end = run_file(path, SOON_S)
    outcomes = {name: outcome.outcome for name, outcome in found.items()}
    assert outcomes == {"test_one": "passed", "test_early": "did not end"}
    assert "exit status 7" in end


def test_fused_kernels_are_compared_with_the_same_work_of_ours() -> None:
    """By what FlashInfer's documents say that its functions do."""

    def fused_add_rmsnorm(x: Any, residual: Any, weight: Any, eps: float) -> Any:
        return F.rms_norm(residual + x, weight.shape, weight, eps)

    def rotate(positions: Any, q: Any, k: Any, head_size: int, cache: Any) -> Any:
        heads = torch.cat((q, k), dim=1).view(len(q), -1, head_size).float()
        first, second = heads.chunk(2, dim=-1)
        cos, sin = cache[positions][:, None].chunk(2, dim=-1)
        turned = (first * cos - second * sin, second * cos + first * sin)
        return torch.cat(turned, dim=-1).to(q.dtype)

    package: Any = SimpleNamespace(
        rmsnorm=lambda x, weight, eps: F.rms_norm(x, weight.shape, weight, eps),
        fused_add_rmsnorm=fused_add_rmsnorm,
        apply_rope_with_cos_sin_cache_inplace=rotate,
        silu_and_mul=lambda x: F.silu(x[:, : x.shape[1] // 2]) * x[:, x.shape[1] // 2 :],
    )
    pairs = fused(torch.device("cpu"), package, TOY, 5)
    assert set(pairs) == set(vars(package))
    for name, pair in pairs.items():
        theirs, ours = pair.theirs(), pair.ours()
        assert isinstance(theirs, torch.Tensor) and isinstance(ours, torch.Tensor)
        assert torch.equal(theirs, ours), name
        del package.__dict__[name]
        assert name not in fused(torch.device("cpu"), package, TOY, 2)


def test_a_kernel_that_does_not_run_is_said_to(tmp_path: Path) -> None:
    def broken() -> None:
        raise RuntimeError("no module")

    context = Context(torch.device("cpu"), False, {}, Sink(tmp_path / "x"), tmp_path)
    assert compared(context, broken, dict) == {"not measured": "RuntimeError: no module"}
    assert compared(context, dict, dict)["faster"] in ("flashinfer", "ours")


def test_the_full_shape_is_that_of_the_real_model() -> None:
    """8.03 billion parameters, 1.05 of them in the embedding and as many in the head."""
    config = LLAMA_3_8B
    embeddings = 2 * config.vocab_size * config.hidden
    norms = (2 * config.layers + 1) * config.hidden
    assert linear_parameters(config) + embeddings + norms == 8_030_261_248
    model = random_decoder(TOY, torch.device("cpu"), torch.float32)
    counted = sum(t.numel() for layer in model.weights.layers for t in layer.tensors if t.dim() > 1)
    assert counted == linear_parameters(TOY)


def test_times_are_of_the_calls() -> None:
    clock, calls = Clock(torch.device("cpu"), runs=3, warm=1), list[str]()
    first, second = clock.time(lambda: calls.append("a"), lambda: calls.append("b"))
    assert calls == ["a", "b"] + 3 * ["a", "b"]
    assert first.runs == second.runs == 3
    assert 0 < first.best_s <= first.median_s
    assert clock.wall(lambda: calls.append("c")).median_s > 0
    assert clock.device_span(lambda: calls.append("d")) > 0
    assert calls[8:] == ["c"] * 4 + ["d"]
