"""The children and the thread that work for the front, and the tasks that give them work: children
read texts and decode media, the thread hashes files.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any, TypeVar

from srt.ring.actor import EXIT_HANG
from tokenizer_proc.admission.front import Front
from tokenizer_proc.children.forker import Forker, Standstill
from tokenizer_proc.media.base import MediaProcessor
from tokenizer_proc.media.store import key_of
from tokenizer_proc.media.worker import MediaWorker
from tokenizer_proc.process.outbound import Outbound
from tokenizer_proc.tokenizing.readers import Reader

log = logging.getLogger(__name__)

# Of each: one caller, who uses at most one of them, cannot hold up all others.
NUM_READERS, NUM_DECODERS = 2, 2
_Work = TypeVar("_Work")


class Workers:
    """Those of one front, forked from this process as it is now. The actor sets an event when the
    front may have work of its kind: text to read, files to hash, media to decode."""

    def __init__(self, front: Front, processor: MediaProcessor | None) -> None:
        self._front = front
        self.forker = Forker()
        self._readers = [Reader(self.forker, front.text.read) for _ in range(NUM_READERS)]
        decoders = range(NUM_DECODERS)
        self._decoders = [MediaWorker(self.forker, processor) for _ in decoders if processor]
        self.forker.start()  # while nothing is held
        self.has_text, self.has_files, self.has_media = (asyncio.Event() for _ in range(3))

    def tasks(self, outbound: Outbound) -> list[Coroutine[Any, Any, None]]:
        """What is to run beside the actor's handlers."""
        hashing = [self._hash_media(outbound)] if self._decoders else []
        return [
            self._watch_forker(),
            *(self._read_texts(reader, outbound) for reader in self._readers),
            *hashing,
            *(self._decode_media(decoder, outbound) for decoder in self._decoders),
        ]

    async def close(self) -> None:
        """End all children."""
        for reader in self._readers:
            reader.close()
        for decoder in self._decoders:
            decoder.close()
        await self.forker.close()

    async def _watch_forker(self) -> None:
        """Ends this process at once when the forker does not answer: nobody can read texts any
        more, and the next tokenizer has a forker of its own."""
        try:
            await self.forker.watch()
        except Standstill as error:
            log.error("%s; this process ends with it, and another is started", error)
            await self.forker.abort()
            logging.shutdown()
            os._exit(EXIT_HANG)

    async def _read_texts(self, reader: Reader, outbound: Outbound) -> None:
        """One of the tasks that have texts read, one piece at a time."""
        while True:
            piece = await _next(self._front.turns.take, self.has_text)
            reading = await reader.read(piece)
            word = self._front.has_read(piece, reading, monotonic())
            self.has_text.set()  # its caller may now have another turn
            if word is not None:
                outbound.say(piece.client, word)

    async def _hash_media(self, outbound: Outbound) -> None:
        """Has files hashed, one at a time: in a thread, since the loop would stand still."""
        hasher = ThreadPoolExecutor(1, "hash")
        loop = asyncio.get_running_loop()
        while True:
            caller, file = await _next(self._front.media.take_file, self.has_files)
            key = await loop.run_in_executor(hasher, key_of, file.ref, file.frames)
            self._front.media.hashed(caller, file, key)
            self._go_on(outbound)

    async def _decode_media(self, decoder: MediaWorker, outbound: Outbound) -> None:
        """One of the tasks that have files decoded, one at a time."""
        while True:
            caller, decode = await _next(self._front.media.take_decode, self.has_media)
            made = await decoder.process(decode.ref, decode.frames)
            self._front.media.decoded(caller, decode, made)
            self._go_on(outbound)

    def _go_on(self, outbound: Outbound) -> None:
        """Media are hashed or decoded: requests and schedulers may have waited for that."""
        for answer in self._front.take_known():
            outbound.answer(answer)
        self.has_text.set()
        self.has_media.set()  # the caller may now have another turn
        outbound.send_on()


async def _next(take: Callable[[], _Work | None], may_have_more: asyncio.Event) -> _Work:
    """The next piece of work, as soon as there is one."""
    while (work := take()) is None:
        may_have_more.clear()
        await may_have_more.wait()
    return work
