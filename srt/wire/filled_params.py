"""Sampling parameters with nothing left unset: what the front gives the scheduler.

A request may leave `temperature`, `top_p`, `top_k`, `min_p` and `repetition_penalty` unset. The
front fills them in, in one place, so that all transports and APIs agree.
"""

from msgspec import Struct
from msgspec.structs import asdict

from srt.wire.sampling import SamplingParams


class SamplingDefaults(Struct, frozen=True, kw_only=True):
    """What the parameters are that a request leaves unset. Without arguments they change no
    probability."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    repetition_penalty: float = 1.0


NEUTRAL = SamplingDefaults()


class FilledParams(SamplingParams, frozen=True, kw_only=True):
    """Sampling parameters in which those of `SamplingDefaults` always have a value."""

    temperature: float = NEUTRAL.temperature
    top_p: float = NEUTRAL.top_p
    top_k: int = NEUTRAL.top_k
    min_p: float = NEUTRAL.min_p
    repetition_penalty: float = NEUTRAL.repetition_penalty

    @classmethod
    def of(cls, given: SamplingParams, defaults: SamplingDefaults) -> "FilledParams":
        """`given`, with the values of `defaults` where it has none."""
        values = asdict(given)
        for name in defaults.__struct_fields__:
            if values[name] is None:
                values[name] = getattr(defaults, name)
        return cls(**values)

    @property
    def has_penalties(self) -> bool:
        """Whether the tokens generated so far change the logits."""
        return (
            self.frequency_penalty != 0.0
            or self.presence_penalty != 0.0
            or self.repetition_penalty != 1.0
        )
