"""Which parts of an answer its constraint has names for: named groups, captured rules of Lark.

Called by the tokenizer's children, which have limits of time and memory, with answers that have
ended. What is found depends on the constraint and the text only, not on the tokens that it came in.
"""

from srt.answers.captures.lark import find_captures
from srt.patterns.groups import GroupPattern, Span
from srt.wire.constraint import Capture, Constraint, may_capture

MAX_CHARS = 2**20  # of an answer's captures, which may lie in each other
_CHARS_PER_CAPTURE = 64  # besides its name and text


def captures_of(constraint: Constraint, text: str) -> list[Capture] | None:
    """The captures of a text, in the order of their beginnings, longer ones first: those of all of
    it or, if it is only the beginning of a match, those that have ended. None if the
    constraint has no names, if no parse was found in time, and above MAX_CHARS.

    Raises GrammarError for a constraint that cannot be compiled.
    """
    if not may_capture(constraint):
        return None
    begin, after, opener = 0, constraint.after, constraint.opener
    if after and text.startswith(opener):  # otherwise it matches at once
        end = text.find(after, len(opener))
        if end < 0:
            return None
        begin = end + len(after)
    if constraint.kind == "regex":
        pattern = GroupPattern(constraint.source)
        spans = pattern.spans(text[begin:]) if pattern.names else None
    else:
        spans = _of_lark(constraint.source, text[begin:])
    if (
        spans is None
        or sum(_CHARS_PER_CAPTURE + len(name) + end - start for name, start, end in spans)
        > MAX_CHARS
    ):
        return None
    places = ((name, begin + start, begin + end) for name, start, end in spans)
    return [Capture(name, start, end, text[start:end]) for name, start, end in places]


def _of_lark(source: str, text: str) -> list[Span] | None:
    data = text.encode()
    found = find_captures(source, data)
    if found is None or data.isascii():
        return found
    chars = [0]  # before each byte
    for char in text:
        chars += [chars[-1]] * (len(char.encode()) - 1) + [chars[-1] + 1]
    return [Span(name, chars[start], chars[end]) for name, start, end in found]
