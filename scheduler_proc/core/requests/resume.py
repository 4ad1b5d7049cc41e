"""Requests that go on after what an earlier scheduler has reported of them (`Reported`)."""

from collections.abc import Iterator
from time import monotonic

from msgspec.structs import replace

from scheduler_proc.grammar.base import Grammar
from srt.wire.messages import unpack_ids
from srt.wire.ring_messages import TokenizedReq

SLICE_S = 0.005  # that a grammar reads at once, and the last token of it


def reported_ids(wire: TokenizedReq) -> list[int]:
    """The output ids that it has already."""
    return [] if wire.reported is None else unpack_ids(wire.reported.ids).tolist()


def reading(grammar: Grammar, ids: list[int]) -> Iterator[None]:
    """Have a grammar read an output, slice by slice, until it allows anything: what comes then it
    might refuse. Raises GrammarError if it does not allow these."""
    until_s = monotonic() + SLICE_S
    for token in ids:
        if grammar.is_free():
            return
        grammar.accept([token])
        if monotonic() >= until_s:
            yield
            until_s = monotonic() + SLICE_S


def without_reported_logprobs(wire: TokenizedReq) -> TokenizedReq:
    """The same, asking only for those log-probabilities of its prompt that are missing."""
    scoring, reported = wire.scoring, wire.reported
    if scoring is None or reported is None or scoring.start < 0:
        return wire
    start = max(scoring.start, reported.prompt_logprobs)
    return replace(wire, scoring=replace(scoring, start=start))
