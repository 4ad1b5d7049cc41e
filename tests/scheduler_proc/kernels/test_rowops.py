"""The native operations on one token's row, compared with float64."""

from collections.abc import Iterator

import numpy as np
import pytest

from tests.scheduler_proc.kernels.ops import Ops, levels, opened


@pytest.fixture(scope="module", params=[(isa, threads) for isa in levels() for threads in (1, 2)])
def ops(request: pytest.FixtureRequest) -> Iterator[Ops]:
    with opened(*request.param) as ops:
        yield ops


def normed(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    x = x.astype(np.float64)
    out: np.ndarray = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight
    return out


@pytest.mark.parametrize("eps", [1e-5, 1.0])
@pytest.mark.parametrize(("m", "k"), [(1, 16), (3, 48), (40, 576)])
def test_rms_norm(ops: Ops, m: int, k: int, eps: float) -> None:
    rng = np.random.default_rng(0)
    x, weight = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), k))
    x *= 10.0 ** (np.arange(m)[:, None] % 5 - 2)
    y = ops.rms_norm(x, weight, eps)
    np.testing.assert_allclose(y, normed(x, weight, eps), rtol=2e-6)
    np.testing.assert_array_equal(ops.rms_norm(x[-1:], weight, eps), y[-1:])


def test_rms_norm_of_nothing_is_nothing(ops: Ops) -> None:
    weight = np.ones(64, np.float32)
    assert not ops.rms_norm(np.zeros((2, 64), np.float32), weight, 1e-6).any()


def rotated(x: np.ndarray, positions: np.ndarray, freqs: np.ndarray) -> np.ndarray:
    """x [m, heads, head_dim] rotated by angles in float32, as the model families define them."""
    angles = (positions.astype(np.float32)[:, None] * freqs).astype(np.float64)[:, None]
    a, b = np.split(x.astype(np.float64), 2, axis=-1)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


@pytest.mark.parametrize("head_dim", [16, 32, 64, 80, 96, 128, 256])
@pytest.mark.parametrize(("m", "heads"), [(1, 1), (2, 5), (37, 3)])
def test_rope(ops: Ops, head_dim: int, m: int, heads: int) -> None:
    rng = np.random.default_rng(head_dim)
    x = rng.standard_normal((m, heads, head_dim)).astype(np.float32)
    positions = rng.permutation(131072)[:m].astype(np.int32)
    positions[0] = 1
    freqs = (1e4 ** (-np.arange(0, head_dim, 2) / head_dim)).astype(np.float32)
    y = ops.rope(x, positions, freqs)
    np.testing.assert_allclose(y, rotated(x, positions, freqs), atol=1e-6, rtol=0)
    alone = ops.rope(x[-1:], positions[-1:], freqs)
    np.testing.assert_array_equal(alone, y[-1:])


def test_rope_leaves_position_zero_as_it_is(ops: Ops) -> None:
    x = np.random.default_rng(1).standard_normal((2, 3, 80)).astype(np.float32)
    freqs = np.linspace(1, 0.01, 40).astype(np.float32)
    np.testing.assert_array_equal(ops.rope(x, np.zeros(2, np.int32), freqs), x)
