"""GBNF is converted exactly; errors have line and column."""

import re

import pytest

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.ll_grammar import free_until
from scheduler_proc.grammar.llg.backend import compile_llguidance
from scheduler_proc.grammar.llg.ebnf import lark_of
from scheduler_proc.grammar.vocabulary import TokenVocabulary
from srt.wire.constraint import Constraint
from tests.scheduler_proc.grammar.byte_matcher import ByteMatcher
from tests.tokenizer_proc.admission.test_front import VOCAB

JSON = r"""
# JSON, as llama.cpp has it
root   ::= value ws
value  ::= object | array | string | number | ("true" | "false" | "null")
object ::= "{" ws ( string ":" ws value ws ("," ws string ":" ws value ws)* )? "}"
array  ::= "[" ws ( value ws ("," ws value ws)* )? "]"
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt/] | "u" [0-9a-fA-F]{4}) )* "\""
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)?
ws     ::= | " " | "\n" [ \t]{0,20}
"""

CASES = [
    # Terminals that begin alike or hide each other
    ('root ::= "a" "b" | "ab" "c"', ["ab", "abc"], ["a", "abb"]),
    ('root ::= [a-z]* "z" root | "!"', ["abz!", "zzz!", "!"], ["ab!", "z"]),
    ('root ::= x | "ab" x "c"\nx ::= "a" x | "b"?', ["aab", "abac", "ababc", ""], ["ba"]),
    # Syntax
    ('root ::= ("a" |\n "b")  # comment\n  "c"\n', ["ac", "bc"], ["c"]),
    ('root ::= "(" root ")" | y{2,3}\ny ::= [a-c/\\]"^-]', ["((a/))", '(]"^)', "--"],
     ["(a)", "ad"]),
    ('root ::= . "\\u00e9\\U0001F600\\x41\\n"', ["x\u00e9\U0001f600A\n", "\n\u00e9\U0001f600A\n"],
     ["\u00e9\U0001f600A\n"]),
    ('root ::= "(" root ")" | "x"{0} ("y" root){0} "z"', ["z", "((z))"], ["xz", "yz"]),
    ("root ::= [^a-z\\n]+", ["A\u00e9"], ["a", "\n", ""]),
    ('root ::= "\\a\\b\\e" [\\f\\v\\0] "\\\'"', ["\a\b\x1b\f'", "\a\b\x1b\0'"], ["abef'"]),
    ('root ::= ("a" | "b") {2} # pairs\n  "c" * x ?\nx ::= "d"', ["ab", "bbccd"], ["a", "abdd"]),
    ('root ::= my-rule_2\nmy-rule_2 ::= "x"', ["x"], [""]),
    (JSON, ['{"a": [1, -2.5, "\\u00e9\\n"]}', "null", "[]"], ['{"a":}', '{"a" 1}', "[1,]", "tru"]),
    # Indented as in a program's source: rules, and the lines that continue them
    ("\n    root ::= digit digit\n    digit ::= [0-9]\n    ", ["42"], ["4", "4x", ""]),
    ('\troot ::= "a" x |\n\t         "b" x\n\tx ::= "1"\n\t    | "2"', ["a1", "b2"], ["a", "1"]),
    ('  root ::=\n    ("a"\n     | x)+\n  # c ::= d\n  x\n    ::= "b"', ["ab"], ["c", ""]),
    # Lark
    ('start: "a" B\nB: /[0-9]+/', ["a12"], ["a", "12"]),
]  # fmt: skip


@pytest.mark.parametrize(("source", "accepted", "rejected"), CASES)
def test_the_language_is_that_of_the_source(
    source: str, accepted: list[str], rejected: list[str]
) -> None:
    matcher = ByteMatcher(lark_of(source))
    assert [text for text in accepted if not matcher.accepts(text)] == []
    assert [text for text in rejected if matcher.accepts(text)] == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('root ::= "a', "unterminated string, expected '\"' at line 1, column 10"),
        (
            'root ::= "a"\n\nx ::= [a',
            "unterminated character class, expected ']' at line 3, column 7",
        ),
        ("root ::= a\nb ::= c", "no rule 'a' at line 1, column 10"),
        ("root ::= a{0}", "no rule 'a' at line 1, column 10"),  # even if it is repeated 0 times
        ('x ::= "a"', "no rule 'root'"),
        ('root ::= "a"\nroot ::= "b"', "defined twice at line 2, column 1"),
        ('x ::= "b"\nroot ::= "a" root', "recursion never ends at line 2, column 1"),
        ('root ::= "a"{3,2}', "must be ordered"),
        ('root ::= "\\q"', "escape '\\\\q' is not known"),
        ("root ::= [b-a]", "out of order"),
        ('root ::= ("a"', "unterminated group, expected '\\)' at line 1, column 10"),
        ('root ::= (="a") "b"', "look-ahead is not supported"),
        ('root ::= "a" )', "expected a string, .* not '\\)' at line 1, column 14"),
        ("root = x", "neither a GBNF rule"),
        ("root ::= " + "(" * 1000 + '"a"' + ")" * 1000, "nested deeper"),
    ],
)
def test_errors_say_what_and_where(source: str, message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        lark_of(source)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('start: "a" b', 'unknown name: "b" at line 1, column 8'),
        ('start: ("a" | ', "expected ')', not the end of the line at line 1, column 15"),
        ('start: b\nb: "a"{2', "expected '}', not the end of the line at line 2, column 9"),
        ("start: T\nT[x]: /a+/", "expected ':', not '[' at line 2, column 2"),
        (
            '# <a>\nstart: "<a>" /<b>/ <|im_end|>',
            "tokens cannot .* '<|im_end|>' at line 2, column 20",
        ),
        ("start: <[0-10]>", "tokens cannot be named, only text: '<[0-10]>' at line 1, column 8"),
        ("start: x\nx[lazy, temperature=1]: /a/", "no temperature .* at line 2, column 9"),
        ('start: "a" %%', "expected a name, .* or an operator at line 1, column 13"),
        ('start: "a"..."b"', "expected a string, not '.' at line 1, column 12"),
        (
            "start: /a[c-b]/",
            'invalid regex "a[c-b]": invalid character class range, .* line 1, column 8',
        ),
        ('start: b\nb[capture]: "a" | c', 'unknown name: "c" at line 2, column 13'),
    ],
)
def test_errors_in_lark_say_what_and_where(source: str, message: str) -> None:
    with pytest.raises(GrammarError, match=re.sub(r"([\[\]()|])", r"\\\1", message)):
        compile_llguidance(Constraint("ebnf", source), TokenVocabulary.from_vocab(VOCAB))


def test_thousands_of_words() -> None:
    words = [f"{chr(97 + i % 26)}{i}" for i in range(15_000)]
    matcher = ByteMatcher(lark_of("root ::= " + " | ".join(f'"{word}"' for word in words)))
    assert matcher.accepts(words[-1]) and not matcher.accepts(words[-1] + "0")


@pytest.mark.full
def test_a_grammar_above_the_librarys_size() -> None:
    source = f'root ::= "{"ab" * 40_000}" root?'
    with pytest.raises(GrammarError, match="too large: characters, groups and rules"):
        compile_llguidance(Constraint("ebnf", source), TokenVocabulary.from_vocab(VOCAB))


def test_a_lead_in_ends_at_its_first_occurrence() -> None:
    matcher = ByteMatcher(free_until("</t>", lark_of('root ::= "x" | "(" root ")"')))
    assert matcher.accepts("any\n\u00e9 text</t>(x)")
    assert matcher.accepts("</</t>x")
    assert not matcher.accepts("</t>x</t>x")
    assert not matcher.accepts("x")
