"""Writes tokens and their log-probabilities as the OpenAI routes do.

Used by the faces of completions and chats. A token's text is that of its bytes alone: bytes that
are not UTF-8 are written as `\\xNN`, since a character may be cut into several tokens.
"""

import codecs
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from srt.client.generation import GenerateOutput
from srt.files.vocab import Vocab, text_decoder
from srt.gateway.wire.openai import (
    CompletionLogprobs,
    RankedLogprob,
    TokenLogprob,
    TopLogprob,
)

_encode = msgspec.json.Encoder().encode
Ranked = Sequence[tuple[float, int]]  # (log-probability, id) pairs, best first


class Position(NamedTuple):
    """A token, its log-probability (None at a prompt's first position), and the likely tokens."""

    token: int
    logprob: float | None
    top: Ranked = ()


def output_positions(output: GenerateOutput, start: int, stop: int, num_top: int) -> list[Position]:
    """The generated tokens [start, stop), each with its `num_top` likeliest."""
    logprobs = (output.output_logprobs or [])[start:stop]
    tops: Sequence[Ranked] = (output.output_top_logprobs or [])[start:stop]
    rows = zip(output.output_ids[start:stop], logprobs, tops or [()] * len(logprobs), strict=True)
    return [Position(token, lp, top[:num_top]) for token, lp, top in rows]


def prompt_positions(output: GenerateOutput, num_top: int) -> list[Position]:
    """The prompt's tokens, each with its `num_top` likeliest."""
    pairs = output.prompt_logprobs or []
    tops: Sequence[Ranked | None] = output.prompt_top_logprobs or [None] * len(pairs)
    rows = zip(pairs, tops, strict=True)
    return [Position(token, lp, (top or ())[:num_top]) for (lp, token), top in rows]


class TokenNames:
    """How one request wants tokens written: by their text, or as `token_id:5`."""

    def __init__(self, vocab: Vocab, as_ids: bool) -> None:
        self._vocab = vocab
        self._as_ids = as_ids

    def name(self, token: int) -> str:
        """A token in a chat's log-probabilities."""
        if self._as_ids:
            return f"token_id:{token}"
        return self._vocab.token_bytes[token].decode("utf-8", "backslashreplace")

    def old_name(self, token: int) -> str:
        """A token in a completion's log-probabilities; `bytes:` marks one that is not UTF-8."""
        try:
            return self.name(token) if self._as_ids else self._vocab.token_bytes[token].decode()
        except UnicodeDecodeError:
            return "bytes:" + self.name(token)

    def data(self, token: int) -> bytes:
        """The bytes of a token's text."""
        return self._vocab.token_bytes[token]


def chat_token(position: Position, names: TokenNames) -> TokenLogprob:
    """The log-probability of one generated token, and the likely tokens at its position."""

    def written(token: int, logprob: float) -> TopLogprob:
        return TopLogprob(names.name(token), list(names.data(token)), logprob)

    assert position.logprob is not None, "generated tokens have one"
    own = written(position.token, position.logprob)
    top = [written(token, logprob) for logprob, token in position.top]
    return TokenLogprob(own.token, own.bytes, own.logprob, top)


class CompletionScores:
    """Writes one completion's log-probabilities as they arrive, and keeps each token's offset.

    An offset is the number of whole characters before the token in the text, which does not have
    the `hidden` tokens. Tokens that a stop string removed have offsets at or after the end of the
    text. The prompt ends with `begun`, the first bytes of the text's first character.
    """

    def __init__(
        self, names: TokenNames, num_top: int, hidden: frozenset[int], begun: bytes = b""
    ) -> None:
        self._names = names
        self._num_top = num_top
        self._hidden = hidden
        self._offset = 0
        self._decode = text_decoder(begun)
        self._ready: list[Any] = []

    def prepare(self, positions: Sequence[Position]) -> Iterator[None]:
        """Do the longest work for the next positions, one by one."""
        for position in positions:
            self._ready.append(msgspec.Raw(_encode(self._top(position))))
            yield

    def prompt(
        self, positions: Sequence[Position], text: str, is_given: bool
    ) -> CompletionLogprobs:
        """The prompt's log-probabilities; the completion's text begins with the prompt's.

        `is_given`: the tokens were made of `text`. They may then begin with a BOS token or a space
        that the text does not have, and special tokens are written out in the text.
        """
        pieces = [self._visible(p.token, is_given) for p in positions]
        data = b"".join(pieces)
        extra = len(data) - len(text.encode())
        skip = extra if is_given and extra > 0 and data.endswith(text.encode()) else 0
        offsets = []
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        for piece in pieces:
            offsets.append(min(self._offset, len(text)))
            self._offset += len(decode(piece[skip:]))
            skip = max(0, skip - len(piece))
        self._offset = len(text)
        return self._lists(positions, offsets)

    def output(self, positions: Sequence[Position]) -> CompletionLogprobs:
        """The log-probabilities of the next generated tokens."""
        offsets = []
        for position in positions:
            offsets.append(self._offset)
            self._offset += len(self._decode(self._visible(position.token, False)))
        return self._lists(positions, offsets)

    def _visible(self, token: int, is_given: bool) -> bytes:
        return b"" if not is_given and token in self._hidden else self._names.data(token)

    def _lists(self, positions: Sequence[Position], offsets: list[int]) -> CompletionLogprobs:
        return CompletionLogprobs(
            tokens=[self._names.old_name(p.token) for p in positions],
            token_logprobs=[p.logprob for p in positions],
            top_logprobs=self._tops(positions) if self._num_top else None,
            text_offset=offsets,
        )

    def _tops(self, positions: Sequence[Position]) -> list[Any]:
        count = len(positions)
        ready, self._ready = self._ready[:count], self._ready[count:]
        return ready + [self._top(position) for position in positions[len(ready) :]]

    def _top(self, position: Position) -> dict[str, float] | None:
        """The likely tokens by text; of several tokens with one text the likeliest counts."""
        if position.logprob is None:
            return None
        likely: dict[str, float] = {}
        for logprob, token in (*position.top, (position.logprob, position.token)):
            likely.setdefault(self._names.old_name(token), logprob)
        return likely


def joined(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    """The lists of both, joined."""
    tops = first.top_logprobs, second.top_logprobs
    return CompletionLogprobs(
        tokens=first.tokens + second.tokens,
        token_logprobs=first.token_logprobs + second.token_logprobs,
        top_logprobs=None if tops[0] is None or tops[1] is None else tops[0] + tops[1],
        text_offset=first.text_offset + second.text_offset,
    )


def ranked_prompt(positions: Sequence[Position], names: TokenNames) -> Iterator[msgspec.Raw]:
    """vLLM's `prompt_logprobs`, encoded: by id, the token and the likely ones at each position."""
    return (msgspec.Raw(_encode(_ranked(position, names))) for position in positions)


def _ranked(position: Position, names: TokenNames) -> dict[int, RankedLogprob] | None:
    if position.logprob is None:
        return None
    found = {position.token: RankedLogprob(position.logprob, None, names.name(position.token))}
    for rank, (logprob, token) in enumerate(position.top, 1):
        found[token] = RankedLogprob(logprob, rank, names.name(token))
    return found
