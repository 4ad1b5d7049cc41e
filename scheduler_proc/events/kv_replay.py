"""The batches of KV events that were published last, and subscribers who ask for them again.

A subscriber that sees a gap in the sequence numbers asks for all batches from a number on. It is
answered in portions, so that neither a long answer nor a slow reader holds up the scheduler's loop.
"""

import asyncio
import time
from collections import deque

from srt.ring.inbox import Dropped
from srt.ring.socket import RingSocket

KEPT_BATCHES = 10_000  # as many as vLLM keeps
KEPT_BYTES = 64 * 1024 * 1024
MAX_REPLAYS = 64  # at once; a subscriber that is not answered asks again
PORTION_BATCHES = 32
PORTION_BYTES = 1024 * 1024
RETRY_S = 0.02  # when no subscriber has room for more
GIVE_UP_S = 10.0  # on a subscriber that has read nothing for this long
SEQ_BYTES = 8

_END = (-1).to_bytes(SEQ_BYTES, "big", signed=True)


class History:
    """The last batches, encoded: `limit` at most, and KEPT_BYTES. A batch's sequence number is how
    many came before it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.first = 0  # the oldest batch that is kept
        self._kept: deque[bytes] = deque()
        self._bytes = 0

    @property
    def next(self) -> int:
        """The sequence number of the next batch."""
        return self.first + len(self._kept)

    def add(self, payload: bytes) -> None:
        self._kept.append(payload)
        self._bytes += len(payload)
        while len(self._kept) > self._limit or self._bytes > KEPT_BYTES:
            self._bytes -= len(self._kept.popleft())
            self.first += 1

    def __getitem__(self, seq: int) -> bytes:
        return self._kept[seq - self.first]


class _Replay:
    """One subscriber's answer: the next batch to send, and the one before which it ends."""

    def __init__(self, start: int, end: int) -> None:
        self.next, self.end = start, end
        self.moved_at = time.monotonic()


class Replays:
    """Answers requests on `socket`, a ROUTER that knows when a peer has no room: vLLM's form.

    A request is an empty frame and the first sequence number, 8 bytes, big-endian. The answer is
    one message for each batch (an empty frame, the topic, its number, its payload), and one with
    the number -1. What is no longer kept is left out.
    """

    def __init__(
        self, socket: RingSocket, topic: bytes, history: History, dropped: Dropped
    ) -> None:
        self._socket, self._topic, self._history = socket, topic, history
        self._dropped = dropped
        self._replays: dict[bytes, _Replay] = {}
        self._wake = asyncio.Event()

    async def take_requests(self) -> None:
        """Receive for ever."""
        while True:
            client, *frames = await self._socket.receive()
            if len(frames) == 2 and not frames[0] and len(frames[1]) == SEQ_BYTES:
                self._take(client, int.from_bytes(frames[1], "big"))
            else:
                self._dropped.add("the replay socket of KV events")
            await asyncio.sleep(0)  # a flood of requests must not hold the loop

    async def answer(self) -> None:
        """Send for ever, to each subscriber in turn."""
        while True:
            if not self._replays:
                self._wake.clear()
                await self._wake.wait()
            has_moved = False
            for client, replay in list(self._replays.items()):
                has_moved |= self._send_portion(client, replay)
                await asyncio.sleep(0)
            if not has_moved:
                await asyncio.sleep(RETRY_S)

    def _take(self, client: bytes, start: int) -> None:
        """A subscriber that asks again before its answer has ended gets one answer, from the
        earlier of the two places."""
        replay, end = self._replays.get(client), self._history.next
        if replay is not None:
            replay.next, replay.end = min(replay.next, start), end
        elif len(self._replays) < MAX_REPLAYS:
            self._replays[client] = _Replay(start, end)
            self._wake.set()

    def _send_portion(self, client: bytes, replay: _Replay) -> bool:
        """Send what the subscriber has room for, up to a portion. False if that is nothing."""
        size, batches = 0, 0
        while batches < PORTION_BATCHES and size < PORTION_BYTES:
            replay.next = max(replay.next, self._history.first)
            if replay.next >= replay.end:
                if self._socket.send(client, b"", b"", _END, b""):
                    del self._replays[client]
                    return True
                break
            payload, seq = self._history[replay.next], replay.next.to_bytes(SEQ_BYTES, "big")
            if not self._socket.send(client, b"", self._topic, seq, payload):
                break
            replay.next += 1
            batches, size = batches + 1, size + len(payload)
        now = time.monotonic()
        if batches:
            replay.moved_at = now
        elif now - replay.moved_at > GIVE_UP_S:
            del self._replays[client]
        return batches > 0
