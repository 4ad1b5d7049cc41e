"""Guesses beside prompts that wait, and beside others that decode: they have what is left of a
step's target."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from scheduler_proc.core.steps.step_target import GUESSES_SHARE, Beside
from scheduler_proc.media.spans import MediaFacts
from scheduler_proc.trace.recorded import replay
from srt.wire.hints import Hints
from tests.running.profiles import seeds
from tests.scheduler_proc.core.drafting.bursts import COSTS, Ran, Texts, TimedDriver
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fake_executor import reference_output

STREAMS, PROMPTS, PROMPT_LEN = 6, 12, 96
ROUNDING_S = 1e-9


def run_until(driver: Driver, is_done: Callable[[], bool], most: int = 5000) -> None:
    for _ in range(most):
        if is_done():
            return
        driver.step()
    raise AssertionError(f"not after {most} steps")


def has_run(driver: TimedDriver, steps: int) -> bool:
    return len(driver.steps) >= steps


def burst(texts: Texts, outputs: int, **config: Any) -> TimedDriver:
    """Streams that decode, then a burst of prompts, which have few outputs; served to the end."""
    driver = TimedDriver(texts, speculative="auto", check=False, **config)
    for i in range(STREAMS):
        driver.ask(f"stream {i}", 4, outputs)
    run_until(driver, lambda: len(driver.steps) >= 40)
    for i in range(PROMPTS):
        driver.ask(f"prompt {i}", PROMPT_LEN, 4)
    driver.run()
    for rid, output in texts.outputs.items():
        assert driver.outputs[rid] == output
    return driver


def parts(driver: TimedDriver) -> tuple[list[Ran], list[Ran], list[Ran]]:
    """The steps before the burst, those with prompts of it, and those after it."""
    mixed = [at for at, ran in enumerate(driver.steps) if ran.size.others > 0 and at >= 40]
    first, last = mixed[0], mixed[-1] + 1
    return driver.steps[20:first], driver.steps[first:last], driver.steps[last:]


def long_burst(driver: TimedDriver, steps: int) -> list[Ran]:
    """So many steps while prompts wait, all but the first ten."""
    sent, first = 0, len(driver.steps)
    while len(driver.steps) < first + steps:
        while len(driver.core.state.waiting) < 4:
            driver.ask(f"prompt {sent}", PROMPT_LEN, 4)
            sent += 1
        driver.step()
    return driver.steps[first + 10 :]


@pytest.mark.parametrize("target_s", [0.0, 0.060])
@pytest.mark.parametrize("right", [0.9, 0.3])
def test_steps_keep_their_target_with_guesses_too(right: float, target_s: float) -> None:
    driver = burst(Texts(right), 350 if right > 0.5 else 150, step_target_s=target_s)
    before, during, after = parts(driver)
    for ran in driver.steps[20:]:
        if ran.size.decodes > 1 or (ran.size.decodes > 0 and ran.size.others > 0):
            seconds, target = ran.expected_s(target_s)
            assert seconds <= target + ROUNDING_S, ran
    for ran in before + after:  # half of the target is for prompts that may come
        if ran.size.decodes > 1 and ran.size.drafted > 0:
            assert ran.costs is not None
            rows_s = ran.costs.decode_s(ran.size.decodes)
            _, target = ran.expected_s(target_s)
            most_s = max(GUESSES_SHARE * (target - rows_s), ran.costs.drafts_s(STREAMS))
            assert ran.costs.drafts_s(ran.size.drafted) <= most_s + ROUNDING_S
    assert len(during) > 5


def test_while_prompts_wait_nothing_is_guessed_and_rows_are_laid_out_ahead() -> None:
    driver = burst(Texts(0.9), 400)
    before, during, after = parts(driver)
    assert sum(ran.size.drafted for ran in before) > 4 * len(before)
    assert sum(ran.size.drafted for ran in during[:-1]) == 0
    # The first step of the burst was under way; the last has room to spare.
    assert all(ran.num_deferred == 0 for ran in during[2:-1])
    assert len(during) > 8
    assert sum(ran.size.drafted for ran in after[2:22]) > 4 * 20  # and then they come back


def test_first_tokens_of_a_burst_come_as_soon_as_without_guesses() -> None:
    guessing, plain = (TimedDriver(Texts(0.9), speculative=mode) for mode in ("auto", "off"))
    for driver in (guessing, plain):
        for i in range(PROMPTS):
            driver.ask(f"prompt {i}", PROMPT_LEN, 60)
        driver.run()
    assert guessing.core.state.counters.accepted_draft_tokens["own"] > 200
    assert guessing.outputs == plain.outputs
    assert guessing.ttft_p50() <= 1.03 * plain.ttft_p50()
    assert guessing.itl_p99() <= 1.3 * plain.itl_p99()
    assert guessing.clock_s < plain.clock_s


def test_trials_go_on_in_a_long_burst_and_what_they_show_is_used_after_it() -> None:
    """Guesses are wrong at first, so they do not pay; in the burst they come to be right."""
    texts = Texts(0.0)
    driver = TimedDriver(texts, speculative="auto", check=False)
    for i in range(STREAMS):
        driver.ask(f"stream {i}", 4, 450)
    run_until(driver, lambda: len(driver.steps) >= 60)
    assert sum(ran.size.drafted for ran in driver.steps[-30:]) < 30
    during = long_burst(driver, 250)
    tried = [ran for ran in during if ran.size.drafted > 0]
    assert 2 <= len(tried) <= len(during) // 8
    assert all(ran.expected_s()[0] <= ran.expected_s()[1] + ROUNDING_S for ran in during)
    texts.right = 1.0
    run_until(driver, lambda: len(driver.core.state.running) <= STREAMS)
    first = len(driver.steps)
    driver.run()
    assert sum(ran.size.drafted for ran in driver.steps[first : first + 60]) > 60


@pytest.mark.parametrize("right", [0.0, 0.9])
def test_a_token_budget_that_prompts_use_up_is_no_room_either(right: float) -> None:
    """However much time the target leaves: no row waits for a token to guess nothing after it, and
    trials go on."""
    driver = TimedDriver(
        Texts(right), speculative="auto", check=False, step_target_s=1.0, chunked_prefill_size=64
    )
    for i in range(STREAMS):
        driver.ask(f"stream {i}", 4, 800)
    run_until(driver, lambda: len(driver.steps) >= 60)
    during = long_burst(driver, 100)
    assert all(ran.size.tokens == 64 for ran in during if ran.size.drafted == 0)
    tried = [ran for ran in during if ran.size.drafted > 0]
    assert len(tried) >= 2 if right == 0.0 else tried == []
    # After a step with guesses, those that had some wait once more.
    assert sum(ran.num_deferred > 0 for ran in during) <= 2 * len(tried)


def test_a_request_alone_guesses_whatever_the_target() -> None:
    """There is nobody who would wait for it; with a second one there is."""
    driver = TimedDriver(Texts(1.0), speculative="auto", step_target_s=0.010)
    driver.ask("alone", 4, 400)
    run_until(driver, lambda: len(driver.steps) >= 30)
    assert max(ran.size.drafted for ran in driver.steps) == 8
    driver.ask("other", 4, 60, speculative="off")
    first = len(driver.steps) + 2
    run_until(driver, lambda: "other" in driver.finishes)
    beside = [ran for ran in driver.steps[first:] if ran.size.decodes == 2]
    assert len(beside) > 50
    assert all(ran.size.drafted <= 1 for ran in beside)
    driver.run()
    assert driver.steps[-5].size.drafted == 8


def test_while_pictures_are_encoded_guesses_have_what_the_slices_leave() -> None:
    facts = MediaFacts(1, False, False, in_slices=True)
    driver = TimedDriver(Texts(1.0), speculative="auto", media=facts)
    for i in range(2):
        driver.ask(f"stream {i}", 4, 400)
    run_until(driver, lambda: len(driver.steps) >= 30)
    assert sum(ran.size.drafted for ran in driver.steps[-5:]) > 5 * 2
    first = len(driver.steps)
    for _ in range(10):
        assert driver.core._planner.take_slice() > 0.0  # all that no prompt waits for
        driver.step()
    assert sum(ran.size.drafted for ran in driver.steps[first + 1 :]) == 0
    first = len(driver.steps)
    run_until(driver, lambda: len(driver.steps) >= first + 10)
    assert sum(ran.size.drafted for ran in driver.steps[first:]) > 5 * 2


def test_a_full_table_lets_guesses_go_on() -> None:
    """Prompts that wait for requests to end gain by what makes these faster."""
    driver = TimedDriver(Texts(0.95), speculative="auto", max_running_requests=STREAMS)
    for i in range(2 * STREAMS):
        driver.ask(f"stream {i}", 8, 120)
    run_until(driver, lambda: len(driver.core.state.running) == STREAMS)
    first = len(driver.steps) + 20
    run_until(driver, lambda: len(driver.steps) >= first + 5)
    assert len(driver.core.state.waiting) == STREAMS
    assert sum(ran.size.drafted for ran in driver.steps[first:]) > 5 * STREAMS


def test_a_prompt_ahead_of_time_takes_no_room_from_guesses() -> None:
    target_s, means = COSTS.decode_s(STREAMS) + 36 * COSTS.token_s, []
    for has_ahead in (False, True):
        driver = TimedDriver(Texts(0.9), speculative="auto", check=False, step_target_s=target_s)
        for i in range(STREAMS):
            driver.ask(f"stream {i}", 4, 300)
        run_until(driver, partial(has_run, driver, 40))
        if has_ahead:
            hints = Hints(is_ahead=True)
            driver.add("ahead", driver.prompt_of("ahead", 640), 0, hints=hints)
        run_until(driver, partial(has_run, driver, 60))
        beside = driver.steps[42:60]
        assert all(0 < ran.size.others <= 32 for ran in beside) is has_ahead
        means.append(mean(ran.size.drafted for ran in beside))
    assert means[1] > 0.9 * means[0] > 1.0


def test_a_guess_behind_a_prompt_hardly_puts_off_its_first_token() -> None:
    driver, lengths = TimedDriver(Texts(1.0), speculative="auto"), (4, 40, 250)
    for prompt_len in lengths * 3:
        driver.ask(f"{prompt_len} {len(driver.steps)}", prompt_len, 30)
        driver.run()
    ends = [ran for ran in driver.steps if ran.size.others > 0 and ran.size.drafted > 0]
    assert ends  # the long ones have some
    for ran in ends:
        assert ran.costs is not None
        assert ran.costs.drafts_s(ran.size.drafted) <= ran.seconds / 16


@pytest.mark.parametrize("seed", seeds(2))
def test_bursts_with_guesses_replay_exactly(tmp_path: Path, seed: int) -> None:
    """What is guessed in them, from the tree, follows from what is recorded."""
    path = tmp_path / "trace"
    texts = Texts(0.0, found=0.0)
    driver = TimedDriver(texts, noise=0.3, speculative="auto", trace=path, seed=seed)
    for turn in range(3):
        for i in range(STREAMS):
            driver.ask(f"stream {i}", 20, 60, name=f"{turn} stream {i}")
        run_until(driver, lambda: len(driver.core.state.waiting) == 0)
        for i in range(PROMPTS):
            driver.ask(f"prompt {i} {turn * (i % 2)}", PROMPT_LEN, 12, name=f"{turn} prompt {i}")
        driver.run()
    driver.close()
    assert any(ran.size.drafted and ran.size.others for ran in driver.steps)
    assert replay(path).state.counters == driver.core.state.counters
    assert driver.outputs["2 stream 0"] == reference_output(driver.prompt_of("stream 0", 20), 60)


@pytest.mark.parametrize("target_s", [0.0, 0.005])
def test_where_not_one_guess_fits_one_is_tried_unless_the_rows_alone_are_too_slow(
    target_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else could show that guesses cost less than is expected of them."""
    costs = COSTS._replace(drafting_s=3 * COSTS.decode_s(2))
    assert costs.drafts_s(1) > Beside(2).spare_s(costs, 0.0) > 0.0 > Beside(2).spare_s(costs, 0.005)
    driver = TimedDriver(Texts(0.0), speculative="auto", step_target_s=target_s, check=False)
    monkeypatch.setattr(driver.meter, "news", lambda: costs)
    for i in range(2):
        driver.ask(f"stream {i}", 4, 800)
    driver.run()
    tried = [ran for ran in driver.steps if ran.size.drafted > 0 and ran.size.decodes == 2]
    assert len(tried) == (0 if target_s else 2)
    assert all(ran.size.drafted == 1 for ran in tried)
    waited = [ran for ran in driver.steps if ran.num_deferred > 0 and ran.size.decodes == 2]
    assert len(waited) <= 2 * len(tried)  # no row waits for a trial that is not made


def test_a_guess_is_charged_what_the_prompts_beside_it_wait_though_there_is_room() -> None:
    driver = TimedDriver(Texts(0.95), speculative="auto", step_target_s=1.0)
    for i in range(2):
        driver.ask(f"stream {i}", 4, 200)
    run_until(driver, lambda: len(driver.steps) >= 20)
    first = len(driver.steps)
    for i in range(PROMPTS):
        driver.ask(f"prompt {i}", 6, 1)
    driver.run()
    (mixed,) = (ran for ran in driver.steps[first:] if ran.size.others > 0)
    assert mixed.size.others == 6 * PROMPTS and mixed.size.decodes == 2
    assert mixed.size.drafted == 0
    around = [ran for ran in driver.steps[first - 5 : first + 10] if ran.size.others == 0]
    assert sum(ran.size.drafted for ran in around) > 5 * len(around)
