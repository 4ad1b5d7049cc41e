"""Numbers between bounds as regexes over their decimal digits, exact however long the bounds are.

Called for integers in flat schemas, and by the printer of grammars where llguidance's own ranges
are wrong. A bound cuts off at each digit: what begins with all before it and goes on with a larger
one is above.
"""

from fractions import Fraction
from math import ceil

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.schema.document import refuse
from scheduler_proc.grammar.schema.shapes import Numbers
from srt.patterns.lark import all_of
from srt.patterns.write import NO_CHARACTER, digit, naturals

EXACT = 2**53  # up to here all integers are doubles, which is what llguidance's bounds are
_LONGEST = 10**50
_NATURAL = "(?:0|[1-9][0-9]*)"
_PLACES = r"(?:\.[0-9]+)?"


def takes_regex(shape: Numbers) -> bool:
    """Whether llguidance's ranges are wrong about a shape: they include the bound in `(1, 1.5)`,
    require the last digit of a bound to be written, and round what is beyond EXACT."""
    bounds = [bound[0] for bound in (shape.low, shape.high) if bound]
    is_fine = not shape.multiple and any(bound.denominator != 1 for bound in bounds)
    return bool(shape.fractional) or is_fine or any(abs(bound) > EXACT for bound in bounds)


def number_terminal(shape: Numbers) -> str:
    """The right side of a rule of Lark. Raises GrammarError for multiples other than of 1."""
    if shape.multiple not in (None, 1):
        reason = "multipleOf is not supported beside bounds beyond 2^53 and `not` of integers"
        raise refuse(shape.fractional or "#", reason)
    any_number = f"-?(?:{_more(Fraction(0), excluded=False)})"
    conditions = [f"-?{_NATURAL}" if shape.integer else any_number]
    mirrored = shape.high and (-shape.high[0], shape.high[1])
    for bound, signs in ((shape.low, ("", "-")), (mirrored, ("-", ""))):
        if bound:
            parts = zip(signs, _above(*_rounded_up(*bound)), strict=True)
            conditions.append("|".join(f"{sign}(?:{part})" for sign, part in parts))
    return all_of(conditions, [rf"-?{_NATURAL}(?:\.0+)?"] if shape.fractional else [])


def _rounded_up(bound: Fraction, excluded: bool) -> tuple[Fraction, bool]:
    """A lower bound with as many digits as a regex may have."""
    if bound > _LONGEST:
        raise GrammarError("JSON schema: a bound of numbers has more than 50 digits")
    if bound < -_LONGEST or (bound * _LONGEST).denominator != 1:
        return max(Fraction(ceil(bound * _LONGEST), _LONGEST), Fraction(-_LONGEST)), False
    return bound, excluded


def integer_regex(low: tuple[Fraction, bool] | None, high: tuple[Fraction, bool] | None) -> str:
    """The integers between bounds that are integers themselves; zero has no sign."""
    least, most = low and int(low[0]), high and int(high[0])
    options = []
    if least is None or least < 0:
        first = 1 if most is None else max(1, -most)
        options.append("-" + _naturals(first, None if least is None else -least))
    if most is None or most >= 0:
        options.append(_naturals(max(0, least or 0), most))
    return choice(options)


def _naturals(first: int, last: int | None) -> str:
    return choice(naturals(first, last))


def choice(options: list[str]) -> str:
    """One of some regexes."""
    return options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"


def _above(bound: Fraction, excluded: bool) -> tuple[str, str]:
    """The numbers from a bound on without their signs: those above zero, and those below."""
    if bound > 0 or (excluded and not bound):
        return _more(bound, excluded), NO_CHARACTER
    return _more(Fraction(0), excluded=False), _less(-bound, excluded)


def _more(bound: Fraction, excluded: bool) -> str:
    """Numbers without a sign from a bound on; with exponents if it is 0, and then below 1."""
    whole, places = _digits(bound)
    equal = f"{whole}{_places_above(places, excluded)}"
    return f"{_naturals(whole + 1, None)}{_PLACES}|{equal}" + ("" if bound else f"|{_small(1)}")


def _places_above(places: str, excluded: bool) -> str:
    if not places:
        return r"\.[0-9]*[1-9][0-9]*" if excluded else _PLACES
    found = "[0-9]*[1-9][0-9]*" if excluded else "[0-9]*"
    for place in reversed(places):
        larger = [] if place == "9" else [f"{digit(int(place) + 1, 9)}[0-9]*"]
        found = choice([*larger, place + found])
    return rf"\.{found}"


def _less(bound: Fraction, excluded: bool) -> str:
    """Numbers without a sign up to a bound."""
    whole, places = _digits(bound)
    options = [f"{_naturals(0, whole - 1)}{_PLACES}"] if whole else []
    if places or not excluded:
        options.append(f"{whole}{_places_below(places, excluded)}")
    if bound:
        zeros = 0 if whole else len(places) - len(places.lstrip("0")) + 1
        options.append(_small(zeros + 1))
    return "|".join(options)


def _places_below(places: str, excluded: bool) -> str:
    if not places:
        return r"(?:\.0+)?"
    equal = [] if excluded else [f"{places[-1]}0*"]
    found = choice([f"{digit(0, int(places[-1]) - 1)}[0-9]*", *equal])
    for place in reversed(places[:-1]):
        smaller = [] if place == "0" else [f"{digit(0, int(place) - 1)}[0-9]*"]
        found = choice([*smaller, f"{place}(?:{found})?"])
    return rf"(?:\.{found})?"


def _small(exponent: int) -> str:
    """Numbers below 10 ** (1 - exponent), with an exponent."""
    return rf"[1-9]{_PLACES}[eE]-0*{_naturals(exponent, None)}"


def _digits(value: Fraction) -> tuple[int, str]:
    """The integer part of a decimal fraction, and the places after its point."""
    whole, rest = divmod(value, 1)
    count = 0
    while rest.denominator != 1:
        rest, count = rest * 10, count + 1
    return whole, f"{int(rest):0{count}}" if count else ""
