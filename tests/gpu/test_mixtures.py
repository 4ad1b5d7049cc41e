"""The kernels of mixtures of experts against torch's products, expert by expert: interpreted, or on
a GPU where there is one."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from scheduler_proc.executor.torch_executor import TorchExecutor
from scheduler_proc.models import decoder
from scheduler_proc.models.experts import mixture
from scheduler_proc.models.experts.mixture import Mixture
from scheduler_proc.models.experts.routing import Chosen
from tests.scheduler_proc.models.checkpoints import save_directory
from tests.scheduler_proc.models.families import random_family
from tests.scheduler_proc.ragged import Row, make_batch

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs triton", allow_module_level=True)

from scheduler_proc.models.experts import grouped

pytestmark = pytest.mark.full

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def activate(both: torch.Tensor) -> torch.Tensor:
    gate, up = both.chunk(2, dim=-1)
    return F.silu(gate) * up


def random_mixture(count: int, width: int, hidden: int, dtype: torch.dtype) -> Mixture:
    torch.manual_seed(0)
    gate_up = torch.randn(count, 2 * width, hidden, device=DEVICE) / hidden**0.5
    down = torch.randn(count, hidden, width, device=DEVICE) / width**0.5
    router = torch.empty(count, hidden, device=DEVICE)
    return Mixture(router, None, None, gate_up.to(dtype), down.to(dtype), None)


def random_choice(tokens: int, used: int, count: int, least: int = 0) -> Chosen:
    """Of experts from `least` on."""
    rng = np.random.default_rng(0)
    ids = [np.sort(rng.choice(count - least, used, replace=False)) + least for _ in range(tokens)]
    chosen = torch.from_numpy(np.array(ids, np.int64).reshape(tokens, used)).to(DEVICE)
    return Chosen(chosen, torch.rand(tokens, used, device=DEVICE))


# Single tokens, tiles of 16 that are full and not, tiles of 64; the last of 8 experts alone.
SHAPES = [(1, 2, 8, 0), (3, 8, 8, 0), (40, 2, 4, 0), (33, 1, 8, 7), (200, 2, 2, 0)]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("tokens", "used", "count", "least"), SHAPES)
def test_the_sum_of_experts(
    dtype: torch.dtype, tokens: int, used: int, count: int, least: int
) -> None:
    experts = random_mixture(count, 24, 80, dtype)
    chosen = random_choice(tokens, used, count, least)
    x = torch.randn(tokens, 80, device=DEVICE).to(dtype)
    found = grouped.sum_of_experts(experts, chosen, x, activate)
    wanted = mixture.sum_of_experts(experts, chosen, x, activate)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_no_tokens() -> None:
    experts, x = random_mixture(4, 24, 80, torch.float32), torch.empty(0, 80, device=DEVICE)
    found = grouped.sum_of_experts(experts, random_choice(0, 2, 4), x, activate)
    assert found.shape == (0, 80)


def test_a_model_computes_the_same_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = save_directory(random_family("qwen2_moe"), tmp_path)
    ids, found = np.arange(20), []
    for products in (mixture.sum_of_experts, grouped.sum_of_experts):
        monkeypatch.setattr(decoder, "products_on", lambda _, products=products: products)
        executor = TorchExecutor(files, max_total_tokens=64, device=DEVICE, dtype="float32")
        step = make_batch([Row(ids, range(20), ids[1:], samples=False)])
        found.append(executor.run(step).prompt_logprobs)
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)


def test_the_products_compile_for_an_h100(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.gpu.compile_mixtures"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [kernel["BLOCK_M"] for kernel in found] == [16, 64, 16, 64]
    assert all(kernel["matrix_products"] > 0 for kernel in found)
