"""The FlashInfer backend, through a fake of the package, against the reference attention."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_proc.attention import flashinfer
from scheduler_proc.attention.base import LayerKind, LayerTensors, RaggedRows
from scheduler_proc.attention.cascade import CascadeCosts, find_cascade
from scheduler_proc.attention.flashinfer import FlashInferAttention
from scheduler_proc.attention.reference import ReferenceAttention
from srt.wire.errors import ConfigError
from tests.gpu import fake_flashinfer
from tests.gpu.fake_stream import STREAM, QueuedStaging
from tests.scheduler_proc.ragged import indptr, int32

pytestmark = pytest.mark.full

CPU = torch.device("cpu")
NUM_SLOTS = 400
KIND = LayerKind(heads=6, kv_heads=2, head_dim=64, value_dim=64, scale=0.2)
KINDS = [
    KIND,
    KIND._replace(window=9),
    KIND._replace(softcap=4.0),
    LayerKind(heads=4, kv_heads=4, head_dim=128, value_dim=128, scale=0.1, window=3, softcap=9.0),
]
# Every run that two rows share is a level.
ALWAYS = CascadeCosts(slot_s=1, state_s=0, level_s=0, tile_tokens=99)


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flashinfer, "load_package", lambda device: fake_flashinfer)
    monkeypatch.setattr(flashinfer, "Staging", QueuedStaging)
    monkeypatch.setattr(flashinfer, "_WORKSPACE_BYTES", 1 << 16)
    monkeypatch.setattr(STREAM, "waits", 0)


def made(
    kinds: Sequence[LayerKind] = KINDS,
    *,
    dtype: torch.dtype = torch.float16,
    kv_dtype: torch.dtype | None = None,
    deterministic: bool = False,
    always: bool = False,
) -> FlashInferAttention:
    backend = FlashInferAttention(
        kinds, device=CPU, dtype=dtype, kv_dtype=kv_dtype or dtype, deterministic=deterministic
    )
    if always:
        backend.cascades.costs = ALWAYS
    STREAM.run()
    return backend


def random_rows(
    rng: np.random.Generator, lengths: Sequence[tuple[int, int]], shared: int = 0
) -> RaggedRows:
    """Rows of (extend, before) lengths over scattered slots, after `shared` slots of all; every
    second pair of rows shares its slots before the extends as well."""
    free = iter(rng.permutation(NUM_SLOTS).tolist())
    common = [next(free) for _ in range(shared)]
    rows: list[list[int]] = []
    before: list[int] = []
    for i, (extend, length) in enumerate(lengths):
        if i % 4 != 1:
            before = []
        before += [next(free) for _ in range(length - len(before))]
        rows.append([*common, *before[:length], *(next(free) for _ in range(extend))])
    return RaggedRows(
        indptr([extend for extend, _ in lengths]),
        indptr([len(row) for row in rows]),
        int32([slot for row in rows for slot in row]),
    )


def tensors(
    seed: int, kind: LayerKind, rows: RaggedRows, dtype: torch.dtype, kv_dtype: torch.dtype
) -> tuple[torch.Tensor, LayerTensors]:
    """q and pools, with NaN in every slot that no row lists."""
    random = torch.Generator().manual_seed(seed)
    q = torch.randn((int(rows.qo_indptr[-1]), kind.heads, kind.head_dim), generator=random)
    pools = torch.randn((2, NUM_SLOTS, kind.kv_heads, kind.head_dim), generator=random)
    unlisted = torch.ones(NUM_SLOTS, dtype=torch.bool)
    unlisted[torch.from_numpy(rows.kv_indices).long()] = False
    pools[:, unlisted] = torch.nan
    return q.to(dtype), LayerTensors(*pools.to(kv_dtype))


def check(backend: FlashInferAttention, rows: RaggedRows, seed: int = 0) -> None:
    """The plan's results are those of the reference, for every kind."""
    plan = backend.plan(rows)
    for kind in backend._kinds:
        q, layer = tensors(seed, kind, rows, backend._dtype, backend._kv_dtype)
        check_result(plan.run(kind, q, layer), kind, rows, q, layer)


def check_result(
    result: torch.Tensor, kind: LayerKind, rows: RaggedRows, q: torch.Tensor, layer: LayerTensors
) -> None:
    floats = layer._replace(k_pool=layer.k_pool.float(), v_pool=layer.v_pool.float())
    expected = ReferenceAttention().plan(rows).run(kind, q.float(), floats)
    assert result.dtype == q.dtype
    # Levels are rounded to q's type before they are merged.
    limit = 2e-2 if q.dtype == torch.bfloat16 else 3e-3
    torch.testing.assert_close(result.float(), expected, atol=limit, rtol=limit)


@st.composite
def lengths(draw: st.DrawFn) -> list[tuple[int, int]]:
    pair = st.tuples(st.sampled_from([1, 1, 1, 2, 7]), st.integers(0, 20))
    return draw(st.lists(pair, min_size=1, max_size=7))


@settings(max_examples=40)
@given(lengths(), st.integers(0, 30), st.integers(0, 1000), st.booleans())
def test_random_batches_match_the_reference(
    batch: list[tuple[int, int]], shared: int, seed: int, deterministic: bool
) -> None:
    """Decodes, extends and both, with cascades wherever two rows share anything."""
    rows = random_rows(np.random.default_rng(seed), batch, shared)
    backend = made(deterministic=deterministic, always=not deterministic)
    check(backend, rows, seed)
    check(backend, rows, seed)  # the other set of wrappers


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_fp8_pools_and_their_scales(dtype: torch.dtype) -> None:
    rows = random_rows(np.random.default_rng(1), [(1, 9), (1, 12), (4, 3)], shared=20)
    backend = made([KIND], dtype=dtype, kv_dtype=torch.float8_e4m3fn, always=True)
    q, layer = tensors(1, KIND, rows, dtype, torch.float8_e4m3fn)
    layer = layer._replace(k_scale=0.5, v_scale=1.5)
    check_result(backend.plan(rows).run(KIND, q, layer), KIND, rows, q, layer)


def test_a_cascade_of_several_levels_and_rows_in_another_order() -> None:
    slots = [list(range(i * 30, i * 30 + 30)) for i in range(4)]
    rows = [
        ([*slots[0], *slots[1], 200], 1),
        ([*slots[3][:9], 201, 202, 203], 3),
        ([*slots[0], *slots[2], 204, 205], 2),
        ([*slots[0], *slots[1], 206, 207], 1),
        ([*slots[0], *slots[2], 208], 1),
    ]
    ragged = RaggedRows(
        indptr([extend for _, extend in rows]),
        indptr([len(row) for row, _ in rows]),
        int32([slot for row, _ in rows for slot in row]),
    )
    cascade = find_cascade(ragged, ALWAYS)
    assert cascade is not None and len(cascade.levels) == 2 and cascade.tokens is not None
    backend = made(always=True)
    check(backend, ragged)
    layout = backend.plan(ragged)._runs[KIND].layout
    assert len(layout.levels) == 2 and layout.order is not None and layout.rest_order is not None
    windowed = backend.plan(ragged)._runs[KINDS[1]].layout
    assert not windowed.levels
    backend.cascades.is_on = False
    assert not backend.plan(ragged)._runs[KIND].layout.levels
    check(backend, ragged)


def test_a_graph_is_left_only_for_a_cascade_that_saves_enough() -> None:
    few, many = (
        RaggedRows(
            int32(range(257)),
            indptr([n + 1] * 256),
            int32([[*range(n), 50_000 + i] for i in range(256)]).ravel(),
        )
        for n in (40, 16_000)
    )
    backend = made([KIND._replace(heads=32, kv_heads=8, head_dim=128, value_dim=128)])
    before = backend.cascades._found
    assert not backend.prefers_eager(few)
    assert backend.cascades._found is before  # so few slots are not searched
    assert backend.prefers_eager(many)
    backend.cascades.is_on = False
    assert not backend.prefers_eager(many)
    assert not made([KIND._replace(window=100)]).prefers_eager(many)
    assert not made([KIND], deterministic=True).prefers_eager(many)
    # The kernel that merges takes 1,024 threads: 64 heads of 128.
    wide = [KIND._replace(heads=96, kv_heads=8, head_dim=128, value_dim=128)]
    assert not made(wide).prefers_eager(many)


def queued_steps(backend: FlashInferAttention, steps: int = 6) -> list[bool]:
    """Steps whose device is always one step behind; which of them came out right."""
    rng, results = np.random.default_rng(3), []
    with STREAM.held():
        for step in range(steps):
            rows = random_rows(rng, [(1, int(n)) for n in rng.integers(1, 30, 5)])
            behind = STREAM.mark()
            q, layer = tensors(step, KIND, rows, torch.float16, torch.float16)
            results.append((rows, q, layer, backend.plan(rows).run(KIND, q, layer)))
            STREAM.run(behind.upto)
    right = []
    for rows, q, layer, result in results:
        expected = ReferenceAttention().plan(rows).run(KIND, q, layer)
        right.append(bool(torch.allclose(result, expected, atol=3e-3)))
    return right


def test_a_step_is_planned_while_another_is_queued() -> None:
    """Two sets of wrappers: nothing is overwritten, and nothing waits."""
    assert queued_steps(made([KIND])) == [True] * 6
    assert STREAM.waits == 0


def test_one_set_of_wrappers_would_wait_and_without_events_fail() -> None:
    backend = made([KIND])
    backend._sets = backend._sets[:1]
    assert queued_steps(backend) == [True] * 6
    assert STREAM.waits == 5


def test_one_set_of_wrappers_without_events_would_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = made([KIND])
    backend._sets = backend._sets[:1]
    monkeypatch.setattr(backend._staging, "mark", lambda: None)
    assert queued_steps(backend) == [False] * 5 + [True]


@pytest.mark.parametrize("deterministic", [False, True])
def test_graphs_are_replayed_on_other_rows(deterministic: bool) -> None:
    """Recorded once per size and kind, with buffers that all sizes share; queued one behind."""
    rng = np.random.default_rng(5)
    backend = made(deterministic=deterministic)
    graphs: list[tuple[Any, ...]] = []
    for size in (8, 3):
        plans = [backend.graph_plan(size, NUM_SLOTS) for _ in range(2)]
        for plan in plans:
            plan.update(random_rows(rng, [(1, 0)] * size))
            for kind in KINDS:
                rows = random_rows(rng, [(1, 0)] * size)
                q, layer = tensors(0, kind, rows, torch.float16, torch.float16)
                with STREAM.recorded() as graph:
                    out = plan.run(kind, q, layer)
                graphs.append((plan, kind, q, layer, out, graph))
    STREAM.run()
    STREAM.waits = 0
    expected, results = [], []
    with STREAM.held():
        for step in range(4):
            turns = [graph for graph in graphs if graph[0] is graphs[(step % 4) * len(KINDS)][0]]
            rows = random_rows(rng, [(1, int(n)) for n in rng.integers(0, 40, turns[0][0].size)])
            behind = STREAM.mark()
            turns[0][0].update(rows)
            for _, kind, q, layer, out, graph in turns:
                new_q, new = tensors(step, kind, rows, torch.float16, torch.float16)
                for old, given in zip((q, *layer[:2]), (new_q, *new[:2]), strict=True):
                    old.copy_(given)
                graph.replay()
                expected.append((kind, rows, new_q, new))
                results.append(out)
            STREAM.run(behind.upto)
    for (kind, rows, q, layer), result in zip(expected, results, strict=True):
        check_result(result, kind, rows, q, layer)
    assert STREAM.waits == 0


def test_a_graph_refuses_rows_that_do_not_fit() -> None:
    plan = made([KIND]).graph_plan(2, 30)
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="2 rows of one token"):
        plan.update(random_rows(rng, [(1, 3)]))
    with pytest.raises(ValueError, match="2 rows of one token"):
        plan.update(random_rows(rng, [(1, 3), (2, 3)]))
    with pytest.raises(ValueError, match="42 slots in a graph for 30"):
        plan.update(random_rows(rng, [(1, 20), (1, 20)]))


@pytest.mark.parametrize("extend", [1, 3])
def test_slots_before_the_window_are_not_read(extend: int) -> None:
    kind = KIND._replace(window=4)
    rows = random_rows(np.random.default_rng(2), [(extend, 20)])
    q, layer = tensors(0, kind, rows, torch.float16, torch.float16)
    clean = made([kind]).plan(rows).run(kind, q, layer)
    assert not clean.isnan().any()
    gone = rows.kv_indices[: 20 - 3]  # the first token sees itself and three more
    layer.k_pool[gone], layer.v_pool[gone] = torch.nan, torch.nan
    torch.testing.assert_close(made([kind]).plan(rows).run(kind, q, layer), clean)


def test_deterministic_rows_go_by_their_own_tiles_and_are_not_split() -> None:
    """Groups of 3 heads: 5 tokens fill 15 query rows, 6 fill 18, 22 fill 66."""
    rows = random_rows(np.random.default_rng(2), [(5, 0), (1, 9), (22, 1), (6, 2), (21, 0)])
    layout = made([KIND], deterministic=True).plan(rows)._runs[KIND].layout
    assert [part.rows.extend_lens.tolist() for part in layout.parts] == [[1], [5], [6, 21], [22]]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"head_dim": 80, "value_dim": 80}, "head sizes .*, not for 80"),
        ({"value_dim": 128}, "keys of 64 and values of 128"),
        ({"kv_heads": 4}, "6 for 4 KV heads"),
        ({"sinks": True}, "sinks"),
    ],
)
def test_kinds_that_do_not_fit_are_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        made([KIND, KIND._replace(**changes)])


def test_types_that_do_not_fit_are_named() -> None:
    with pytest.raises(ConfigError, match=r"not in torch\.float32"):
        made([KIND], dtype=torch.float32)
    with pytest.raises(ConfigError, match=r"not of torch\.bfloat16"):
        made([KIND], kv_dtype=torch.bfloat16)


def test_spans_that_see_both_ways_are_refused() -> None:
    rows = random_rows(np.random.default_rng(0), [(3, 2)])
    with pytest.raises(ValueError, match="both ways"):
        made([KIND]).plan(rows._replace(visible_until=int32([5, 5, 5])))


def test_a_device_without_cuda_and_kernels_that_cannot_be_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_compiler(*_: Any, **__: Any) -> None:
        raise FileNotFoundError("nvcc")

    monkeypatch.setattr(fake_flashinfer.BatchDecodeWithPagedKVCacheWrapper, "plan", no_compiler)
    with pytest.raises(ConfigError, match="needs nvcc and ninja: FileNotFoundError: nvcc"):
        made([KIND])
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="needs a CUDA device, not cpu"):
        made([KIND])
