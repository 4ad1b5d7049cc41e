"""Context-free grammars of users: GBNF (`root ::= ...`) converted by us, Lark passed on.

Called by the llguidance back end. Exactness decides the form: a grammar without recursion becomes
one regex; any other is written with single characters as its terminals, because llguidance's
lexer takes the longest terminal and would lose parses if terminals overlapped.
"""

import re
from dataclasses import dataclass

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.ll_grammar import LLGrammar, regex_terminal
from scheduler_proc.grammar.schema import charset
from scheduler_proc.grammar.schema.charset import CharSet
from scheduler_proc.grammar.schema.pattern import Chars, Choice, Node, Repeat, Sequence, pattern_of
from srt.answers.captures.lark import capture_grammar

MAX_SOURCE_CHARS = 512 * 1024
MAX_NESTING = 128
MAX_COUNT = 10_000
MAX_RULES = 20_000
_MAX_COPIED_NODES = 20_000

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_RULE = re.compile(_NAME.pattern + r"\s*::=")
_GBNF = re.compile(r"^[ \t]*" + _RULE.pattern, re.MULTILINE)
# Texts, patterns and comments of Lark, and what else may look like these words.
_LARK_WORDS = re.compile(
    r"""
      "(?:\\.|[^"\\\n])*" | /(?!/)(?:\\.|[^/\\\n])+/ | //.* | \#.*
    | (?P<token> <[^<>\s]+> ) | (?P<temperature> \btemperature(?=\s*=) )
    """,
    re.VERBOSE,
)
# C's; other letters and digits would be mistaken for classes, as in patterns.
_ESCAPES = {
    **{"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"},
    **{"a": "\a", "b": "\b", "e": "\x1b", "0": "\0"},
}
_HEX_WIDTHS = {"x": 2, "u": 4, "U": 8}


def lark_of(source: str) -> LLGrammar:
    """The grammar of a GBNF or Lark text. Raises GrammarError with line and column."""
    if len(source) > MAX_SOURCE_CHARS:
        raise GrammarError(f"the grammar is longer than {MAX_SOURCE_CHARS} characters")
    if _GBNF.search(source):
        return _gbnf_grammar(source)
    if not re.search(r"^\s*\??start\s*[\[.:]", source, re.MULTILINE):
        raise GrammarError(
            "the grammar has neither a GBNF rule 'root ::=' nor a Lark rule 'start:'"
        )
    _check_lark(source)
    return LLGrammar.lark(capture_grammar(source).plain)  # captures are found in the answer


def _check_lark(source: str) -> None:
    """Refuse what llguidance takes: outputs hold no special tokens, and have one temperature."""
    for found in _LARK_WORDS.finditer(source):
        if found["token"]:
            what = f"tokens cannot be named, only text: {found['token']!r}"
            raise _error_at(source, found.start(), what)
        if found["temperature"]:
            raise _error_at(source, found.start(), "a rule has no temperature of its own")


def _error_at(source: str, position: int, what: str) -> GrammarError:
    line = source.count("\n", 0, position) + 1
    column = position - (source.rfind("\n", 0, position) + 1) + 1
    return GrammarError(f"{what} at line {line}, column {column}")


@dataclass(frozen=True)
class Reference:
    """A use of a rule, with where it stands."""

    name: str
    position: int


Rules = dict[str, object]


def regular_grammar(source: str) -> Node | None:
    """A GBNF text as one regular expression; None if it is none, or no GBNF. Raises as `lark_of`
    does."""
    if len(source) > MAX_SOURCE_CHARS or not _GBNF.search(source):
        return None
    return _inlined(source, _gbnf_rules(source))


def _gbnf_grammar(source: str) -> LLGrammar:
    rules = _gbnf_rules(source)
    node = _inlined(source, rules)
    if node is not None:
        return LLGrammar.regex(pattern_of(node).regex)
    return LLGrammar.lark(_CharacterLark(rules).text())


def _inlined(source: str, rules: Rules) -> Node | None:
    """`root` as one regular expression, unless that is much larger than its source."""
    return _Inliner(rules, len(source) + _MAX_COPIED_NODES).regular("root")


def _gbnf_rules(source: str) -> Rules:
    parser = _GbnfParser(source)
    rules = parser.rules()
    if "root" not in rules:
        raise GrammarError("the grammar has no rule 'root'")
    _check_references(rules, parser)
    _check_productive(rules, parser)
    return rules


# ---- Checks ----------------------------------------------------------------------------------


def _children(node: object) -> tuple[object, ...]:
    match node:
        case Sequence(items) | Choice(items):
            return items
        case Repeat(item, _, _):
            return (item,)
        case _:
            return ()


def _references(node: object) -> list[Reference]:
    if isinstance(node, Reference):
        return [node]
    return [found for child in _children(node) for found in _references(child)]


def _check_references(rules: Rules, parser: "_GbnfParser") -> None:
    for body in rules.values():
        for reference in _references(body):
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


def _ends(node: object, productive: set[str]) -> bool:
    match node:
        case Reference(name, _):
            return name in productive
        case Sequence(items):
            return all(_ends(item, productive) for item in items)
        case Choice(items):
            return any(_ends(item, productive) for item in items)
        case Repeat(item, least, _):
            return least == 0 or _ends(item, productive)
        case Chars(ranges):
            return bool(ranges)
        case _:
            return True


# ---- Output ----------------------------------------------------------------------------------


class _Inliner:
    """Replaces rules by their bodies, as long as that ends and makes at most `budget` nodes."""

    def __init__(self, rules: Rules, budget: int) -> None:
        self._rules = rules
        self._open: list[str] = []
        self._budget = budget

    def regular(self, name: str) -> Node | None:
        """The rule as one regular expression; None if it is recursive or too large."""
        if name in self._open:
            return None
        self._open.append(name)
        node = self._inlined(self._rules[name])
        self._open.pop()
        return node

    def _inlined(self, node: object) -> Node | None:
        self._budget -= 1
        if self._budget < 0:
            return None
        match node:
            case Reference(name, _):
                return self.regular(name)
            case Chars():
                return node
            case Repeat(item, least, most):
                inner = self._inlined(item)
                return None if inner is None else Repeat(inner, least, most)
            case Sequence(items) | Choice(items):
                found = []
                for item in items:
                    part = self._inlined(item)
                    if part is None:
                        return None
                    found.append(part)
                return (
                    Sequence(tuple(found)) if isinstance(node, Sequence) else Choice(tuple(found))
                )
            case _:
                return None


class _CharacterLark:
    """Prints rules in Lark with one-character terminals."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._names = {name: f"rule_{i}" for i, name in enumerate(rules)}
        self._terminals: dict[CharSet, str] = {}

    def text(self) -> str:
        lines = [
            f"{self._names[name]}: {self._printed(body)}" for name, body in self._rules.items()
        ]
        lines += [
            f"{name}: {regex_terminal(pattern_of(Chars(ranges)).regex)}"
            for ranges, name in self._terminals.items()
        ]
        return "\n".join([f"start: {self._names['root']}", *lines])

    def _printed(self, node: object) -> str:
        match node:
            case Reference(name, _):
                return self._names[name]
            case Chars(ranges):
                return self._terminals.setdefault(ranges, f"CHAR_{len(self._terminals)}")
            case Sequence(()):
                return '""'
            case Sequence(items):
                return " ".join(self._printed(item) for item in items)
            case Choice(items):
                return "(" + " | ".join(self._printed(item) for item in items) + ")"
            case Repeat(_, _, 0):
                return '""'
            case Repeat(item, least, most):
                bounds = f"{least},{'' if most is None else most}"
                return f"({self._printed(item)}){{{bounds}}}"
            case _:
                raise TypeError(f"{node!r} is no part of a grammar")


# ---- Parser ----------------------------------------------------------------------------------


class _GbnfParser:
    """Recursive descent over llama.cpp's GBNF. A rule goes on, over lines, until a name with '::='
    begins the next one; how lines are indented says nothing."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.at = 0
        self.starts: dict[str, int] = {}  # where each rule begins

    def error(self, what: str, at: int | None = None) -> GrammarError:
        return _error_at(self.source, self.at if at is None else at, what)

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

    def _choice(self, depth: int) -> object:
        if depth > MAX_NESTING:
            raise self.error(f"groups are nested deeper than {MAX_NESTING}")
        options = [self._sequence(depth)]
        while self._take("|"):
            self._skip()
            options.append(self._sequence(depth))
        return options[0] if len(options) == 1 else Choice(tuple(options))  # type: ignore[arg-type]

    def _sequence(self, depth: int) -> object:
        items: list[object] = []
        while self.at < len(self.source) and self.source[self.at] not in "|)":
            if self._rule_begins():
                break
            item = self._element(depth)
            self._skip()
            items.append(self._repeated(item))
            self._skip()
        return items[0] if len(items) == 1 else Sequence(tuple(items))  # type: ignore[arg-type]

    def _rule_begins(self) -> bool:
        return _RULE.match(self.source, self.at) is not None

    def _element(self, depth: int) -> object:
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
            return Chars(charset.ANY)
        return Reference(self._name("a literal, a class, a group or a name"), start)

    def _repeated(self, item: object) -> object:
        start = self.at
        for sign, least, most in (("*", 0, None), ("+", 1, None), ("?", 0, 1)):
            if self._take(sign):
                return Repeat(item, least, most)  # type: ignore[arg-type]
        if not self._take("{"):
            return item
        found = re.compile(r"\s*(\d{1,9})\s*(?:(,)\s*(\d{1,9})?\s*)?\}").match(self.source, self.at)
        if found is None:
            raise self.error("a repetition is {n}, {n,} or {n,m}", start)
        self.at = found.end()
        least = int(found[1])
        most = int(found[3]) if found[3] else None if found[2] else least
        if max(least, most or 0) > MAX_COUNT or (most is not None and most < least):
            raise self.error(f"a repetition must be ordered and at most {MAX_COUNT}", start)
        return Repeat(item, least, most)  # type: ignore[arg-type]

    def _string(self, start: int) -> object:
        items = []
        while not self._take('"'):
            items.append(Chars(charset.chars(self._char(start, "string"))))
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _char_class(self, start: int) -> object:
        negated = self._take("^")
        found: list[CharSet] = []
        while not self._take("]"):
            low = high = self._char(start, "character class")
            if self.source.startswith("-", self.at) and not self.source.startswith("-]", self.at):
                self.at += 1
                high = self._char(start, "character class")
            if high < low:
                raise self.error("a range of characters is out of order", start)
            found.append(((ord(low), ord(high)),))
        ranges = charset.complement(charset.complement(charset.union(*found)))
        return Chars(charset.complement(ranges) if negated else ranges)

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
        if point > charset.MAX_CODE_POINT or 0xD800 <= point <= 0xDFFF:
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
