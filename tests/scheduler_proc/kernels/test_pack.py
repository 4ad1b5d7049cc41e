"""Packing weights and reading rows back, compared with the gguf package's dequantisation."""

from collections.abc import Callable

import numpy as np
import pytest

from scheduler_proc.kernels import library
from scheduler_proc.kernels.library import Format, Source
from tests.scheduler_proc.kernels.ops import (
    FLOATS,
    GROUP,
    OWN_FORMATS,
    Weights,
    decode,
    encode,
    load_or_skip,
    pack,
    random_source,
)

PLAIN = (Source.F32, Source.F16, Source.BF16)
BLOCKS = tuple(source for source in Source if source not in PLAIN)
QUANTIZED = tuple(format for format in Format if format not in FLOATS)


def possible_formats() -> list[tuple[Source, Format]]:
    pairs = {
        (source, format)
        for source, own in OWN_FORMATS.items()
        for format in (own, own.tiled, Format.F32)
    }
    return sorted(pairs)


@pytest.mark.parametrize("n", [1, 16, 37])
@pytest.mark.parametrize(("source", "format"), possible_formats())
def test_values_are_exactly_those_of_the_file(source: Source, format: Format, n: int) -> None:
    data = random_source(source, n, 512)
    unpacked = pack(source, data, n, 512, format).values()
    expected = decode(source, data)
    assert expected.any()
    np.testing.assert_array_equal(unpacked, expected)


@pytest.mark.parametrize(("source", "format"), possible_formats())
def test_rows_in_another_order(source: Source, format: Format) -> None:
    data, order = random_source(source, 40, 256), np.array([39, 3, 3, 20, 0], np.int32)
    unpacked = pack(source, data, 5, 256, format, order).values()
    np.testing.assert_array_equal(unpacked, decode(source, data)[order])


@pytest.mark.parametrize("source", [Source.Q4_0, Source.Q4_1, Source.Q8_0])
@pytest.mark.parametrize("format", ["own", Format.F32])
def test_what_ggml_quantised_is_close_to_the_original(source: Source, format: str | Format) -> None:
    values = np.random.default_rng(0).standard_normal((20, 96)).astype(np.float32)
    chosen = OWN_FORMATS[source] if isinstance(format, str) else format
    unpacked = pack(source, encode(source, values), 20, 96, chosen).values()
    assert np.abs(unpacked - values).max() < (0.02 if source == Source.Q8_0 else 0.4)


@pytest.mark.parametrize("source", PLAIN)
@pytest.mark.parametrize("k", [1, 7, 100])
def test_floats_need_no_whole_groups(source: Source, k: int) -> None:
    data = random_source(source, 18, k)
    expected = decode(source, data)
    for format in {OWN_FORMATS[source], Format.F32}:
        np.testing.assert_array_equal(pack(source, data, 18, k, format).values(), expected)


@pytest.mark.parametrize("half", np.array([0, -0.0, 6e-8, -6e-8, 65504, np.inf], np.float16))
def test_halves_at_the_ends_of_their_range(half: np.float16) -> None:
    data = np.full((1, 32), half).view(np.uint8)
    for format in (Format.F16, Format.F32):
        assert (pack(Source.F16, data, 1, 32, format).row(0) == np.float32(half)).all()


# ---- quantising floats --------------------------------------------------------------------------


def steps(values: np.ndarray, format: Format) -> np.ndarray:
    """The distance between two codes, for each of the values [n, k]."""
    groups = values.reshape(len(values), -1, GROUP)
    spread = {
        Format.Q8: np.abs(groups).max(axis=-1) / 127,
        Format.Q4: (groups.max(axis=-1) - groups.min(axis=-1)) / 15,
    }[format]
    return np.repeat(spread, GROUP, axis=-1)


def outliers(rng: np.random.Generator) -> np.ndarray:
    values = rng.standard_normal((37, 160))
    values[5, 40] = 1000.0
    values[6, 64:96] *= 1e-3
    return values


MADE: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "normal": lambda rng: rng.standard_normal((37, 160)),
    "outliers": outliers,
    "positive": lambda rng: rng.uniform(3.0, 4.0, (5, 64)),
    "zeros": lambda rng: np.zeros((3, 64)),
    "equal": lambda rng: np.full((3, 64), -0.75),
}


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("source", PLAIN)
@pytest.mark.parametrize("format", [Format.Q8, Format.Q4])
def test_floats_become_codes_within_half_a_step(source: Source, format: Format, made: str) -> None:
    data = encode(source, MADE[made](np.random.default_rng(3)).astype(np.float32))
    values = decode(source, data)
    n, k = values.shape
    unpacked = pack(source, data, n, k, format).values()
    # Steps and offsets are halves, so a code may also be off by their rounding.
    rounding = 2.0**-11 * np.repeat(
        np.abs(values).reshape(len(values), -1, GROUP).max(axis=-1), GROUP, axis=-1
    )
    assert (np.abs(unpacked - values) <= 0.5 * steps(values, format) + 1.1 * rounding).all()


def test_half_a_step_is_what_quantisation_costs() -> None:
    """The bound above is tight: other codes would exceed it."""
    values = np.random.default_rng(3).standard_normal((37, 160)).astype(np.float32)
    for format in (Format.Q8, Format.Q4):
        unpacked = pack(Source.F32, values, 37, 160, format).values()
        assert 0.45 < (np.abs(unpacked - values) / steps(values, format)).max() < 0.6


# ---- refusals -----------------------------------------------------------------------------------


def impossible() -> list[tuple[Source, Format]]:
    made = [f for format in (Format.Q8, Format.Q4) for f in (format, format.tiled)]
    possible = {*possible_formats(), *((s, f) for s in PLAIN for f in made)}
    return [(s, f) for s in Source for f in Format if (s, f) not in possible]


@pytest.mark.parametrize(("source", "format"), impossible())
def test_a_format_that_cannot_hold_the_source_is_refused(source: Source, format: Format) -> None:
    with pytest.raises(RuntimeError, match=f"source {source} cannot become {format}"):
        pack(source, random_source(source, 2, 256), 2, 256, format)


@pytest.mark.parametrize("source", PLAIN)
@pytest.mark.parametrize("format", [Format.Q8, Format.Q4])
def test_inputs_that_are_no_whole_groups_are_refused(source: Source, format: Format) -> None:
    with pytest.raises(RuntimeError, match="48 inputs are not whole blocks"):
        pack(source, random_source(source, 2, 48), 2, 48, format)


@pytest.mark.parametrize("source", BLOCKS)
def test_a_row_that_ends_within_a_block_is_refused(source: Source) -> None:
    lib, data = load_or_skip(), random_source(source, 4, 512)
    out = library.huge_memory(lib.packed_bytes(Format.F32, 2, 512))
    at = library.address(data), 2, 512 - 16, None, Format.F32, library.address(out)
    with pytest.raises(RuntimeError, match="496 inputs are not whole blocks"):
        lib.check(lib.c.srt_pack(source, *at))


def test_an_encoding_that_is_not_known_is_refused() -> None:
    lib, data = load_or_skip(), np.zeros(4096, np.uint8)
    at = library.address(data), 1, 32, None, Format.F32, library.address(data)
    with pytest.raises(RuntimeError, match="source encoding 7 is not supported"):
        lib.check(lib.c.srt_pack(7, *at))


@pytest.mark.parametrize("format", Format)
def test_rows_that_do_not_exist_are_refused(format: Format) -> None:
    data = library.huge_memory(load_or_skip().packed_bytes(format, 17, 256))
    weights = Weights(library.Matrix(format, 17, 256, library.address(data)), (data,))
    for row in (-1, 17):
        with pytest.raises(RuntimeError, match=f"row {row} of 17"):
            weights.row(row)


@pytest.mark.parametrize("format", QUANTIZED)
def test_packed_sizes(format: Format) -> None:
    """Blocks of 16 channels: codes and scales of every group, in whole cache lines."""
    sizes = {Format.Q4: 320, Format.Q4K: 384, Format.Q8: 544, Format.Q6: 640}
    per_group = {own: size for f, size in sizes.items() for own in (f, f.tiled)}[format]
    lib = load_or_skip()
    assert lib.packed_bytes(format, 16, 256) == 8 * per_group
    assert lib.packed_bytes(format, 17, 256) == 16 * per_group
    assert lib.packed_bytes(format, 1, 32) % 64 == 0
