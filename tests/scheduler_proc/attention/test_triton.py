"""The Triton kernels against the reference attention: interpreted, or on a GPU where there is one.

Slots that no row lists hold NaN in every test.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from scheduler_proc.attention.base import LayerKind, LayerTensors, RaggedRows
from scheduler_proc.attention.cascade import CascadeCosts
from scheduler_proc.attention.reference import ReferenceAttention
from scheduler_proc.attention.triton import TritonAttention, backend, launch
from srt.wire.errors import ConfigError
from tests.scheduler_proc.ragged import indptr, int32

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        find_spec("triton") is None, reason="triton is not installed (see the Makefile's setup)"
    ),
    # Of the interpreter: rows of a tile that no token has, and NaN that is put in on purpose.
    pytest.mark.filterwarnings("ignore:(divide by zero|invalid value):RuntimeWarning"),
]

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
# Of results: two 16-bit types round them and the weights; float32 is three 19-bit products on GPUs.
ATOL = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
# Decodes, one of them long enough to be split; extends of a small tile and of large ones.
MIXED = [(1, 40), (5, 5), (1, 200), (40, 90), (1, 1)]


def a_kind(**values: Any) -> LayerKind:
    defaults = {"heads": 2, "kv_heads": 1, "head_dim": 16, "value_dim": 16, "scale": 0.25}
    return LayerKind(**{**defaults, **values})


class Case(NamedTuple):
    rows: RaggedRows
    q: torch.Tensor
    layer: LayerTensors

    def wanted(self, kind: LayerKind) -> torch.Tensor:
        """By the reference, in float32."""
        k, v = (pool.float() for pool in (self.layer.k_pool, self.layer.v_pool))
        layer = self.layer._replace(k_pool=k, v_pool=v)
        return ReferenceAttention(DEVICE).plan(self.rows).run(kind, self.q.float(), layer)


def case(
    kind: LayerKind,
    rows: RaggedRows,
    *,
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,
    seed: int = 0,
) -> Case:
    generator = torch.Generator().manual_seed(seed)
    listed = torch.from_numpy(np.unique(rows.kv_indices)).long()
    pools = []
    for dim in (kind.head_dim, kind.value_dim):
        pool = torch.full((int(listed.max()) + 20, kind.kv_heads, dim), torch.nan)
        pool[listed] = torch.randn(len(listed), kind.kv_heads, dim, generator=generator)
        pools.append(pool.to(kv_dtype or dtype).to(DEVICE))
    q = torch.randn(int(rows.qo_indptr[-1]), kind.heads, kind.head_dim, generator=generator)
    sinks = torch.randn(kind.heads, generator=generator) + 2 if kind.sinks else None
    layer = LayerTensors(pools[0], pools[1], None if sinks is None else sinks.to(DEVICE))
    if kv_dtype == torch.float8_e4m3fn:
        layer = layer._replace(k_scale=1.5, v_scale=0.7)
    return Case(rows, q.to(dtype).to(DEVICE), layer)


def shuffled(lengths: Sequence[tuple[int, int]], seed: int = 0) -> RaggedRows:
    """Rows of (new tokens, all tokens) over random slots."""
    kv = indptr([seq for _, seq in lengths])
    slots = np.random.default_rng(seed).permutation(kv[-1] + 40)[: kv[-1]]
    return RaggedRows(indptr([extend for extend, _ in lengths]), kv, int32(slots + 1))


def made(
    *kinds: LayerKind,
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,
    deterministic: bool = False,
) -> TritonAttention:
    return TritonAttention(
        kinds,
        device=DEVICE,
        dtype=dtype,
        kv_dtype=kv_dtype or dtype,
        deterministic=deterministic,
    )


def run(kind: LayerKind, one: Case, **options: Any) -> torch.Tensor:
    attention = made(kind, dtype=one.q.dtype, kv_dtype=one.layer.k_pool.dtype, **options)
    return attention.plan(one.rows).run(kind, one.q, one.layer)


def assert_close(got: torch.Tensor, wanted: torch.Tensor, atol: float | None = None) -> None:
    atol = ATOL[got.dtype] if atol is None else atol
    torch.testing.assert_close(got.float(), wanted, atol=atol, rtol=0)


@pytest.mark.parametrize(
    "values",
    [
        {"heads": 9, "kv_heads": 3, "scale": 0.7},
        {"heads": 8, "kv_heads": 1, "sinks": True},
        {"heads": 2, "kv_heads": 2, "window": 1},
        {"heads": 4, "kv_heads": 2, "window": 7, "sinks": True},
        {"window": 70},
        {"softcap": 1.5},
        {"window": 65, "softcap": 2.0, "sinks": True, "heads": 3},
        {"head_dim": 10, "value_dim": 6},
        {"head_dim": 80, "value_dim": 96, "sinks": True},
        {"head_dim": 192, "value_dim": 128},
    ],
    ids=str,
)
def test_kinds_of_layers(values: dict[str, Any]) -> None:
    kind = a_kind(**values)
    one = case(kind, shuffled(MIXED))
    assert_close(run(kind, one), one.wanted(kind))


@pytest.mark.parametrize(
    ("dtype", "kv_dtype"),
    [
        (torch.float16, None),
        (torch.bfloat16, None),
        (torch.float32, torch.float16),
        (torch.bfloat16, torch.float8_e4m3fn),
    ],
)
def test_dtypes(dtype: torch.dtype, kv_dtype: torch.dtype | None) -> None:
    kind = a_kind(head_dim=48, sinks=True)
    one = case(kind, shuffled([(1, 200), (20, 30), (1, 5)]), dtype=dtype, kv_dtype=kv_dtype)
    got = run(kind, one)
    assert got.dtype == dtype
    assert_close(got, one.wanted(kind))


@pytest.mark.parametrize("window", [None, 30])
def test_tokens_that_see_each_other_both_ways(window: int | None) -> None:
    kind = a_kind(window=window)
    rows = shuffled([(1, 40), (90, 100), (6, 6)])
    until = np.zeros(97, np.int32)
    until[1 + 20 : 1 + 60] = 70  # positions 30 to 69 of the second row
    until[91:] = 6
    one = case(kind, rows._replace(visible_until=until))
    got = run(kind, one)
    assert_close(got, one.wanted(kind))
    assert (got - run(kind, one._replace(rows=rows))).abs().max() > 0.1


def test_several_kinds_in_one_copy_and_nothing_planned_in_a_layer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds = [a_kind(), a_kind(window=9, heads=3), a_kind(window=50, value_dim=8, sinks=True)]
    attention, copies = made(*kinds), []
    copy = attention._staging.copy

    def counted(*arguments: Any) -> Any:
        copies.append(1)
        return copy(*arguments)

    monkeypatch.setattr(attention._staging, "copy", counted)
    rows = shuffled(MIXED[:3])
    plan, later = attention.plan(rows), attention.plan(shuffled([(3, 80)], seed=1))
    assert len(copies) == 2
    monkeypatch.setattr(backend, "cut", None)
    for kind in kinds:
        one = case(kind, rows)
        assert_close(plan.run(kind, one.q, one.layer), one.wanted(kind))
    assert len(copies) == 2
    one = case(kinds[0], shuffled([(3, 80)], seed=1))
    assert_close(later.run(kinds[0], one.q, one.layer), one.wanted(kinds[0]))


@pytest.mark.parametrize("sinks", [False, True])
def test_log_sum_exps(sinks: bool) -> None:
    kind = a_kind(sinks=sinks, heads=2, kv_heads=2)
    one = case(kind, shuffled([(1, 300), (1, 20)]))
    lse = torch.empty(2, 2, device=DEVICE)
    made(kind).plan(one.rows).run(kind, one.q, one.layer, lse)
    for row, slots in enumerate(np.split(one.rows.kv_indices, [300])):
        keys = one.layer.k_pool[torch.from_numpy(slots).long().to(DEVICE)]
        scores = torch.einsum("hd,nhd->hn", one.q[row], keys) * kind.scale
        if one.layer.sinks is not None:
            scores = torch.cat((scores, one.layer.sinks[:, None]), 1)
        wanted = scores.logsumexp(1) / np.log(2)
        torch.testing.assert_close(lse[row], wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("window", [None, 8])
def test_a_poisoned_row_stays_alone(window: int | None) -> None:
    kind = a_kind(window=window)
    one = case(kind, shuffled([(1, 20), (1, 150), (3, 30), (20, 40)]))
    clean = run(kind, one)
    for pool in one.layer[:2]:
        pool[one.rows.kv_indices[[18, 198]]] = torch.nan  # of the first row and the third
    poisoned = run(kind, one)
    assert poisoned[0].isnan().all() and poisoned[4].isnan().all()
    torch.testing.assert_close(poisoned[[1, *range(5, 25)]], clean[[1, *range(5, 25)]])


def test_what_lies_before_the_window_is_not_read() -> None:
    kind = a_kind(window=8)
    one = case(kind, shuffled([(3, 130), (1, 120)]))
    clean = run(kind, one)
    for pool in one.layer[:2]:
        pool[one.rows.kv_indices[np.r_[:120, 130:242]]] = torch.nan
    assert_close(run(kind, one), clean, 0)


def sliced(one: Case, row: int) -> Case:
    """One of the rows alone."""
    rows = one.rows
    tokens = slice(rows.qo_indptr[row], rows.qo_indptr[row + 1])
    slots = rows.kv_indices[rows.kv_indptr[row] : rows.kv_indptr[row + 1]]
    count = tokens.stop - tokens.start
    alone = RaggedRows(indptr([count]), indptr([len(slots)]), slots)
    return Case(alone, one.q[tokens], one.layer)


def test_a_row_alone_gives_the_same_and_if_deterministic_the_same_bits() -> None:
    kind = a_kind()
    one = case(kind, shuffled([(1, 600), (3, 40), (33, 50)]))
    for deterministic, atol in ((False, 2e-6), (True, 0.0)):
        together = run(kind, one, deterministic=deterministic)
        assert_close(together, one.wanted(kind))
        for row in range(one.rows.num_rows):
            tokens = slice(one.rows.qo_indptr[row], one.rows.qo_indptr[row + 1])
            alone = run(kind, sliced(one, row), deterministic=deterministic)
            assert_close(alone, together[tokens], atol)


def free_levels(*_: object) -> CascadeCosts:
    return CascadeCosts(slot_s=1.0, state_s=0.1, level_s=0.1, tile_tokens=8)


@pytest.mark.parametrize("with_until", [False, True])
def test_shared_prefixes_are_read_once(with_until: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of which some share 70 slots, and of these some 150; others stand between them."""
    monkeypatch.setattr(CascadeCosts, "of", free_levels)
    slots = np.random.default_rng(0).permutation(900)
    prefix, longer = slots[:70], slots[:150]
    beginnings = [prefix, longer, slots[:0], longer, prefix, slots[:0]]
    extends, own = [1, 1, 1, 3, 20, 6], [9, 40, 30, 5, 30, 90]
    parts, at = [], 200
    for beginning, count in zip(beginnings, own, strict=True):
        parts.append(np.concatenate((beginning, slots[at : at + count])))
        at += count
    lens = [len(part) for part in parts]
    until = np.zeros(sum(extends), np.int32)
    until[8:20] = 82  # of the fifth row's positions from 80 on
    rows = RaggedRows(indptr(extends), indptr(lens), int32(np.concatenate(parts)))
    rows = rows._replace(visible_until=until) if with_until else rows
    kinds = [a_kind(sinks=True), a_kind(window=30)]
    attention = made(*kinds)
    plan = attention.plan(rows)
    cascade = attention.cascades.of(rows)
    assert cascade is not None and len(cascade.levels) == 2 and cascade.tokens is not None
    for kind in kinds:
        one = case(kind, rows)
        assert_close(plan.run(kind, one.q, one.layer), one.wanted(kind))
    shared, flat = (plan._calls[kind][1].lists for kind in kinds)
    assert len(flat.kv_indices) - len(shared.kv_indices) == 3 * 70 + 80
    attention.cascades.is_on = False
    assert attention.plan(rows)._calls[kinds[0]][1].lists.order is None
    assert made(kinds[0], deterministic=True).cascades.of(rows) is None


def test_a_cascade_that_saves_much_is_preferred_to_a_graph() -> None:
    kind = a_kind(heads=32, kv_heads=8, head_dim=128, value_dim=128)
    attention = made(kind, dtype=torch.bfloat16)
    prefix = np.arange(16_000)
    texts = [[*prefix, *range(16_000 + 10 * row, 16_010 + 10 * row)] for row in range(256)]
    rows = RaggedRows(indptr([1] * 256), indptr([16_010] * 256), int32(np.concatenate(texts)))
    assert attention.prefers_eager(rows)
    assert not attention.prefers_eager(shuffled([(1, 500)] * 4))


def test_a_graph_plan_runs_the_rows_that_it_is_updated_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A graph replays the launches of its recording, on the same addresses."""
    kinds = [a_kind(sinks=True, heads=3), a_kind(window=20)]
    monkeypatch.setattr(backend, "_NUM_SMS", 1)
    attention, launches = made(*kinds), []
    plan = attention.graph_plan(3, 1000)
    smaller = attention.graph_plan(2, 800)
    plan.update(shuffled([(1, 1)] * 3))
    start = launch.launch

    def recorded(*arguments: Any, **constants: Any) -> None:
        launches.append((arguments, constants))
        start(*arguments, **constants)

    steps = [shuffled([(1, n) for n in lens], seed=1) for lens in ([5, 300, 33], [350, 2, 90])]
    cases = {kind: [case(kind, rows) for rows in steps] for kind in kinds}
    monkeypatch.setattr(launch, "launch", recorded)
    inputs, outputs = {}, {}
    for kind, (first, second) in cases.items():
        size = max(len(one.layer.k_pool) for one in (first, second))
        pools = [torch.full_like(pool[:1], torch.nan) for pool in first.layer[:2]]
        layer = first.layer._replace(
            k_pool=pools[0].repeat(size, 1, 1), v_pool=pools[1].repeat(size, 1, 1)
        )
        inputs[kind] = Case(first.rows, torch.zeros_like(first.q), layer)
        outputs[kind] = plan.run(kind, inputs[kind].q, layer)
    monkeypatch.setattr(launch, "launch", start)
    for step, rows in enumerate(steps):
        smaller.update(shuffled([(1, 50), (1, 60)]))
        plan.update(rows)
        for kind, both in cases.items():
            one, into = both[step], inputs[kind]
            into.q.copy_(one.q)
            for pool, values in zip(into.layer[:2], one.layer[:2], strict=True):
                pool.fill_(torch.nan)[: len(values)] = values
            if into.layer.sinks is not None and one.layer.sinks is not None:
                into.layer.sinks.copy_(one.layer.sinks)
        for arguments, constants in launches:
            start(*arguments, **constants)
        for kind, both in cases.items():
            assert_close(outputs[kind], both[step].wanted(kind))
    with pytest.raises(ValueError, match="3 rows"):
        plan.update(shuffled([(1, 5)] * 2))
    with pytest.raises(ValueError, match="1000"):
        plan.update(shuffled([(1, 400)] * 3))


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        ({"head_dim": 258}, {}, "head size 258"),
        ({"head_dim": 15}, {}, "head size 15"),
        ({"value_dim": 512}, {}, "value size 512"),
        ({"heads": 3, "kv_heads": 2}, {}, "3 for 2"),
        ({"heads": 130}, {}, "130 for 1"),
        ({"scale": -1.0}, {}, "-1"),
        ({}, {"dtype": torch.float64}, "float64"),
        ({}, {"kv_dtype": torch.int8}, "int8"),
    ],
)
def test_what_it_cannot_run(values: dict[str, Any], options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(a_kind(**values), **options)


def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install triton"):
        made(a_kind())
    monkeypatch.undo()
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ConfigError, match="not on cpu"):
        TritonAttention(
            [a_kind()],
            device=torch.device("cpu"),
            dtype=torch.float32,
            kv_dtype=torch.float32,
        )


def compiled(tmp_path: Path, *names: str) -> dict[str, list[dict[str, Any]]]:
    """What compiling all launches of those cases gives, in a process that does not interpret."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-m", "tests.scheduler_proc.attention.compile_triton", *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[dict[str, Any]]] = json.loads(done.stdout)
    return found


def check_compiled(found: dict[str, list[dict[str, Any]]]) -> None:
    for name, kernels in found.items():
        rows = [kernel["rows"] for kernel in kernels if kernel["kernel"] == "attend"]
        assert len(rows) == 2 and 16 <= rows[0] <= rows[1] >= 64, name
        assert kernels[-1]["kernel"] == "merge" or name in ("gpt_oss", "spans"), name
        for kernel in kernels:
            assert kernel["shared"] <= 227 * 1024, name
            if kernel["kernel"] == "attend":
                # fp8 values, and a size's small rest, go 8 bytes at a time.
                least = 16 if kernel["is_even"] and kernel["pool_itemsize"] > 1 else 8
                assert least <= min(kernel["copied_bytes"]), name
                assert kernel["matrix_products"] > 0, name


def test_kernels_compile_for_an_h100(tmp_path: Path) -> None:
    """K and V are copied asynchronously by vectors, and matrix units multiply."""
    check_compiled(compiled(tmp_path, "llama", "gpt_oss"))


@pytest.mark.slow
def test_every_specialisation_compiles_for_an_h100(tmp_path: Path) -> None:
    found = compiled(tmp_path)
    assert len(found) > 8
    check_compiled(found)
