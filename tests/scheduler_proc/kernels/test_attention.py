"""The native attention compared with float64, and with itself: a token's result is the same bits
however its step was put together."""

from collections.abc import Iterator

import numpy as np
import pytest

from tests.running.profiles import some
from tests.scheduler_proc.kernels.attention import Piece, Sequences, Shape, random_sequences
from tests.scheduler_proc.kernels.ops import Ops, levels, opened

LENGTHS = (1, 2, 17, 127, 128, 129, 200, 300)
HEAD_DIMS = (16, 32, 64, 80, 96, 128, 256)
SHAPES = [
    Shape(4, 2, 64),
    Shape(9, 3, 64, "float32"),
    Shape(1, 1, 16),
    Shape(6, 1, 32, "float32"),
    Shape(5, 1, 80),
    Shape(8, 1, 96, "float32"),
    Shape(7, 1, 128),
    Shape(2, 2, 256),
    Shape(4, 2, 64, window=1),
    Shape(4, 1, 32, "float32", window=20),
    Shape(3, 3, 80, window=128),
    Shape(4, 2, 16, window=150),
    Shape(4, 2, 64, window=1000),
    Shape(4, 2, 64, tiles=False),
    Shape(5, 1, 80, window=20, tiles=False),
    Shape(9, 3, 64, "int16"),
    Shape(1, 1, 16, "int16"),
    Shape(5, 1, 80, "int16", window=20),
    Shape(8, 1, 32, "int16", window=128),
    Shape(14, 2, 96, "int16"),
    Shape(7, 1, 128, "int16", window=150),
    Shape(2, 2, 256, "int16"),
]

# One for each type of keys and values.
IN_SHORT = (
    Shape(1, 1, 16),
    Shape(4, 1, 32, "float32", window=20),
    Shape(5, 1, 80, "int16", window=20),
)


def name(shape: Shape) -> str:
    return "-".join(map(str, shape))


@pytest.fixture(scope="module", params=levels())
def isa(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def ops(isa: str) -> Iterator[Ops]:
    with opened(isa, 2) as ops:
        yield ops


@pytest.fixture(scope="module")
def alone(isa: str) -> Iterator[Ops]:
    """One thread at the same level."""
    with opened(isa, 1) as ops:
        yield ops


def expected(sequences: Sequences, ops: Ops) -> list[np.ndarray]:
    """What every token of every sequence gets in a step that has only its sequence."""
    return [sequences.run(ops, [sequences.whole(i)])[0] for i in range(len(sequences.slots))]


def check(
    sequences: Sequences,
    ops: Ops,
    pieces: list[Piece],
    wanted: list[np.ndarray],
    share: bool = True,
) -> None:
    for piece, out in zip(pieces, sequences.run(ops, pieces, share), strict=True):
        np.testing.assert_array_equal(out, wanted[piece.sequence][piece.start : piece.end])


def check_values(
    sequences: Sequences, ops: Ops, piece: Piece, out: np.ndarray, tolerance: float = 1e-5
) -> None:
    """The outputs are the reference's. Where halves are multiplied in bfloat16, inputs are rounded,
    and rounding the weights adds half a unit in the last place of the values. Over a pool of
    integers queries and weights are rounded, queries of large heads to fewer digits."""
    shape = sequences.shape
    in_bfloat16 = ops.has_tiles and shape.tiles and shape.kv_dtype == "float16"
    largest = float(np.nanmax(np.abs(sequences.values)))
    if in_bfloat16:
        tolerance += 2**-9 * largest
    if shape.kv_dtype == "int16":
        tolerance += max(64, shape.head_dim) * 2**-18 * largest
    exact = sequences.reference(piece, in_bfloat16)
    np.testing.assert_allclose(out, exact, atol=tolerance, rtol=0)


def check_everything(
    sequences: Sequences, ops: Ops, one_thread: Ops, tolerance: float = 1e-5
) -> None:
    """Compare values with float64, then bits among steps of many kinds."""
    count, rng = len(sequences.slots), np.random.default_rng(7)
    wanted = expected(sequences, one_thread)
    for i, out in enumerate(wanted):
        check_values(sequences, ops, sequences.whole(i), out, tolerance)
    everything = [sequences.whole(i) for i in rng.permutation(count)]
    decodes = [sequences.last(i) for i in rng.permutation(count)]
    for threads in (one_thread, ops):
        check(sequences, threads, everything, wanted)
        check(sequences, threads, decodes, wanted)
        check(sequences, threads, decodes[:1], wanted)
        check(sequences, threads, mixed(sequences, rng), wanted)
    check(sequences, ops, decodes, wanted, share=False)
    check(sequences.permuted(1), ops, everything, wanted)
    check(sequences.permuted(2), ops, decodes, wanted)


def mixed(sequences: Sequences, rng: np.random.Generator) -> list[Piece]:
    """A decode, the end, the middle or the beginning of every sequence, in turn."""
    pieces = []
    for i, slots in enumerate(sequences.slots):
        start, end = sorted(rng.integers(0, len(slots), 2).tolist())
        starts = (len(slots) - 1, start, start, 0)
        ends = (len(slots), len(slots), end + 1, end + 1)
        pieces.append(Piece(i, starts[i % 4], ends[i % 4]))
    return [pieces[i] for i in rng.permutation(len(pieces))]


@pytest.mark.parametrize("shape", some(SHAPES, *IN_SHORT), ids=name)
def test_ragged_steps(ops: Ops, alone: Ops, shape: Shape) -> None:
    check_everything(random_sequences(shape, LENGTHS), ops, alone)


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("group", range(1, 9))
def test_every_head_and_group_size(ops: Ops, alone: Ops, head_dim: int, group: int) -> None:
    for kv_dtype in ("float16", "float32", "int16"):
        on_tree = tree(Shape(group, 1, head_dim, kv_dtype), 6)
        check_everything(on_tree, ops, alone)
        windowed = Shape(2 * group, 2, head_dim, kv_dtype, window=33)
        check_everything(random_sequences(windowed, (1, 2, 40, 130)), ops, alone)


@pytest.mark.parametrize("group", some([12, 33, 96]))
def test_groups_as_large_as_a_unit(ops: Ops, alone: Ops, group: int) -> None:
    check_everything(random_sequences(Shape(group, 1, 32), (1, 5, 140)), ops, alone)


@pytest.mark.parametrize(
    "shape", some([Shape(), Shape(3, 1, 80, "float32", 100), Shape(kv_dtype="int16")]), ids=name
)
def test_slots_in_a_row(ops: Ops, alone: Ops, shape: Shape) -> None:
    check_everything(random_sequences(shape, (5, 150, 131), contiguous=True), ops, alone)


@pytest.mark.parametrize(
    "shape",
    some([Shape(4, 2, 32), Shape(6, 1, 16, "float32", 30), Shape(3, 1, 80, "int16", 100)]),
    ids=name,
)
@pytest.mark.parametrize("chunk", some([1, 2, 7, 96, 128], 7, 96))
def test_an_extend_in_chunks(ops: Ops, alone: Ops, shape: Shape, chunk: int) -> None:
    sequences = random_sequences(shape, (270,))
    wanted = expected(sequences, alone)
    for start in range(0, 270, chunk):
        check(sequences, ops, [Piece(0, start, min(270, start + chunk))], wanted)


def test_one_long_decode_is_split_among_threads(ops: Ops, alone: Ops) -> None:
    sequences = random_sequences(Shape(2, 1, 16), (2100, 300))
    wanted = [np.full((n, 2, 16), np.nan, np.float32) for n in (2100, 300)]
    for piece in (sequences.last(0), sequences.last(1)):
        [out] = sequences.run(alone, [piece])
        check_values(sequences, alone, piece, out)
        wanted[piece.sequence][-1:] = out
    check(sequences, ops, [sequences.last(0)], wanted)
    check(sequences, ops, [sequences.last(1), sequences.last(0)], wanted)
    end = Piece(0, 2000, 2100)
    np.testing.assert_array_equal(sequences.run(ops, [end])[0][-1:], wanted[0][-1:])


# ---- shared prefixes ----------------------------------------------------------------------------


def tree(shape: Shape, count: int, seed: int = 0) -> Sequences:
    """Sequences that branch off each other near the ends of chunks of 128, and within chunks."""
    rng = np.random.default_rng(seed)
    lengths, prefixes = [520], [(0, 0)]
    for i in range(1, count):
        other = int(rng.integers(0, i)) if i % 3 else 0
        depths = [depth for depth in (60, 127, 128, 129, 256, 300, 384) if depth < lengths[other]]
        common = int(rng.choice(depths)) if depths else 0
        prefixes.append((other, common))
        lengths.append(common + int(rng.integers(1, 140)))
    return random_sequences(shape, lengths, prefixes, seed=seed)


def decoded_alone(sequences: Sequences, ops: Ops) -> list[np.ndarray]:
    """As `expected`, for the last tokens only (the others are NaN)."""
    wanted = [np.full_like(queries, np.nan) for queries in sequences.queries]
    for i in range(len(wanted)):
        [wanted[i][-1:]] = sequences.run(ops, [sequences.last(i)])
        check_values(sequences, ops, sequences.last(i), wanted[i][-1:])
    return wanted


@pytest.mark.parametrize(
    "shape",
    some(
        [
            *(Shape(), Shape(6, 2, 16, "float32"), Shape(3, 3, 80), Shape(8, 1, 32)),
            *(Shape(window=140), Shape(6, 2, 64, "int16")),
        ],
        *(Shape(), Shape(6, 2, 64, "int16")),
    ),
    ids=name,
)
@pytest.mark.parametrize("count", some([4, 45]))
def test_decodes_on_a_tree_of_prefixes(ops: Ops, alone: Ops, shape: Shape, count: int) -> None:
    sequences = tree(shape, count, seed=count)
    wanted = decoded_alone(sequences, alone)
    decodes = [sequences.last(i) for i in np.random.default_rng(3).permutation(count)]
    for threads in (alone, ops):
        check(sequences, threads, decodes, wanted)
        check(sequences, threads, decodes[::2], wanted)
        check(sequences, threads, decodes, wanted, share=False)
    check(sequences.permuted(4), ops, decodes, wanted)


@pytest.mark.parametrize("common", some([127, 128, 129, 255, 256, 400], 129))
@pytest.mark.parametrize("count", some([2, 3, 5, 34, 100], 5, 34))
def test_decodes_on_one_prefix(ops: Ops, alone: Ops, common: int, count: int) -> None:
    """Lengths differ; the first is the prefix and one token."""
    lengths = [common + 1 + 7 * i % 150 for i in range(count)]
    sequences = random_sequences(Shape(4, 1, 32), lengths, [(0, 0)] + [(0, common)] * (count - 1))
    wanted = decoded_alone(sequences, alone)
    for threads in (alone, ops):
        check(sequences, threads, [sequences.last(i) for i in range(count)], wanted)


def test_decodes_and_extends_on_one_prefix(ops: Ops, alone: Ops) -> None:
    count, common = 12, 256
    lengths = [common + 10 * i + 1 for i in range(count)]
    sequences = random_sequences(Shape(), lengths, [(0, 0)] + [(0, common)] * (count - 1))
    wanted = expected(sequences, alone)
    pieces = [
        sequences.last(i) if i % 3 else Piece(i, common - 5, lengths[i]) for i in range(count)
    ]
    check(sequences, ops, pieces, wanted)
    check(sequences, ops, pieces, wanted, share=False)


@pytest.mark.parametrize(
    "shape",
    some(
        [
            *(Shape(), Shape(9, 3, 16, "float32"), Shape(24, 1, 32), Shape(window=140)),
            *(Shape(3, 3, 64, "int16"), Shape(8, 2, 32, "int16", 140)),
        ],
        *(Shape(), Shape(8, 2, 32, "int16", 140)),
    ),
    ids=name,
)
@pytest.mark.parametrize("tokens", some([2, 3, 9, 16, 17], 9))
def test_rows_of_some_tokens_on_a_tree_of_prefixes(
    ops: Ops, alone: Ops, shape: Shape, tokens: int
) -> None:
    """Rows of up to this many tokens, and rows of one token among them. What rows share ends before
    their first token, at it, or between two of their tokens."""
    count = 14
    sequences = tree(shape, count, seed=tokens)
    wanted = expected(sequences, alone)
    lengths = [len(slots) for slots in sequences.slots]
    counts = [min(n, tokens) if i % 4 else 1 for i, n in enumerate(lengths)]
    ends = [Piece(i, n - new, n) for i, (n, new) in enumerate(zip(lengths, counts, strict=True))]
    pieces = [ends[i] for i in np.random.default_rng(3).permutation(count)]
    for threads in (alone, ops):
        check(sequences, threads, pieces, wanted)
        check(sequences, threads, pieces[:2], wanted)
        check(sequences, threads, pieces, wanted, share=False)
    check(sequences.permuted(4), ops, pieces, wanted)


@pytest.mark.parametrize(
    "shape",
    some(
        [Shape(8, 1, 32, window=140), Shape(14, 2, 16, window=128), Shape(8, 1, 32, "int16", 140)]
    ),
)
def test_the_last_token_of_a_short_row_is_past_a_chunk(ops: Ops, alone: Ops, shape: Shape) -> None:
    """It is in a unit of its own, and its window begins in a later chunk than the first token's."""
    sequences = random_sequences(shape, (420,))
    wanted = expected(sequences, alone)
    for end in range(260, 420):
        for tokens in (13, 14):
            check(sequences, ops, [Piece(0, end - tokens, end)], wanted)


def test_rows_of_the_same_slots(ops: Ops, alone: Ops) -> None:
    """Forks of a request that have not yet written anything of their own."""
    sequences = random_sequences(Shape(), [256] * 6, [(0, 0)] + [(0, 256)] * 5)
    wanted = expected(sequences, alone)
    check(sequences, ops, [sequences.last(i) for i in range(6)], wanted)
    check(sequences, ops, [Piece(i, 250, 256) for i in range(6)], wanted)


def test_a_row_of_some_tokens_is_split_among_threads(ops: Ops, alone: Ops) -> None:
    sequences = random_sequences(Shape(2, 1, 16), (1290,))
    wanted = expected(sequences, alone)
    for end in (1279, 1280, 1281, 1284, 1290):
        check(sequences, ops, [Piece(0, end - 9, end)], wanted)


# ---- extreme values -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "tolerance"), some([(0.0, 1e-6), (1e-6, 1e-6), (60.0, 5e-4)], (60.0, 5e-4))
)
def test_scores_of_any_size(ops: Ops, alone: Ops, size: float, tolerance: float) -> None:
    """From a plain mean to one key that gets all the weight; exp alone would overflow."""
    sequences = random_sequences(Shape(4, 2, 64), (3, 200, 150))
    queries = [q * np.float32(size) for q in sequences.queries]
    check_everything(sequences._replace(queries=queries), ops, alone, tolerance)


@pytest.mark.parametrize("kv_dtype", some(["float16", "int16"]))
def test_what_no_row_lists_is_never_read(ops: Ops, alone: Ops, kv_dtype: str) -> None:
    sequences = random_sequences(Shape(4, 2, 32, kv_dtype), LENGTHS)
    for pool in (sequences.keys, sequences.values):
        unlisted = np.ones(len(pool), np.bool_)
        unlisted[np.concatenate(sequences.slots)] = False
        assert unlisted.sum() == 50
        pool[unlisted] = np.nan
    check_everything(sequences, ops, alone)


@pytest.mark.parametrize("kv_dtype", ["float16", "int16"])
def test_a_row_with_a_broken_cache_spoils_no_other(ops: Ops, alone: Ops, kv_dtype: str) -> None:
    sequences = tree(Shape(4, 2, 32, kv_dtype), 20, seed=1)
    decodes = [sequences.last(i) for i in range(20)]
    wanted = decoded_alone(sequences, alone)
    broken = sequences._replace(values=sequences.values.copy())
    hit = sequences.slots[3][-2]
    broken.values[hit] = np.nan
    spoilt = [i for i in range(20) if hit in broken.slots[i]]
    assert 3 in spoilt
    assert len(spoilt) < 10
    for i, out in enumerate(broken.run(ops, decodes)):
        assert np.isnan(out).all() if i in spoilt else (out == wanted[i][-1:]).all()


@pytest.mark.parametrize(
    "shape",
    [
        *(Shape(4, 2, 64), Shape(6, 1, 80), Shape(2, 2, 16, "float32")),
        *(Shape(4, 2, 64, window=1), Shape(8, 1, 32, "float32", 20), Shape(5, 1, 64, window=130)),
        *(Shape(4, 2, 64, "int16"), Shape(8, 1, 32, "int16", 20)),
    ],
    ids=name,
)
@pytest.mark.parametrize("hit", some([0, 50, 130, 159], 50))
def test_a_value_that_is_not_finite_harms_no_token_that_does_not_see_it(
    ops: Ops, alone: Ops, shape: Shape, hit: int
) -> None:
    sequences = random_sequences(shape, (160, 40))
    wanted = expected(sequences, alone)
    broken = sequences._replace(values=sequences.values.copy())
    broken.values[sequences.slots[0][hit], -1, 3] = np.nan
    out, other = broken.run(ops, [sequences.whole(0), sequences.whole(1)])
    np.testing.assert_array_equal(other, wanted[1])
    heads = slice(shape.heads - shape.heads // shape.kv_heads, None)  # heads that read it
    seeing = slice(hit, hit + shape.window if shape.window else None)
    elements = slice(None) if shape.kv_dtype == "int16" else slice(3, 4)  # those of its scale
    assert np.isnan(out[seeing, heads, elements]).all()
    out[seeing, heads, elements] = wanted[0][seeing, heads, elements]
    np.testing.assert_array_equal(out, wanted[0])


def test_a_query_too_large_for_its_sum_gets_no_number(ops: Ops) -> None:
    """Not the plain mean of the values, as codes of zero would give."""
    sequences = random_sequences(Shape(3, 1, 64, "int16"), (40,))
    sequences.queries[0][20, 1] = 1e38
    out = sequences.run(ops, [sequences.whole(0)])[0]
    assert np.isnan(out[20, 1]).all()
    out[20, 1] = 0
    assert np.isfinite(out).all()


@pytest.mark.parametrize("broken", some([np.nan, np.inf, -np.inf], np.inf))
@pytest.mark.parametrize("window", [0, 1, 20])
@pytest.mark.parametrize("kv_dtype", ["float16", "float32", "int16"])
def test_a_query_that_is_not_finite_gets_nothing_that_is(
    ops: Ops, alone: Ops, kv_dtype: str, window: int, broken: float
) -> None:
    """Above all it gets nothing from keys that it may not see."""
    sequences = random_sequences(Shape(4, 2, 32, kv_dtype, window), (160,))
    wanted = expected(sequences, alone)
    for token in (0, 3, 127, 128, 140, 159):
        sequences.queries[0][token, 1, 5] = broken
        wanted[0][token, 1] = np.nan
    check(sequences, ops, [sequences.whole(0)], wanted)
    for token in (3, 127, 140):
        check(sequences, ops, [Piece(0, token, token + 1)], wanted)
