"""A vocabulary, a tokenizer and grammars over bytes, with the token ids of the fake executor.

Ids 0-255 are the bytes, the next ones pairs and longer runs of a few characters, the last is EOS.
The tokenizer splits a text into words, and takes the longest tokens of each from left to right. As
with a real one, the result depends on the text alone.
"""

import re
from functools import cache
from itertools import product

from scheduler_proc.grammar.fsm.grammar import FsmGrammar
from scheduler_proc.grammar.regex import compile_regex
from scheduler_proc.grammar.retokenise import Retokeniser
from scheduler_proc.grammar.vocabulary import TokenVocabulary
from srt.files.tokenizer import Pieces
from srt.files.vocab import Vocab
from tests.scheduler_proc.fake_executor import VOCAB
from tests.scheduler_proc.fake_grammar import EOS

_LETTERS = "abcn"
_MARKS = '",:{}'


@cache
def vocab() -> Vocab:
    words = ["".join(p) for n in (2, 3, 4) for p in product(_LETTERS, repeat=n)]
    marks = ["".join(p) for n in (2, 3) for p in product(_MARKS, repeat=n)]
    spaced = [f" {text}" for text in (*_LETTERS, *_MARKS, *words[:120])]
    merged = [text.encode() for text in (*words, *marks, *spaced, "é", "ab é")]
    tokens = [bytes([i]) for i in range(256)] + merged
    tokens = tokens[: VOCAB - 1]
    tokens += [b""] * (VOCAB - 1 - len(tokens)) + [b"<eos>"]
    return Vocab(
        model_name="bytes",
        token_bytes=tokens,
        special_ids=frozenset([EOS]),
        eos_ids=(EOS,),
        bos_id=None,
        add_bos=False,
        context_len=4096,
        chat_template=None,
    )


class Longest:
    """The tokenizer: always the longest token that fits."""

    def __init__(self) -> None:
        self._ids = {token: i for i, token in enumerate(vocab().token_bytes) if token}

    def split(self, text: str) -> Pieces:
        ids: list[int] = []
        words: list[int | None] = []
        for number, word in enumerate(re.findall(r" ?[a-zé]+| ?[^a-zé ]+| +", text)):
            data = word.encode()
            while data:
                size = next(n for n in range(len(data), 0, -1) if data[:n] in self._ids)
                ids.append(self._ids[data[:size]])
                words.append(number)
                data = data[size:]
        return Pieces(ids, words)


@cache
def retokeniser() -> Retokeniser:
    return Retokeniser(vocab(), Longest())


@cache
def token_vocabulary() -> TokenVocabulary:
    return TokenVocabulary.from_vocab(vocab())


@cache
def grammar_of(pattern: str) -> FsmGrammar:
    return FsmGrammar.build(compile_regex(pattern), token_vocabulary())


def text_of(tokens: list[int]) -> bytes:
    return b"".join(vocab().token_bytes[i] for i in tokens if i != EOS)
