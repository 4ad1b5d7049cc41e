"""Regexes of natural numbers between two bounds, digit by digit and without leading zeros."""


def naturals(low: int, high: int | None) -> list[str]:
    """Alternatives for the numbers from `low` to `high`, None being no limit: one for each number
    of digits, and one for all lengths of which every number is between them."""
    if high is None:
        digits = len(str(low))
        if low == 10 ** (digits - 1):
            return [f"[1-9][0-9]{{{digits - 1},}}"]
        return [*naturals(low, 10**digits - 1), f"[1-9][0-9]{{{digits},}}"]
    found = []
    while low <= high:
        most = len(str(high + 1)) - 1  # digits that all numbers in the range may have
        if low == 10 ** (len(str(low)) - 1) and len(str(low)) < most:
            found.append(f"[1-9][0-9]{{{len(str(low)) - 1},{most - 1}}}")
            low = 10**most
            continue
        last = min(high, 10 ** len(str(low)) - 1)
        found.append(_same_length(str(low), str(last)))
        low = last + 1
    return found


def digit(low: int, high: int) -> str:
    """One digit between two."""
    return str(low) if low == high else f"[{low}-{high}]"


def _same_length(low: str, high: str) -> str:
    """The digits from `low` to `high`, which are equally long."""
    rest = len(low) - 1
    if low == high:
        return low
    if low[0] == high[0]:
        return low[0] + _same_length(low[1:], high[1:])
    first, last, parts = int(low[0]), int(high[0]), []
    if low[1:].strip("0"):  # the first digit's numbers are not all in the range
        parts.append(low[0] + _same_length(low[1:], "9" * rest))
        first += 1
    end = None
    if high[1:].strip("9"):
        end = high[0] + _same_length("0" * rest, high[1:])
        last -= 1
    if first <= last:
        parts.append(digit(first, last) + {0: "", 1: "[0-9]"}.get(rest, f"[0-9]{{{rest}}}"))
    parts += [] if end is None else [end]
    return parts[0] if len(parts) == 1 else f"({'|'.join(parts)})"
