"""The captures of Lark grammars: rules `name[capture]: ...`, and where they lie in a text.

llguidance gives the texts of captures, but not their places; it omits a capture that repeats the
one before, and includes those of abandoned parses. So the grammar is rewritten with a control token
before and after each captured rule, and reads the text byte by byte: a token is inserted where the
grammar cannot continue without it, the latest place first. The result is a parse of the text.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import llguidance

from srt.patterns.groups import Span
from srt.wire.constraint import GrammarError

MAX_CAPTURES = 64  # rules
_MAX_STEPS, _MAX_STEPS_PER_BYTE = 50_000, 50
_STRING, _PATTERN = r'"(?:[^"\\\n]|\\.)*"', r"/(?:[^/\\\n]|\\.)*/[a-z]*+"
_HEAD = re.compile(
    r"^(?P<name>[ \t]*[?!]*[a-z_]\w*)"
    rf'(?P<list>[ \t]*\[(?P<attributes>(?:{_STRING}|{_PATTERN}|[^]"/\n])*)\])'
    r"(?=[ \t]*(?:\.[ \t]*-?\d+[ \t]*)?:)",
    re.MULTILINE,
)
_ATTRIBUTE = re.compile(rf"(?P<key>\w+)\s*(?:=\s*(?P<value>{_STRING}|{_PATTERN}|[^,\"/]*))?")
_END_TOKEN = 256
_NOT_CAPTURED = {
    "max_tokens": "max_tokens counts tokens, and a text has none",
    "stop_capture": "stop_capture is not supported",
}


class _Rule(NamedTuple):
    """A captured rule: its name in answers, and the text that ends it but is not part of it."""

    name: str
    end: bytes


class CaptureGrammar(NamedTuple):
    """A Lark grammar. `plain` has no captures, and its lines and columns are those of the source;
    `marked` has the tokens 257 + 2i and 258 + 2i around the rule number i of `rules`."""

    plain: str
    marked: str
    rules: list[_Rule]


def capture_grammar(source: str) -> CaptureGrammar:
    """A Lark text with its captures. Raises GrammarError with line and column."""
    plain, marked, at = list[str](), list[str](), 0
    rules: list[_Rule] = []
    longest = max(map(len, re.findall("_captured_*", source)), default=0)
    suffix = "_captured".ljust(longest + 1, "_")
    for head in _HEAD.finditer(source):
        others, rule = _attributes(source, head)
        if rule is None:
            continue
        if len(rules) == MAX_CAPTURES:
            raise GrammarError(f"the grammar has more captures than the limit, {MAX_CAPTURES}")
        between, list_len = source[at : head.start("list")], len(head["list"])
        plain += [between, _listed(others).ljust(list_len)]
        first, inner = _END_TOKEN + 1 + 2 * len(rules), head["name"].strip(" \t?!") + suffix
        marked += [between, f": <[{first}]> {inner} <[{first + 1}]>\n{inner}{_listed(others)}"]
        rules.append(rule)
        at = head.end()
    if rules and (ignoring := re.search(r"^[ \t]*%ignore", source, re.MULTILINE)):
        raise _error("%ignore cannot be combined with captures", source, ignoring.end() - 7)
    rest = source[at:]
    return CaptureGrammar("".join([*plain, rest]), "".join([*marked, rest]), rules)


def _attributes(source: str, head: re.Match[str]) -> tuple[list[str], _Rule | None]:
    """A rule's attributes except `capture`, and the rule if it is captured."""
    found = list(_ATTRIBUTE.finditer(head["attributes"]))
    values = {attribute["key"]: attribute["value"] for attribute in found}
    if "capture" not in values:
        return [], None
    place = head.start("attributes")
    for key, reason in _NOT_CAPTURED.items():
        if key in values:
            raise _error(f"captures: {reason}", source, place)
    ends = [values[key] for key in ("suffix", "stop") if key in values]
    given = values["capture"]
    if any(value is None or value[:1] != '"' for value in (*ends, given or '""')):
        reason = "captures: a name, a stop and a suffix must be strings in double quotes"
        raise _error(reason, source, place)
    try:
        name = head["name"].strip(" \t?!") if given is None else json.loads(given)
        end = "".join(json.loads(value) for value in ends).encode()
        name.encode()  # half of a surrogate pair is not a character
    except ValueError:
        raise _error("captures: this is not a string in double quotes", source, place) from None
    others = [attribute[0].strip() for attribute in found if attribute["key"] != "capture"]
    return others, _Rule(name, end)


def _listed(attributes: list[str]) -> str:
    return f"[{', '.join(attributes)}]" if attributes else ""


def _error(what: str, source: str, at: int) -> GrammarError:
    line, column = source.count("\n", 0, at) + 1, at - source.rfind("\n", 0, at)
    return GrammarError(f"{what} at line {line}, column {column}")


def find_captures(source: str, data: bytes) -> list[Span] | None:
    """The captures of a Lark grammar in a text, in bytes of UTF-8, in the order of their
    beginnings: of all of it, or if the grammar does not match that, those that have ended. None if
    the grammar has none, and if too many parses failed before one was found."""
    grammar = capture_grammar(source)
    if not grammar.rules:
        return None
    search = _Search(grammar, data)
    for is_whole in (True, False):
        tokens = search.run(is_whole)
        if tokens is not None:
            return _found(grammar, data, tokens)
    return None


class _Search:
    """Finds where a marked grammar's tokens go in a text."""

    def __init__(self, grammar: CaptureGrammar, data: bytes) -> None:
        self._data = data
        self._marks = list(range(_END_TOKEN + 1, _END_TOKEN + 1 + 2 * len(grammar.rules)))
        limits = llguidance.LLParserLimits(
            initial_lexer_fuel=2_000_000, precompute_large_lexemes=False, verbose_errors=False
        )
        text = llguidance.LLMatcher.grammar_from_lark(grammar.marked)
        tokenizer = _byte_tokenizer(len(grammar.rules))
        self._pristine = llguidance.LLMatcher(tokenizer, text, log_level=0, limits=limits)
        self._steps = 0

    def run(self, is_whole: bool) -> list[int] | None:
        """The bytes with the tokens inserted; None if that is impossible, or was not found."""
        self._matcher, self._tokens, self._at = self._pristine.deep_copy(), list[int](), 0
        ways = [self._ways()]
        while ways and not self._matcher.is_error() and self._goes_on():
            if self._at == len(self._data) and not (is_whole and not self._matcher.is_accepting()):
                return self._checked()
            token = next(ways[-1], None)
            if token is None:
                ways.pop()
                self._step_back()
            elif self._matcher.try_consume_tokens([token]):
                self._tokens.append(token)
                self._at += token < _END_TOKEN
                ways.append(self._ways())
        return None

    def _goes_on(self) -> bool:
        self._steps += 1
        return self._steps < _MAX_STEPS + _MAX_STEPS_PER_BYTE * len(self._data)

    def _ways(self) -> Iterator[int]:
        """What may come next, the best first."""
        if self._at < len(self._data):
            yield self._data[self._at]
        recent = self._tokens[-2 * MAX_CAPTURES :]
        if len(recent) == 2 * MAX_CAPTURES and min(recent) > _END_TOKEN:
            return  # a rule begins with itself, again and again
        last, allowed = self._tokens[-2:], self._matcher.compute_logit_bias()
        for mark in (*self._marks[1::2], *self._marks[::2]):
            if allowed[mark] and last != [mark, mark + 1]:  # an empty capture is not repeated
                yield mark

    def _step_back(self) -> None:
        if not self._tokens:
            return
        token = self._tokens.pop()
        self._at -= token < _END_TOKEN
        if not self._matcher.rollback(1):
            self._matcher = self._pristine.deep_copy()
            self._matcher.consume_tokens(self._tokens)

    def _checked(self) -> list[int] | None:
        """The tokens, if they hold without the others that were tried."""
        matcher = self._pristine.deep_copy()
        return (
            self._tokens if matcher.try_consume_tokens(self._tokens) == len(self._tokens) else None
        )


def _found(grammar: CaptureGrammar, data: bytes, tokens: list[int]) -> list[Span]:
    at, begun, found = 0, [], []
    for token in tokens:
        if token < _END_TOKEN:
            at += 1
        elif token % 2:
            begun.append(at)
        else:
            rule = grammar.rules[(token - _END_TOKEN) // 2 - 1]
            start = begun.pop()
            end = start + len(data[start:at].removesuffix(rule.end))
            found.append(Span(rule.name, start, end))
    return sorted(found, key=lambda capture: (capture.start, -capture.end))


class _Bytes:
    """The source of llguidance's tokenizer: tokens for the bytes, an end, and two for each rule."""

    def __init__(self, num_rules: int) -> None:
        marks = [b"<%d>" % i for i in range(2 * num_rules)]
        self.tokens = [*(bytes([i]) for i in range(256)), b"<end>", *marks]
        self.eos_token_id, self.bos_token_id = _END_TOKEN, None
        self.special_token_ids = list(range(_END_TOKEN, len(self.tokens)))

    def __call__(self, text: Any) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def _byte_tokenizer(num_rules: int) -> Any:
    wrapped = llguidance.TokenizerWrapper(_Bytes(num_rules))
    return llguidance.LLTokenizer(wrapped, slices=[])
