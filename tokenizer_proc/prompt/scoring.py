"""Reads a ScoreReq into the token sequences whose log-probabilities are wanted.

Called by the front for each of them. The rule: a text continuation of a text prefix is encoded
together with it, so that it gets the tokens it has as part of that text, even where it merges with
the prefix's last token; everything else is joined as ids. All sequences are scored from one
position: the end of the longest token prefix that they share with each other and the prefix.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from srt.wire.errors import CONTEXT_LENGTH, RequestError
from srt.wire.media import MediaSpan
from srt.wire.messages import Continuation, ScoreReq
from tokenizer_proc.media.showing import NOTHING, Shown
from tokenizer_proc.prompt.prompt import PromptReader

MAX_CONTINUATIONS = 1024
# The prefix counts once for each continuation: this bounds how long one score holds up the front.
MAX_SCORE_CHARS = 1024 * 1024


class ScorePrompts(NamedTuple):
    """What is to be computed: one sequence (int32 [n], n >= 1) per continuation, each scored from
    position `start` on; `prefix_tokens` is the length of the prefix alone. `media` are the spans of
    each sequence."""

    sequences: list[np.ndarray]
    start: int
    prefix_tokens: int
    media: list[list[MediaSpan]]


class ScoreReader:
    """Turns scores into sequences of at most `limit` tokens each, and `max_tokens` together; a
    score has at most `max_continuations`."""

    def __init__(
        self, reader: PromptReader, limit: int, max_tokens: int, max_continuations: int
    ) -> None:
        self._reader = reader
        self._limit = limit
        self._max_tokens = max(max_tokens, limit)
        self._max_continuations = min(max_continuations, MAX_CONTINUATIONS)

    def check(self, req: ScoreReq) -> None:
        """Checks that need no encoding. Raises RequestError naming the field."""
        if (req.text is None) == (req.input_ids is None):
            raise RequestError("exactly one of text and input_ids must be given", param="text")
        count = len(req.continuations)
        if not 1 <= count <= self._max_continuations:
            reason = f" must be 1 to {self._max_continuations}, not {count}"
            raise RequestError(reason, at="continuations")
        if req.literal_spans and req.text is None:
            raise RequestError(" need text", at="literal_spans")
        for i, continuation in enumerate(req.continuations):
            if not (continuation.text or continuation.ids):
                where = f"continuations[{i}]"
                raise RequestError(" must not be empty", at=where)
        texts = [c.text for c in req.continuations if c.text is not None]
        read = len(req.text or "") + len(req.literal_spans)  # for each; spans may be empty
        if len(texts) * read + sum(map(len, texts)) > MAX_SCORE_CHARS:
            raise _too_much(f"{MAX_SCORE_CHARS} characters and literal_spans")

    def read(self, req: ScoreReq, shown: Shown = NOTHING) -> ScorePrompts:
        """The sequences of `req`, which was checked and shows these media. Raises RequestError
        naming the field."""
        prefix = self._prefix(req, shown)
        sequences: list[np.ndarray] = []
        media: list[list[MediaSpan]] = []
        left = self._max_tokens
        for i, continuation in enumerate(req.continuations):
            where = f"continuations[{i}]"
            sequences.append(self._sequence(req, prefix, continuation, where, shown))
            media.append(self._reader.spans(sequences[-1], shown, where))
            left -= len(sequences[-1])
            if left < 0:
                raise _too_much(f"{self._max_tokens} tokens")
        return ScorePrompts(sequences, common_length([prefix, *sequences]), len(prefix), media)

    def _prefix(self, req: ScoreReq, shown: Shown) -> np.ndarray:
        if req.text is not None:
            param, spans = "text", req.literal_spans
            prefix = self._reader.encode(req.text, param, literal_spans=spans, shown=shown)
        else:
            prefix, param = self._reader.given_ids(req.input_ids or b"", shown), "input_ids"
        if len(prefix) > self._limit:
            raise self._too_long(len(prefix), "prefix", param)
        return prefix

    def _sequence(
        self,
        req: ScoreReq,
        prefix: np.ndarray,
        continuation: Continuation,
        where: str,
        shown: Shown,
    ) -> np.ndarray:
        text = continuation.text
        if text is None:
            ids = np.concatenate((prefix, self._reader.checked_ids(continuation.ids, where)))
        elif req.text is not None:
            whole, spans = req.text + text, list(req.literal_spans)
            if spans and spans[-1][1] == len(req.text):
                spans[-1] = (spans[-1][0], len(whole))
            ids = self._reader.encode(whole, where, literal_spans=spans, shown=shown)
        else:
            alone = self._reader.encode_inside(text, where)
            ids = np.concatenate((prefix, alone))
        if len(ids) == 0:
            raise RequestError(" must hold at least one token", at=where)
        if len(ids) > self._limit:
            raise self._too_long(len(ids), "prefix with this continuation", where)
        return ids

    def _too_long(self, num_tokens: int, what: str, param: str) -> RequestError:
        return RequestError(
            f"This model's maximum context length is {self._limit} tokens. However, your {what} "
            f"resulted in {num_tokens} tokens. Please reduce the length of the prompt.",
            param=param,
            code=CONTEXT_LENGTH,
        )


def common_length(sequences: Sequence[np.ndarray]) -> int:
    """The length of the longest prefix that all sequences have in common."""
    first = sequences[0]
    length = len(first)
    for other in sequences[1:]:
        length = min(length, len(other))
        differ = np.flatnonzero(first[:length] != other[:length])
        length = int(differ[0]) if len(differ) else length
    return length


def _too_much(limit: str) -> RequestError:
    return RequestError(
        f" must have at most {limit} in all, the prefix counted with each",
        at="continuations",
    )
