"""What becomes of the messages of llguidance and xgrammar: users read our own words.

A library speaks of expressions that we made, in terms of its own code. Its text goes to the log,
at the level "debug". What llguidance says of the user's own Lark is edited.
"""

import logging
import re

from scheduler_proc.grammar.base import BackEndError, GrammarError

log = logging.getLogger(__name__)

_PATTERN = (
    "a pattern, or a pattern with its lengths, takes an automaton that is too large: repeat less,"
    " give lower lengths, or write a simpler pattern"
)
# Messages about Lark of the user's that have no place, and what we say.
_OF_LARK = (
    (r'failed to parse "?(%\w+)"?: (.*?)(?: at line \d+ column \d+)?', r"\1 cannot be read: \2"),
    (r"(unknown grammar @.*)", r"\1"),
)
# What a message has in it, and what we say.
_WORDS = (
    (
        r"grammar\.symbols\.len\(\)|grammar size",
        "the grammar is too large: characters, groups and rules are more than 65,000",
    ),
    (
        r"expressions|fuel|regex is empty|Lexer|lexer (?:states|config)|regex parse|size limit",
        _PATTERN,
    ),
    (
        r"[Tt]oo many items|ParserTooComplex",
        "the grammar is too ambiguous: too many of its rules and alternatives begin alike",
    ),
    ("NoExtension", "no text can match a part of it"),
)


def in_our_words(error: str) -> BackEndError:
    """The error for a library's message about a grammar that we wrote."""
    log.debug("a grammar is refused: %s", error[:2000])
    for sign, words in _WORDS:
        if re.search(sign, error):
            return BackEndError(words)
    return BackEndError("its grammar is beyond what the back end can do: write a simpler one")


def about_lark(error: str) -> GrammarError:
    """The error for a message of llguidance about Lark of the user's, with its place as in all of
    our messages."""
    cause = re.search(r"^error: (.+)$", error, re.MULTILINE)  # of a pattern, below its drawing
    line = first_line(error)
    if cause is not None:
        line = line.replace(" (in regex): regex parse error:", f": {cause[1]}")
    found = re.fullmatch(r"(?:at )?(\d+)\((\d+)\): (.*?)(?: \(at .*\))?", line)
    if found is None:
        known = (re.fullmatch(sign, line) and re.sub(sign, say, line) for sign, say in _OF_LARK)
        what = next(filter(None, known), "")
        return GrammarError(what) if what else in_our_words(error)
    row, column, what = found.groups()
    if what == "lexer error":
        what = "expected a name, a string in double quotes, a /pattern/ or an operator"
    what = what.replace('"string..."', "a string")
    what = re.sub(r"Expected token (.*), found (.*)", r"expected \1, not \2", what)
    what = what.replace("not '\\n'", "not the end of the line")
    return GrammarError(f"{what} at line {row}, column {column}")


def first_line(error: str) -> str:
    """The first line of a message of llguidance, which appends the whole grammar to it."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    return lines[0][:300] if lines else "unknown error"
