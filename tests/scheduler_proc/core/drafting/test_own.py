"""Guesses from a req's own tokens, compared with a search through all of them."""

from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scheduler_proc.core.drafting import ngrams
from scheduler_proc.core.drafting.own import OwnTokens
from scheduler_proc.core.requests.request import Req
from scheduler_proc.media.spans import Spans
from srt.wire.media import MediaItem, MediaSpan
from tests.scheduler_proc.core.drafting.reqs import common_end, longest_place, plain, req_of

TOKENS = st.lists(st.integers(0, 2), min_size=3, max_size=30)
CHANGES = st.lists(st.tuples(st.integers(0, 25), TOKENS), min_size=4, max_size=12)


def going_on(known: list[int], place: int, most: int) -> list[int]:
    """What came at a place and after it, again and again."""
    tokens = known[place:]
    while len(tokens) < most:
        tokens += known[place:]
    return tokens[:most]


def check(source: OwnTokens, req: Req, most: int) -> None:
    """A match of up to 8 tokens is the longest, and the latest of those; a longer one has gone on
    from such a match."""
    known = req.tokens.known.tolist()
    best, found = longest_place(known, known, 2), plain(source.match(req, most))
    if best is None:
        assert found is None
        return
    assert found is not None
    length, tokens = found
    if length <= 8:
        assert (length, tokens) == (best[0], going_on(known, best[1], most))
    else:
        places = [p for p in range(1, len(known)) if common_end(known, known[:p]) >= length]
        assert best[0] == 8 and tokens in [going_on(known, p, most) for p in places]


@given(prompt=TOKENS, changes=CHANGES, scanned=st.sampled_from([0, 3, 512]), most=st.integers(1, 6))
def test_the_longest_match_is_found_and_the_latest_of_those(
    prompt: list[int], changes: list[tuple[int, list[int]]], scanned: int, most: int
) -> None:
    """While tokens come, one or several at a time, and have others put in their place."""
    with patch.object(ngrams, "MOST_SCANNED", scanned):
        source, req = OwnTokens(), req_of(prompt)
        check(source, req, most)
        for number, (drop, tokens) in enumerate(changes):
            req.replace_tail(min(drop, len(req.tokens.outputs)), tokens)
            if number % 3 < 2:
                check(source, req, most)


@given(tokens=st.lists(st.integers(0, 3), min_size=40, max_size=80), shift=st.integers(1, 20))
def test_ids_that_are_alike_in_their_lowest_bits_are_told_apart(
    tokens: list[int], shift: int
) -> None:
    """Of a text whose places are all in one run."""
    with patch.object(ngrams, "MOST_SCANNED", 0):
        check(OwnTokens(), req_of([token << shift for token in tokens]), 3)


def test_of_a_long_text_all_parts_are_searched() -> None:
    """Prompt and output, each longer than what is scanned."""
    rng = np.random.default_rng(0)
    source, req = OwnTokens(), req_of(rng.permutation(900).tolist())
    known = req.tokens.known.tolist()
    for _ in range(3):
        check(source, req, 4)
        req.replace_tail(0, rng.integers(900, 1000, 700).tolist())
    for place in (5, 450, 880):
        req.replace_tail(0, known[place : place + 6])
        found = plain(source.match(req, 3))
        assert found == (6, known[place + 6 : place + 9])
    req.replace_tail(1900, known[100:103])  # far into what is sorted already
    assert plain(source.match(req, 2)) == (3, known[103:105])
    check(source, req, 2)


def test_of_a_very_long_text_all_places_are_searched() -> None:
    """So many that there is no room for all bits of the tokens before them."""
    rng = np.random.default_rng(1)
    source, req = OwnTokens(), req_of(rng.integers(0, 60, 40_000).tolist())
    for length in range(2, 12):
        place = int(rng.integers(0, 39_000))
        req.replace_tail(0, [61, *req.tokens.known[place : place + length].tolist()])
        known, same = req.tokens.known, min(8, length)
        while True:
            starts = np.lib.stride_tricks.sliding_window_view(known[:-1], same)
            found = np.flatnonzero((starts == known[-same:]).all(axis=1))
            if len(found):
                break
            same -= 1
        at = int(found[-1]) + same
        assert plain(source.match(req, 2)) == (same, known[at : at + 2].tolist())


def test_a_match_that_goes_on_grows_without_a_search() -> None:
    prompt = list(range(100, 150))
    source, req = OwnTokens(), req_of(prompt)
    req.replace_tail(0, prompt[10:12])
    with patch.object(ngrams.NgramIndex, "find", autospec=True, side_effect=ngrams.NgramIndex.find):
        for end in range(12, 40, 3):
            assert plain(source.match(req, 2)) == (end - 10, prompt[end : end + 2])
            req.replace_tail(0, prompt[end : end + 3])
        assert ngrams.NgramIndex.find.call_count == 1  # type: ignore[attr-defined]


def test_two_tokens_that_are_everywhere_are_compared_where_they_came_last() -> None:
    """A text of one line, again and again: more places than are compared."""
    source, req = OwnTokens(), req_of([1, 2, 3] * 1000)
    assert plain(source.match(req, 4)) == (8, [1, 2, 3, 1])


def test_a_match_begins_where_a_token_does() -> None:
    """The bytes of 258, 256, 0, 0 have those of 1, 1, 0 in them, one byte behind."""
    known = [258, 256, 0, 0, 5, 1, 0, 6, 1, 1, 0]
    assert plain(OwnTokens().match(req_of(known), 2)) == (2, [6, 1])


def test_the_beginning_of_a_text_has_nothing_before_it() -> None:
    """Of six places after 1 2 none is after 1 1 2, the first only if nothing is taken for 1."""
    known = [1, 2, 3, 1, 2, 4, 1, 2, 5, 1, 2, 6, 1, 2, 7, 1, 2, 8, 1, 1, 2]
    assert plain(OwnTokens().match(req_of(known), 2)) == (2, [8, 1])


def test_a_guess_stays_what_it_was() -> None:
    source, req = OwnTokens(), req_of([1, 2])
    req.replace_tail(0, [3, 4, 1, 2])
    found = source.match(req, 2)
    req.replace_tail(4, [5, 6, 7])
    assert plain(found) == (2, [3, 4])


def test_no_tokens_of_a_picture_are_guessed() -> None:
    item = MediaItem(b"d", "image", 3, (1, 1, 1, 3))
    spans = Spans([MediaSpan(4, item)])
    prompt = [10, 11, 12, 13, 2000, 2000, 2000, 14, 15, 16]
    source, req = OwnTokens(), req_of(prompt, spans=spans)
    req.replace_tail(0, [10, 11])
    assert plain(source.match(req, 8)) == (2, [12, 13])
    req.replace_tail(0, [12, 13])
    assert source.match(req, 8) is None
    req.replace_tail(0, [14, 15])
    assert plain(source.match(req, 1)) == (2, [16])


def test_nothing_is_kept_of_reqs_that_have_ended() -> None:
    source = OwnTokens()
    for prompt in ([1], [1, 2, 1, 2]):
        req = req_of(prompt)
        source.match(req, 1)
        source.ended(req)
        source.ended(req)
    assert source._reqs == {}
