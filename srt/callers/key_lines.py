"""The lines of a file of API keys: a key, and after it what its caller is called and may take.

    KEY [name=NAME] [share=N] [requests_per_minute=N] [tokens_per_minute=N] [running=N]
        [max_tokens=N] [admin]

Errors name the line and the word, and never have a key in them.
"""

import math
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from srt.callers.names import MAX_NAME_CHARS, is_like_digest, key_digest, name_of_key
from srt.wire.errors import ConfigError, quoted

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NAME_CHARS - 1}}}")
_FIELD = re.compile(r"[a-z_]{1,24}")
MIN_SHARE, MAX_SHARE = 1e-3, 1e3
MAX_LIMIT = 2**31 - 1


class CallerLimits(Struct, frozen=True, kw_only=True):
    """What a caller may take; 0 is no limit. `share` (above 0) is its part of a full server, beside
    the shares of others who want more than theirs. `running` requests may be in flight at once,
    each sample of a request counts. `tokens_per_minute` are prompt and output tokens; `max_tokens`
    is the most that a request may generate."""

    share: float = 1.0
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    running: int = 0
    max_tokens: int = 0


NO_LIMITS = CallerLimits()
_COUNTS = ("requests_per_minute", "tokens_per_minute", "running", "max_tokens")
WORDS = ("name=", "share=", *(f"{count}=" for count in _COUNTS), "admin")


class KeyLine(Struct, frozen=True):
    """A key, its caller's name, whether it is an admin's, and its limits."""

    key: str
    name: str
    limits: CallerLimits = NO_LIMITS
    is_admin: bool = False


def key_lines(lines: Iterable[tuple[int, str]], where: str) -> list[KeyLine]:
    """The keys of a file's lines, given with their numbers, each key once. `where` is put before
    what an error says. Raises ConfigError for the first line that is wrong."""
    found: dict[str, tuple[int, KeyLine]] = {}
    named: dict[str, tuple[int, KeyLine]] = {}
    for number, text in lines:
        try:
            line = _key_line(text)
            for known, what in ((found.get(line.key), "key"), (named.get(line.name), "name")):
                if known is not None and known[1].limits != line.limits:
                    raise ValueError(f"the {what} of line {known[0]} has other limits there")
            if line.key in found and found[line.key][1].name != line.name:
                raise ValueError(f"the key of line {found[line.key][0]} has another name there")
        except ValueError as error:
            raise ConfigError(f"{where}: line {number}: {error}") from None
        before = found.get(line.key, (number, line))[1]
        line = msgspec.structs.replace(line, is_admin=line.is_admin or before.is_admin)
        found[line.key] = named[line.name] = number, line
    return [line for _, line in found.values()]


def _key_line(text: str) -> KeyLine:
    """Raises ValueError, without the key."""
    key, *words = text.split(" ")
    check_key(key)
    if key.partition("=")[0] + "=" in WORDS:
        raise ValueError(f"it begins with {key.partition('=')[0]}=, and not with a key")
    name, given, is_admin = name_of_key(key_digest(key)), dict[str, Any](), False
    seen: set[str] = set()
    for number, word in enumerate((word for word in words if word), start=2):
        field, has_value, value = word.partition("=")
        what = f"{field}=" if has_value else field
        if what not in WORDS:
            # The word may be a key, or the end of one that has a blank in it.
            is_like_word = has_value and _FIELD.fullmatch(field) is not None
            shown = quoted(what) if is_like_word else f"word {number}"
            raise ValueError(f"{shown} is none of {', '.join(WORDS)}")
        if what in seen:
            raise ValueError(f"{what} is there twice")
        seen.add(what)
        if what == "admin":
            is_admin = True
        elif field == "name":
            name = _name(value)
        else:
            given[field] = _share(value) if field == "share" else _count(field, value)
    return KeyLine(key, name, CallerLimits(**given), is_admin)


def check_key(key: str) -> None:
    """Raise ValueError for what no header could carry as one word."""
    if not (key.isascii() and key.isprintable() and key and " " not in key):
        raise ValueError("keys must be printable ASCII without blanks")


def limits_by_caller(lines: Sequence[KeyLine]) -> dict[str, CallerLimits]:
    """The limits of all callers with keys, by name."""
    table = {line.name: line.limits for line in lines}
    return table | {line.name: line.limits for line in lines if line.limits != NO_LIMITS}


def _name(value: str) -> str:
    if _NAME.fullmatch(value) is None:
        chars = f"1 to {MAX_NAME_CHARS} letters, digits and ._-"
        raise ValueError(f"name={quoted(value)} must have {chars}, the first no mark")
    if is_like_digest(value):
        raise ValueError(f"name={quoted(value)} looks like the name of a key without one")
    return value


def _share(value: str) -> float:
    with suppress(ValueError):
        if MIN_SHARE <= (share := float(value)) <= MAX_SHARE and math.isfinite(share):
            return share
    raise ValueError(f"share={quoted(value)} must be a number from {MIN_SHARE:g} to {MAX_SHARE:g}")


def _count(field: str, value: str) -> int:
    if value.isascii() and value.isdecimal() and 1 <= len(value) <= 10:
        if 1 <= (count := int(value)) <= MAX_LIMIT:
            return count
    raise ValueError(f"{field}={quoted(value)} must be a whole number from 1 to {MAX_LIMIT}")
