"""What must be held back of text that arrives in pieces, because a tag may have begun in it."""


def overlap(text: str, tag: str) -> int:
    """The length of the longest end of `text` that `tag` begins with, all of `tag` excepted."""
    for length in range(min(len(text), len(tag) - 1), 0, -1):
        if tag.startswith(text[-length:]):
            return length
    return 0
