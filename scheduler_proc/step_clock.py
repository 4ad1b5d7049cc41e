"""How long steps compute, and how long the executor waits between them although there is work.

`begin` and `end` are called in the compute thread, `rest` by the loop while no step runs. The
exposed time is what scheduling costs the requests: with overlap it is next to nothing.
"""


class StepClock:
    """Totals in seconds. Times are any monotonic clock's."""

    def __init__(self) -> None:
        self.step_s = 0.0
        self.exposed_s = 0.0
        self._began = 0.0
        self._ended: float | None = None  # None: there was nothing to do since

    def begin(self, now: float) -> None:
        """The executor starts on a step."""
        if self._ended is not None:
            self.exposed_s += now - self._ended
        self._began = now

    def end(self, now: float) -> None:
        """It has finished, or failed."""
        self.step_s += now - self._began
        self._ended = now

    def rest(self) -> None:
        """There is nothing to run: the time until the next step is nobody's."""
        self._ended = None
