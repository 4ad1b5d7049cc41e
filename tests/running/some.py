"""Values of parametrised tests of which the short profile has a few."""

from collections.abc import Iterable
from typing import Any

import pytest


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
