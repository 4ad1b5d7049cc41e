"""Whether a string matches a regex, in time linear in the string, by the back end itself.

Called while schemas are simplified: values of `enum` against `pattern`, names against
`patternProperties`. Python's `re` would backtrack, and hostile patterns make that exponential.
"""

from functools import cache, lru_cache
from typing import Any

from scheduler_proc.grammar.base import BackEndError
from scheduler_proc.grammar.library_errors import in_our_words

_END = 256


class _ByteVocabulary:
    """A vocabulary of the 256 bytes, in the shape that llguidance asks of a tokenizer."""

    eos_token_id = _END
    bos_token_id = None
    special_token_ids = (_END,)
    is_tokenizer_wrapper = True

    def __init__(self) -> None:
        self.tokens = [bytes([i]) for i in range(256)] + [b"<end>"]

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@cache
def byte_tokenizer() -> Any:
    """An llguidance tokenizer whose tokens are the bytes and, at 256, the end."""
    import llguidance

    wrapper: Any = _ByteVocabulary()  # of the right shape, though not of its class
    return llguidance.LLTokenizer(wrapper, slices=[])


@lru_cache(1024)
def _matcher(regex: str) -> Any:
    import llguidance

    grammar = llguidance.LLMatcher.grammar_from_regex(regex)
    matcher = llguidance.LLMatcher(byte_tokenizer(), grammar, log_level=0)
    if matcher.is_error():
        raise BackEndError(f"pattern {regex[:80]!r}: {in_our_words(matcher.get_error())}")
    return matcher


def full_match(regex: str, text: str) -> bool:
    """Whether the whole of `text` matches. Raises GrammarError for a regex beyond the back end."""
    return accepts_text(_matcher(regex), text)


def accepts_text(matcher: Any, text: str) -> bool:
    """Whether `text` is a whole output of a matcher over the byte vocabulary."""
    tokens = [*text.encode("utf-8", "surrogatepass"), _END]
    return bool(matcher.validate_tokens(tokens) == len(tokens))
