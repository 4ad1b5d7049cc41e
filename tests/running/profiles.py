"""How much a run of the tests takes in: the profile, chosen by `pytest --profile`.

| profile | tests | random cases |
| --- | --- | --- |
| `short` | each capability once: all that is not marked `full`, `slow` or `ui` | as the tests say |
| `full` | all but `slow` and `ui` | `FULL` times as many |
| `rest` | what `full` has and `short` does not | the further ones of `full` |
| `slow` | those marked `slow` | up to `SLOW` times as many |
| `ui` | those marked `ui` | none has any |

A test that draws cases says how many the short profile has: `@parametrize("seed", seeds(12))`, or
`@settings(max_examples=examples(60))`. One with neither draws `EXAMPLES`. Tests of hypothesis draw
other cases in each run, so they belong to all profiles but `ui`; so do those marked `draws`, which
use `examples` or hypothesis inside.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

ROOT = Path(__file__).parents[2]
FULL, SLOW = 10, 50
EXAMPLES = 20


class Profile(NamedTuple):
    """Which tests run, as an expression of `pytest -m`; a test's cases are those from `first` to
    `end` times the number that it names. `mark` is what those cases are marked with."""

    tests: str
    first: int
    end: int
    mark: str = ""


PROFILES = {
    "short": Profile("not full and not slow and not ui", 0, 1),
    "full": Profile("not slow and not ui", 0, FULL),
    "rest": Profile("full and not slow and not ui", 1, FULL, "full"),
    "slow": Profile("slow", FULL, SLOW, "slow"),
    "ui": Profile("ui", 0, 1),
}
_chosen = "short"
_imports_all = False  # whatever the profile
# In a module all of whose tests are of longer profiles.
_WHOLE = re.compile(r"^pytestmark = (?:\[\s*)?pytest\.mark\.(full|slow)\b", re.MULTILINE)


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        "--profile",
        choices=[*PROFILES],
        default="short",
        help="how much to run: short (default), full, rest (full without short), slow or ui",
    )


def choose(config: pytest.Config) -> None:
    """Take over the profile of the command line, before any test module is imported. An expression
    given with `-m` selects in place of the profile's."""
    global _chosen, _imports_all
    _chosen = config.getoption("--profile")
    _imports_all = bool(config.option.markexpr)
    config.option.markexpr = config.option.markexpr or chosen().tests
    same = bool(os.environ.get("PYTEST_SAME_CASES"))
    settings.register_profile(
        _chosen,
        max_examples=examples(EXAMPLES),
        deadline=None,  # a busy machine takes ten times as long
        suppress_health_check=[HealthCheck.too_slow],
        # Each run draws other cases, also where a variable CI makes hypothesis' own profile say
        # otherwise. Only `.ci/run` draws the same ones each time: it shall fail for a change.
        derandomize=same,
        database=None if same else DirectoryBasedExampleDatabase(ROOT / ".hypothesis/examples"),
        print_blob=True,
    )
    settings.load_profile(_chosen)


def chosen() -> Profile:
    return PROFILES[_chosen]


def leaves_out(module: Path) -> bool:
    """Whether the profile selects no test of a module, as a line of it says."""
    return _chosen == "short" and not _imports_all and bool(_WHOLE.search(module.read_text()))


def seeds(count: int) -> list[Any]:
    """The seeds of a parametrised test, of which the short profile has `count`. Those of shorter
    profiles are here too, without a mark: for parameters that these do not have."""
    profile = chosen()
    further = (getattr(pytest.mark, profile.mark),) if profile.mark else ()
    return [
        pytest.param(seed, marks=further if seed >= profile.first * count else ())
        for seed in range(profile.end * count)
    ]


def examples(count: int) -> int:
    """How many cases hypothesis draws where the short profile has `count`."""
    return count * chosen().end


def some(values: Iterable[Any], *short: Any) -> list[Any]:
    """All `values`; without those in `short`, or the first one if it names none, the full profile
    is the only one that has them. A plain tuple stands for several arguments."""
    values = list(values)
    short = short or tuple(values[:1])
    missing = [value for value in short if value not in values]
    assert not missing, f"not among the values: {missing}"
    return [_param(value, value in short) for value in values]


def _param(value: Any, is_short: bool) -> Any:
    marks = () if is_short else (pytest.mark.full,)
    return pytest.param(*(value if type(value) is tuple else (value,)), marks=marks)


def mark_drawing_tests(items: list[pytest.Item]) -> None:
    """Mark hypothesis' tests, and those marked `draws`, so that the profile selects them."""
    if mark := chosen().mark:
        for item in items:
            is_hypothesis = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
            if is_hypothesis or item.get_closest_marker("draws"):
                item.add_marker(mark)
