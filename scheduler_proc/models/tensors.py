"""Which tensors a checkpoint must hold: names as Hugging Face has them, and shapes.

Loaders check a checkpoint against this before they read anything.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from scheduler_proc.models.checkpoint import EMBED, HEAD, Checkpoint
from scheduler_proc.models.config import DecoderConfig, Experts, WrongValues
from srt.wire.errors import ConfigError

NORM = "model.norm.weight"

# Buffers that old checkpoints carry and that follow from the configuration.
_DERIVED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")


class LinearSpec(NamedTuple):
    """A linear layer of `rows` outputs and `inputs`: rows [first, first + rows) of the
    `tensor_rows` that tensor `name`.weight has, and of its bias if there is one. `heads` is nonzero
    for q and k, whose rows may need their rope pairs reordered. With `stack`, the tensor has so
    many matrices in its first dimension, and this is the one of number `part`."""

    name: str
    rows: int
    inputs: int
    bias: bool
    first: int
    tensor_rows: int
    heads: int = 0
    stack: int = 0
    part: int | None = None

    @property
    def weight(self) -> str:
        """The tensor's name."""
        return f"{self.name}.weight"

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the whole tensor."""
        matrix = (self.tensor_rows, self.inputs)
        return (self.stack, *matrix) if self.stack else matrix


class MlpSpec(NamedTuple):
    """The three linear layers of an MLP, or of an expert."""

    gate: LinearSpec
    up: LinearSpec
    down: LinearSpec


class MixtureSpec(NamedTuple):
    """A layer's mixture of experts, by the layout of its file. Its names are made when they are
    asked for: a configuration alone may ask for any number of experts."""

    prefix: str  # of the layer
    config: DecoderConfig
    experts: Experts

    @property
    def router(self) -> LinearSpec:
        """What gives each expert its logit."""
        experts = self.experts
        name = f"{self.prefix}.{_ROUTERS.get(experts.layout, 'mlp.gate')}"
        return _linear(name, experts.count, self.config.hidden, experts.router_bias)

    @property
    def correction(self) -> str | None:
        """The bias that counts for choosing only: [count]."""
        if not self.experts.correction:
            return None
        return f"{self.prefix}.mlp.gate.e_score_correction_bias"

    def expert(self, index: int) -> MlpSpec:
        """The linear layers of expert `index`."""
        return _EXPERT_SPECS[self.experts.layout](self, index)

    @property
    def shared(self) -> MlpSpec | None:
        """The expert that every token uses."""
        width = self.experts.shared_width
        return _mlp(self.config, f"{self.prefix}.mlp.shared_expert", width) if width else None

    @property
    def shared_score(self) -> str | None:
        """What the hidden states are multiplied by for the factor of the shared expert's output:
        [1, hidden]."""
        if not self.experts.shared_gate:
            return None
        return f"{self.prefix}.mlp.shared_expert_gate.weight"

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes of all tensors."""
        yield from _linear_shapes(self.router)
        if self.correction is not None:
            yield self.correction, (self.experts.count,)
        is_stacked = self.experts.layout in ("stacked", "granite", "gguf")
        for index in range(1 if is_stacked else self.experts.count):
            for linear in self.expert(index):
                yield from _linear_shapes(linear)
        for linear in self.shared or ():
            yield from _linear_shapes(linear)
        if self.shared_score is not None:
            yield self.shared_score, (1, self.config.hidden)


_ROUTERS = {"mixtral": "block_sparse_moe.gate", "granite": "block_sparse_moe.router.layer"}


def _of_mixtral(spec: MixtureSpec, index: int) -> MlpSpec:
    return _expert(spec, f"block_sparse_moe.experts.{index}", ("w1", "w3", "w2"))


def _separate(spec: MixtureSpec, index: int) -> MlpSpec:
    return _expert(spec, f"mlp.experts.{index}", ("gate_proj", "up_proj", "down_proj"))


def _of_gguf(spec: MixtureSpec, index: int) -> MlpSpec:
    mlp = _expert(spec, "mlp.experts", ("gate_proj", "up_proj", "down_proj"))
    return MlpSpec(*(part._replace(stack=spec.experts.count, part=index) for part in mlp))


def _stacked(spec: MixtureSpec, index: int) -> MlpSpec:
    return _gate_beside_up(spec, index, "mlp.experts.gate_up_proj", "mlp.experts.down_proj")


def _of_granite(spec: MixtureSpec, index: int) -> MlpSpec:
    names = ("block_sparse_moe.input_linear", "block_sparse_moe.output_linear")
    return _gate_beside_up(spec, index, *names)


_EXPERT_SPECS: dict[str, Callable[[MixtureSpec, int], MlpSpec]] = {
    "mixtral": _of_mixtral,
    "separate": _separate,
    "gguf": _of_gguf,
    "stacked": _stacked,
    "granite": _of_granite,
}


def _expert(spec: MixtureSpec, prefix: str, names: tuple[str, str, str]) -> MlpSpec:
    """Gate, up and down in tensors of their own."""
    width, hidden = spec.experts.width, spec.config.hidden
    gate, up, down = (f"{spec.prefix}.{prefix}.{name}" for name in names)
    return MlpSpec(
        _linear(gate, width, hidden, bias=False),
        _linear(up, width, hidden, bias=False),
        _linear(down, hidden, width, bias=False),
    )


def _gate_beside_up(spec: MixtureSpec, index: int, inputs: str, outputs: str) -> MlpSpec:
    """One of all experts in two tensors, whose first has gate and up."""
    width, hidden, count = spec.experts.width, spec.config.hidden, spec.experts.count
    names = [("", width), ("", width)]
    gate, up = _projections(spec.config, f"{spec.prefix}.{inputs}", names, bias=False)
    down = _linear(f"{spec.prefix}.{outputs}", hidden, width, bias=False)
    return MlpSpec(*(part._replace(stack=count, part=index) for part in (gate, up, down)))


class LayerSpec(NamedTuple):
    """One decoder layer: its linear layers, and its norms' tensor names, None where it has none.
    It has either an MLP or a mixture of experts."""

    q: LinearSpec
    k: LinearSpec
    v: LinearSpec
    o: LinearSpec
    mlp: MlpSpec | None
    mixture: MixtureSpec | None
    input_norm: str
    mlp_norm: str
    q_norm: str | None
    k_norm: str | None
    attn_out_norm: str | None
    mlp_out_norm: str | None
    k_scales: tuple[
        str, str
    ]  # what checkpoints call the scale of the layer's keys, if they have it
    v_scales: tuple[str, str]

    @property
    def linears(self) -> tuple[LinearSpec, ...]:
        """All but those of a mixture."""
        return (self.q, self.k, self.v, self.o, *(self.mlp or ()))


def layer_spec(config: DecoderConfig, index: int) -> LayerSpec:
    """The tensors of layer `index`."""
    c, prefix = config, f"model.layers.{index}"
    attention = f"{prefix}.self_attn"
    sizes = (("q", c.q_size), ("k", c.kv_size), ("v", c.kv_size))
    parts = [(f"{attention}.{name}_proj", rows) for name, rows in sizes]
    fused = c.fused_projections
    q, k, v = _projections(c, f"{attention}.qkv_proj" if fused else "", parts, c.qkv_bias)
    sandwich, has_norms = c.sandwich_norms, c.head_norms or c.whole_qk_norms
    mixture = MixtureSpec(prefix, c, c.experts) if c.experts and c.is_mixture(index) else None
    return LayerSpec(
        q=q._replace(heads=c.heads),
        k=k._replace(heads=c.kv_heads),
        v=v,
        o=_linear(f"{attention}.o_proj", c.hidden, c.q_size, c.o_bias),
        mlp=None if mixture else _mlp(c, f"{prefix}.mlp", c.intermediate),
        mixture=mixture,
        input_norm=f"{prefix}.input_layernorm.weight",
        # What Llama calls the norm after attention is the one before the MLP.
        mlp_norm=f"{prefix}.{'pre_feedforward' if sandwich else 'post_attention'}_layernorm.weight",
        q_norm=f"{attention}.q_norm.weight" if has_norms else None,
        k_norm=f"{attention}.k_norm.weight" if has_norms else None,
        attn_out_norm=f"{prefix}.post_attention_layernorm.weight" if sandwich else None,
        mlp_out_norm=f"{prefix}.post_feedforward_layernorm.weight" if sandwich else None,
        k_scales=(f"{attention}.k_scale", f"{attention}.k_proj.k_scale"),
        v_scales=(f"{attention}.v_scale", f"{attention}.v_proj.v_scale"),
    )


def _mlp(config: DecoderConfig, prefix: str, width: int) -> MlpSpec:
    parts = [(f"{prefix}.{name}_proj", width) for name in ("gate", "up")]
    fused = f"{prefix}.gate_up_proj" if config.fused_projections else ""
    gate, up = _projections(config, fused, parts, config.mlp_bias)
    return MlpSpec(gate, up, _linear(f"{prefix}.down_proj", config.hidden, width, config.mlp_bias))


def _projections(
    config: DecoderConfig, fused: str, parts: Sequence[tuple[str, int]], bias: bool
) -> list[LinearSpec]:
    """Projections of the hidden states, `parts` being names and rows: in this order the rows of
    tensor `fused`, or tensors of their own if it is empty."""
    if not fused:
        return [_linear(name, rows, config.hidden, bias) for name, rows in parts]
    ends = [0, *accumulate(rows for _, rows in parts)]
    return [
        LinearSpec(fused, rows, config.hidden, bias, first, tensor_rows=ends[-1])
        for first, (_, rows) in zip(ends, parts, strict=False)
    ]


def _linear(name: str, rows: int, inputs: int, bias: bool) -> LinearSpec:
    """All rows of a tensor."""
    return LinearSpec(name, rows, inputs, bias, first=0, tensor_rows=rows)


def check_tensors(checkpoint: Checkpoint) -> None:
    """Raise ConfigError naming a missing, surplus or ill-shaped tensor."""
    wanted = {}
    # The first that is missing ends it: a configuration may ask for any number of tensors.
    for name, shape in _shapes(checkpoint.config):
        if name not in checkpoint.tensors:
            raise ConfigError(f"{checkpoint.path}: tensor {name} is missing")
        wanted[name] = shape
    present = set(checkpoint.tensors)
    if checkpoint.config.tie_embeddings:
        present.discard(HEAD)
    scales = kv_scale_names(checkpoint.config) & present
    for name in scales:
        if checkpoint.shape(name) not in ((), (1,)):
            _check_shape(checkpoint, name, checkpoint.shape(name), (1,))
    for name in sorted(present - wanted.keys() - scales):
        if not _DERIVED.fullmatch(name):
            raise ConfigError(f"{checkpoint.path}: tensor {name} does not belong to this model")
    for name, shape in wanted.items():
        _check_shape(checkpoint, name, checkpoint.shape(name), shape)
    divisors = checkpoint.rope_divisors()
    if divisors is not None:
        expected = (checkpoint.config.rope_dims(checkpoint.config.rope) // 2,)
        _check_shape(checkpoint, "of rope divisors", divisors.shape, expected)


def require_finite(checkpoint: Checkpoint, name: str, *, are_finite: bool) -> None:
    """Raise WrongValues unless the values of tensor `name` `are_finite`: of others no experts can
    be chosen."""
    if not are_finite:
        raise WrongValues(f"{checkpoint.path}: tensor {name} has values that are not finite")


def kv_scale_names(config: DecoderConfig) -> set[str]:
    """All names that scales of an eight-bit KV cache may have. None of them must be there."""
    layers = [layer_spec(config, index) for index in range(config.layers)]
    return {name for layer in layers for name in (*layer.k_scales, *layer.v_scales)}


def _shapes(config: DecoderConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield EMBED, (config.vocab_size, config.hidden)
    if not config.tie_embeddings:
        yield HEAD, (config.vocab_size, config.hidden)
    yield NORM, (config.hidden,)
    for index in range(config.layers):
        layer = layer_spec(config, index)
        for norm in (layer.input_norm, layer.mlp_norm, layer.attn_out_norm, layer.mlp_out_norm):
            if norm is not None:
                yield norm, (config.hidden,)
        for norm, size in zip((layer.q_norm, layer.k_norm), config.qk_norm_sizes, strict=True):
            if norm is not None:
                yield norm, (size,)
        for linear in layer.linears:
            yield from _linear_shapes(linear)
        if layer.mixture is not None:
            yield from layer.mixture.shapes()


def _linear_shapes(linear: LinearSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield linear.weight, linear.shape
    if linear.bias:
        yield f"{linear.name}.bias", (linear.tensor_rows,)


def _check_shape(
    checkpoint: Checkpoint, name: str, found: tuple[int, ...], wanted: tuple[int, ...]
) -> None:
    if tuple(found) != wanted:
        raise ConfigError(
            f"{checkpoint.path}: tensor {name} has shape {list(found)}, expected {list(wanted)}"
        )
