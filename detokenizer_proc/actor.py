"""The detokenizer process: the ring's back door. Sockets and leases around the Detokenizer core."""

import asyncio
import time

import zmq
from cachetools import FIFOCache

from detokenizer_proc.core import Detokenizer
from detokenizer_proc.leases import Leases
from detokenizer_proc.replies import Replies
from srt.args import places_of
from srt.files.vocab import served_vocab
from srt.ring.actor import Actor
from srt.ring.inbox import Doubt
from srt.ring.places import LEASE_INTERVAL_S, MAX_EXPIRED_CLIENTS, send_now
from srt.wire.messages import (
    BackMessage,
    Expired,
    Goodbye,
    Hello,
    RingMessage,
    Welcome,
)
from srt.wire.parcels import output_batches, scheduler_lost_parts
from srt.wire.ring_messages import ClientGone, ControlReply, DetokenizerMessage, TokenBatch
from srt.wire.ring_state import RingEvent


class DetokenizerActor(Actor):
    """Turns each TokenBatch into one OutputBatch per client, and knows which clients live."""

    name = "detokenizer"
    niceness = 5

    async def start(self) -> None:
        self._core = Detokenizer(served_vocab(self.args), self.epoch, self.incarnations)
        self._doubt = Doubt()
        self._replies = Replies(places_of(self.args))
        self._leases = Leases(time.monotonic())
        self._expired: FIFOCache[bytes, None] = FIFOCache(MAX_EXPIRED_CLIENTS)
        self._front = self.connect(zmq.PUSH, self.ring.credits)
        self._tokens = self.bind(zmq.PULL, self.ring.detokenizer)
        self._clients = self.bind(zmq.ROUTER, self.ring.back)
        self.receive(self._tokens, DetokenizerMessage, self._on_scheduler)
        self.receive_from_clients(self._clients, BackMessage, self._on_client)
        self.background(self._watch_leases())

    def new_epoch(self) -> None:
        self._core.reset(self.epoch, self.incarnations)
        self._replies.clear()

    def scheduler_lost(self, incarnation: int) -> None:
        """Tell the front what was reported before this incarnation of a scheduler."""
        if not self._core.is_new(incarnation):
            return
        loss = self._core.scheduler_lost(incarnation)
        for credit in loss.credits:
            self.send(self._front, credit)
        for part in scheduler_lost_parts(incarnation, loss.progress):
            self.send(self._front, part)

    def hear(self, event: RingEvent) -> None:
        self._doubt.hear(self._core.incarnations, event.incarnations)

    @property
    def in_flight(self) -> int:
        return self._core.in_flight

    def _on_client(self, client: bytes, message: BackMessage) -> None:
        if isinstance(message, Goodbye):
            self._client_gone(client)
        elif client in self._expired:
            send_now(self._clients, Expired(), to=client)
        elif isinstance(message, Hello):
            self._leases.renew(client, time.monotonic())
            send_now(self._clients, Welcome(self.epoch), to=client)

    def _on_scheduler(self, message: DetokenizerMessage) -> None:
        self.scheduler_lost(message.incarnation)  # it may speak before the ring's event comes
        if not self._core.is_present(message.incarnation):
            return
        if isinstance(message, ControlReply):
            result = self._replies.add(message, self.epoch)
            if result is not None:
                self._deliver(message.client, result)
        elif isinstance(message, TokenBatch):
            self._on_batch(message)

    def _on_batch(self, batch: TokenBatch) -> None:
        step = self._core.step(batch)
        for message in (*step.stopped, *step.credits):
            self.send(self._front, message)
        for client, outputs in step.outputs.items():
            for part in output_batches(self.epoch, outputs):
                if not self._deliver(client, part):
                    break

    def _deliver(self, client: bytes, message: RingMessage) -> bool:
        """Send each client its outputs. One that is gone, or does not read, loses its requests."""
        is_sent = send_now(self._clients, message, to=client)
        if not is_sent:
            self._client_gone(client)
        return is_sent

    def _client_gone(self, client: bytes) -> None:
        self._leases.end(client)
        self._expired[client] = None
        self._core.drop_client(client)
        self.send(self._front, ClientGone(client, self.epoch))

    async def _watch_leases(self) -> None:
        while True:
            await asyncio.sleep(LEASE_INTERVAL_S)
            for client in self._leases.expired(time.monotonic()):
                self._client_gone(client)
