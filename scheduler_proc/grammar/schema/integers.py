"""Ranges of natural numbers as regexes over their decimal digits.

Called for integers with bounds in flat schemas. The classical construction: numbers of equal
length split at their first digit, so the regex has O(digits^2) parts.
"""

from fractions import Fraction
from math import ceil, floor

_MAX_DIGITS = 12


def integer_regex(
    low: tuple[Fraction, bool] | None, high: tuple[Fraction, bool] | None
) -> str | None:
    """The integers between bounds (value, whether it is excluded itself) as a regex.

    None where negative numbers are in reach, of which the back end spells zero in two ways, or
    where the bounds are long.
    """
    if low is None:
        return None
    first = floor(low[0]) + 1 if low[1] else ceil(low[0])
    last = None if high is None else (ceil(high[0]) - 1 if high[1] else floor(high[0]))
    if first < 0 or len(str(max(first, last or 0))) > _MAX_DIGITS:
        return None
    if last is None:
        return _from(first)
    return None if last < first else _choice(_split(first, last))


def _from(first: int) -> str:
    if first == 0:
        return "(?:0|[1-9][0-9]*)"
    digits = len(str(first))
    options = _split(first, 10**digits - 1)
    return _choice([*options, f"[1-9][0-9]{{{digits},}}"])


def _split(first: int, last: int) -> list[str]:
    """Options for first..last, one group for each number of digits."""
    options = []
    for digits in range(len(str(first)), len(str(last)) + 1):
        low = max(first, 10 ** (digits - 1) if digits > 1 else 0)
        high = min(last, 10**digits - 1)
        options.append(_same_length(str(low), str(high)))
    return options


def _same_length(low: str, high: str) -> str:
    """The digit strings between two of equal length."""
    if low == high:
        return low
    rest = len(low) - 1
    if set(low[1:]) <= {"0"} and set(high[1:]) <= {"9"}:
        return _digit(int(low[0]), int(high[0])) + (f"[0-9]{{{rest}}}" if rest else "")
    if low[0] == high[0]:
        return low[0] + _same_length(low[1:], high[1:])
    options = [low[0] + _same_length(low[1:], "9" * rest)]
    if int(high[0]) - int(low[0]) > 1:
        options.append(_digit(int(low[0]) + 1, int(high[0]) - 1) + f"[0-9]{{{rest}}}")
    options.append(high[0] + _same_length("0" * rest, high[1:]))
    return _choice(options)


def _digit(low: int, high: int) -> str:
    return str(low) if low == high else f"[{low}-{high}]"


def _choice(options: list[str]) -> str:
    return options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"
