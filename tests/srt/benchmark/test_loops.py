"""Which answers loop."""

import pytest

from srt.benchmark.loops import ends_in_loop

PROSE = (
    "The pipe is old, and the plumber says that it will leak again. He offers to replace eleven "
    "metres of it, and we should accept, since the ceiling below costs more than the pipe."
)


@pytest.mark.parametrize(
    "end",
    [
        " The river is wide. The river is wide. The river is wide. The river",
        " river" * 5,
        "\n" * 24,
        "\nUser: yes\nAssistant: no" * 3,
        "A" * 3000,
        (PROSE + " ") * 3,
    ],
)
def test_answers_that_loop(end: str) -> None:
    assert ends_in_loop(end) and ends_in_loop(PROSE + end)


@pytest.mark.parametrize(
    "end",
    [
        "",
        " no no no",  # too short to be one
        " The river is wide. The river is wide.",
        "\n1. The river\n2. The river\n3. The river\n4. The river",
        " The river is wide. The river is wide. The river is wide. Then it ends.",
        "| a | b |\n| --- | --- |\n",
        (PROSE + " ") * 2,
    ],
)
def test_answers_that_do_not(end: str) -> None:
    assert not ends_in_loop(end) and not ends_in_loop(PROSE + end)
