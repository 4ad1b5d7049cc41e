"""Checks on answers of servers that may have ignored a constraint."""

import json
from collections.abc import Callable
from typing import Any

from lang.backends.sampling import CONSTRAINTS, Sampling
from lang.errors import UnsupportedError
from lang.values.instances import instance_check
from lang.values.matching import matcher_of
from srt.wire.constraint import GrammarError

TextCheck = Callable[[str, bool], None]  # of a text, and whether a limit has cut it


def has_own_check(convert: Callable[[str], Any] | None) -> bool:
    """Whether making a value of a text refuses one of another form."""
    return convert is not None and convert is not json.loads


def text_check(sampling: Sampling) -> TextCheck | None:
    """What raises ValueError for a text that breaks the constraint of `sampling`; None without one.
    For a regex or a grammar, a text will do that a limit has cut, or a stop has ended, within a
    match: it, or it and the stop, is the beginning of one. Raises UnsupportedError for a constraint
    that cannot be checked."""
    field = next((name for name in CONSTRAINTS if getattr(sampling, name) is not None), None)
    if field is None:
        return None
    source = getattr(sampling, field)
    try:
        if field == "json_schema":
            check_instance = instance_check(source)
            return lambda text, _: check_instance(text)
        matcher = matcher_of(field, source)
    except GrammarError as error:
        reason = "the server may ignore it, and its answers cannot be checked here"
        raise UnsupportedError(field, f"{reason}: {error}") from error
    ends = ("",) if sampling.stop_regex or sampling.stop_token_ids else sampling.stop

    def check(text: str, is_cut: bool) -> None:
        possible = [*ends, ""] if is_cut else ends
        starts = (matcher.reads(text + end, to_the_end=False) for end in possible)
        if not matcher.reads(text) and not any(starts):
            raise ValueError(f"it does not match the {field}, which the server may have ignored")

    return check
