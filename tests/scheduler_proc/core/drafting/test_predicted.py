"""Guesses from the text that a request expects as its answer."""

from hypothesis import example, given
from hypothesis import strategies as st

from scheduler_proc.core.drafting.predicted import LEAST, PredictedTokens
from scheduler_proc.core.drafting.speculation import Speculation
from scheduler_proc.core.requests.request import Req
from scheduler_proc.memory.pools import TokenPool
from scheduler_proc.memory.radix_cache import RadixCache
from tests.scheduler_proc.core.drafting.reqs import longest_place, plain, req_of

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=15)


def predicting(prompt: list[int], prediction: list[int]) -> Req:
    return req_of(prompt, prediction=prediction)


@given(prompt=TOKENS, prediction=TOKENS, count=st.integers(0, 15))
def test_an_output_that_is_as_predicted_goes_on_so(
    prompt: list[int], prediction: list[int], count: int
) -> None:
    req, source = predicting(prompt, prediction), PredictedTokens()
    for token in prediction[:count]:
        req.replace_tail(0, [token])
        source.match(req, 1)
    found = plain(source.match(req, 4))
    assert (found[1] if found else []) == prediction[count:][:4] or count >= len(prediction)


@given(prompt=TOKENS, prediction=TOKENS, output=TOKENS, replaced=st.integers(0, 5))
@example(prompt=[0], prediction=[0, 0, 0], output=[0, 0], replaced=2)
def test_another_output_is_found_in_it_by_its_end(
    prompt: list[int], prediction: list[int], output: list[int], replaced: int
) -> None:
    """Also where a jump has replaced tokens, and wherever it was asked before."""
    prediction = [9, *prediction]  # no output begins so
    req, source = predicting(prompt, prediction), PredictedTokens()
    req.replace_tail(0, output)
    source.match(req, 1)
    req.replace_tail(min(replaced, len(output)), [2, 1])
    found = plain(source.match(req, 4))
    known = req.tokens.known.tolist()
    expected = longest_place(known, [*prediction, -1][:-1], LEAST)
    assert (found is None) == (expected is None)
    if found is not None:
        length, tokens = found
        places = [i for i in range(len(prediction)) if prediction[i:][: len(tokens)] == tokens]
        ends = [prediction[max(0, place - 2) : place] for place in places]
        assert length >= LEAST and known[-2:] in ends


def test_a_req_without_a_prediction_has_no_guess_and_keeps_nothing() -> None:
    source = PredictedTokens()
    assert source.match(req_of([1, 2, 3]), 4) is None and not source._reqs
    req = predicting([1], [2, 3])
    assert plain(source.match(req, 4)) == (8, [2, 3])
    source.ended(req)
    assert not source._reqs


def test_it_is_tried_before_other_sources() -> None:
    speculation = Speculation("own", 4, RadixCache(TokenPool(1)))
    req = predicting([5, 6, 7, 5, 6], [8, 9])
    found = speculation._best(req, 4)
    assert found is not None and (found.origin.source, found.tokens) == ("prediction", [8, 9])
