"""Prompts of outputs: their bounds."""

import tracemalloc

import pytest

from srt.programs.parts import CallWork
from srt.programs.prompts import request_of, score_of, tokenize_of
from srt.wire.errors import CONTEXT_LENGTH, RequestError
from srt.wire.programs import Call, Input, Output, Program, Segment, Turn
from tests.srt.programs.driver import Driver

MIB = 2**20


def started(call: Call, text: str) -> CallWork:
    """The call with the variable `v` set."""
    driver = Driver()
    driver.submit(driver.open(), Program(vars={"v": text}, calls=[call], eager=True))
    while driver.core.graph.has_work:
        driver.core.graph.step()
    work = driver.core.next_start()
    assert isinstance(work, CallWork)
    return work


@pytest.mark.parametrize("is_chat", [False, True])
def test_a_prompt_of_many_times_the_same_text_is_refused_before_it_is_built(is_chat: bool) -> None:
    many: list[Segment] = [Input("v")] * 1000
    turns = [Turn("user", many), Turn("assistant", [Output("a")])]
    call = Call(turns=turns) if is_chat else Call([*many, Output("a")])
    work = started(call, "a" * MIB)
    tracemalloc.start()
    try:
        for make in (request_of, tokenize_of, lambda work, index: score_of(work, index, None)):
            with pytest.raises(RequestError) as caught:
                make(work, 0)
            assert caught.value.info.code == CONTEXT_LENGTH
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


def test_what_is_after_an_output_does_not_count() -> None:
    later: list[Segment] = [Input("v")] * 5
    work = started(Call([Input("v"), Output("a"), *later, Output("b")]), "a" * MIB)
    assert len(request_of(work, 0).text or "") == MIB
    with pytest.raises(RequestError):
        request_of(work, 1)
