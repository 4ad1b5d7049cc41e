"""What a name that is no option was probably meant to be."""

import difflib
from collections.abc import Iterable


def instead_of(name: str, known: Iterable[str]) -> str:
    """`; did you mean …?` with the nearest of the `known` names, or nothing if none is near."""
    by_form = {_form(other): other for other in known}
    nearest = difflib.get_close_matches(_form(name), by_form, n=1, cutoff=0.75)
    return f"; did you mean {by_form[nearest[0]]}?" if nearest else ""


def _form(name: str) -> str:
    return name.lower().replace("_", "-").lstrip("-").removeprefix("srt-")[:80]
