"""config.json's rope settings, as transformers 4 (`rope_scaling`) and 5 (`rope_parameters`) write
them. The formulas are those of transformers' modeling_rope_utils; `models/rope.py` has them."""

import math
from pathlib import Path

from msgspec import Struct, field

from scheduler_proc.models.config import (
    LinearRope,
    Llama3Rope,
    LongRope,
    NotComputed,
    Rope,
    YarnRope,
    require,
)
from srt.wire.errors import ConfigError

KINDS = ("default", "linear", "llama3", "yarn")


class RopeKeys(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """One rope setting. A key that is not here would change what is computed."""

    rope_type: str | None = None
    legacy_type: str | None = field(name="type", default=None)
    rope_theta: float | None = None
    factor: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_max_position_embeddings: int | None = None
    partial_rotary_factor: float | None = None
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factor: list[float] | None = None
    long_factor: list[float] | None = None
    mrope_section: list[int] | None = None
    mrope_interleaved: bool = False  # follows from the family

    @property
    def kind(self) -> str:
        kind = self.rope_type or self.legacy_type or "default"
        return "default" if kind == "mrope" else kind


def read_rope(keys: RopeKeys, context_len: int, path: Path) -> Rope:
    """The rotary embedding of whole heads that `keys` describe; `context_len` is the file's.

    Raises NotComputed for a kind that is not computed exactly, and ConfigError for missing or odd
    numbers.
    """
    theta = keys.rope_theta or 10000.0
    original = keys.original_max_position_embeddings or context_len
    if keys.kind == "default":
        return Rope(theta)
    if keys.kind == "linear":
        return Rope(theta, scaling=LinearRope(_factor(keys, path)))
    if keys.kind == "llama3":
        return Rope(theta, scaling=_llama3(keys, original, path))
    if keys.kind == "yarn":
        scaling, amplitude = _yarn(keys, original, context_len, path)
        return Rope(theta, scaling=scaling, amplitude=amplitude)
    raise NotComputed(
        f"{path}: rope scaling {keys.kind!r} is not supported ({', '.join(KINDS)} are)"
    )


def read_longrope(keys: RopeKeys, context_len: int, path: Path) -> Rope:
    """LongRoPE with its factors for sequences up to the original length.

    The others would change the keys of all tokens that are computed already as soon as a sequence
    outgrows it (`srt.files.context` bounds the context).
    """
    if keys.short_factor is None or keys.long_factor is None:
        raise ConfigError(f"{path}: longrope scaling needs short_factor and long_factor")
    original = keys.original_max_position_embeddings or context_len
    factor = keys.factor or context_len / original
    amplitude = keys.attention_factor
    if amplitude is None:
        amplitude = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    scaling = LongRope(tuple(keys.short_factor))
    return Rope(keys.rope_theta or 10000.0, scaling=scaling, amplitude=amplitude)


def _factor(keys: RopeKeys, path: Path) -> float:
    factor = keys.factor or 0.0
    require(factor >= 1.0, f"{path}: {keys.kind} rope scaling needs factor >= 1")
    return factor


def _llama3(keys: RopeKeys, original: int, path: Path) -> Llama3Rope:
    factors = (keys.factor, keys.low_freq_factor, keys.high_freq_factor)
    factor, low, high = (value or 0.0 for value in factors)
    require(
        factor >= 1.0 and 0.0 < low < high,
        f"{path}: llama3 rope scaling needs factor >= 1 and 0 < low_freq_factor < high_freq_factor",
    )
    return Llama3Rope(factor, low, high, original)


def _yarn(keys: RopeKeys, original: int, context_len: int, path: Path) -> tuple[YarnRope, float]:
    """The scaling, and the factor of sines and cosines."""
    factor = context_len / original if keys.factor is None else _factor(keys, path)
    fast, slow = keys.beta_fast or 32.0, keys.beta_slow or 1.0
    require(0 < slow <= fast, f"{path}: yarn rope scaling needs 0 < beta_slow <= beta_fast")
    return YarnRope(factor, original, fast, slow, keys.truncate), _yarn_amplitude(keys, factor)


def _yarn_amplitude(keys: RopeKeys, factor: float) -> float:
    if keys.attention_factor is not None:
        return keys.attention_factor
    if keys.mscale and keys.mscale_all_dim:
        return _growth(factor, keys.mscale) / _growth(factor, keys.mscale_all_dim)
    return _growth(factor, 1.0)


def _growth(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0
