"""Whether a text matches a regex or a grammar, or is the beginning of one that does.

llguidance reads the text byte by byte, so that the time is linear in it, as it is on our server.
"""

from collections.abc import Sequence
from functools import cache, lru_cache
from time import thread_time
from typing import Any

from srt.patterns.assertions import whole
from srt.patterns.lark import LarkWriter, body_of, terminal
from srt.patterns.read_gbnf import inlined, is_gbnf, read_gbnf
from srt.patterns.read_re import parse
from srt.patterns.tree import Node
from srt.patterns.write import regex
from srt.wire.constraint import GrammarError

MAX_CPU_S = 5.0  # of one text; a million characters take 2 s with most patterns
_STEP_BYTES = 4  # few, because other threads stand still meanwhile
_END = 256


class TextMatcher:
    """The texts of a grammar in llguidance's Lark. Raises GrammarError if that refuses it."""

    def __init__(self, lark: str) -> None:
        import llguidance  # late: the language alone needs no parser

        limits = llguidance.LLParserLimits(
            initial_lexer_fuel=2_000_000,
            max_lexer_states=50_000,
            precompute_large_lexemes=False,
            verbose_errors=False,
        )
        text = llguidance.LLMatcher.grammar_from_lark(lark)
        self._matcher = llguidance.LLMatcher(_byte_tokenizer(), text, log_level=0, limits=limits)
        if self._matcher.is_error():
            raise GrammarError(self._matcher.get_error().split("\n", 1)[0])

    def reads(self, text: str, *, to_the_end: bool = True) -> bool:
        """Whether it is one of the texts, or only the beginning of one. Raises ValueError if that
        takes too long to find out, as with ambiguous grammars and repetitions in repetitions."""
        matcher, data = self._matcher.deep_copy(), text.encode("utf-8", "surrogatepass")
        end = thread_time() + MAX_CPU_S
        for at in range(0, len(data), _STEP_BYTES):
            piece = list(data[at : at + _STEP_BYTES])
            if matcher.try_consume_tokens(piece) < len(piece) and not matcher.is_error():
                return False
            if matcher.is_error() or thread_time() > end:
                raise ValueError("it takes too long to find out whether it matches")
        return not to_the_end or bool(matcher.is_accepting())


@lru_cache(64)
def matcher_of(field: str, source: str) -> TextMatcher:
    """The texts that a gen's `regex` or `ebnf` (GBNF or Lark) is for. Raises GrammarError."""
    if field == "regex":
        return matcher_of_tree(whole(parse(source)))
    if not is_gbnf(source):
        from srt.answers.captures.lark import capture_grammar

        return TextMatcher(capture_grammar(source).plain)
    rules = read_gbnf(source)
    node = inlined(rules, source)
    if node is not None:
        return matcher_of_tree(node)
    writer = LarkWriter()
    names = {name: f"rule_{i}" for i, name in enumerate(rules)}
    for name, body in rules.items():
        writer.rules[names[name]] = body_of(body, writer.character, names)
    return TextMatcher(writer.text(names["root"]))


def matcher_of_tree(node: Node) -> TextMatcher:
    """The texts that a pattern's tree is for. Raises GrammarError."""
    return TextMatcher(f"start: {terminal(regex(node))}")


class _Bytes:
    """A vocabulary of the 256 bytes and an end, as llguidance wants it."""

    eos_token_id, bos_token_id = _END, None
    special_token_ids: Sequence[int] = (_END,)
    tokens = (*(bytes([i]) for i in range(256)), b"<end>")

    def __call__(self, text: Any) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@cache
def _byte_tokenizer() -> Any:
    import llguidance

    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()), slices=[])
