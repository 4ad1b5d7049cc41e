"""The token sequences that a request's `bad_words` stand for.

Called by the front. As in vLLM, a word is banned both directly behind other text, such as a
bracket, and behind a space, each time in the tokens that the tokenizer makes of it there. Other
tokens that spell the same word are not.
"""

from collections.abc import Sequence

from srt.errors import RequestError
from srt.model.tokenizer import Tokenizer


def bad_ids(words: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """All that must not be output, each once. RequestError for a word without tokens."""
    found: dict[tuple[int, ...], None] = {}
    for i, word in enumerate(words):
        bare = word.lstrip() or word
        for text in (bare, " " + bare):
            ids = tokenizer.encode_inside(text).tolist()
            if not ids:
                raise RequestError(f"bad_words[{i}] has no tokens", param="bad_words")
            found[tuple(ids)] = None
    return [list(ids) for ids in found]
