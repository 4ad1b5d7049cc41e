"""Grammars in Lark as text: what is escaped, and what the writer names."""

from llguidance import LLMatcher

from srt.patterns.lark import LarkWriter, all_of, body_of, either, one_terminal, terminal, times
from srt.patterns.tree import Chars, Choice, Literal, Repeat


def test_slashes_and_line_feeds_are_escaped_once() -> None:
    assert terminal("a/b\\/c\n") == "/a\\/b\\/c\\n/"
    assert terminal("\\\\/") == "/\\\\\\//"


def test_a_terminal_may_meet_and_miss_several_regexes() -> None:
    assert all_of(["a*", "/"], ["b"]) == "/a*/ & /\\// & ~/b/"
    assert one_terminal("/a/") == "start: TEXT\nTEXT: /a/"


def test_a_writer_has_each_terminal_once_and_after_the_rules() -> None:
    writer = LarkWriter()
    tree = Choice((Literal("ab"), Repeat(Chars(((97, 97),)), 1, None)))
    name = writer.rule("word", body_of(tree, writer.character), "[lazy]")
    text = writer.text(either([name, times(name, 2, 3)]))
    assert text == (
        "start: (word_0 | (word_0){2,3})\n"
        "word_0[lazy]: (CHAR_0 CHAR_1 | (CHAR_0){1,})\n"
        "CHAR_0: /a/\nCHAR_1: /b/"
    )
    assert not LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(text))


def test_what_is_empty_needs_no_terminal() -> None:
    writer = LarkWriter()
    assert body_of(Literal(""), writer.character) == '""'
    assert body_of(Repeat(Literal("a"), 0, 0), writer.character) == '""'
    assert writer.text("x") == "start: x"
