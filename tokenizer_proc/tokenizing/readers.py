"""The children of the tokenizer process that read requests' texts: one `Reader`, one child.

A child runs what came with the model, a chat template and a tokenizer's patterns, on what users
wrote. Either may run for ever or crash the process: see `children`.
"""

import os
from collections.abc import Callable, Sequence

import msgspec

from srt.wire.errors import BAD_REQUEST, INTERNAL, UNAVAILABLE, ErrorInfo
from srt.wire.media import MediaItem
from srt.wire.messages import GenerateReq, TokenizeReq, encode
from tokenizer_proc.children.child import Child, ChildDied
from tokenizer_proc.children.forker import Forker
from tokenizer_proc.queueing.turns import Piece, TextReq
from tokenizer_proc.tokenizing.reading import Reading, Unreadable

# CPU time of one piece: the template's, and for the tokenizer some twenty times its need.
CPU_S, CPU_S_PER_CHAR, MAX_CPU_S = 2.0, 20e-6, 60.0
WALL_S = 20.0  # on top of that time: for a child that is stopped, or hardly gets to run
_decode_req = msgspec.msgpack.Decoder(TextReq).decode
_decode_items = msgspec.msgpack.Decoder(list[list[MediaItem]]).decode
_decode_reading = msgspec.msgpack.Decoder(Reading).decode
_encode = msgspec.msgpack.Encoder().encode

# Reads a request whose media have these items.
Read = Callable[[TextReq, Sequence[Sequence[MediaItem]]], Reading]


class Reader(Child):
    """A child that reads one piece at a time with `read`."""

    def __init__(self, forker: Forker, read: Read) -> None:
        def work(frames: list[memoryview]) -> list[bytes]:
            os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each text is one piece of work
            req, items = frames
            return [_encode(read(_decode_req(req), _decode_items(items)))]

        super().__init__(forker, work, "reader of texts")

    async def read(self, piece: Piece) -> Reading:
        """The result of `read` for a piece, or why its child died. Cancelling kills the child."""
        seconds = min(CPU_S + CPU_S_PER_CHAR * piece.num_chars, MAX_CPU_S)
        frames = encode(piece.req), _encode(piece.items)
        try:
            (answer,) = await self.ask(frames, seconds, WALL_S + 5 * seconds)
            reading: Reading = _decode_reading(answer)
            return reading
        except (ChildDied, ValueError) as error:  # a ValueError if it was made to answer nonsense
            self.close()
            return _failed(piece, error.how if isinstance(error, ChildDied) else "crash")


def _failed(piece: Piece, how: str) -> Reading:
    """The error for `piece`, whose child has died."""
    if how == "none":
        reason = "the server has no process left to tokenize this request"
        return Unreadable(ErrorInfo(UNAVAILABLE, reason, retryable=True))
    if how == "starved":
        reason = "the server is too busy to tokenize this request"
        return Unreadable(ErrorInfo(UNAVAILABLE, reason, retryable=True))
    req = piece.req
    is_chat = isinstance(req, GenerateReq | TokenizeReq) and req.messages is not None
    param, what = ("messages", "chat template") if is_chat else ("text", "tokenizer")
    if how == "time":
        return Unreadable(ErrorInfo(BAD_REQUEST, f"the {what} took too long", param))
    return Unreadable(ErrorInfo(INTERNAL, f"the model's {what} failed at this text", param))
