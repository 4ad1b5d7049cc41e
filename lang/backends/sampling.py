"""How one gen samples: SGLang's names, merged from a run's defaults and a gen's own arguments.

Invariant: the defaults here ask for nothing on any back end (None is what the server and its model
have as theirs), so a back end that lacks a parameter
must refuse every other value of it (`Sampling.refuse`), by name.
"""

import hashlib
from collections.abc import Collection
from typing import Any

import msgspec
from msgspec import field

from lang.errors import UnsupportedError
from srt.wire.filled_params import NEUTRAL
from srt.wire.sampling import GREEDY_TEMPERATURE, CommonSampling

CONSTRAINTS = ("regex", "json_schema", "ebnf")  # fields of which one may be given


class Sampling(CommonSampling, frozen=True, kw_only=True):
    """Everything a back end may be asked for in one completion.

    `stop_regex` ends the text before the first match of one of its patterns. `json_schema` is the
    text of a JSON Schema. `timeout_s` and `n` are handled by the language, not by a back end.
    """

    max_tokens: int = 128
    min_tokens: int = 0
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_regex: tuple[str, ...] = ()
    # The keys are ids as texts, as OpenAI has it.
    logit_bias: dict[str, float] = field(default_factory=dict)  # type: ignore[assignment]
    regex: str | None = None
    json_schema: str | None = None
    ebnf: str | None = None
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    return_text_in_logprobs: bool = False
    timeout_s: float | None = None
    # What providers have besides; None and {} are theirs. Our server has the tier of these.
    reasoning_effort: str | None = None
    verbosity: str | None = None
    service_tier: str | None = None
    extra_body: dict[str, Any] = field(default_factory=dict)
    # What our server has besides.
    priority: int | None = None
    hints: dict[str, Any] | None = None

    def merged(self, given: dict[str, Any]) -> "Sampling":
        """This sampling, overridden by every value of `given` that is not None."""
        values = {name: _value(name, v) for name, v in given.items() if v is not None}
        return msgspec.structs.replace(self, **values) if values else self

    @property
    def is_greedy(self) -> bool:
        """Whether it says so; without a temperature the server's model decides."""
        return self.temperature is not None and self.temperature <= GREEDY_TEMPERATURE

    def set_fields(self) -> set[str]:
        """The names whose value is not the default."""
        # Twice a call, so that it counts in what a program costs.
        values = zip(self.__struct_fields__, msgspec.structs.astuple(self), _DEFAULTS, strict=True)
        return {name for name, value, default in values if value != default}

    def sets_any(self, names: Collection[str]) -> list[str]:
        """Those of `names` whose value is not the default, in order."""
        return sorted(name for name in names if getattr(self, name) != getattr(PLAIN, name))

    def refuse(self, names: Collection[str], backend: str, advice: str = "") -> None:
        """Raise UnsupportedError if one of `names` has another value than its default."""
        for name in sorted(self.set_fields().intersection(names)):
            raise UnsupportedError(name, f"{backend} does not support it{advice}")


def is_neutral(name: str, value: Any) -> bool:
    """Whether a parameter of this value changes nothing: it is the default, or draws as without."""
    plain = getattr(PLAIN, name, None)
    neutral = getattr(NEUTRAL, name, plain)
    return bool(value in (plain, neutral) or (not neutral and not value))


def derived_seed(seed: int | None, *address: int | str) -> int | None:
    """The seed (63 bits) at `address` below something with `seed`, the same in every process;
    None if `seed` is None."""
    if seed is None:
        return None
    digest = hashlib.blake2b(repr((seed, *address)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _value(name: str, value: Any) -> Any:
    """`value`, as a list or tuple if the default is one; it may then be a single text or number."""
    kind = type(getattr(PLAIN, name))
    if kind not in (list, tuple):
        return value
    return kind((value,) if isinstance(value, str | int) else value)


PLAIN = Sampling()
_DEFAULTS = msgspec.structs.astuple(PLAIN)
