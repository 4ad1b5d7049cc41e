"""Publishes the blocks of the radix tree as vLLM's KV events, for routers written for vLLM.

The form is that of vLLM 0.26.0 (`vllm/distributed/kv_events.py`). A message has three frames: the
topic, a sequence number (8 bytes, big-endian) and a batch in msgpack. A batch is an array, and each
event in it a map with its class's name as `type`; until vLLM's pull request 42892 (June 2026)
events were arrays too. `scheduler_proc.events.kv_replay` repeats what a subscriber has missed.

A block's name is an integer, the low 64 bits of its hash, as by default in vLLM. vLLM can send
bytes instead, but not every subscriber reads these: Dynamo takes integers only.

Salted blocks are not published: their prompts are nobody else's business.
"""

import asyncio
import errno
import socket
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
import zmq
from msgspec import Struct

from scheduler_proc.events.kv_replay import KEPT_BATCHES, SEQ_BYTES, History, Replays
from srt.args import ServerArgs
from srt.kv_addresses import EVENTS_OPTION, REPLAY_OPTION, address_of, path_of
from srt.ring.inbox import Dropped
from srt.ring.places import open_socket
from srt.ring.socket import RingContext, RingSocket
from srt.tasks import TaskSet
from srt.wire.errors import ConfigError

QUEUE_BATCHES = 1000  # per subscriber; beyond, it loses batches and has to ask for them
QUEUE_REQUESTS = 64
MAX_REQUEST_BYTES = 1024  # of what a subscriber sends: its topics, its replay requests
GREETING_S = 1.0  # by then, subscribers of a server before this one have connected again

_NAME_BITS = (1 << 64) - 1
# What the model reads directly, on whatever device that is: other names are of slower tiers.
_MEDIUM = "GPU"

# A block that was added to the tree: its hash, that of the block before it (None: it is the first
# of a chain), its token ids (int32, packed) and its salt. Hashes are chained, so that they name all
# that comes before a block too.
StoredBlock = tuple[bytes, bytes | None, bytes, str]


class BlockStored(Struct, frozen=True, tag=True, gc=False):
    """Consecutive blocks of one chain. Every field is sent, since vLLM's structs require most."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: None = None
    medium: str = _MEDIUM
    lora_name: None = None
    group_idx: int = 0
    kv_cache_spec_kind: str = "full_attention"


class BlockRemoved(Struct, frozen=True, tag=True, gc=False):
    """Blocks that are no longer cached."""

    block_hashes: list[int]
    medium: str = _MEDIUM
    group_idx: int = 0


class AllBlocksCleared(Struct, frozen=True, tag=True, gc=False):
    """Nothing is cached any more."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class KVEventBatch(Struct, frozen=True, array_like=True, gc=False):
    """What has changed at one time, in this order."""

    ts: float  # seconds since 1970
    events: list[Event]
    data_parallel_rank: int


class KvEvents:
    """One replica's publisher. Everything runs on the loop's thread, and no call waits.

    The first batch of its life begins with AllBlocksCleared: a subscriber may still know blocks of
    the scheduler that ran before.
    """

    def __init__(
        self,
        args: ServerArgs,
        replica: int,
        context: RingContext,
        tasks: TaskSet,
        dropped: Dropped,
    ) -> None:
        """`tasks` are those of the owner, who closes them before it calls `close`."""
        self._args, self._replica = args, replica
        self._context, self._tasks, self._dropped = context, tasks, dropped
        self._topic = args.kv_events_topic.encode()
        self._published: set[bytes] = set()
        self._history = History(KEPT_BATCHES if args.kv_events_replay else 0)
        self._encode = msgspec.msgpack.Encoder().encode
        self._sockets: list[RingSocket] = []

    def start(self) -> None:
        """Bind the sockets. Raises ConfigError, which names the option, if that fails."""
        self._events = self._bind(zmq.PUB, EVENTS_OPTION, self._args.kv_events)
        self._tasks.start(self._greet())
        if self._args.kv_events_replay:
            requests = self._bind(zmq.ROUTER, REPLAY_OPTION, self._args.kv_events_replay)
            replays = Replays(requests, self._topic, self._history, self._dropped)
            self._tasks.start(replays.take_requests())
            self._tasks.start(replays.answer())

    def close(self) -> None:
        """Close the sockets; what they have not sent is dropped."""
        for opened in self._sockets:
            opened.close()

    def publish(
        self,
        added: Iterable[StoredBlock] = (),
        removed: Iterable[bytes] = (),
        cleared: bool = False,
    ) -> None:
        """Publish what has changed since the last call, in one batch; nothing if that is nothing.

        `cleared`: a flush has emptied the tree. What is in `removed` went after that, and what is
        in `added` came last, each block after its parent; so what came back after a flush must be
        in `added`. Blocks that are published already are skipped, and so are removals of those
        that are not.
        """
        events: list[Event] = []
        if cleared:
            self._published.clear()
            events.append(AllBlocksCleared())
        gone = self._withdraw(removed)
        if gone:
            events.append(BlockRemoved(gone))
        events += self._store(added)
        if events:
            self._send(events)

    def _withdraw(self, removed: Iterable[bytes]) -> list[int]:
        gone = []
        for block_hash in removed:
            if block_hash in self._published:
                self._published.remove(block_hash)
                gone.append(_name(block_hash))
        return gone

    def _store(self, added: Iterable[StoredBlock]) -> list[BlockStored]:
        """One event for each run of blocks that follow each other."""
        stored: list[BlockStored] = []
        last = None
        for block_hash, before, packed, salt in added:
            if salt or block_hash in self._published:
                continue
            self._published.add(block_hash)
            ids = memoryview(packed).cast("i").tolist()
            if stored and before == last:
                stored[-1].block_hashes.append(_name(block_hash))
                stored[-1].token_ids.extend(ids)
            else:
                parent = None if before is None else _name(before)
                stored.append(BlockStored([_name(block_hash)], parent, ids, len(ids)))
            last = block_hash
        return stored

    def _send(self, events: list[Event]) -> None:
        """A PUB socket drops for those whose queue is full, and never waits."""
        seq = self._history.next
        if seq == 0:
            events = [AllBlocksCleared(), *events]
        payload = self._encode(KVEventBatch(time.time(), events, self._replica))
        self._history.add(payload)
        self._events.send(self._topic, seq.to_bytes(SEQ_BYTES, "big"), payload)

    async def _greet(self) -> None:
        """Begin even if nothing is ever cached."""
        await asyncio.sleep(GREETING_S)
        if self._history.next == 0:
            self._send([])

    def _bind(self, kind: int, option: str, address: str) -> RingSocket:
        address = address_of(address, self._replica)
        opened = open_socket(self._context, kind)
        self._sockets.append(opened)
        opened.set(zmq.SNDHWM, QUEUE_BATCHES)
        opened.set(zmq.RCVHWM, QUEUE_REQUESTS)
        opened.set(zmq.MAXMSGSIZE, MAX_REQUEST_BYTES)
        opened.set(zmq.IPV6, int("[" in address))
        try:
            _listen(opened, address)
        except (zmq.ZMQError, OSError) as error:
            reason = error.strerror or str(error)
            raise ConfigError(f"{option}: cannot listen on {address}: {reason}") from error
        return opened


def _name(block_hash: bytes) -> int:
    return int.from_bytes(block_hash, "big") & _NAME_BITS


def _listen(opened: RingSocket, address: str) -> None:
    """Bind; a socket's file is for this user only. ZeroMQ would remove any file that is there, also
    the socket of a server that runs."""
    path = Path(path_of(address)) if path_of(address) else None
    if path is not None and path.exists():
        if not path.is_socket():
            raise FileExistsError(errno.EEXIST, "there is a file that is not a socket")
        if _is_served(path):
            raise OSError(errno.EADDRINUSE, "another program listens there")
    opened.bind(address)
    if path is not None:
        path.chmod(0o600)


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0
