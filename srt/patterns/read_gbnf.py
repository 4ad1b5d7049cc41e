"""Reads llama.cpp's GBNF (`root ::= ...`): rules as trees that refer to each other by name.

Rules without recursion can be inlined, which gives one tree.
"""

import re

from srt.patterns.ranges import (
    ANY,
    MAX_CODE_POINT,
    Range,
    complement,
    union,
    without_surrogates,
)
from srt.patterns.source import is_surrogate
from srt.patterns.tree import (
    Chars,
    Choice,
    Concat,
    Literal,
    Node,
    Reference,
    Repeat,
    character,
    choice,
    concat,
    repeat,
)
from srt.wire.constraint import GrammarError

MAX_NESTING = 128
MAX_COUNT = 10_000
MAX_RULES = 20_000
_MAX_COPIED_NODES = 20_000

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_RULE = re.compile(_NAME.pattern + r"\s*::=")
_GBNF = re.compile(r"^[ \t]*" + _RULE.pattern, re.MULTILINE)
_COUNT = re.compile(r"\s*(\d{1,9})\s*(?:(,)\s*(\d{1,9})?\s*)?\}")
# C's; other letters and digits would be mistaken for classes, as in patterns.
_ESCAPES = {
    **{"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"},
    **{"a": "\a", "b": "\b", "e": "\x1b", "0": "\0"},
}
_HEX_WIDTHS = {"x": 2, "u": 4, "U": 8}

Rule = Node | Reference  # its leaves may also be references
Rules = dict[str, Rule]


def is_gbnf(source: str) -> bool:
    """Whether a grammar has a rule of GBNF."""
    return _GBNF.search(source) is not None


def read_gbnf(source: str) -> Rules:
    """The rules; `root` is one of them. Raises GrammarError with line and column."""
    parser = _GbnfParser(source)
    rules = parser.rules()
    if "root" not in rules:
        raise GrammarError("the grammar has no rule 'root'")
    _check_references(rules, parser)
    _check_productive(rules, parser)
    return rules


def inlined(rules: Rules, source: str) -> Node | None:
    """`root` as one tree; None if it is recursive or the tree is much larger than the source."""
    return _Inliner(rules, len(source) + _MAX_COPIED_NODES).rule("root")


def error_at(source: str, position: int, what: str) -> GrammarError:
    """The error for a position, given as line and column."""
    line = source.count("\n", 0, position) + 1
    column = position - (source.rfind("\n", 0, position) + 1) + 1
    return GrammarError(f"{what} at line {line}, column {column}")


# ---- Checks ----------------------------------------------------------------------------------


def _check_references(rules: Rules, parser: "_GbnfParser") -> None:
    for reference in parser.references:
        if reference.name not in rules:
            raise parser.error(f"there is no rule {reference.name!r}", reference.position)


def _check_productive(rules: Rules, parser: "_GbnfParser") -> None:
    """Every rule that `root` cannot do without must have a finite text."""
    productive: set[str] = set()
    changed = True
    while changed:
        found = {n for n, body in rules.items() if n not in productive and _ends(body, productive)}
        productive |= found
        changed = bool(found)
    if "root" not in productive:
        what = "the rule 'root' has no finite text: its recursion never ends"
        raise parser.error(what, parser.starts["root"])


def _ends(node: Rule, productive: set[str]) -> bool:
    match node:
        case Reference(name, _):
            return name in productive
        case Concat(items):
            return all(_ends(item, productive) for item in items)
        case Choice(items):
            return any(_ends(item, productive) for item in items)
        case Repeat(item, low):
            return low == 0 or _ends(item, productive)
        case Chars(ranges):
            return bool(ranges)
        case _:
            return True


class _Inliner:
    """Replaces references by the rules' bodies, if that ends and makes at most `budget` nodes."""

    def __init__(self, rules: Rules, budget: int) -> None:
        self._rules = rules
        self._open: list[str] = []
        self._budget = budget

    def rule(self, name: str) -> Node | None:
        """The rule as one tree; None if it is recursive or too large."""
        if name in self._open:
            return None
        self._open.append(name)
        node = self._inlined(self._rules[name])
        self._open.pop()
        return node

    def _inlined(self, node: Rule) -> Node | None:
        self._budget -= len(node.text) if isinstance(node, Literal) else 1
        if self._budget < 0:
            return None
        match node:
            case Reference(name):
                return self.rule(name)
            case Repeat(item, low, high):
                inner = self._inlined(item)
                return None if inner is None else repeat(inner, low, high)
            case Concat(items) | Choice(items):
                found = []
                for item in items:
                    part = self._inlined(item)
                    if part is None:
                        return None
                    found.append(part)
                return concat(found) if isinstance(node, Concat) else choice(found)
            case _:
                return node


# ---- Parser ----------------------------------------------------------------------------------


class _GbnfParser:
    """Recursive descent over llama.cpp's GBNF. A rule continues over lines until a name with '::='
    begins the next one; indentation means nothing."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.at = 0
        self.starts: dict[str, int] = {}  # where each rule begins
        self.references: list[Reference] = []  # also those that are not in the tree, as in `x{0}`

    def error(self, what: str, at: int | None = None) -> GrammarError:
        return error_at(self.source, self.at if at is None else at, what)

    def rules(self) -> Rules:
        found: Rules = {}
        self._skip()
        while self.at < len(self.source):
            start = self.at
            name = self._name("a rule's name")
            self._skip()
            if not self._take("::="):
                raise self.error("'::=' expected")
            self.starts.setdefault(name, start)
            if name in found:
                raise self.error(f"the rule {name!r} is defined twice", start)
            if len(found) >= MAX_RULES:
                raise self.error(f"more than {MAX_RULES} rules", start)
            self._skip()
            found[name] = self._choice(0)
            self._skip()
            if self.at < len(self.source) and not self._rule_begins():
                expected = "expected a string, a class, a group, a rule's name or a new rule"
                raise self.error(f"{expected}, not {self.source[self.at]!r}")
        return found

    def _choice(self, depth: int) -> Rule:
        if depth > MAX_NESTING:
            raise self.error(f"groups are nested deeper than {MAX_NESTING}")
        options = [self._sequence(depth)]
        while self._take("|"):
            self._skip()
            options.append(self._sequence(depth))
        return choice(options)  # type: ignore[arg-type]

    def _sequence(self, depth: int) -> Rule:
        items: list[Rule] = []
        while self.at < len(self.source) and self.source[self.at] not in "|)":
            if self._rule_begins():
                break
            item = self._element(depth)
            self._skip()
            items.append(self._repeated(item))
            self._skip()
        return concat(items)  # type: ignore[arg-type]

    def _rule_begins(self) -> bool:
        return _RULE.match(self.source, self.at) is not None

    def _element(self, depth: int) -> Rule:
        start = self.at
        if self._take('"'):
            return self._string(start)
        if self._take("["):
            return self._char_class(start)
        if self._take("("):
            self._skip()
            if self._take("="):
                raise self.error("look-ahead is not supported", start)
            inner = self._choice(depth + 1)
            if not self._take(")"):
                raise self.error("unterminated group, expected ')'", start)
            return inner
        if self._take("."):
            return Chars(ANY)
        reference = Reference(self._name("a literal, a class, a group or a name"), start)
        self.references.append(reference)
        return reference

    def _repeated(self, item: Rule) -> Rule:
        start = self.at
        for sign, least, most in (("*", 0, None), ("+", 1, None), ("?", 0, 1)):
            if self._take(sign):
                return repeat(item, least, most)  # type: ignore[arg-type]
        if not self._take("{"):
            return item
        found = _COUNT.match(self.source, self.at)
        if found is None:
            raise self.error("a repetition is {n}, {n,} or {n,m}", start)
        self.at = found.end()
        least = int(found[1])
        most = int(found[3]) if found[3] else None if found[2] else least
        if max(least, most or 0) > MAX_COUNT or (most is not None and most < least):
            raise self.error(f"a repetition must be ordered and at most {MAX_COUNT}", start)
        return repeat(item, least, most)  # type: ignore[arg-type]

    def _string(self, start: int) -> Rule:
        text = []
        while not self._take('"'):
            text.append(self._char(start, "string"))
        return Literal("".join(text))

    def _char_class(self, start: int) -> Rule:
        negated = self._take("^")
        found: list[Range] = []
        while not self._take("]"):
            low = high = self._char(start, "character class")
            if self.source.startswith("-", self.at) and not self.source.startswith("-]", self.at):
                self.at += 1
                high = self._char(start, "character class")
            if high < low:
                raise self.error("a range of characters is out of order", start)
            found.append((ord(low), ord(high)))
        ranges = union(found)
        return character(complement(ranges) if negated else without_surrogates(ranges))

    def _char(self, start: int, what: str) -> str:
        end = "']'" if self.source[start] == "[" else repr(self.source[start])
        if self.at >= len(self.source) or self.source[self.at] == "\n":
            raise self.error(f"unterminated {what}, expected {end}", start)
        char = self.source[self.at]
        self.at += 1
        if char != "\\":
            return char
        if self.at >= len(self.source):
            raise self.error(f"unterminated {what}, expected {end}", start)
        kind = self.source[self.at]
        self.at += 1
        width = _HEX_WIDTHS.get(kind)
        if width is None:
            if kind.isalnum() and kind not in _ESCAPES:
                raise self.error(f"the escape '\\{kind}' is not known", self.at - 2)
            return _ESCAPES.get(kind, kind)
        digits = self.source[self.at : self.at + width]
        if not re.fullmatch(f"[0-9A-Fa-f]{{{width}}}", digits):
            raise self.error(f"'\\{kind}' needs {width} hexadecimal digits", self.at - 2)
        self.at += width
        point = int(digits, 16)
        if point > MAX_CODE_POINT or is_surrogate(point):
            raise self.error("this is not a character", self.at - width - 2)
        return chr(point)

    def _name(self, expected: str) -> str:
        found = _NAME.match(self.source, self.at)
        if found is None:
            what = repr(self.source[self.at]) if self.at < len(self.source) else "the end"
            raise self.error(f"{expected} expected, not {what}")
        self.at = found.end()
        return found[0]

    def _take(self, text: str) -> bool:
        found = self.source.startswith(text, self.at)
        self.at += len(text) if found else 0
        return found

    def _skip(self) -> None:
        """Blanks, line ends and comments."""
        while self.at < len(self.source):
            if self.source[self.at] == "#":
                end = self.source.find("\n", self.at)
                self.at = len(self.source) if end < 0 else end
            elif self.source[self.at].isspace():
                self.at += 1
            else:
                return
