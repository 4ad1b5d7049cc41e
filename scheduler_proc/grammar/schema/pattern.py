"""What a whole string must look like: a tree and how it is written, for grammars and as a judge."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from scheduler_proc.grammar.schema.oracle import full_match
from srt.patterns.ranges import characters, complement
from srt.patterns.tree import ANY_TEXT, EMPTY, Chars, Literal, Node, choice, concat
from srt.patterns.write import json_regex, regex, spellable_regex


@dataclass(frozen=True)
class Pattern:
    """What a whole string must look like. Two patterns are equal if they are written alike."""

    regex: str
    node: Node = field(compare=False)

    def matches(self, text: str) -> bool:
        """Whether the whole of `text` matches; linear in its length."""
        return full_match(self.regex, text)

    def back_end_regex(self) -> str:
        """`regex`, less what the back end would spell wrongly."""
        return spellable_regex(self.node)

    def json_regex(self, exact: bool = False) -> str:
        """The regex of the JSON spelling, without the quotes; like `back_end_regex` unless it is
        to be `exact`."""
        return json_regex(self.node, exact)


def pattern_of(node: Node) -> Pattern:
    """The pattern of a tree."""
    return Pattern(regex(node), node)


def head(pattern: Pattern) -> str:
    """The spelling of characters that all texts of a pattern begin with, if it is easily found."""
    found = re.match(r"(?:\(\?:)?((?:(?:\w|\\[-./])(?![*?{]))*)", pattern.regex)
    return found[1] if found and "|" not in pattern.regex else ""


def one_of(texts: Iterable[str]) -> Pattern:
    """Exactly one of `texts`."""
    return pattern_of(choice(map(Literal, texts)))


def none_of(texts: Iterable[str]) -> Pattern:
    """Any text but these: the complement of their trie, which is as large as the trie."""
    return pattern_of(_outside(sorted(set(texts))))


def _outside(texts: list[str]) -> Node:
    """What is not in `texts`, which are sorted and distinct."""
    if not texts:
        return ANY_TEXT
    branches: dict[str, list[str]] = {}
    for text in texts:
        if text:
            branches.setdefault(text[0], []).append(text[1:])
    others = concat([Chars(complement(characters("".join(branches)))), ANY_TEXT])
    items = [concat([Literal(char), _outside(rests)]) for char, rests in branches.items()]
    return choice([others, *items] if "" in texts else [EMPTY, others, *items])
