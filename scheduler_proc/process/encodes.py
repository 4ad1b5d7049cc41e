"""Pixels on their way to the model: the actor's part of what `EncoderCache` decides.

The front sends an item's pixels when it is asked for them. They are kept until the item is encoded,
in the compute thread, part by part, and on a CPU a part slice by slice. `advance` queues one slice
at most, and none while one is queued: the loop calls it once between two steps that it queues, so
no step waits for more than one. How long that may be, the core says.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

import numpy as np

from scheduler_proc.core.scheduler import Scheduler
from scheduler_proc.executor.base import asynchronous, seeing
from scheduler_proc.executor.failures import is_device_lost, is_out_of_memory, release_memory
from scheduler_proc.process.compute import ComputeThread, Encoding
from scheduler_proc.process.core_lock import CoreLock
from srt.tasks import TaskSet
from srt.wire.errors import INTERNAL, ErrorInfo
from srt.wire.media import MediaItem
from srt.wire.ring_messages import MediaSent

log = logging.getLogger(__name__)

_REASON = "the model failed on an image or video of this request"


class Encodes:
    """Of one core. `want` asks the front for the pixels of items; `news` is called when there are
    some, or some of an item is encoded or has failed."""

    def __init__(
        self,
        core: Scheduler,
        lock: CoreLock,
        compute: ComputeThread,
        tasks: TaskSet,
        want: Callable[[list[bytes]], None],
        news: Callable[[], None],
    ) -> None:
        self._core, self._lock, self._compute, self._tasks = core, lock, compute, tasks
        self._want, self._news = want, news
        self._pixels: dict[bytes, np.ndarray] = {}  # by digest
        self._dropped: list[bytes] = []  # the steps that have been settled may need them
        self._settling: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether something is being encoded."""
        return self._settling is not None

    def prepared(self) -> None:
        """The core has planned a step, or nothing."""
        wanted = self._core.state.media.take_wanted()
        if wanted:
            self._want(wanted)
        for digest in self._core.state.media.take_dropped():
            self._dropped.append(digest)
            self._pixels.pop(digest, None)

    async def advance(self, is_step_next: bool) -> None:
        """The step that had run at the last `prepared` is settled: queue what comes next. If a step
        is queued behind a slice, wait for that slice: then another one goes before the step after.
        """
        if self._dropped:
            self._compute.drop_media(self._dropped)
            self._dropped = []
        is_slice = asynchronous(self._compute.executor) is None
        if is_step_next and is_slice and self._settling is not None:
            await asyncio.wait([self._settling])
        part = self._core.next_media()
        if part is not None:
            item, number, seconds = part
            names = self._core.media_users(item.digest)
            pixels = self._pixels[item.digest]
            encoding = self._compute.encode(item, pixels, number, seconds, names)
            self._settling = self._tasks.start(self._settle(encoding))

    def came(self, message: MediaSent, frames: Sequence[bytes]) -> None:
        """The front's answer for an item, which may be late. The caller holds the core's lock."""
        item, error = message.item, message.error
        executor = seeing(self._compute.executor)
        if executor is None or not self._core.state.media.awaits(item.digest):
            return
        pixels = None if error is not None else _pixels_of(item, frames)
        if pixels is None:
            wrong = ErrorInfo(INTERNAL, "the pixels of an image or video are not of its shape")
            self._core.media_failed(item.digest, error or wrong)
        elif self._core.media_came(item.digest, executor.num_parts(item)):
            self._pixels[item.digest] = pixels
        self._news()

    async def _settle(self, encoding: Encoding) -> None:
        """Wait for a slice. An error ends those who need the item; if that means that the device is
        lost, it ends this process, and they, and who had a step there, are suspects."""
        await encoding.ended
        self._settling = None
        digest = encoding.item.digest
        with self._lock:
            error = encoding.result.exception()
            if error is None:
                self._core.media_encoded(digest, encoding.result.result())
            else:
                self._failed(encoding, error)
            if error is not None or self._core.state.media.has(digest):
                self._pixels.pop(digest, None)
            self._news()

    def _failed(self, encoding: Encoding, error: BaseException) -> None:
        log.error("a part of an image or video could not be encoded", exc_info=error)
        if is_device_lost(error) or not isinstance(error, Exception):
            names, step = list(encoding.names), self._compute.step
            if step is not None and asynchronous(self._compute.executor) is not None:
                names += [row.req.key for row in step.rows]
            if self._compute.blame is not None:
                self._compute.blame.accuse(names)
            raise error
        if is_out_of_memory(error):
            release_memory(error)
        self._core.media_failed(encoding.item.digest, ErrorInfo(INTERNAL, _REASON))


def _pixels_of(item: MediaItem, frames: Sequence[bytes]) -> np.ndarray | None:
    """The frame as uint8 of the item's shape, uncopied; None if it is not."""
    if len(frames) != 1 or len(frames[0]) != np.prod(item.shape):
        return None
    return np.frombuffer(frames[0], np.uint8).reshape(item.shape)
