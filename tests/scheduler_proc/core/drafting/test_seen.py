"""Guesses from outputs that have ended, compared with a search through all of them."""

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from scheduler_proc.core.drafting import ngrams
from scheduler_proc.core.drafting.seen import SeenOutputs
from scheduler_proc.core.requests.request import Req
from tests.scheduler_proc.core.drafting.reqs import (
    common_end,
    ended_req,
    longest_place,
    plain,
    req_of,
)

TOKENS = st.lists(st.integers(0, 1), min_size=2, max_size=15)
SALTS = st.sampled_from(["", "a", "b"])


@given(
    outputs=st.lists(st.tuples(TOKENS, SALTS), min_size=3, max_size=8),
    known=TOKENS,
    salt=SALTS,
    scanned=st.sampled_from([0, 3, 512]),
)
def test_the_longest_match_in_an_output_of_the_salt_is_found_and_the_latest_of_those(
    outputs: list[tuple[list[int], str]], known: list[int], salt: str, scanned: int
) -> None:
    with patch.object(ngrams, "MOST_SCANNED", scanned):
        source = SeenOutputs()
        for output, theirs in outputs:
            source.ended(ended_req(output, theirs))
        expected: tuple[int, list[int]] | None = None
        for output in [output for output, theirs in outputs if theirs == salt]:
            best = longest_place(known, output, 3)
            if best is not None and (expected is None or best[0] >= expected[0]):
                expected = best[0], output[best[1] :][:4]
        assert plain(source.match(req_of(known, salt), 4)) == expected


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("ended"), TOKENS, SALTS),
        st.tuples(st.just("begins"), TOKENS, SALTS),
        st.tuples(st.just("goes on"), TOKENS, st.integers(0, 9)),
        st.tuples(st.just("is replaced"), TOKENS, st.integers(0, 9)),
    ),
    min_size=6,
    max_size=25,
)


@given(events=EVENTS, scanned=st.sampled_from([0, 512]))
def test_bounds_hold_and_every_guess_came_after_such_tokens_in_an_output_of_the_salt(
    events: list[tuple[str, list[int], str | int]], scanned: int
) -> None:
    with patch.object(ngrams, "MOST_SCANNED", scanned):
        source = SeenOutputs(most_tokens=30, most_salts=2)
        outputs: dict[str, list[list[int]]] = {}
        running: list[Req] = []
        for kind, tokens, which in events:
            if kind == "ended":
                assert isinstance(which, str)
                outputs.setdefault(which, []).append(tokens)
                source.ended(ended_req(tokens, which))
                if len(kept := tokens[-14:]) > 3:
                    found = source.match(req_of(kept[:3], which), 1)
                    assert found is not None, "the newest output is kept"
            elif kind == "begins":
                assert isinstance(which, str)
                running.append(req_of(tokens, which))
            elif running:
                assert isinstance(which, int)
                req = running[which % len(running)]
                drop = min(which, len(req.tokens.outputs)) if kind == "is replaced" else 0
                req.replace_tail(drop, tokens)
            assert source.num_tokens <= 30 and len(source._texts) <= 2
            for req in running:
                check_is_one_of(plain(source.match(req, 4)), req, outputs)


def check_is_one_of(
    found: tuple[int, list[int]] | None, req: Req, outputs: dict[str, list[list[int]]]
) -> None:
    if found is None:
        return
    length, tokens = found
    known = req.tokens.known.tolist()
    assert length >= 3 and 1 <= len(tokens) <= 4
    assert any(
        common_end(known, output[:place]) >= length and output[place:][:4] == tokens
        for output in outputs[req.wish.salt]
        for place in range(1, len(output))
    )


def test_a_match_that_goes_on_grows_and_ends_with_its_output() -> None:
    source = SeenOutputs()
    source.ended(ended_req([5, 29, 30, 31, 6]))
    source.ended(ended_req([*range(20, 32)]))
    source.ended(ended_req([50, 51, 52, 53]))
    req = req_of([20, 21, 22])
    for end in range(23, 32, 3):
        assert plain(source.match(req, 4)) == (end - 20, [*range(end, min(end + 4, 32))])
        req.replace_tail(0, [end, end + 1, end + 2])
    assert plain(source.match(req, 3)) == (3, [6])
    assert plain(source.match(req_of([29, 30, 31]), 3)) == (3, [6])


def test_a_match_is_found_anew_when_older_outputs_are_forgotten() -> None:
    source = SeenOutputs(most_tokens=20)
    source.ended(ended_req([9, 1, 2, 3, 4, 5, 5, 5, 5]))
    source.ended(ended_req([7, 7, 7, 7]))
    source.ended(ended_req([1, 2, 3, 6]))
    req = req_of([9, 1, 2, 3])
    assert plain(source.match(req, 1)) == (4, [4])
    source.ended(ended_req([11, 12, 13, 14]))
    assert source.num_tokens < 20
    assert plain(source.match(req, 1)) == (3, [6])


def test_the_newest_output_is_kept_whole_up_to_half_of_the_bound() -> None:
    source = SeenOutputs(most_tokens=30)
    for output in ([7] * 4, [7] * 9, [*range(14)]):
        source.ended(ended_req(output))
    assert source.num_tokens == 30
    source.ended(ended_req([*range(20, 40)]))  # its last 14
    assert source.match(req_of([0, 1, 2]), 1) is None
    assert plain(source.match(req_of([26, 27, 28]), 20)) == (3, [*range(29, 40)])


def test_a_guess_stays_what_it_was() -> None:
    source = SeenOutputs(most_tokens=20)
    source.ended(ended_req([1, 2, 3, 4, 5]))
    found = source.match(req_of([1, 2, 3]), 2)
    for _ in range(8):
        source.ended(ended_req([6, 7, 8, 9, 10]))
    assert plain(found) == (3, [4, 5])


def test_a_match_is_found_anew_after_its_tokens_were_replaced() -> None:
    source = SeenOutputs()
    source.ended(ended_req([20, 21, 22, 23, 24]))
    source.ended(ended_req([20, 21, 32, 33, 34]))
    req = req_of([20])
    req.replace_tail(0, [21, 22])
    assert plain(source.match(req, 1)) == (3, [23])
    req.replace_tail(1, [32])
    assert plain(source.match(req, 1)) == (3, [33])


def test_the_salt_used_least_recently_goes_first() -> None:
    source = SeenOutputs(most_salts=2)
    for salt in ("a", "b"):
        source.ended(ended_req([1, 2, 3, 4], salt))
    assert source.match(req_of([1, 2, 3], "a"), 1) is not None
    source.ended(ended_req([1, 2, 3, 4], "c"))
    kept = [source.match(req_of([1, 2, 3], salt), 1) is not None for salt in "abc"]
    assert kept == [True, False, True]


def test_of_what_was_aborted_nothing_is_kept_nor_of_reqs_that_have_ended() -> None:
    source = SeenOutputs()
    source.ended(ended_req([1, 2, 3, 4, 5], finish="abort"))
    assert source.match(req_of([1, 2, 3]), 1) is None and source.num_tokens == 0
    for finish in ("stop", "length", "timeout"):
        source.ended(ended_req([1, 2, 3, 4, 5], finish=finish))
    req = req_of([1, 2, 3])
    assert plain(source.match(req, 2)) == (3, [4, 5])
    source.ended(req)
    assert source._trails == {}


def test_what_is_cleared_is_guessed_no_more_not_even_by_a_req_that_followed_it() -> None:
    source = SeenOutputs()
    source.ended(ended_req([1, 2, 3, 4, 5, 6]))
    req = req_of([1, 2, 3])
    assert plain(source.match(req, 1)) == (3, [4])
    source.clear()
    req.replace_tail(0, [4])
    assert source.match(req, 1) is None and source.num_tokens == len(source._texts) == 0
    source.ended(ended_req([2, 3, 4, 7]))
    assert plain(source.match(req, 1)) == (3, [7])
