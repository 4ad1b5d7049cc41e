"""The token sequences that a request's `bad_words` stand for.

Called by the front. As in vLLM, a word is banned both directly after other text, such as a
bracket, and after a space, each time in the tokens that the tokenizer makes of it there. Other
tokens that spell the same word are not.
"""

from collections.abc import Sequence

from srt.files.tokenizer import Tokenizer
from srt.wire.errors import RequestError

# The scheduler keeps them all, and may look at all of them for every token that it samples.
MAX_BAD_TOKENS = 4096


def bad_ids(words: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """The sequences that must not be output, each once. RequestError for a word without tokens,
    and for more than MAX_BAD_TOKENS tokens in all."""
    found: dict[tuple[int, ...], None] = {}
    num_tokens = 0
    for i, word in enumerate(words):
        bare = word.lstrip() or word
        for text in (bare, " " + bare):
            ids = tokenizer.encode_inside(text).tolist()
            if not ids:
                raise RequestError(f"bad_words[{i}] has no tokens", param="bad_words")
            num_tokens += len(ids)
            if num_tokens > MAX_BAD_TOKENS:
                limit = f" take more than {MAX_BAD_TOKENS} tokens, the limit"
                raise RequestError(limit, at="bad_words")
            found[tuple(ids)] = None
    return [list(ids) for ids in found]
