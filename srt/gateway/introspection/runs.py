"""Runs of programs that were reported: the last ones, of bounded size."""

from collections import OrderedDict
from typing import Any

import msgspec
from msgspec import Struct, field

MAX_RUNS = 64
MAX_STEPS = 2000  # of a run
MAX_BYTES = 4 * 1024 * 1024  # of all
MAX_RUN_BYTES = 1024 * 1024  # of one; after that its calls have no texts, and new ones are left out
MAX_CUT = 10_000  # calls of a run that are left out, and known to be so
_TEXTS = {"text": "", "prompt": "", "error": None}

Event = dict[str, Any]


class _Run(Struct):
    """One run: what all of its events have, its steps by id, and about how large they are. Pages do
    not know of `news` yet, nor of what `about` says if there `is_news`."""

    about: Event
    steps: dict[str, Event] = field(default_factory=dict)
    news: dict[str, None] = field(default_factory=dict)
    is_news: bool = True
    num_bytes: int = 0
    cut: set[str] = field(default_factory=set)  # ids of steps that were too many


class Runs:
    """What pages have not been told yet is kept until they are: `news`.

    No cache of cachetools, which would ask for a run's size once: runs grow, and pages hear of
    those that are dropped.
    """

    def __init__(self) -> None:
        self._runs: OrderedDict[str, _Run] = OrderedDict()
        self._num_bytes = 0
        self._dropped: dict[str, None] = {}

    def add(self, about: Event, steps: list[Event]) -> None:
        """Steps of the run that `about` has the `run` of. One with an id that is known replaces it;
        the runs that were reported last are kept."""
        name = about["run"]
        run = self._runs.get(name)
        if run is None:
            run = self._runs[name] = _Run(about)
            self._dropped.pop(name, None)
        self._runs.move_to_end(name)
        for step in steps:
            self._add_step(run, step)
        run.about = about | {"ended": about["ended"] or run.about["ended"]}
        run.is_news = True
        self._make_room()

    def _add_step(self, run: _Run, step: Event) -> None:
        before = run.steps.get(step["id"])
        had = 0 if before is None else _size(before)
        is_full = run.num_bytes - had + _size(step) > MAX_RUN_BYTES
        if before is None and (is_full or len(run.steps) >= MAX_STEPS):
            if len(run.cut) < MAX_CUT:
                run.cut.add(step["id"])  # it is reported as it begins and as it ends
            return
        step = step | _TEXTS | {"after": step["after"][:1]} if is_full else step
        run.steps[step["id"]] = step
        run.news[step["id"]] = None
        gained = _size(step) - had
        run.num_bytes += gained
        self._num_bytes += gained

    def _make_room(self) -> None:
        """Drop the oldest while there is too much."""
        while len(self._runs) > MAX_RUNS or self._num_bytes > MAX_BYTES:
            name, run = self._runs.popitem(last=False)
            self._num_bytes -= run.num_bytes
            self._dropped[name] = None
            if len(self._dropped) > MAX_RUNS:  # of which pages that came meanwhile know nothing
                del self._dropped[next(iter(self._dropped))]

    def news(self, max_bytes: int) -> list[Event]:
        """Events of what is new since the last call, of about so many bytes; the rest follows."""
        events: list[Event] = []
        for run in self._runs.values():
            if not run.is_news:
                continue
            taken = []
            for name in list(run.news):
                if max_bytes <= 0:
                    break
                del run.news[name]
                taken.append(run.steps[name])
                max_bytes -= _size(run.steps[name])
            run.is_news = bool(run.news)
            events.append(_event(run, taken))
            if max_bytes <= 0:
                break
        if events:  # there are some whenever a run was dropped: for one that was reported
            events[0]["dropped"], self._dropped = list(self._dropped), {}
        return events

    def told(self) -> None:
        """Nobody waits for news: who comes is told everything."""
        self._dropped = {}
        for run in self._runs.values():
            run.news, run.is_news = {}, False

    def whole(self) -> list[Event]:
        """An event for each run, with all of its steps."""
        return [_event(run, list(run.steps.values())) for run in self._runs.values()]


def _event(run: _Run, steps: list[Event]) -> Event:
    return {"type": "run", **run.about, "cut": len(run.cut), "steps": steps, "dropped": []}


def _size(step: Event) -> int:
    """As it is sent."""
    return len(msgspec.json.encode(step))
