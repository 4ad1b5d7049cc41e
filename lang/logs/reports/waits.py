"""Which calls of a run whatever comes next had to wait for: each call is reported with these.

A state has them, and so has a program's function: it knows what the variables had that it read.
Where nothing is reported no call begins here, and all of this stays empty.
"""

from collections.abc import Mapping

MAX_AFTER = 64  # calls that one is reported to have waited for; of more, the last to end


class Made:
    """A call, with those that it waited for itself. It ended at `ended_s` (since 1970)."""

    __slots__ = ("after", "ended_s")

    def __init__(self, after: list[str]) -> None:
        self.after = after
        self.ended_s = 0.0


Calls = Mapping[str, Made]
NO_CALLS: Calls = {}


class Waits:
    """`calls` by their ids are replaced, never changed: any thread may read and keep them. Those
    that others of them have waited for are left out."""

    __slots__ = ("calls",)

    def __init__(self, calls: Calls = NO_CALLS) -> None:
        self.calls = calls

    def also(self, calls: Calls) -> None:
        """What comes next has waited for these too."""
        if not calls or calls is self.calls:
            return
        both = {**self.calls, **calls}
        earlier = {name for made in both.values() for name in made.after}
        self.calls = {name: made for name, made in both.items() if name not in earlier}

    def begin(self, name: str) -> Made:
        """A call begins, and what comes next waits for it."""
        last = sorted(self.calls, key=lambda each: self.calls[each].ended_s)
        made = Made(last[-MAX_AFTER:])
        self.calls = {name: made}
        return made
