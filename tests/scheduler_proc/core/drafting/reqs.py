"""Reqs for sources of guesses, and matches by brute force."""

from collections.abc import Sequence
from itertools import count

from scheduler_proc.core.drafting.base import Match
from scheduler_proc.core.requests.request import Req
from scheduler_proc.media.spans import Spans
from srt.wire.filled_params import FilledParams
from srt.wire.messages import Finish, pack_ids
from srt.wire.ring_messages import TokenizedReq

VOCAB = 1000
MAX_NEW = 5000

_handles = count()


def req_of(
    prompt: Sequence[int],
    salt: str = "",
    spans: Spans | None = None,
    prediction: Sequence[int] = (),
) -> Req:
    """A running req, with a handle of its own."""
    handle = next(_handles)
    sampling = FilledParams(max_new_tokens=MAX_NEW)
    media = [] if spans is None else list(spans.spans)
    wire = TokenizedReq(
        *(b"c", str(handle), 0, pack_ids(list(prompt)), sampling),
        cache_salt=salt,
        media=media,
        prediction=pack_ids(list(prediction)),
    )
    return Req.of(handle, wire, 0.0, VOCAB)


def ended_req(output: Sequence[int], salt: str = "", finish: str = "stop") -> Req:
    req = req_of([1], salt)
    req.replace_tail(0, list(output))
    req.finish = Finish(finish)
    return req


def plain(match: Match | None) -> tuple[int, list[int]] | None:
    return None if match is None else (match.length, match.tokens.tolist())


def common_end(first: Sequence[int], second: Sequence[int]) -> int:
    """How many of their last tokens are the same."""
    length = 0
    while length < min(len(first), len(second)) and first[-1 - length] == second[-1 - length]:
        length += 1
    return length


def longest_place(known: Sequence[int], text: Sequence[int], least: int) -> tuple[int, int] | None:
    """The longest match, of up to 8 tokens, of the end of `known` before a place of `text`, and the
    latest of these places."""
    found = [(min(8, common_end(known, text[:place])), place) for place in range(1, len(text))]
    best = max(found, default=(0, 0))
    return best if best[0] >= least else None
