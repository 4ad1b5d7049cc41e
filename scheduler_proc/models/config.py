"""The shape of a decoder model: everything that the executors compute by, whatever its family.

Made by the readers of config.json (`json_config`, `families`) and of GGUF metadata (`gguf_config`).
What this project cannot compute exactly has no field here: a reader that meets it raises
NotComputed, which names it, so that no model is ever silently a different one.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

from srt.files.sizes import MAX_EXPERTS, MAX_LAYERS
from srt.wire.errors import ConfigError

_T = TypeVar("_T")


class WrongValues(ConfigError):
    """A tensor's values are none that any executor can compute with."""


class NotComputed(ConfigError):
    """An architecture, or an option of one, that the decoders here do not compute and another
    implementation may; every other ConfigError is about a value that no model can have."""


NumLayers = Annotated[int, Meta(le=MAX_LAYERS)]


class LinearRope(Struct, frozen=True):
    """Positions are divided by `factor`."""

    factor: float


class Llama3Rope(Struct, frozen=True):
    """Llama 3.1's rope scaling: long wavelengths are stretched by `factor`, short ones kept."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_len: int


class YarnRope(Struct, frozen=True):
    """YaRN: pairs that turn more than `beta_fast` times in the original context keep their
    frequency, those below `beta_slow` turns are stretched by `factor`, a ramp lies between.
    `truncate` widens the ramp to whole pairs."""

    factor: float
    original_context_len: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


class LongRope(Struct, frozen=True):
    """LongRoPE: every pair's wavelength has a factor of its own."""

    factors: tuple[float, ...]  # [rotated dims / 2]


RopeScaling = LinearRope | Llama3Rope | YarnRope | LongRope


class Rope(Struct, frozen=True):
    """Rotary embedding of the first `dims` of each head, of all if None; the rest stays.

    `amplitude` multiplies sines and cosines (YaRN and LongRoPE call it the attention factor).

    With `sections` positions have three parts, and so many pairs are turned by each of them: one
    section after the other, or `interleaved`, in turns as long as both others have any.
    """

    theta: float = 10000.0
    dims: int | None = None
    scaling: RopeScaling | None = None
    amplitude: float = 1.0
    sections: tuple[int, ...] = ()
    interleaved: bool = False

    def axes(self) -> list[int]:
        """For each pair, which part of a position turns it; empty without sections."""
        if not self.interleaved:
            return [axis for axis, count in enumerate(self.sections) for _ in range(count)]
        axes = [0] * sum(self.sections)
        for axis in (1, 2):
            axes[axis : 3 * self.sections[axis] : 3] = [axis] * self.sections[axis]
        return axes


class RouterRule(Struct, frozen=True):
    """How the experts of a token are chosen and weighed, in float32; ties go to the lowest id.

    Experts are chosen by their scores (`chosen_by` "scores") or by the router's logits, and then
    the scores are those among the chosen alone. With `groups` the experts are in groups of equal
    size, ids in order: a group's score is the sum of its two best, and only experts of the best
    `used_groups` can be chosen (DeepSeek-V3).
    """

    scores: Literal["softmax", "sigmoid"] = "softmax"
    chosen_by: Literal["scores", "logits"] = "scores"
    normalised: bool = True  # the weights of the chosen are divided by their sum
    scale: float = 1.0  # and then multiplied by this
    groups: int = 1
    used_groups: int = 1


# How a file holds experts: a tensor for each expert and projection, under Mixtral's names or under
# those of all others; all experts of a layer in one tensor, gate and up in one (as transformers 5
# holds them in memory; Granite under names of its own) or in two (GGUF).
ExpertsLayout = Literal["mixtral", "separate", "stacked", "granite", "gguf"]


class Experts(Struct, frozen=True):
    """The mixtures of experts that a model has in place of MLPs."""

    count: int
    used: int  # by a token
    width: int  # of one expert
    rule: RouterRule = RouterRule()
    shared_width: int = 0  # of the expert that every token uses; 0: there is none
    shared_gate: bool = False  # its output is multiplied by sigmoid(x @ w) (Qwen2-MoE)
    dense: tuple[bool, ...] = ()  # by layer: which have an MLP instead; empty: none
    router_bias: bool = False
    correction: bool = False  # a bias of the scores that counts for choosing only
    layout: ExpertsLayout = "separate"


# Constants of a DecoderConfig that are above 0 if they are there.
_POSITIVE = (
    *("embed_scale", "residual_scale", "logit_scale"),
    *("query_scale", "attn_softcap", "logit_softcap"),
)


class DecoderConfig(Struct, frozen=True):
    """Sizes and constants of a model.

    A layer is a Llama layer unless the fields after the sizes say otherwise. Raises ConfigError
    for sizes that fit together in no way.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab_size: int
    context_len: int
    rms_eps: float

    rope: Rope = Rope()
    local_rope: Rope | None = None  # of windowed layers, where it is not `rope`
    window: int | None = None  # tokens that one of a windowed layer sees, itself included
    windowed: tuple[bool, ...] = ()  # by layer; empty: none is

    tie_embeddings: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    head_norms: bool = False  # RMSNorm of every head of q and k, before the rotation
    whole_qk_norms: bool = False  # OLMoE: RMSNorm of all of q and of all of k, before the rotation
    sandwich_norms: bool = False  # Gemma: RMSNorm also of what attention and MLP give
    norm_offset: float = 0.0  # what to add to the file's norm weights; Gemma stores them minus 1
    fused_projections: bool = False  # the file holds q, k, v in one tensor, gate and up in another

    activation: Literal["silu", "gelu_tanh"] = "silu"
    embed_scale: float = 1.0
    residual_scale: float = 1.0  # of what attention and MLP add to the hidden states
    logit_scale: float = 1.0
    query_scale: float | None = None  # of q times k, where it is not 1/sqrt(head_dim)
    attn_softcap: float | None = None  # c: scores become c*tanh(score/c)
    logit_softcap: float | None = None  # the same of logits

    experts: Experts | None = None  # None: every layer has an MLP

    dtype: str | None = None  # the checkpoint's own, None if unknown

    def __post_init__(self) -> None:
        for name in ("hidden", "layers", "heads", "kv_heads", "head_dim", "intermediate"):
            require(getattr(self, name) > 0, f"{name} must be positive")
        self._check_numbers()
        require(self.vocab_size > 0 and self.context_len > 0, "vocabulary and context are empty")
        require(
            self.heads % self.kv_heads == 0,
            f"{self.heads} attention heads cannot share {self.kv_heads} key-value heads evenly",
        )
        require(self.head_dim % 2 == 0, f"head dimension {self.head_dim} is odd: rope needs pairs")
        for rope in (self.rope, self.local_rope or self.rope):
            self._check_rope(rope)
        require(
            len(self.windowed) in (0, self.layers),
            f"{len(self.windowed)} layers have a kind of attention, the model has {self.layers}",
        )
        require(
            not any(self.windowed) or (self.window is not None and self.window > 0),
            f"windowed layers with a window of {self.window} tokens",
        )
        require(not (self.head_norms and self.whole_qk_norms), "q and k have norms of two kinds")
        if self.experts is not None:
            check_experts(self.experts, self.layers)

    def _check_numbers(self) -> None:
        """Constants that no model can have would make every logit NaN."""
        require(0 < self.rms_eps < 1, f"the norm's epsilon is {self.rms_eps}, not in (0, 1)")
        for name in _POSITIVE:
            value = getattr(self, name)
            require(value is None or 0 < value < math.inf, f"{name} is {value}, not above 0")

    def _check_rope(self, rope: Rope) -> None:
        dims = self.rope_dims(rope)
        is_divided = not rope.sections or (
            len(rope.sections) == 3 and 2 * sum(rope.sections) == dims and min(rope.sections) >= 0
        )
        require(is_divided, f"rope sections {rope.sections} of {dims} dimensions")
        require(1 < rope.theta < math.inf, f"rope_theta {rope.theta} is not above 1")
        require(0 < rope.amplitude < math.inf, f"rope's attention factor is {rope.amplitude}")
        for name, value in ({} if rope.scaling is None else asdict(rope.scaling)).items():
            numbers = value if isinstance(value, tuple) else (value,)
            fine = all(isinstance(number, bool) or 0 < number < math.inf for number in numbers)
            require(fine, f"rope scaling: {name} is {value}")
        require(
            0 < dims <= self.head_dim and dims % 2 == 0,
            f"rope over {dims} of {self.head_dim} dimensions: it needs pairs of them",
        )
        if isinstance(rope.scaling, LongRope):
            require(
                len(rope.scaling.factors) == dims // 2,
                f"{len(rope.scaling.factors)} rope factors for {dims // 2} pairs of dimensions",
            )

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def qk_norm_sizes(self) -> tuple[int, int]:
        """Of the norm of q and of that of k, if there are such: of heads, or of the whole."""
        return (self.q_size, self.kv_size) if self.whole_qk_norms else (self.head_dim,) * 2

    @property
    def attn_scale(self) -> float:
        """What scores of attention are multiplied by."""
        return self.head_dim**-0.5 if self.query_scale is None else self.query_scale

    def rope_dims(self, rope: Rope) -> int:
        """How many dimensions of a head `rope` turns."""
        return self.head_dim if rope.dims is None else rope.dims

    def layer_window(self, index: int) -> int | None:
        """Tokens that one of layer `index` sees, itself included; None: all before it."""
        if not self.windowed or not self.windowed[index] or self.window is None:
            return None
        return self.window if self.window < self.context_len else None

    def is_mixture(self, index: int) -> bool:
        """Whether layer `index` has a mixture of experts in place of an MLP."""
        experts = self.experts
        return experts is not None and not (experts.dense and experts.dense[index])

    def layer_rope(self, index: int) -> Rope:
        """The rotary embedding of layer `index`."""
        if self.local_rope is not None and self.windowed and self.windowed[index]:
            return self.local_rope
        return self.rope


def check_experts(experts: Experts, layers: int) -> None:
    """Raise ConfigError for sizes that no mixture in a model of `layers` layers can have."""
    count, rule = experts.count, experts.rule
    require(0 < count <= MAX_EXPERTS, f"{count} experts: 1 to {MAX_EXPERTS} are possible")
    require(0 < experts.used <= count, f"a token uses {experts.used} of {count} experts")
    require(experts.width > 0, f"an expert's width is {experts.width}, not above 0")
    require(experts.shared_width >= 0, f"the shared expert's width is {experts.shared_width}")
    require(
        len(experts.dense) in (0, layers),
        f"{len(experts.dense)} layers have an MLP or a mixture, the model has {layers}",
    )
    require(0 < rule.scale < math.inf, f"the scale of experts' weights is {rule.scale}")
    require(
        rule.groups > 0 and count % rule.groups == 0,
        f"{count} experts are not in {rule.groups} groups of equal size",
    )
    require(
        0 < rule.used_groups <= rule.groups
        and experts.used <= count // rule.groups * rule.used_groups,
        f"{experts.used} experts cannot be chosen from {rule.used_groups} of {rule.groups} groups "
        f"of {count // rule.groups}",
    )


def convert(found: Mapping[str, Any], kind: type[_T], path: Path) -> _T:
    """`found`, read from `path`, as a Struct of `kind`. Raises ConfigError naming a bad key, and
    NotComputed for one that `kind` does not know, if it forbids these."""
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        is_unknown = "unknown field" in str(error)
        raise (NotComputed if is_unknown else ConfigError)(f"{path}: {error}") from error


def require(condition: bool, message: str) -> None:
    """Raise ConfigError with `message` unless `condition`."""
    if not condition:
        raise ConfigError(message)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Make every ConfigError name the file that it is about, and turn errors about numbers that
    cannot be computed with into ConfigErrors."""
    try:
        yield
    except (ArithmeticError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
    except ConfigError as error:
        if str(path) in str(error) or isinstance(error, NotComputed):
            raise
        raise ConfigError(f"{path}: {error}") from error
