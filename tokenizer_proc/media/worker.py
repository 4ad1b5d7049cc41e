"""The children that decode pictures and videos: one `MediaWorker`, one child.

A decoder runs on what anybody sends: it may crash the process, or take more time or memory than
there is. See `tokenizer_proc.children.child`.
"""

from collections.abc import Sequence
from functools import partial

import msgspec
import numpy as np
from msgspec import Struct

from srt.ring.places import MAX_MESSAGE_BYTES
from srt.ring.socket import Blob
from srt.wire.errors import BAD_REQUEST, INTERNAL, UNAVAILABLE, ErrorInfo
from srt.wire.media import MediaItem, MediaRef
from tokenizer_proc.children.child import Child, ChildDied
from tokenizer_proc.children.forker import Forker
from tokenizer_proc.media.base import MediaError, MediaProcessor
from tokenizer_proc.media.desk import Made

# Of one file: a picture of 12 megapixels takes a fifth of a second.
CPU_S = 10.0
WALL_S = 90.0  # at niceness 19 a busy machine gives a child little time
NICENESS = 19  # at most: what serves comes first
_decode_ref = msgspec.msgpack.Decoder(MediaRef).decode
_encode = msgspec.msgpack.Encoder().encode

_TOO_LONG = ErrorInfo(BAD_REQUEST, " took too long to decode", follows_param=True)
_TOO_LARGE = ErrorInfo(BAD_REQUEST, " takes too much memory to decode", follows_param=True)
_CRASHED = ErrorInfo(UNAVAILABLE, "the process that decoded a file has crashed", retryable=True)
_BUSY = ErrorInfo(UNAVAILABLE, "the server is too busy to decode this request's files", None, True)


class _Answer(Struct, array_like=True):
    """A file's items, or why there are none; the pixels are the frames behind it."""

    items: list[MediaItem] = []
    error: ErrorInfo | None = None


_decode_answer = msgspec.msgpack.Decoder(_Answer).decode


class MediaWorker(Child):
    """A child that has files processed by `processor`, one at a time."""

    def __init__(self, forker: Forker, processor: MediaProcessor) -> None:
        super().__init__(forker, partial(_work, processor), "decoder of media", NICENESS)

    async def process(self, ref: MediaRef, frames: Sequence[Blob]) -> Made | ErrorInfo:
        """The items of a file and their pixels, or why there are none; the error's field is to be
        named. Cancelling kills the child."""
        try:
            answer, *pixels = await self.ask([_encode(ref), *frames], CPU_S, WALL_S)
            made: _Answer = _decode_answer(answer)
            if made.error is not None:
                return made.error
            pairs: Made = list(zip(made.items, pixels, strict=True))
            return pairs if all(map(_is_whole, pairs)) else _CRASHED
        except ChildDied as died:
            return {"time": _TOO_LONG, "crash": _CRASHED}.get(died.how, _BUSY)
        except ValueError:  # it was made to answer nonsense
            self.close()
            return _CRASHED


def _is_whole(pair: tuple[MediaItem, Blob]) -> bool:
    item, pixels = pair
    return item.length > 0 and len(pixels) == int(np.prod(item.shape, dtype=np.int64))


# ---- in the child ------------------------------------------------------------------------------


def made_of(processor: MediaProcessor, ref: MediaRef, files: Sequence[Blob]) -> Made | ErrorInfo:
    """What a file becomes. Raises no Exception."""
    try:
        made = processor.process(ref, [bytes(file) for file in files])
    except MediaError as error:
        return ErrorInfo(BAD_REQUEST, f": {error}", follows_param=True)
    except MemoryError:
        return _TOO_LARGE
    except Exception as error:
        reason = f"the file could not be decoded ({type(error).__name__})"
        return ErrorInfo(INTERNAL, reason)
    if not made:
        return ErrorInfo(BAD_REQUEST, " shows nothing", follows_param=True)
    if any(one.pixels.nbytes > MAX_MESSAGE_BYTES for one in made):
        return _TOO_LARGE
    return [(one.item, np.ascontiguousarray(one.pixels).data.cast("B")) for one in made]


def _work(processor: MediaProcessor, frames: list[memoryview]) -> list[Blob]:
    """The answer and the pixels behind it."""
    made = made_of(processor, _decode_ref(frames[0]), frames[1:])
    if isinstance(made, ErrorInfo):
        return [_encode(_Answer(error=made))]
    return [_encode(_Answer([item for item, _ in made])), *(pixels for _, pixels in made)]
