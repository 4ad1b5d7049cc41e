"""Who is to blame for the loss of a scheduler, from what it has left.

The requests of its last step are suspects: each is tried alone at its next scheduler. If the last
step was a trial, and the scheduler has crashed, its request is guilty; if the scheduler was killed,
by somebody or for want of memory, at the second time. So is one whose trial went on, while others
had a step, when the thread that plans has crashed: perhaps of the trial's next step. A note of the
thread that has crashed tells more: whose constraint it was at. Then that one is guilty, and nobody
else.
"""

import logging
from collections.abc import Set
from typing import NamedTuple

from srt.ring.crash_file import Left, Name

log = logging.getLogger(__name__)


class Verdict(NamedTuple):
    """Requests that may be to blame and that are; whose trial it was when a scheduler was killed;
    and the grammars that ended one when they were loaded."""

    suspects: frozenset[Name] = frozenset()
    guilty: frozenset[Name] = frozenset()
    killed: frozenset[Name] = frozenset()
    grammars: frozenset[str] = frozenset()


def verdict_on(left: Left, killed: Set[Name]) -> Verdict:
    """The verdict; in the trials of those in `killed` a scheduler was killed before."""
    record, note = left.record, left.note
    running = frozenset(record.running)
    _tell(left)
    if isinstance(note, str):
        return Verdict(running, grammars=frozenset([note]))
    if note is not None:
        return Verdict(running - {note}, frozenset([note]))
    if not record.is_trial:
        on_trial = frozenset([record.on_trial] if record.on_trial and left.is_of_loop else [])
        if on_trial & killed:
            return Verdict(running, guilty=on_trial)
        return Verdict(running, killed=on_trial)
    if left.last_words or (not record.is_between and running & killed):
        return Verdict(guilty=running)
    return Verdict(running, killed=frozenset() if record.is_between else running)


def spelled(name: Name) -> str:
    """A request's client and rid, for the log."""
    return f"{name[0].hex()}/{name[1]}"


def _tell(left: Left) -> None:
    if left.last_words:
        log.error("the last scheduler's last words: %s", left.last_words)
    if left.record.running:
        what = "in a trial" if left.record.is_trial else "in or after a step"
        names = ", ".join(map(spelled, left.record.running))
        log.warning("the last scheduler was lost %s of these requests: %s", what, names)
