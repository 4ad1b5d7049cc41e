"""A subscriber to KV events, with vLLM's structs, and blocks to publish.

The structs are those that a subscriber of vLLM 0.26.0 decodes with. The subscriber keeps an index:
what each block's parent and ids are, by the block's name.
"""

import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
import numpy as np
import zmq
import zmq.asyncio

END_SEQ = (-1).to_bytes(8, "big", signed=True)
BLOCK_TOKENS = 64


class Block(NamedTuple):
    """A block as the tree journals it."""

    hash: bytes
    parent: bytes | None
    ids: bytes
    salt: str = ""


def block(ids: Iterable[int], parent: Block | None = None, salt: str = "") -> Block:
    """A block with a chained hash; `salt` is of a first block, the others have their parent's."""
    packed = np.fromiter(ids, np.int32).tobytes()
    salt = parent.salt if parent is not None else salt
    seed = parent.hash if parent is not None else salt.encode()
    block_hash = hashlib.blake2b(seed + packed, digest_size=16).digest()
    return Block(block_hash, None if parent is None else parent.hash, packed, salt)


def chain(first_id: int, length: int, salt: str = "") -> list[Block]:
    """Consecutive blocks."""
    blocks: list[Block] = []
    for number in range(length):
        ids = range(first_id + number, first_id + number + BLOCK_TOKENS)
        blocks.append(block(ids, blocks[-1] if blocks else None, salt))
    return blocks


def name(block_hash: bytes) -> int:
    """The name of a block on the wire."""
    return int.from_bytes(block_hash[-8:], "big")


Known = dict[int, tuple[int | None, tuple[int, ...]]]


def known(blocks: Iterable[Block]) -> Known:
    """What an index of these blocks contains."""
    return {
        name(b.hash): (
            None if b.parent is None else name(b.parent),
            tuple(np.frombuffer(b.ids, np.int32).tolist()),
        )
        for b in blocks
    }


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


class KVCacheEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    pass


class BlockStored(KVCacheEvent):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[bytes | int]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None


class AllBlocksCleared(KVCacheEvent):
    pass


class KVEventBatch(EventBatch):
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


class Peers:
    """Makes the sockets of subscribers, and keeps them until they are closed."""

    def __init__(self) -> None:
        self._context = zmq.asyncio.Context()
        self._sockets: list[zmq.asyncio.Socket] = []

    def connect(self, kind: int, address: str) -> zmq.asyncio.Socket:
        """A socket that takes as little as possible of what it does not read."""
        socket = self._context.socket(kind)
        self._sockets.append(socket)
        socket.set(zmq.RCVHWM, 1)
        socket.connect(address)
        return socket

    def close(self) -> None:
        for socket in self._sockets:
            socket.close(linger=0)
        self._context.term()


class Subscriber:
    """Follows one publisher. `last` is the last batch in its index."""

    def __init__(self, peers: Peers, events: str, replay: str) -> None:
        self.index: Known = {}
        self.last = -1
        self.replays = 0
        self.ranks: set[int | None] = set()
        self._decode = msgspec.msgpack.Decoder(KVEventBatch).decode
        self._sub = peers.connect(zmq.SUB, events)
        self._sub.set(zmq.SUBSCRIBE, b"kv-events")
        self._replay = peers.connect(zmq.DEALER, replay)

    async def hear(self) -> tuple[int, bytes]:
        """The next published batch, which the index does not know yet."""
        topic, seq, payload = await self._sub.recv_multipart()
        assert (topic, len(seq)) == (b"kv-events", 8)
        return int.from_bytes(seq, "big"), payload

    async def hears_at_once(self) -> bool:
        return bool(await self._sub.poll(10))

    async def take(self, seq: int, payload: bytes) -> None:
        """Add a batch to the index, after all that were missed before it."""
        if seq > self.last + 1:
            self.replays += 1
            for missed, answer in await replayed(self._replay, self.last + 1):
                self._apply(missed, answer)
        self._apply(seq, payload)

    def _apply(self, seq: int, payload: bytes) -> None:
        if seq <= self.last:
            return
        assert seq == self.last + 1
        self.last = seq
        batch = self._decode(payload)
        self.ranks.add(batch.data_parallel_rank)
        for event in batch.events:
            if isinstance(event, BlockStored):
                self._store(event)
            elif isinstance(event, BlockRemoved):
                for gone in event.block_hashes:
                    del self.index[int(gone)]
            else:
                self.index.clear()

    def _store(self, event: BlockStored) -> None:
        size, parent = event.block_size, event.parent_block_hash
        assert len(event.token_ids) == size * len(event.block_hashes)
        assert parent is None or parent in self.index
        for number, block_hash in enumerate(event.block_hashes):
            assert isinstance(block_hash, int) and isinstance(parent, int | None)
            ids = tuple(event.token_ids[number * size : (number + 1) * size])
            self.index[block_hash] = (parent, ids)
            parent = block_hash


async def ask(client: zmq.asyncio.Socket, start: int) -> None:
    await client.send_multipart([b"", start.to_bytes(8, "big")])


async def answers(client: zmq.asyncio.Socket) -> list[tuple[int, bytes]]:
    """All batches up to the mark that ends an answer."""
    batches: list[tuple[int, bytes]] = []
    while True:
        empty, topic, seq, payload = await client.recv_multipart()
        assert empty == b""
        if seq == END_SEQ:
            assert (topic, payload) == (b"", b"")
            return batches
        assert topic == b"kv-events"
        batches.append((int.from_bytes(seq, "big"), payload))


async def replayed(client: zmq.asyncio.Socket, start: int) -> list[tuple[int, bytes]]:
    await ask(client, start)
    return await answers(client)
