"""The input of a call of which a limit may have cut off the end."""

from typing import Any

import msgspec

_CLOSING = {"{": "}", "[": "]"}


def input_of(text: str) -> dict[str, Any]:
    """The object that the JSON `text` is, or, if its end is missing, what is complete of it: what
    Anthropic's clients make of the same text. An empty object if it is no object at all."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        value = next(_complete(text), {})
    return value if isinstance(value, dict) else {}


def _complete(text: str) -> Any:
    """Yields the values of the beginnings of `text` that can be closed: all of it, then the part
    before the last member or item that has begun."""
    open_ones: list[str] = []
    end, closers = 0, ""  # where that part ends, and what closes it
    in_text = is_escaped = False
    for i, char in enumerate(text):
        if in_text:
            in_text = is_escaped or char != '"'
            is_escaped = char == "\\" and not is_escaped
        elif char == '"':
            in_text = True
        elif char in _CLOSING:
            open_ones.append(_CLOSING[char])
            end, closers = i + 1, "".join(reversed(open_ones))
        elif char == ",":
            end, closers = i, "".join(reversed(open_ones))
        elif char in "]}" and open_ones:
            open_ones.pop()
    for part in (text + "".join(reversed(open_ones)), text[:end] + closers):
        try:
            yield msgspec.json.decode(part)
        except (msgspec.DecodeError, RecursionError):
            continue
