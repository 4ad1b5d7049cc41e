"""Moves lines of a system text to its end: those that change from one request to the next.

Agents write a date, a hash or a count into the head of their system prompt. All that follows such a
line misses the prefix cache; at the end of the text only the line does, and what comes after it.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from srt.patterns.stop_search import PatternSearch
from srt.wire.messages import ChatMessage


def with_lines_last(messages: Sequence[ChatMessage], pattern: str) -> list[ChatMessage]:
    """`messages` whose system texts have the lines with a match of `pattern` at their end, in their
    order. Each character takes a bounded time. A system message that shows media is left as it
    is."""
    return [
        replace(message, content=_moved(message.content, pattern))
        if message.role == "system" and message.content
        else message
        for message in messages
    ]


def _moved(text: str, pattern: str) -> str:
    lines = text.split("\n")
    found = [_matches(line, pattern) for line in lines]
    if not any(found):
        return text
    pairs = [*zip(lines, found, strict=True)]
    return "\n".join(
        [line for line, is_last in pairs if not is_last]
        + [line for line, is_last in pairs if is_last]
    )


def _matches(line: str, pattern: str) -> bool:
    search = PatternSearch((pattern,))
    return any(True for _ in search.feed(line)) or any(True for _ in search.at_end())
