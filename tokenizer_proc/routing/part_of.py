"""What the router knows of a request besides its prompt: what it reads of its hints."""

from collections.abc import Hashable
from typing import NamedTuple

from srt.wire.hints import PerfClass
from srt.wire.ring_messages import TokenizedReq


class PartOf(NamedTuple):
    """A class (a request beyond its caller's share has none here), the group of requests of which
    the last one's end counts, whether it is ahead of time, and when it came, in seconds."""

    perf: PerfClass = ""
    group: Hashable = None
    is_ahead: bool = False
    at_s: float = 0.0


NOTHING = PartOf()


def part_of(req: TokenizedReq, at_s: float) -> PartOf:
    """That of a request which came at `at_s`; without hints `NOTHING`."""
    hints = req.hints
    if hints is None:
        return NOTHING
    is_grouped = bool(hints.group) and hints.group_size != 1
    return PartOf(
        "" if hints.is_lowered else hints.perf,
        (req.caller, hints.app, hints.group) if is_grouped else None,
        hints.is_ahead,
        at_s,
    )
