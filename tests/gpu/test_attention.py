"""Every backend against the reference attention in float32, on random ragged batches."""

import numpy as np
import pytest
import torch

from scheduler_proc.attention.base import LayerKind, RaggedRows
from srt.wire.errors import ConfigError
from tests.gpu.cases import (
    ENGINES,
    Engine,
    assert_near,
    backend_of,
    expected,
    ragged_rows,
    random_batch,
)

pytestmark = pytest.mark.full

# Of values around 1: a softmax weight, a product and the result are each rounded to 8 bits.
BF16_BOUND = 0.03
FP8 = torch.float8_e4m3fn

# Every backend must run these.
COMMON = {
    "llama": LayerKind(8, 2, 128, 128, 128**-0.5),
    "64": LayerKind(9, 3, 64, 64, 0.125),
    "group of 1": LayerKind(4, 4, 128, 128, 0.1),
    "window": LayerKind(8, 2, 128, 128, 128**-0.5, window=70),
    "softcap": LayerKind(8, 2, 128, 128, 128**-0.5, softcap=5.0),
}
# Those that FlashInfer may refuse.
SPECIAL = {
    "sinks": LayerKind(8, 1, 64, 64, 0.125, sinks=True),
    "sinks, window": LayerKind(8, 1, 64, 64, 0.125, window=33, sinks=True),
    "values of another size": LayerKind(4, 2, 96, 64, 0.1),
    "80": LayerKind(4, 4, 80, 80, 80**-0.5),
    "256": LayerKind(4, 1, 256, 256, 0.0625),
}
SHAPES = {
    "decodes": ([(1, 1), (1, 17), (1, 700), (1, 64), (1, 129)], 0),
    "one long decode": ([(1, 5000)], 0),
    "prompts": ([(5, 5), (130, 130), (64, 64)], 0),
    "mixed": ([(1, 40), (33, 100), (1, 300), (2, 2), (200, 513)], 0),
    "shared": ([(1, 1030 + i) for i in range(20)], 1024),
    "shared, several tokens": ([(1 + i % 3, 530 + 7 * i) for i in range(12)], 512),
}


def rows_of(shape: str, seed: int = 0) -> RaggedRows:
    lengths, shared = SHAPES[shape]
    return ragged_rows(np.random.default_rng(seed), lengths, shared)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("shape", SHAPES)
def test_backends_agree_with_the_reference(engine: Engine, shape: str) -> None:
    """One plan serves layers of all kinds, in any order."""
    rows = rows_of(shape)
    plans = {name: backend_of(engine, [kind]).plan(rows) for name, kind in COMMON.items()}
    together = backend_of(engine, list(COMMON.values())[:1] + list(COMMON.values())[3:]).plan(rows)
    for seed, (name, kind) in enumerate(COMMON.items()):
        batch = random_batch(kind, rows, device=engine.device, seed=seed)
        wanted = expected(kind, batch)
        assert_near(plans[name].run(kind, batch.q, batch.layer), wanted, BF16_BOUND)
        if name in ("llama", "window", "softcap"):
            assert_near(together.run(kind, batch.q, batch.layer), wanted, BF16_BOUND)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", SPECIAL)
def test_kinds_that_a_backend_may_refuse(engine: Engine, name: str) -> None:
    kind = SPECIAL[name]
    try:
        backend = backend_of(engine, [kind])
    except ConfigError as error:
        assert engine.backend == "flashinfer"
        pytest.skip(str(error))
    for shape in ("decodes", "mixed", "shared"):
        batch = random_batch(kind, rows_of(shape), device=engine.device)
        found = backend.plan(batch.rows).run(kind, batch.q, batch.layer)
        assert_near(found, expected(kind, batch), BF16_BOUND)


@pytest.mark.parametrize("engine", ENGINES)
def test_pools_of_eight_bits(engine: Engine) -> None:
    """Against the reference on the same eight bits: only the arithmetic differs."""
    kind = COMMON["llama"]
    backend = backend_of(engine, [kind], kv_dtype=FP8)
    for shape in ("decodes", "mixed"):
        batch = random_batch(kind, rows_of(shape), device=engine.device, kv_dtype=FP8)
        found = backend.plan(batch.rows).run(kind, batch.q, batch.layer)
        assert_near(found, expected(kind, batch), 2 * BF16_BOUND)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_token_that_sees_later_ones(engine: Engine) -> None:
    """Spans that see both ways, as the tokens of an image do: right, or refused."""
    kind = COMMON["llama"]
    rows = rows_of("mixed")
    until = np.zeros(rows.qo_indptr[-1], np.int32)
    first = int(rows.qo_indptr[4])
    until[first + 20 : first + 60] = 513 - 200 + 60
    spanned = rows._replace(visible_until=until)
    batch = random_batch(kind, spanned, device=engine.device)
    backend = backend_of(engine, [kind])
    if engine.backend == "flashinfer":
        with pytest.raises(ValueError, match="both ways"):
            backend.plan(spanned)
        return
    found = backend.plan(spanned).run(kind, batch.q, batch.layer)
    assert_near(found, expected(kind, batch), BF16_BOUND)


@pytest.mark.parametrize("engine", ENGINES)
def test_deterministic_rows_do_not_depend_on_the_others(engine: Engine) -> None:
    """Bitwise, alone and among others that share its beginning. The reference has no such option:
    on a CPU its rows are computed one by one."""
    kind = COMMON["llama"]
    backend = backend_of(engine, [kind], deterministic=True)
    for shape in ("decodes", "mixed", "shared"):
        batch = random_batch(kind, rows_of(shape), device=engine.device)
        together = backend.plan(batch.rows).run(kind, batch.q, batch.layer)
        qo, kv = batch.rows.qo_indptr, batch.rows.kv_indptr
        for row in range(batch.rows.num_rows):
            alone = RaggedRows(
                qo[row : row + 2] - qo[row],
                kv[row : row + 2] - kv[row],
                batch.rows.kv_indices[kv[row] : kv[row + 1]],
            )
            q = batch.q[qo[row] : qo[row + 1]].contiguous()
            found = backend.plan(alone).run(kind, q, batch.layer)
            assert torch.equal(found, together[qo[row] : qo[row + 1]]), (shape, row)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_plan_for_graphs_is_updated(engine: Engine) -> None:
    """What is recorded once follows the rows of each update, rows of one slot included."""
    kind = COMMON["llama"]
    backend = backend_of(engine, [kind])
    if not hasattr(backend, "graph_plan"):
        pytest.skip(f"{engine.backend} has no plans for graphs")
    plan = backend.graph_plan(4, 4000)
    rng = np.random.default_rng(3)
    first = random_batch(kind, ragged_rows(rng, [(1, 9)] * 4), device=engine.device)
    q, layer = first.q.clone(), first.layer
    plan.update(first.rows)
    plan.run(kind, q, layer)  # compiles and loads, which a recording must not
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = plan.run(kind, q, layer)
    for lengths in ([(1, 9)] * 4, [(1, 900), (1, 1), (1, 1), (1, 2000)], [(1, 1)] * 4):
        batch = random_batch(kind, ragged_rows(rng, lengths), device=engine.device, seed=5)
        q.copy_(batch.q)
        layer.k_pool.copy_(batch.layer.k_pool)
        layer.v_pool.copy_(batch.layer.v_pool)
        plan.update(batch.rows)
        graph.replay()
        torch.cuda.synchronize()
        assert_near(out, expected(kind, batch), BF16_BOUND)
