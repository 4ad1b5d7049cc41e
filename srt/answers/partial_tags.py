"""What must be held back of text that arrives in pieces, because a tag may have begun in it."""

import re
from collections.abc import Collection


def overlap(text: str, tag: str) -> int:
    """The length of the longest end of `text` that `tag` begins with, all of `tag` excepted."""
    for length in range(min(len(text), len(tag) - 1), 0, -1):
        if tag.startswith(text[-length:]):
            return length
    return 0


class LineTags:
    """Finds which of `tags`, one at least, begins a line. `starts_line` says that the text does."""

    def __init__(self, tags: Collection[str]) -> None:
        self._tags = tags
        # In one search: an answer may have as many beginnings of lines as there may be tags.
        self._found = re.compile(f"^(?:{'|'.join(map(re.escape, tags))})", re.M)

    def find(self, text: str, end: int, *, starts_line: bool) -> int:
        """Where the first of them begins and ends in `text` up to `end`; -1: nowhere."""
        found = self._found.search(text, 0 if starts_line else 1, end)
        return found.start() if found else -1

    def held(self, text: str, *, starts_line: bool) -> int:
        """The length of the last line if one of them may have begun in it, or else 0."""
        last = text[text.rfind("\n") + 1 :]
        begins = last and (starts_line or len(last) < len(text))
        return len(last) if begins and any(tag.startswith(last) for tag in self._tags) else 0
