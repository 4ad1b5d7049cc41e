"""How many positions a model can compute: what its files say, corrected by its rope scaling.

The tokenizer process (limits) and the scheduler (the model's configuration) must agree on it.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

from srt.files.gguf import GGUFFile
from srt.wire.errors import ConfigError


class _Rope(Struct):
    rope_type: str | None = None
    legacy_type: str | None = field(name="type", default=None)
    factor: float | None = None
    original_max_position_embeddings: int | None = None
    long_factor: list[float] | None = None


class _ContextKeys(Struct):
    rope_parameters: _Rope | None = None
    rope_scaling: _Rope | None = None
    original_max_position_embeddings: int | None = None


_MAX_POSITIONS = 2**31 - 1

# Phi-3's files may leave out the default of its class.
_LONGROPE_ORIGINAL = 4096


class _GGUFKeys(Struct):
    context_len: Annotated[int, Meta(ge=1, le=_MAX_POSITIONS)] = field(name="context_length")
    scaling: str | None = field(name="rope.scaling.type", default=None)
    factor: float | None = field(name="rope.scaling.factor", default=None)
    original_len: int | None = field(name="rope.scaling.original_context_length", default=None)


def hf_context_len(config: Mapping[str, Any], max_positions: int) -> int:
    """For a config.json whose max_position_embeddings is `max_positions`.

    YaRN stretches its original length, and files that have it added often leave
    max_position_embeddings unchanged. LongRoPE has other factors beyond its original length, which
    would change the keys of all earlier tokens; only the factors up to it are used.

    Raises ConfigError for values of another type, and for one that is not finite or too large.
    """
    _bounded(max_positions, "config.json: max_position_embeddings")
    try:
        keys = msgspec.convert(config, _ContextKeys)
    except msgspec.ValidationError as error:
        raise ConfigError(f"config.json: {error}") from error
    rope = keys.rope_parameters or keys.rope_scaling or _Rope()
    original = keys.original_max_position_embeddings or rope.original_max_position_embeddings
    if rope.long_factor is not None:
        return min(max_positions, original or _LONGROPE_ORIGINAL)
    if (rope.rope_type or rope.legacy_type) == "yarn" and rope.factor is not None:
        return max(max_positions, _stretched(original or max_positions, rope.factor, "config.json"))
    return max_positions


def gguf_context_len(file: GGUFFile) -> int:
    """The same from a GGUF file's metadata. Raises ConfigError for keys that are missing or bad."""
    prefix = f"{file.metadata.get('general.architecture')}."
    found = {k.removeprefix(prefix): v for k, v in file.metadata.items() if k.startswith(prefix)}
    try:
        keys = msgspec.convert(found, _GGUFKeys)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{file.path}: {error}") from error
    original = keys.original_len or keys.context_len
    if "rope_factors_long.weight" in file.tensors:
        return min(keys.context_len, original)
    if keys.scaling == "yarn" and keys.factor:
        return max(keys.context_len, _stretched(original, keys.factor, str(file.path)))
    return keys.context_len


def capped(length: int, most: int) -> int:
    """`length`, or `most` if that is less; 0 is no limit."""
    return min(length, most) if most else length


def _stretched(length: int, factor: float, where: str) -> int:
    """The positions that YaRN makes of `length`. Raises ConfigError, which says `where` it says
    so."""
    try:
        return _bounded(int(factor * length), f"{where}: yarn rope scaling by {factor}")
    except (OverflowError, ValueError) as error:  # infinite; no number
        raise ConfigError(
            f"{where}: yarn rope scaling by {factor} of {length} positions"
        ) from error


def _bounded(length: int, what: str) -> int:
    """Raises ConfigError for more positions than an int32 counts."""
    if length > _MAX_POSITIONS:
        raise ConfigError(f"{what} gives {length} positions: at most {_MAX_POSITIONS} can be used")
    return length
