"""The fenced code blocks of a document, and the commands of its shell blocks."""

import re
import shlex
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

TIMEOUT_S = 240  # of a block that runs
# `test_docs` says what each tag means.
TAGS = ("python", "sh", "output", "json", "toml", "text")
_ASSIGNMENT = re.compile(r"[A-Z_][A-Z0-9_]*=")


class Block(NamedTuple):
    """One fenced block. `expected` is the `output` block right after it, or None."""

    document: Path
    line: int
    tag: str
    code: str
    expected: str | None = None

    @property
    def where(self) -> str:
        return f"{self.document.name}:{self.line}"


def blocks_of(document: Path) -> list[Block]:
    """All blocks in order. Raises AssertionError for a fence that is not closed."""
    found: list[Block] = []
    lines = document.read_text().splitlines()
    at = 0
    while at < len(lines):
        if lines[at].startswith("```"):
            end = next((i for i in range(at + 1, len(lines)) if lines[i] == "```"), None)
            assert end is not None, f"{document.name}:{at + 1}: this block has no end"
            code = "\n".join(lines[at + 1 : end]) + "\n"
            found.append(Block(document, at + 1, lines[at][3:].strip(), code))
            at = end
        at += 1
    return _with_outputs(found, lines)


def _with_outputs(blocks: list[Block], lines: list[str]) -> list[Block]:
    """Give each block the `output` block that only blank lines separate from it."""
    result = []
    for block, following in zip_longest(blocks, blocks[1:]):
        end = block.line + block.code.count("\n") + 1  # the closing fence, counted from 1
        if following is not None and following.tag == "output":
            if not any(line.strip() for line in lines[end : following.line - 1]):
                block = block._replace(expected=following.code)
        result.append(block)
    return result


def commands_of(code: str) -> list[list[str]]:
    """The commands of a shell block as words, without variable assignments in front.

    Each line is a command, but a quoted word may span several. There are no comments.
    """
    lexer = shlex.shlex(code.replace("\\\n", " "), posix=True, punctuation_chars="\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    commands: list[list[str]] = [[]]
    for word in lexer:
        if not word.strip("\n"):
            commands.append([])
        elif commands[-1] or not _ASSIGNMENT.match(word):
            commands[-1].append(word)
    return [words for words in commands if words]


def missing_lines(expected: str, actual: str) -> list[str]:
    """The lines of `expected` that `actual` lacks, in order; "..." stands for any text."""
    missing, at = [], 0
    for line in expected.splitlines():
        if not line.strip() or line.strip() == "...":
            continue
        pattern = ".*".join(re.escape(part) for part in line.strip().split("..."))
        match = re.compile(pattern).search(actual, at)
        if match is None:
            missing.append(line)
        else:
            at = match.end()
    return missing
