"""Regular expressions over what a model wrote, within a time limit.

Python's engine may take exponential time and cannot be interrupted, so a pattern that could be
slow is tried in a child process, which is ended when it takes too long.
"""

import asyncio
import json
import re
import sys
from collections.abc import Sequence
from typing import Any

TIME_LIMIT_S = 2.0
MAX_EASY_CHARS = 4096
_GROUP_REPEATED = re.compile(r"\)[*+{]")
_UNBOUNDED = re.compile(r"[*+]|\{\d*,\}")
_BACK_REFERENCE = re.compile(r"\\[1-9]|\(\?P=")

_CHILD = """
import json, re, sys
for line in sys.stdin:
    pattern, text, full = json.loads(line)
    match = (re.fullmatch if full else re.search)(pattern, text)
    found = match and [match.start(), match.group(), match.groupdict()]
    sys.stdout.write(json.dumps(found) + chr(10))
    sys.stdout.flush()
"""

Found = tuple[int, str, dict[str, str | None]]


def is_easy(pattern: str, text: str) -> bool:
    """Whether matching is quick for certain: no repeated groups, few repeats, a short text."""
    if _GROUP_REPEATED.search(pattern) or _BACK_REFERENCE.search(pattern):
        return False
    return len(_UNBOUNDED.findall(pattern)) <= 2 and len(text) <= MAX_EASY_CHARS


class Matcher:
    """Matches patterns; an `async with` block. Its child process starts when first needed."""

    def __init__(self, time_limit_s: float = TIME_LIMIT_S) -> None:
        self._time_limit_s = time_limit_s
        self._child: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> "Matcher":
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._child is not None:
            child, self._child = self._child, None
            if child.returncode is None:
                child.kill()
            await child.wait()

    async def find(self, pattern: str, text: str, *, full: bool = False) -> Found | None:
        """Where `pattern` matches first (or all of `text`), the match and its named groups.

        Raises TimeoutError after the time limit.
        """
        if is_easy(pattern, text):
            match = (re.fullmatch if full else re.search)(pattern, text)
            return None if match is None else (match.start(), match.group(), match.groupdict())
        try:
            async with asyncio.timeout(self._time_limit_s):
                found = await self._ask([pattern, text, full])
        except TimeoutError:
            message = f"the pattern {pattern!r} took longer than {self._time_limit_s} s to match"
            raise TimeoutError(message) from None
        return None if found is None else (found[0], found[1], found[2])

    async def _ask(self, question: list[Any]) -> Any:
        if self._child is None:
            self._child = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-I", "-S", "-c", _CHILD),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=2**26,
            )
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(json.dumps(question).encode() + b"\n")
        await self._child.stdin.drain()
        line = await self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"the pattern {question[0]!r} could not be matched")
        return json.loads(line)


class PatternWatch(Matcher):
    """Looks for the first match of several patterns in a text that grows."""

    def __init__(self, patterns: Sequence[str]) -> None:
        super().__init__()
        self._patterns = patterns

    async def __aenter__(self) -> "PatternWatch":
        return self

    async def first_match(self, text: str) -> tuple[int, str] | None:
        """Where the earliest match of any pattern begins, and that pattern."""
        starts = []
        for pattern in self._patterns:
            found = await self.find(pattern, text)
            if found is not None:
                starts.append((found[0], pattern))
        return min(starts, default=None)
