"""The native linear layers compared with float64, in every weight format and at every level.

Quantised weights are multiplied by activations in codes of 8, 12 or 16 bits, in groups of 32; the
reference quantises too, so that only float32 rounding is tolerated. Weights in tiles become
bfloat16, like their activations: this is checked bit for bit, with the weights that unit inputs
reveal. A level with matrix tiles gets all quantised weights in tiles.
"""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest

from scheduler_proc.kernels import library
from scheduler_proc.kernels.library import Format, Source
from tests.running.profiles import some
from tests.scheduler_proc.kernels.ops import (
    FLOATS,
    OWN_FORMATS,
    TILED,
    UNTILED,
    Ops,
    Weights,
    bfloat16_activations,
    level_bits,
    levels,
    opened,
    pack,
    quantized_activations,
    random_source,
    random_weights,
    silu,
)

ROWS = (1, 2, 3, 5, 6, 7, 8, 13, 47, 48, 130)  # 48: kUnpackRows
MANY_ROWS = 300  # more than one unit of work has
K_QUANTS = (Format.Q4K, Format.Q6)
QUANTIZED = tuple(format for format in UNTILED if format not in FLOATS)
ROUNDING = 1e-6  # relative to the sum of magnitudes
BFLOAT16_ROUNDING = 0.75 * 2.0**-7  # the largest relative error of a weight in tiles


@pytest.fixture(scope="module", params=level_bits(), ids=lambda p: f"{p[0]}, {p[1]} bits")
def ops(request: pytest.FixtureRequest) -> Iterator[Ops]:
    isa, bits = request.param
    with opened(isa, 2, bits) as ops:
        yield ops


def shapes(format: Format) -> list[tuple[int, int]]:
    """(n, k) with one block, odd and even numbers of blocks, and last blocks that are not full."""
    if format in K_QUANTS:
        return [(16, 256), (40, 256), (75, 768), (130, 256)]
    if format in FLOATS:
        return [(16, 32), (40, 7), (75, 160), (130, 260)]
    return [(16, 32), (40, 96), (75, 160), (130, 288)]


CASES = [(format, *shape) for format in UNTILED for shape in shapes(format)]


class Case(NamedTuple):
    """A layer and its inputs; `exact` and `tolerance`, for rounding, are float64 [m, n]."""

    weights: Weights
    x: np.ndarray
    exact: np.ndarray
    tolerance: np.ndarray

    def check(self, y: np.ndarray) -> None:
        rows = slice(len(y))
        assert (np.abs(y - self.exact[rows]) <= self.tolerance[rows]).all()


def bias_of(weights: Weights) -> np.ndarray:
    n = weights.matrix.n
    return weights.arrays[1][:n] if weights.matrix.bias else np.zeros(n, np.float32)


def make_case(weights: Weights, x: np.ndarray, bits: int) -> Case:
    is_float, is_tiled = weights.matrix.format in FLOATS, weights.matrix.format in TILED
    seen = x.astype(np.float64) if is_float else quantized_activations(x, bits)
    if is_tiled:
        seen = bfloat16_activations(x)
    w = weights.values().astype(np.float64)
    exact = seen @ w.T + bias_of(weights)
    # Codes are unsigned inside: products are as large as those of the group's largest weight.
    largest = w if is_float else np.repeat(np.abs(w).reshape(len(w), -1, 32).max(axis=-1), 32, 1)
    rounding = BFLOAT16_ROUNDING if is_tiled else ROUNDING
    return Case(weights, x, exact, rounding * np.abs(seen) @ np.abs(largest).T + ROUNDING)


def random_case(ops: Ops, format: Format, n: int, k: int, biased: bool = False) -> Case:
    """A case of 130 rows, in the format and with the codes of these operations."""
    return _random_case(ops.own(format), ops.width(format), n, k, biased)


@cache
def _random_case(
    format: Format, bits: int, n: int, k: int, biased: bool = False, rows: int = 130
) -> Case:
    x = np.random.default_rng(n + k).standard_normal((rows, k)).astype(np.float32)
    x[::7] *= 100
    x[3::11] = np.abs(x[3::11])
    return make_case(random_weights(format, n, k, biased=biased), x, bits)


@pytest.mark.parametrize(("format", "n", "k"), some(CASES, *CASES[2::4]))
def test_products_for_any_number_of_rows(ops: Ops, format: Format, n: int, k: int) -> None:
    """Row i also has the same bits for every number of rows."""
    case = random_case(ops, format, n, k)
    for m in ROWS:
        y = ops.linear(case.weights, case.x[:m])
        case.check(y)
        alone = ops.linear(case.weights, case.x[m - 1 : m])
        np.testing.assert_array_equal(y[-1:], alone)
    parts = [ops.linear(case.weights, case.x[i : i + 10]) for i in range(0, m, 10)]
    np.testing.assert_array_equal(y, np.concatenate(parts))


@pytest.mark.parametrize("format", UNTILED)
def test_more_rows_than_a_unit_takes(ops: Ops, format: Format) -> None:
    case = _random_case(ops.own(format), ops.width(format), 40, 256, rows=MANY_ROWS)
    y = ops.linear(case.weights, case.x)
    case.check(y)
    parts = [ops.linear(case.weights, case.x[i : i + 25]) for i in range(0, MANY_ROWS, 25)]
    np.testing.assert_array_equal(y, np.concatenate(parts))


@pytest.mark.parametrize(("isa", "bits"), level_bits())
@pytest.mark.parametrize("format", UNTILED)
def test_threads_do_not_change_a_bit(isa: str, bits: int, format: Format) -> None:
    pools = (opened(isa, threads, bits) for threads in (1, 2, 5))
    with next(pools) as one, next(pools) as two, next(pools) as five:
        case = random_case(one, format, 130, 256)
        for m in (1, 13, 130):
            y = one.linear(case.weights, case.x[:m])
            np.testing.assert_array_equal(two.linear(case.weights, case.x[:m]), y)
            np.testing.assert_array_equal(five.linear(case.weights, case.x[:m]), y)


@pytest.mark.parametrize("format", UNTILED)
def test_bias(ops: Ops, format: Format) -> None:
    case = random_case(ops, format, 48, 256, biased=True)
    assert np.abs(bias_of(case.weights)).mean() > 0.5
    for m in (1, 3, 48):
        case.check(ops.linear(case.weights, case.x[:m]))


@pytest.mark.parametrize("format", QUANTIZED)
def test_rounded_activations_are_near_the_true_product(ops: Ops, format: Format) -> None:
    weights = random_weights(ops.own(format), 64, 512)
    x = np.random.default_rng(1).standard_normal((16, 512)).astype(np.float32)
    true = x.astype(np.float64) @ weights.values().astype(np.float64).T
    error = ops.linear(weights, x) - true
    most = 0.01 if ops.has_tiles else {8: 0.01, 12: 8e-4, 16: 5e-5}[ops.width(format)]
    assert 0 < np.linalg.norm(error) < most * np.linalg.norm(true)


# ---- extreme values -----------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("format", [Format.Q8, Format.Q4])
def test_codes_at_the_ends_of_their_range(ops: Ops, format: Format, sign: int) -> None:
    """The products of a group add up to the largest possible sum, which must not saturate."""
    w = np.full((32, 64), 1.0, np.float32)
    w[:, 1::2] = 0.0 if format == Format.Q4 else 1.0
    weights = pack(Source.F32, w, 32, 64, ops.own(format))
    x = np.full((9, 64), 127.0 * sign, np.float32)
    case = make_case(weights, x, ops.width(weights.matrix.format))
    for m in (1, 9):
        case.check(ops.linear(case.weights, x[:m]))


def test_blocks_with_the_most_negative_code(ops: Ops) -> None:
    """A file's Q8_0 may hold -128, which quantising never produces."""
    blocks = np.zeros((16, 34), np.uint8)
    blocks[:, :2] = np.array([0.01], np.float16).view(np.uint8)
    blocks[:, 2:] = 0x80
    weights = pack(Source.Q8_0, blocks, 16, 32, ops.own(Format.Q8))
    case = make_case(weights, np.full((9, 32), -3.0, np.float32), ops.width(Format.Q8))
    assert case.exact.min() > 100
    for m in (1, 9):
        case.check(ops.linear(case.weights, case.x[:m]))


def extreme_blocks(source: Source, n: int, k: int) -> np.ndarray:
    """Codes at both ends of their range, the same in a whole row or in any order; scales of 1."""
    size = {Source.Q4_1: 20, Source.Q8_0: 34, Source.Q4_K: 144, Source.Q6_K: 210}[source]
    blocks = np.zeros((n, source.row_bytes(k) // size, size), np.uint8)
    rng = np.random.default_rng(3)
    ends = (0x80, 0x7F, 0x81) if source is Source.Q8_0 else (0x00, 0xFF, 0x0F, 0xF0)
    codes = {Source.Q4_1: 4, Source.Q8_0: 2, Source.Q4_K: 16, Source.Q6_K: 0}[source]
    end = 192 if source is Source.Q6_K else size
    blocks[:, :, codes:end] = rng.choice(ends, (n, blocks.shape[1], end - codes))
    for row, code in enumerate(ends):
        blocks[row, :, codes:end] = code
    one, eight = np.array([1, -8], np.float16).view(np.uint8).reshape(2, 2)
    if source is Source.Q6_K:
        blocks[:, :, 192:208], blocks[:, :, 208:] = 1, one
        return blocks
    blocks[:, :, :2] = one
    if source in (Source.Q4_1, Source.Q4_K):
        blocks[:, :, 2:4] = eight
    if source is Source.Q4_K:  # of every group: scale 1, minimum 1
        blocks[:, :, 4:16] = [1] * 8 + [0x11] * 4
    return blocks


@pytest.mark.parametrize("source", [Source.Q4_1, Source.Q8_0, Source.Q4_K, Source.Q6_K])
def test_extreme_codes_and_activations_are_multiplied_exactly(ops: Ops, source: Source) -> None:
    """All numbers are integers that float32 holds, so every level computes the same bits."""
    n, k, most = 40, 256, 48
    weights = pack(source, extreme_blocks(source, n, k), n, k, OWN_FORMATS[source])
    largest = 119 if ops.width(weights.matrix.format) == 12 else 127  # its step is a power of two
    x = np.random.default_rng(6).choice([-largest, largest], (most, k)).astype(np.float32)
    x[:4] = np.array([largest, -largest, largest, -largest])[:, None]
    x[2:4, 1::2] *= -1
    exact = x.astype(np.int64) @ weights.values().astype(np.int64).T
    assert np.abs(exact).max() < 2**24
    with opened("portable", 1) as portable:
        for m in (*range(1, 8), 16, most):
            y = ops.linear(weights, x[:m])
            np.testing.assert_array_equal(y, exact[:m])
            if largest == 127:
                np.testing.assert_array_equal(y, portable.linear(weights, x[:m]))


@pytest.mark.parametrize("source", [Source.Q4_1, Source.Q8_0, Source.Q4_K, Source.Q6_K])
def test_extreme_codes_of_both_bytes(ops: Ops, source: Source) -> None:
    """Codes of 16 bits: a sum that saturates would be wrong by far more than the tolerance."""
    weights = pack(source, extreme_blocks(source, 40, 256), 40, 256, OWN_FORMATS[source])
    ends = np.array([127 * 256, 127 * 256 - 128, 126 * 256 + 127, 128, 127, 1], np.float32) / 256
    signed = np.concatenate([ends, -ends])
    x = np.random.default_rng(7).choice(signed, (48, 256)).astype(np.float32)
    x[: len(signed)] = signed[:, None]
    x[:, ::32] = 127
    case = make_case(weights, x, ops.width(weights.matrix.format))
    for m in (*range(1, 8), 48):
        case.check(ops.linear(weights, x[:m]))


@pytest.mark.parametrize("format", UNTILED)
@pytest.mark.parametrize("size", [0.0, 1e-44, 1e-38, 1e-30])
def test_tiny_activations(ops: Ops, format: Format, size: float) -> None:
    x = np.random.default_rng(2).uniform(-size, size, (9, 256)).astype(np.float32)
    weights = random_weights(ops.own(format), 16, 256)
    for m in (1, 9):
        y = ops.linear(weights, x[:m])
        assert np.abs(y).max() <= 1e-26


def blocks_without_a_scale(n: int, k: int) -> np.ndarray:
    """Q4_1, every second block with a scale of 0, whatever its codes are, and a minimum."""
    blocks = random_source(Source.Q4_1, n, k).reshape(n, -1, 20)
    blocks[:, ::2, :2] = 0
    return blocks.reshape(n, -1)


@pytest.mark.parametrize("size", [1e-25, 1e-10, 1.0, 1e4, 1e30])
def test_scales_of_any_size_are_multiplied_exactly(ops: Ops, size: float) -> None:
    """Many rows may add exponents where one multiplies; where a scale is 0 neither sees codes. At
    1e4 the exponent of 0 would become that of an infinity."""
    weights = pack(Source.Q4_1, blocks_without_a_scale(40, 320), 40, 320, ops.own(Format.Q4))
    spread = np.float32(size) * np.logspace(-1, 1, 64, dtype=np.float32)[:, None]
    x = np.random.default_rng(9).standard_normal((64, 320)).astype(np.float32) * spread
    y = ops.linear(weights, x)
    assert np.isfinite(y).all() and y.any()
    if size == 1.0:
        make_case(weights, x, ops.width(weights.matrix.format)).check(y)
    alone = [ops.linear(weights, x[i : i + 1]) for i in range(0, 64, 9)]
    np.testing.assert_array_equal(y[::9], np.concatenate(alone))


@pytest.mark.parametrize("format", UNTILED)
@pytest.mark.parametrize("broken", some([np.nan, np.inf], np.inf))
def test_a_row_that_is_not_finite_spoils_no_other(ops: Ops, format: Format, broken: float) -> None:
    case = random_case(ops, format, 40, 256)
    x = case.x.copy()
    x[4, 10] = broken
    others = np.arange(130) != 4
    for m in (6, 13, 130):
        y, clean = ops.linear(case.weights, x[:m]), ops.linear(case.weights, case.x[:m])
        np.testing.assert_array_equal(y[others[:m]], clean[others[:m]])


@pytest.mark.parametrize("format", UNTILED)
@pytest.mark.parametrize("broken", some([np.nan, np.inf, -np.inf], np.inf))
def test_what_is_not_finite_does_not_vanish(ops: Ops, format: Format, broken: float) -> None:
    """Quantising must not turn it into ordinary numbers, which nobody would notice."""
    case = random_case(ops, format, 40, 256)
    for at in range(0, 256, 5):
        x = case.x[:9].copy()
        x[4, at] = broken
        for y in (ops.linear(case.weights, x)[4], ops.linear(case.weights, x[4:5])[0]):
            assert not np.isfinite(y).any()
    many = case.x[:48].copy()
    many[np.arange(48), np.arange(0, 240, 5)] = broken
    assert not np.isfinite(ops.linear(case.weights, many)).any()


@pytest.mark.parametrize("scale", [np.nan, np.inf])
@pytest.mark.parametrize(
    ("source", "at"),
    [(Source.Q4_0, 0), (Source.Q4_1, 0), (Source.Q8_0, 0), (Source.Q4_K, 0), (Source.Q6_K, 208)],
)
def test_scales_of_weights_that_are_not_finite_do_not_vanish(
    ops: Ops, source: Source, at: int, scale: float
) -> None:
    n, k = 20, 512
    blocks = random_source(source, n, k)
    blocks[::3, at : at + 2] = np.array([scale], np.float16).view(np.uint8)
    weights = pack(source, blocks, n, k, ops.own(OWN_FORMATS[source]))
    x = 1e-6 * np.random.default_rng(5).standard_normal((48, k)).astype(np.float32)
    for m in (1, 9, 48):
        is_finite = np.isfinite(ops.linear(weights, x[:m]))
        assert (is_finite == (np.arange(n) % 3 != 0)).all()


# ---- gate and up --------------------------------------------------------------------------------


@pytest.mark.parametrize(("format", "n", "k"), some(CASES, *CASES[2::4]))
def test_gate_up(ops: Ops, format: Format, n: int, k: int) -> None:
    gate, up = (random_weights(ops.own(format), n, k, seed) for seed in (1, 2))
    case, m = random_case(ops, format, n, k), 48
    half = case.x[:m] * np.float32(0.02)
    parts = make_case(gate, half, ops.width(format)), make_case(up, half, ops.width(format))
    exact = silu(parts[0].exact) * parts[1].exact
    # The slope of silu is at most 1.1.
    slack = 1.1 * parts[0].tolerance
    tolerance = slack * np.abs(parts[1].exact) + parts[1].tolerance * (
        np.abs(silu(parts[0].exact)) + slack + 1e-3
    )
    y = ops.gate_up(gate, up, half)
    assert (np.abs(y - exact) <= tolerance).all()
    for few in (1, 2, 7, 8, 47):
        np.testing.assert_array_equal(ops.gate_up(gate, up, half[:few]), y[:few])


@pytest.mark.parametrize("size", [20.0, 90.0, 1e4, 1e15])
def test_a_gate_far_from_zero(ops: Ops, size: float) -> None:
    """Far above zero silu(x) is x, and far below it is 0."""
    weights = pack(Source.F32, np.eye(16, dtype=np.float32), 16, 16, Format.F32)
    x = np.tile(np.array([size, -size], np.float32), (1, 8))
    up = pack(Source.F32, np.sign(np.diag(x[0])), 16, 16, Format.F32)
    y = ops.gate_up(weights, up, x)
    np.testing.assert_allclose(y[0, ::2], size * size, rtol=1e-6)
    assert np.abs(y[0, 1::2]).max() <= 1e-36 * size * size + 2 * size * size * np.exp(-size)


def test_gate_and_up_of_two_formats_are_refused(ops: Ops) -> None:
    gate, up = random_weights(Format.Q8, 16, 32), random_weights(Format.F32, 16, 32)
    with pytest.raises(RuntimeError, match="different formats"):
        ops.gate_up(gate, up, np.zeros((1, 32), np.float32))


# ---- weights in tiles ---------------------------------------------------------------------------


def tiled_levels() -> list[str]:
    try:
        return [isa for isa in levels() if library.load().has_tiles(isa)]
    except library.NativeUnavailable:
        return []


@pytest.fixture(scope="module", params=tiled_levels())
def tiles(request: pytest.FixtureRequest) -> Iterator[Ops]:
    with opened(request.param, 2) as ops:
        yield ops


@cache
def tiled_weights(tiles: Ops, format: Format, k: int = 512) -> tuple[Weights, np.ndarray]:
    """A matrix and its weights as the products use them, float32 [n, k]."""
    weights = random_weights(format, 75, k)
    return weights, tiles.linear(weights, np.eye(k, dtype=np.float32)).T


@pytest.mark.parametrize("format", TILED)
def test_weights_in_tiles_are_nearly_rounded(tiles: Ops, format: Format) -> None:
    """They are off by at most 3/4 of a unit in the last place of bfloat16, without a bias."""
    weights, used = tiled_weights(tiles, format)
    exact = weights.values()
    np.testing.assert_array_equal(used, bfloat16_activations(np.ascontiguousarray(used)))
    unit = np.exp2(np.floor(np.log2(np.maximum(np.abs(exact), 1e-9))) - 7)
    # The smallest 8-bit weights are differences of larger floats.
    off = np.abs(used - exact) - 2e-4 * np.abs(exact).max()
    assert (off <= 0.75 * unit).all() and np.abs(used - exact).max() > 0.5 * unit.min()
    larger = ((np.abs(used) - np.abs(exact)) / unit)[np.abs(exact) > 0.05].mean()
    assert abs(larger) < 0.02


@pytest.mark.parametrize("format", TILED)
def test_products_of_tiles_are_those_of_rounded_numbers(tiles: Ops, format: Format) -> None:
    weights, used = tiled_weights(tiles, format)
    x = np.random.default_rng(4).standard_normal((70, 512)).astype(np.float32)
    seen, w = bfloat16_activations(x), used.astype(np.float64)
    tolerance = ROUNDING * np.abs(seen) @ np.abs(w).T
    assert (np.abs(tiles.linear(weights, x) - seen @ w.T) <= tolerance).all()


@pytest.mark.parametrize("format", [Format.Q4_TILES, Format.Q8_TILES])
def test_a_row_in_tiles_is_the_same_in_every_number_of_rows(tiles: Ops, format: Format) -> None:
    weights = random_weights(format, 75, 160)
    x = np.random.default_rng(5).standard_normal((70, 160)).astype(np.float32)
    x[20] *= 1e30
    expected = tiles.linear(weights, x)
    for m in range(1, 71):
        np.testing.assert_array_equal(tiles.linear(weights, x[:m]), expected[:m])
        np.testing.assert_array_equal(tiles.linear(weights, x[-m:]), expected[-m:])


@pytest.mark.parametrize("format", QUANTIZED)
def test_weights_that_are_not_in_tiles_run_as_one_level_below(tiles: Ops, format: Format) -> None:
    case = _random_case(format, tiles.bits, 75, 256)
    with opened("avx512", 2) as below:
        expected = below.linear(case.weights, case.x)
    np.testing.assert_array_equal(tiles.linear(case.weights, case.x), expected)


def test_tiles_are_refused_by_other_levels() -> None:
    weights = random_weights(Format.Q8_TILES, 16, 32)
    with (
        opened("portable", 1) as ops,
        pytest.raises(RuntimeError, match="portable has no formats in tiles"),
    ):
        ops.linear(weights, np.zeros((1, 32), np.float32))
