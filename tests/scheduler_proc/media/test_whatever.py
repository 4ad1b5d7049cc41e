"""Whatever happens beside a req that shows pictures, its tokens are the same."""

from pathlib import Path
from typing import Any

import pytest

from scheduler_proc.media.spans import MediaFacts
from scheduler_proc.trace.recorded import replay
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fake_executor import reference_output
from tests.scheduler_proc.media.pictures import numbers_of

FACTS = [
    MediaFacts(1, sees_both_ways=False, has_grid_positions=False),
    MediaFacts(1, sees_both_ways=True, has_grid_positions=True),
]
PROMPTS = [
    [7, *numbers_of(4), 500, *numbers_of(1), 501],
    [7, *numbers_of(4), 500, *numbers_of(2), 501],
    [*numbers_of(3), *numbers_of(3), 3, 3],
    [*numbers_of(3), *numbers_of(4), 3, 3],
    [3, 3, 3, 3, 3, 3, 3],  # ids of placeholders, and no picture
    [7, 500, 501],
]


@pytest.mark.parametrize("facts", FACTS)
@pytest.mark.parametrize("is_crowd", [False, True])
@pytest.mark.parametrize("chunk", [18, 512])
@pytest.mark.parametrize("disabled", [False, True])
@pytest.mark.parametrize("lag", [0, 1])
def test_same_tokens(
    facts: MediaFacts, is_crowd: bool, chunk: int, disabled: bool, lag: int
) -> None:
    run = Driver(
        lag,
        max_total_tokens=300,
        media=facts,
        chunked_prefill_size=chunk,
        disable_radix_cache=disabled,
        media_cache_bytes=40,
    )
    for turn in range(2):
        for number, prompt in enumerate(PROMPTS):
            run.add(f"{number}-{turn}", prompt, 6)
            if not is_crowd:
                run.run()
    run.run()
    for number, prompt in enumerate(PROMPTS):
        for turn in range(2):
            assert run.outputs[f"{number}-{turn}"] == reference_output(prompt, 6)
    cached = [run.cached[f"{number}-1"] for number in range(len(PROMPTS))]
    assert disabled or is_crowd or cached == [len(prompt) - 1 for prompt in PROMPTS]
    assert not disabled or cached == [0] * len(PROMPTS)


@pytest.mark.parametrize("lag", [0, 1])
def test_a_trace_has_all_of_it(tmp_path: Path, lag: int) -> None:
    """What came when, was encoded when, and failed: the replay asserts that the plans are equal."""
    calls = iter(range(10_000))
    config: dict[str, Any] = {"media": FACTS[0], "media_cache_bytes": 40, "random_seed": 3}
    run = Driver(lag, max_total_tokens=120, trace=tmp_path / "trace", **config)
    run.encode_fails = lambda: next(calls) % 11 == 10
    run.delays = lambda: next(calls) % 3 == 0
    for turn in range(4):
        for number, prompt in enumerate(PROMPTS):
            run.add(f"{number}-{turn}", [turn, *prompt], 5)
            run.step()
    run.run()
    run.close()
    assert any(finish.error is not None for finish in run.finishes.values())
    core = replay(tmp_path / "trace")
    assert core.state.counters == run.core.state.counters
    assert core.state.media.num_encoded == run.core.state.media.num_encoded > 3
