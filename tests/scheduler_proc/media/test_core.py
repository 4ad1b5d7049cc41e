"""Reqs that show pictures in the scheduler core: what is asked for, encoded, shared and refused."""

from typing import Any

import pytest

from scheduler_proc.media.spans import MediaFacts
from srt.wire.errors import BAD_REQUEST
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fake_executor import reference_output
from tests.scheduler_proc.media.pictures import item_of, numbers_of

CAUSAL, BOTH_WAYS = MediaFacts(1, False, False), MediaFacts(1, True, False)
TEXT = [500, 501, 502]


def driver(facts: MediaFacts = CAUSAL, **config: Any) -> Driver:
    return Driver(max_total_tokens=300, **{"media": facts} | config)


def test_a_second_question_about_a_picture_needs_no_embeddings() -> None:
    run = driver()
    prompt = [7, *numbers_of(4), *TEXT]
    assert run.generate(prompt, 3) == reference_output(prompt, 3)
    parts, cached = run.executor.parts_encoded, run.core.state.media.num_encoded
    run.core.state.media.clear()
    other = [7, *numbers_of(4), 600, 601]
    assert run.generate(other, 3) == reference_output(other, 3)
    assert (
        run.executor.parts_encoded == parts == 3 and run.core.state.media.num_encoded == cached == 1
    )
    assert list(run.cached.values()) == [0, 1 + item_of(4).length]


def test_a_flush_in_a_pause_drops_the_embeddings_of_what_waits() -> None:
    """They come from the weights that it is about."""
    run, prompt = driver(max_running_requests=1), [1, *numbers_of(1)]
    run.add("text", TEXT, 40)
    run.add("picture", prompt, 3)
    while not run.core.state.media.has(item_of(1).digest):
        run.step()
    run.pause_in("retract")
    for _ in range(2):
        run.step()
    assert run.core.flush_cache() and not run.core.state.media.has(item_of(1).digest)
    run.pause_in(None)
    run.run()
    assert run.outputs["picture"] == reference_output(prompt, 3)
    assert run.core.state.media.num_encoded == 2


def test_the_same_picture_elsewhere_is_encoded_once() -> None:
    run = driver()
    for number, prompt in enumerate(([1, *numbers_of(3), 5], [2, *numbers_of(3), 5])):
        run.add(str(number), prompt)
    run.run()
    assert run.core.state.media.num_encoded == 1 and run.core.state.media.num_hits == 1


def test_another_picture_of_the_same_size_shares_nothing() -> None:
    run = driver()
    first, second = [[9, *numbers_of(picture), *TEXT] for picture in (1, 2)]
    second[1:] = [*numbers_of(2)[:4], *TEXT]  # as many placeholders, of which the last is missing
    run.generate(first, 2)
    run.generate([9, *numbers_of(2), *TEXT], 2)
    assert list(run.cached.values()) == [0, 1]


def test_what_was_evicted_inside_a_picture_is_computed_again() -> None:
    run = driver()
    prompt = [7, *numbers_of(4)]
    run.generate([*prompt, 5], 1)
    run.core.state.memory.cache.evict(9)  # the tail, and a part of the picture
    run.core.state.media.clear()
    assert run.generate([*prompt, 6], 2) == reference_output([*prompt, 6], 2)
    assert 1 < run.cached[list(run.cached)[-1]] < len(prompt)
    assert run.core.state.media.num_encoded == 2


def test_spans_that_see_both_ways_are_computed_whole() -> None:
    run = driver(BOTH_WAYS, chunked_prefill_size=20)
    prompt = [7, *numbers_of(4)]
    run.generate([*prompt, 5], 1)
    run.core.state.memory.cache.evict(9)
    assert run.generate([*prompt, 6], 2) == reference_output([*prompt, 6], 2)
    assert run.cached[list(run.cached)[-1]] == 1  # not the beginning of the picture


def test_others_pass_a_req_whose_pictures_are_awaited() -> None:
    run = driver()
    run.delays = lambda: True
    run.add("picture", [1, *numbers_of(3)], 1)
    run.add("text", TEXT, 5)
    for _ in range(20):
        run.step()
    assert "text" in run.finishes and "picture" not in run.finishes
    run.abort("picture")
    run.step()
    assert not run.core.state.media.pinned and not run.core.has_work


def test_two_reqs_wait_for_room_in_turn() -> None:
    run = driver(media_cache_bytes=30)
    prompts = [[n, *numbers_of(a), *numbers_of(b), 5] for n, a, b in ((1, 3, 2), (2, 4, 1))]
    for number, prompt in enumerate(prompts):
        run.add(str(number), prompt, 2)
    run.run()
    assert [run.outputs[str(n)] for n in (0, 1)] == [reference_output(p, 2) for p in prompts]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"media": None}, "sees no images"),
        ({"media_cache_bytes": 17}, "--media-cache-mb"),
        ({"media": BOTH_WAYS, "chunked_prefill_size": 17}, "--chunked-prefill-size 17"),
    ],
)
def test_what_can_never_be_computed(config: dict[str, Any], message: str) -> None:
    run = driver(**config)
    run.add("r", [1, *numbers_of(4), 2])
    run.add("text", TEXT)
    run.run()
    error = run.finishes["r"].error
    assert error is not None and error.code == BAD_REQUEST and message in error.message
    assert run.finishes["text"].type == "length"


def test_a_picture_that_cannot_be_had_ends_those_that_show_it() -> None:
    run = driver()
    run.encode_fails = lambda: True
    run.add("a", [1, *numbers_of(2), 2])
    run.add("b", [3, *numbers_of(2), 2])
    run.add("text", TEXT)
    run.run()
    ends = {rid: finish.error for rid, finish in run.finishes.items()}
    assert ends["a"] is not None and ends["b"] is not None and ends["text"] is None
    run.encode_fails = lambda: False
    prompt = [1, *numbers_of(2), 2]
    assert run.generate(prompt, 1) == reference_output(prompt, 1)


def test_a_new_incarnation_asks_again() -> None:
    run = driver()
    run.delays = lambda: True
    run.add("a", [1, *numbers_of(2), 2])
    run.step()
    run.step()
    assert run.wanted
    run.core.reset(2)
    run.wanted.clear()
    run.core.take_output(run.now)
    run.delays = lambda: False
    run.add("b", [1, *numbers_of(2), 2])
    run.run()
    assert run.finishes["b"].type == "length"
