"""A pause of generation, and the clock of requests' time limits, which stands still with it.

The front decides on it, the schedulers obey it. An admin's work may need it: new weights, a flush.
"""

from typing import Literal

from msgspec import Struct

# What becomes of the requests that have come: they are aborted; they leave the batch, so that
# nothing of them needs the cache; or they stay in it. Those that come later wait.
PauseMode = Literal["abort", "retract", "in_place"]
PAUSE_MODES: tuple[PauseMode, ...] = ("abort", "retract", "in_place")
PAUSE_TIMEOUT_S = 30.0  # for the steps that run when it is asked for


class Pause(Struct, frozen=True, array_like=True, omit_defaults=True):
    """The pause of this `mode` (None: generation goes on), which began at `since_s` of
    time.monotonic(); those before it took `before_s` seconds in all."""

    mode: PauseMode | None = None
    since_s: float = 0.0
    before_s: float = 0.0

    @property
    def is_on(self) -> bool:
        return self.mode is not None

    def served_s(self, now: float) -> float:
        """The clock of time limits, in seconds, at `now` of time.monotonic(): it leaves out all
        pauses."""
        return (self.since_s if self.is_on else now) - self.before_s

    def begun(self, mode: PauseMode, now: float) -> "Pause":
        """This pause in another mode, or a new one that begins now."""
        return Pause(mode, self.since_s if self.is_on else now, self.before_s)

    def ended(self, now: float) -> "Pause":
        """No pause from now on."""
        return Pause(before_s=now - self.served_s(now))


NO_PAUSE = Pause()
