"""The fused element-wise kernels against torch's operations."""

import importlib.util

import pytest
import torch
import torch.nn.functional as F

from bench.gpu_report.shape import TOY, executor_of, random_decoder
from scheduler_proc.models import decoder
from scheduler_proc.models.decoder import apply_rope
from tests.scheduler_proc.ragged import Row, make_batch

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs triton", allow_module_level=True)

from scheduler_proc.models import fused

pytestmark = pytest.mark.full

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "pairs"), [(4, 2, 64, 32), (3, 1, 80, 16), (2, 2, 6, 3)]
)
def test_rotation(dtype: torch.dtype, heads: int, kv_heads: int, dim: int, pairs: int) -> None:
    torch.manual_seed(0)
    qkv = torch.randn(5, (heads + 2 * kv_heads) * dim, device=DEVICE).to(dtype)
    qk = qkv[:, : (heads + kv_heads) * dim].view(5, heads + kv_heads, dim)
    angles = torch.rand(5, 1, pairs, device=DEVICE) * 100
    cos, sin = angles.cos(), angles.sin()
    q, k = fused.rotate(qk, cos, sin, heads)
    wanted = apply_rope(qk, cos, sin)
    assert q.is_contiguous() and k.is_contiguous() and q.dtype == dtype
    torch.testing.assert_close(torch.cat((q, k), dim=1), wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 1024, 1500])
def test_gated_activation(dtype: torch.dtype, size: int) -> None:
    torch.manual_seed(0)
    x = (8 * torch.randn(3, 2 * size, device=DEVICE)).to(dtype)
    gate, up = x.chunk(2, dim=-1)
    # Exponentials differ in the last bit, so a number may be rounded the other way.
    eps = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(fused.silu_and_mul(x), F.silu(gate) * up, rtol=eps, atol=1e-5)


def test_rows_of_no_tokens() -> None:
    x = torch.empty(0, 8, device=DEVICE)
    assert fused.silu_and_mul(x).shape == (0, 4)


def test_a_model_computes_the_same_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for kernels in (None, fused):
        monkeypatch.setattr(decoder, "fused_kernels", lambda _, kernels=kernels: kernels)
        torch.manual_seed(0)
        model = random_decoder(TOY, torch.device(DEVICE), torch.float32)
        executor = executor_of(model, torch.device(DEVICE), 64, dtype="float32")
        result = executor.run(
            make_batch([Row(range(9), range(9), range(1, 9)), Row([5], range(9, 19))])
        )
        assert len(result.prompt_logprobs) == 8
        found.append((result.next_ids.tolist(), torch.from_numpy(result.prompt_logprobs)))
    assert found[0][0] == found[1][0]
    torch.testing.assert_close(found[0][1], found[1][1])
