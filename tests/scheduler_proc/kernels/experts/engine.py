"""A native engine of layers that do nothing but their mixture of experts, and what it must compute.

Attention adds zeros, so a token's result depends on its id alone, whatever the batch. Results are
the log-probabilities of all ids after each token.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import byref, c_float, c_int64, pointer
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from scheduler_proc.executor.native_executor import empty_result, step_arrays
from scheduler_proc.kernels import library
from scheduler_proc.kernels.library import Format
from scheduler_proc.models.config import RouterRule
from scheduler_proc.models.packed import native_rule
from tests.scheduler_proc.kernels import ops
from tests.scheduler_proc.kernels.ops import Weights, random_weights
from tests.scheduler_proc.ragged import Row, details_of, make_batch

HIDDEN, VOCAB, SLOTS, HEAD_DIM = 256, 48, 1100, 16
EPS = 1e-5
# A k-th and a next score that are nearer may be in another order in float32.
CLEAR = 1e-4


class Mixture(NamedTuple):
    """A mixture's sizes and formats; `width` must suit `down`."""

    gate: Format = Format.F32
    up: Format = Format.F32
    down: Format = Format.F32
    experts: int = 8
    used: int = 2
    width: int = 256
    rule: RouterRule = RouterRule()
    router_bias: bool = False
    correction: bool = False
    biased: bool = False
    shared: Format | None = None
    shared_width: int = 512
    shared_score: bool = False

    @classmethod
    def of(cls, format: Format, **values: Any) -> "Mixture":
        """With all matrices in one format."""
        return cls(format, format, format, **values)


class Mlp(NamedTuple):
    gate: Weights
    up: Weights
    down: Weights


def random_mlp(mixture: Mixture, formats: Sequence[Format], width: int, seed: int) -> Mlp:
    gate, up, down = formats
    return Mlp(
        random_weights(gate, width, HIDDEN, seed, mixture.biased),
        random_weights(up, width, HIDDEN, seed + 1, mixture.biased),
        random_weights(down, HIDDEN, width, seed + 2, mixture.biased),
    )


class Layer:
    """One layer's weights, as C reads them and as numpy does."""

    def __init__(self, mixture: Mixture, seed: int, zeros: library.Matrix) -> None:
        rng = np.random.default_rng(seed)
        self.mixture = mixture
        self.norm = rng.uniform(0.03, 0.09, HIDDEN).astype(np.float32)  # of about 1 / sqrt(HIDDEN)
        self.router = random_weights(Format.F32, mixture.experts, HIDDEN, seed + 7)
        self.router_bias = rng.standard_normal(mixture.experts).astype(np.float32)
        self.correction = rng.standard_normal(mixture.experts).astype(np.float32)
        self.shared_score = rng.standard_normal(HIDDEN).astype(np.float32)
        formats = mixture.gate, mixture.up, mixture.down
        self.experts = [
            random_mlp(mixture, formats, mixture.width, seed + 10 * (e + 2))
            for e in range(mixture.experts)
        ]
        self.shared = None
        if mixture.shared is not None:
            self.shared = random_mlp(mixture, [mixture.shared] * 3, mixture.shared_width, seed + 5)
        self._ones = np.ones(HIDDEN, np.float32)
        self.c = library.Layer(
            attn_norm=_floats(self._ones),
            mlp_norm=_floats(self.norm),
            **dict.fromkeys(("q", "k", "v", "o"), zeros),
            experts=pointer(self._experts()),
        )

    def _experts(self) -> library.Experts:
        mixture = self.mixture
        self._lists = {
            name: (library.Matrix * mixture.experts)(
                *(getattr(e, name).matrix for e in self.experts)
            )
            for name in Mlp._fields
        }
        experts = library.Experts(
            count=mixture.experts,
            used=mixture.used,
            width=mixture.width,
            rule=native_rule(mixture.rule),
            router=self.router.matrix,
            **self._lists,
        )
        if mixture.router_bias:
            experts.router_bias = _floats(self.router_bias)
        if mixture.correction:
            experts.correction = _floats(self.correction)
        if self.shared is not None:
            for name, weights in self.shared._asdict().items():
                setattr(experts, f"shared_{name}", weights.matrix)
            if mixture.shared_score:
                experts.shared_score = _floats(self.shared_score)
        return experts


def _floats(array: np.ndarray) -> Any:
    return library.pointer(array, c_float)


class Model:
    """Weights of some layers of `mixture` and what surrounds them; the KV pool is shared."""

    def __init__(self, mixture: Mixture, layers: int = 1, residual_scale: float = 1.0) -> None:
        self.residual_scale = residual_scale
        packed = np.zeros(4 * HIDDEN * HIDDEN + 64, np.uint8)
        packed = packed[-packed.ctypes.data % 64 :]
        zeros = library.Matrix(Format.F32, HIDDEN, HIDDEN, library.address(packed))
        self.embed = random_weights(Format.F32, VOCAB, HIDDEN, 1)
        self.head = random_weights(Format.F32, VOCAB, HIDDEN, 2)
        self.norm = np.full(HIDDEN, 0.1, np.float32)
        self.layers = [Layer(mixture, 1000 * i, zeros) for i in range(layers)]
        self._pool = np.zeros((SLOTS, HIDDEN), np.float32)
        self._freqs = np.ones(HEAD_DIM // 2, np.float32)
        self._zeros = packed
        for layer in self.layers:
            layer.c.k_pool = layer.c.v_pool = library.address(self._pool)

    def c(self, bits: int) -> library.Model:
        """With activations of `bits`."""
        self._array = (library.Layer * len(self.layers))(*(layer.c for layer in self.layers))
        return library.Model(
            num_layers=len(self.layers),
            hidden=HIDDEN,
            heads=HIDDEN // HEAD_DIM,
            kv_heads=HIDDEN // HEAD_DIM,
            head_dim=HEAD_DIM,
            intermediate=1,
            vocab=VOCAB,
            num_slots=SLOTS,
            kv_format=Format.F32,
            activation_bits=(bits,) * len(library.INPUTS),
            rms_eps=EPS,
            attn_scale=1,
            embed_scale=1,
            residual_scale=self.residual_scale,
            logit_scale=1,
            rope_freqs=_floats(self._freqs),
            final_norm=_floats(self.norm),
            embed=self.embed.matrix,
            head=self.head.matrix,
            layers=self._array,
        )


class Engine:
    """The model on threads of its own."""

    def __init__(self, model: Model, isa: str, threads: int, bits: int) -> None:
        self._library = ops.load_or_skip()
        self._model = model.c(bits)
        self._layers = len(model.layers)
        self._count = model.layers[0].mixture.experts
        create = self._library.c.srt_engine_create
        self._engine = self._library.created(create(byref(self._model), threads, isa.encode()))

    def close(self) -> None:
        self._library.c.srt_engine_destroy(self._engine)

    def run(self, ids: Sequence[int]) -> np.ndarray:
        """The step of one row of `ids`: float32 [len(ids), VOCAB]."""
        row = Row(ids, range(len(ids)), targets=[0] * len(ids), samples=False)
        wanted = details_of(range(len(ids)), [0] * len(ids), [range(VOCAB)] * len(ids))
        batch = replace(make_batch([row]), details=wanted)
        result = empty_result(batch)
        arrays = step_arrays(batch, result)  # must live as long as the step
        step = library.Batch.of(
            arrays,
            num_tokens=len(ids),
            num_rows=1,
            num_logprobs=len(ids),
            num_details=len(ids),
        )
        self._library.check(self._library.c.srt_engine_step(self._engine, byref(step)))
        assert result.details is not None
        return result.details.id_logprobs.reshape(len(ids), VOCAB)

    @property
    def growths(self) -> int:
        growths: int = self._library.c.srt_engine_growths(self._engine)
        return growths

    def counts(self) -> np.ndarray:
        """Tokens of each expert so far: int64 [layers, experts]."""
        found = np.zeros((self._layers, self._count), np.int64)
        at = library.pointer(found, c_int64)
        self._library.c.srt_engine_expert_counts(self._engine, at)
        return found


@contextmanager
def opened(
    model: Model, isa: str = "portable", threads: int = 2, bits: int = 8
) -> Iterator[Engine]:
    """An Engine, closed at the end."""
    engine = Engine(model, isa, threads, bits)
    try:
        yield engine
    finally:
        engine.close()


# ---- what it must compute ------------------------------------------------------------------------


def expected(model: Model, ids: Sequence[int], width_of: Any) -> np.ndarray:
    """float64 [len(ids), VOCAB]; `width_of` gives the bits of the activations that weights of a
    format meet, where these are integers."""
    x = model.embed.values()[list(ids)].astype(np.float64)
    for layer in model.layers:
        x += model.residual_scale * _mixture(layer, _normed(x, layer.norm), width_of)
    logits = _normed(x, model.norm) @ model.head.values().T.astype(np.float64)
    logprobs: np.ndarray = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return logprobs


def _normed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    normed: np.ndarray = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + EPS) * weight
    return normed


def _mixture(layer: Layer, x: np.ndarray, width_of: Any) -> np.ndarray:
    total = np.zeros_like(x)
    shares = np.zeros((len(x), layer.mixture.experts))  # 0 where a token does not use an expert
    for token, (ids, weights) in enumerate(zip(*chosen(layer, x), strict=True)):
        shares[token, ids] = weights
    for expert, mlp in enumerate(layer.experts):
        tokens = np.flatnonzero(shares[:, expert])
        if tokens.size:
            total[tokens] += shares[tokens, expert, None] * _mlp(mlp, x[tokens], width_of)
    if layer.shared is not None:
        weight = np.ones(len(x))
        if layer.mixture.shared_score:
            weight = 1 / (1 + np.exp(-x @ layer.shared_score))
        total += weight[:, None] * _mlp(layer.shared, x, width_of)
    return total


def chosen(layer: Layer, x: np.ndarray) -> tuple[list[list[int]], list[np.ndarray]]:
    """Each token's experts in ascending order, and their weights."""
    mixture, rule = layer.mixture, layer.mixture.rule
    logits = x @ layer.router.values().T.astype(np.float64)
    if mixture.router_bias:
        logits = logits + layer.router_bias
    found_ids, found_weights = [], []
    for row in logits:
        by = row if rule.chosen_by == "logits" else _scores(rule, row)
        by = by + (layer.correction if mixture.correction else 0)
        allowed = _best_groups(rule, by)
        order = sorted(range(mixture.experts), key=lambda e: (e not in allowed, -by[e], e))
        if mixture.used < mixture.experts:
            assert by[order[mixture.used - 1]] - by[order[mixture.used]] > CLEAR
        ids = sorted(order[: mixture.used])
        scores = _scores(rule, row[ids]) if rule.chosen_by == "logits" else _scores(rule, row)[ids]
        weights = scores / scores.sum() if rule.normalised else scores
        found_ids.append(ids)
        found_weights.append(rule.scale * weights)
    return found_ids, found_weights


def _scores(rule: RouterRule, logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits)
    scores: np.ndarray = powers / (1 + powers if rule.scores == "sigmoid" else powers.sum())
    return scores


def _best_groups(rule: RouterRule, by: np.ndarray) -> set[int]:
    groups = by.reshape(rule.groups, -1)
    worth = np.sort(groups, axis=1)[:, -2:].sum(axis=1)
    best = np.argsort(-worth, kind="stable")[: rule.used_groups]
    return {e for e in range(len(by)) if e // groups.shape[1] in best}


def _mlp(mlp: Mlp, x: np.ndarray, width_of: Any) -> np.ndarray:
    gate, up = _linear(mlp.gate, x, width_of), _linear(mlp.up, x, width_of)
    return _linear(mlp.down, ops.silu(gate) * up, width_of)


def _linear(weights: Weights, x: np.ndarray, width_of: Any) -> np.ndarray:
    format = Format(weights.matrix.format)
    if format.name.endswith("_TILES"):
        x = ops.bfloat16_activations(x.astype(np.float32))
    elif format not in ops.FLOATS:
        x = ops.quantized_activations(x.astype(np.float32), width_of(format))
    y: np.ndarray = x @ weights.values().T.astype(np.float64)
    return y + weights.arrays[1] if len(weights.arrays) > 1 else y
