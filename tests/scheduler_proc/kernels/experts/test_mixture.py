"""Mixtures of experts in the native engine: values, independence from the batch, bad shapes."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from scheduler_proc.kernels.library import Format
from scheduler_proc.models.config import RouterRule
from tests.running.profiles import some
from tests.scheduler_proc.kernels import ops
from tests.scheduler_proc.kernels.experts.engine import (
    VOCAB,
    Mixture,
    Model,
    chosen,
    expected,
    opened,
)
from tests.scheduler_proc.kernels.ops import Ops, level_bits, levels

IDS = [int(i) for i in np.random.default_rng(5).permutation(VOCAB)]

RULES: dict[str, dict[str, Any]] = {
    "softmax, normalised": {},
    "softmax, as they are": {"rule": RouterRule(normalised=False, scale=2.5)},
    "of the chosen": {"rule": RouterRule(chosen_by="logits", normalised=False)},
    "sigmoids": {"rule": RouterRule(scores="sigmoid")},
    "sigmoids of the chosen": {"rule": RouterRule(scores="sigmoid", chosen_by="logits")},
    "biases": {"router_bias": True, "biased": True},
    "correction": {"rule": RouterRule(scores="sigmoid"), "correction": True},
    "groups": {
        "rule": RouterRule(scores="sigmoid", groups=4, used_groups=2, scale=1.5),
        "correction": True,
        "experts": 16,
        "used": 3,
    },
    "groups of one": {"rule": RouterRule(groups=8, used_groups=4), "used": 3},
    "all experts": {"used": 8},
    "all experts but one": {"used": 7},
    "one expert": {"used": 1},
    "odd number of experts": {"experts": 21, "used": 4},
    "shared": {"shared": Format.F32},
    "gated shared": {"shared": Format.F32, "shared_score": True, "shared_width": 96},
}


def own(isa: str, format: Format) -> Format:
    """The format as the level holds it."""
    return format.tiled if ops.load_or_skip().has_tiles(isa) else format


def width_of(isa: str, bits: int) -> Callable[[Format], int]:
    def width(format: Format) -> int:
        with ops.opened(isa, 1, bits) as operations:
            return Ops.width(operations, format)

    return width


def tolerance(isa: str) -> float:
    """Codes of activations may be others by one where a float's last bit is. In tiles weights and
    SiLU are rounded too."""
    return 0.1 if ops.load_or_skip().has_tiles(isa) else 1e-3


def check(model: Model, isa: str, bits: int, most: float) -> None:
    want = expected(model, IDS, width_of(isa, bits))
    with opened(model, isa, bits=bits) as engine:
        np.testing.assert_allclose(engine.run(IDS), want, atol=most)
        np.testing.assert_allclose(engine.run(IDS[:1]), want[:1], atol=most)


@pytest.mark.parametrize("name", RULES)
def test_rules(name: str) -> None:
    model = Model(Mixture(**RULES[name]), residual_scale=0.5)
    check(model, levels()[0], 8, 1e-4)


@pytest.mark.parametrize(("isa", "bits"), level_bits())
@pytest.mark.parametrize(
    "format", some(ops.UNTILED, Format.BF16, Format.Q4, Format.Q4K, Format.Q8, Format.Q6)
)
def test_formats(isa: str, bits: int, format: Format) -> None:
    mixture = Mixture.of(own(isa, format), shared=own(isa, Format.Q8), shared_score=True)
    check(Model(mixture), isa, bits, tolerance(isa))


@pytest.mark.parametrize("isa", levels())
def test_matrices_of_different_formats(isa: str) -> None:
    formats = own(isa, Format.Q4), own(isa, Format.Q8), own(isa, Format.Q6)
    check(Model(Mixture(*formats, shared=Format.F16)), isa, 8, tolerance(isa))
    formats = Format.F32, own(isa, Format.Q8), own(isa, Format.Q8)
    check(Model(Mixture(*formats, shared=own(isa, Format.Q4))), isa, 8, tolerance(isa))


# ---- the same bits, always ----------------------------------------------------------------------


@pytest.mark.parametrize("isa", levels())
@pytest.mark.parametrize("format", some(ops.UNTILED, Format.F32, Format.Q4K, Format.Q8))
def test_a_token_does_not_depend_on_its_batch(isa: str, format: Format) -> None:
    mixture = Mixture.of(
        own(isa, format), experts=12, used=3, shared=own(isa, Format.Q4), shared_score=True
    )
    model = Model(mixture, layers=3)
    with ExitStack() as stack:
        engines = [stack.enter_context(opened(model, isa, n)) for n in (1, 2, 3)]
        alone = np.concatenate([engines[0].run([i]) for i in IDS])  # [VOCAB, VOCAB]
        for engine in engines:
            np.testing.assert_array_equal(engine.run(IDS), alone)
            np.testing.assert_array_equal(engine.run(IDS[5:7]), alone[5:7])
            np.testing.assert_array_equal(engine.run(IDS[9:10]), alone[9:10])
            # Many rows of one expert: whole tiles, and blocks that are unpacked.
            np.testing.assert_array_equal(engine.run([IDS[3]] * 60), alone[[3] * 60])


@pytest.mark.parametrize("count", [513, 1025])
def test_many_tokens_are_taken_in_panels(count: int) -> None:
    ids = np.random.default_rng(count).integers(0, VOCAB, count)
    mixture = Mixture(Format.Q8, Format.Q8, Format.F32, shared=Format.Q4, shared_score=True)
    with opened(Model(mixture, layers=2), levels()[0]) as engine:
        alone = np.concatenate([engine.run([i]) for i in range(VOCAB)])
        np.testing.assert_array_equal(engine.run(ids.tolist()), alone[ids])
        assert (engine.counts().sum(axis=1) == 2 * (VOCAB + count)).all()


def test_the_steady_state_allocates_nothing() -> None:
    with opened(Model(Mixture.of(Format.Q8), layers=2), threads=3) as engine:
        engine.run(IDS)
        engine.run(IDS[:1])
        grown = engine.growths
        for i in range(50):
            engine.run(IDS[: 1 + i % VOCAB])
        assert engine.growths == grown


# ---- what is counted, and what is refused -------------------------------------------------------


@pytest.mark.parametrize("parts", [[48], [1] * 48, [1, 30, 2, 15]])
def test_tokens_of_experts_are_counted(parts: list[int]) -> None:
    model = Model(Mixture())
    layer = model.layers[0]
    x = model.embed.values()[IDS].astype(np.float64)
    x /= np.sqrt((x**2).mean(axis=-1, keepdims=True))
    used, _ = chosen(layer, x * layer.norm)
    with opened(model) as engine:
        assert not engine.counts().any()
        for part in np.split(IDS, np.cumsum(parts)[:-1]):
            engine.run(part.tolist())
        assert engine.counts()[0].tolist() == np.bincount(np.concatenate(used)).tolist()


def test_scores_that_are_not_numbers_choose_some_expert() -> None:
    """A broken checkpoint gives NaN, not a stray read."""
    model = Model(Mixture(used=3, router_bias=True))
    model.layers[0].router_bias[:] = np.nan
    with opened(model) as engine:
        assert np.isnan(engine.run(IDS)).all()
        assert np.isnan(engine.run(IDS[:1])).all()
        assert engine.counts().sum() == 3 * (VOCAB + 1)


def test_equal_scores_choose_the_lowest_ids() -> None:
    model = Model(Mixture(used=3, router_bias=True))
    router = model.layers[0].router
    router.arrays[0][:] = 0
    model.layers[0].router_bias[:] = [0, 1, 0, 1, 0, 0, 0, 0]
    try:
        with opened(model) as engine:
            engine.run(IDS)
            engine.run(IDS[:1])
            assert engine.counts()[0].tolist() == [49, 49, 0, 49, 0, 0, 0, 0]
    finally:
        ops.random_weights.cache_clear()  # the router's weights are cached


def spoil_format(model: Model) -> None:
    model.layers[0].c.experts[0].up[3].format = Format.F16


def spoil_shape(model: Model) -> None:
    model.layers[0].c.experts[0].down[5].k += 16


def spoil_router(model: Model) -> None:
    model.layers[0].c.experts[0].router.n += 1


def spoil_scale(model: Model) -> None:
    model.residual_scale = 0


@pytest.mark.parametrize(
    ("mixture", "spoil", "error"),
    [
        ({"used": 9}, None, "9 of 8 experts"),
        ({"used": 0}, None, "0 of 8 experts"),
        ({"width": 72}, None, "multiples of 16"),
        ({"rule": RouterRule(groups=3)}, None, "8 experts are not 3 equal groups"),
        ({"rule": RouterRule(groups=4, used_groups=5)}, None, "5 of 4 groups"),
        ({"rule": RouterRule(groups=8), "used": 2}, None, "2 experts out of 1 of 8 groups"),
        ({}, spoil_format, "expert 3 has another format"),
        ({}, spoil_shape, "an expert is"),
        ({}, spoil_router, "router is"),
        ({}, spoil_scale, "scale"),
    ],
)
def test_refused(mixture: dict[str, Any], spoil: Any, error: str) -> None:
    model = Model(Mixture(**mixture))
    if spoil is not None:
        spoil(model)
    with pytest.raises(RuntimeError, match=error), opened(model):
        pass
