"""How long steps compute, and how long the executor waits between them although there is work.

`begin` and `end` are called in the compute thread, `rest` by the loop while no step runs. The
exposed time is what scheduling costs the requests: with overlap it is next to nothing.
"""

from collections import deque

from scheduler_proc.core.steps.step_cost import NOTHING, StepSize

MAX_STEPS = 256


class StepClock:
    """Totals in seconds. Times are any monotonic clock's."""

    def __init__(self) -> None:
        self.step_s = 0.0
        self.exposed_s = 0.0
        self.encode_s = 0.0  # of media; in neither of the two
        # Of each step since the last look: its tokens and its seconds, including the exposed ones
        # before it.
        self.steps: deque[tuple[StepSize, float]] = deque(maxlen=MAX_STEPS)
        self._began = self._since = 0.0
        self._ended: float | None = None  # None: there was nothing to do since

    def begin(self, now: float) -> None:
        """The executor starts on a step."""
        if self._ended is not None:
            self.exposed_s += now - self._ended
        self._since = now if self._ended is None else self._ended
        self._began = now

    def end(self, now: float, size: StepSize = NOTHING) -> None:
        """It has finished a step of this size, or failed one (nothing)."""
        self.step_s += now - self._began
        if size.tokens > 0:
            self.steps.append((size, now - self._since))
        self._ended = now

    def encoded(self, seconds: float, *, is_between: bool) -> None:
        """A part of an item, or a slice, took so long. If it was between two steps, the executor
        did not wait meanwhile, nor was it at the next step."""
        self.encode_s += seconds
        ended = self._ended
        if is_between and ended is not None:
            self._ended = ended + seconds

    def rest(self) -> None:
        """There is nothing to run: the time until the next step does not count."""
        self._ended = None
