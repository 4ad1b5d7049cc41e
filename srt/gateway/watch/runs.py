"""Runs of programs that were reported: the last ones, of bounded size."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from msgspec import Struct

MAX_RUNS = 64
MAX_STEPS = 2000  # of a run
MAX_BYTES = 4 * 1024 * 1024  # of all
MAX_RUN_BYTES = 1024 * 1024  # of one; after that its calls have no texts, and new ones are left out
_STEP_BYTES = 400  # besides its texts

Event = dict[str, Any]


class _Run(Struct):
    """One run: what all of its events have, its steps by id, and about how large they are."""

    about: Event
    steps: dict[str, Event]
    num_bytes: int = 0
    cut: int = 0  # steps that were too many


class Runs:
    """`tell` gets each event for the pages."""

    def __init__(self, tell: Callable[[Event], None]) -> None:
        self._tell = tell
        self._runs: OrderedDict[str, _Run] = OrderedDict()
        self._num_bytes = 0

    def add(self, about: Event, steps: list[Event]) -> None:
        """Steps of the run that `about` has the `run` of. One with an id that is known replaces it;
        the runs that were reported last are kept."""
        name = about["run"]
        run = self._runs.get(name)
        if run is None:
            run = self._runs[name] = _Run(about, {})
        self._runs.move_to_end(name)
        taken = []
        for step in steps:
            before = run.steps.get(step["id"])
            is_full = run.num_bytes + _size(step) > MAX_RUN_BYTES
            if before is None and (is_full or len(run.steps) >= MAX_STEPS):
                run.cut += 1
                continue
            step = step | {"text": "", "prompt": ""} if is_full else step
            taken.append(step)
            run.steps[step["id"]] = step
            gained = _size(step) - (0 if before is None else _size(before))
            run.num_bytes += gained
            self._num_bytes += gained
        run.about = about | {"ended": about["ended"] or run.about["ended"]}
        self._tell(_event(run, taken, self._make_room()))

    def _make_room(self) -> list[str]:
        """Drop the oldest while there is too much; which these were."""
        dropped = []
        while len(self._runs) > MAX_RUNS or self._num_bytes > MAX_BYTES:
            name, run = self._runs.popitem(last=False)
            self._num_bytes -= run.num_bytes
            dropped.append(name)
        return dropped

    def whole(self) -> list[Event]:
        """An event for each run, with all of its steps."""
        return [_event(run, list(run.steps.values()), []) for run in self._runs.values()]


def _event(run: _Run, steps: list[Event], dropped: list[str]) -> Event:
    return {"type": "run", **run.about, "cut": run.cut, "steps": steps, "dropped": dropped}


def _size(step: Event) -> int:
    return _STEP_BYTES + sum(len(each) for each in step.values() if isinstance(each, str))
