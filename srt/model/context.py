"""How many positions of a model can be computed: what its files say, corrected by its rope scaling.

The tokenizer process (limits) and the scheduler (the model's configuration) must agree on it.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from srt.errors import ConfigError


class _Rope(Struct):
    rope_type: str | None = None
    legacy_type: str | None = field(name="type", default=None)
    factor: float | None = None
    original_max_position_embeddings: int | None = None
    long_factor: list[float] | None = None


class _Keys(Struct):
    rope_parameters: _Rope | None = None
    rope_scaling: _Rope | None = None
    # Phi-3's files may leave out the default of its class.
    original_max_position_embeddings: int | None = 4096


def hf_context_len(config: Mapping[str, Any], max_positions: int) -> int:
    """For a config.json whose max_position_embeddings is `max_positions`.

    YaRN stretches its original length, and files that have it added often leave
    max_position_embeddings as it was. LongRoPE has other factors beyond its original length, which
    would change the keys of all tokens before; only the factors up to it are used.

    Raises ConfigError for keys of another type.
    """
    try:
        keys = msgspec.convert(config, _Keys)
    except msgspec.ValidationError as error:
        raise ConfigError(f"config.json: {error}") from error
    rope = keys.rope_parameters or keys.rope_scaling or _Rope()
    if rope.long_factor is not None:
        original = rope.original_max_position_embeddings or keys.original_max_position_embeddings
        return min(max_positions, original or max_positions)
    if (rope.rope_type or rope.legacy_type) == "yarn" and rope.factor is not None:
        original = rope.original_max_position_embeddings or max_positions
        return max(max_positions, int(rope.factor * original))
    return max_positions
