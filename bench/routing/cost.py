"""What the parts of placement cost, in microseconds of CPU time of this thread."""

import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

import numpy as np

from bench.hit_rate.families import VOCAB
from bench.routing.replica import MODEL
from scheduler_proc.memory.block_hashes import BlockHashes
from scheduler_proc.memory.pools import TokenPool
from scheduler_proc.memory.radix_cache import RadixCache
from srt.block_hash import hashes_of, seed_of
from srt.wire.messages import pack_ids
from srt.wire.ring_messages import CacheEvents, ReplicaLoad
from tokenizer_proc.routing.router import Router

REPLICAS = 1000
PROMPT = 4096  # tokens
DEPTHS = 16  # how many lengths of one prompt's beginning the replicas have
REPEAT = 200


class Cost(NamedTuple):
    """A measured cost and its bar, in microseconds."""

    what: str
    us: float
    bar_us: float

    @property
    def is_good(self) -> bool:
        return self.us <= self.bar_us


def costs() -> list[Cost]:
    """All of them, medians of `REPEAT` measurements."""
    return [
        Cost("hash a prompt of 4,096 tokens", hash_us(), 100.0),
        Cost("place it among 1,000 replicas", place_us(), 200.0),
        Cost("a block in an event", event_us(), 5.0),
        Cost("hashes, per new token of the core", token_us(), 0.05),
    ]


def hash_us() -> float:
    """Hashing the blocks of a prompt at the front."""
    ids, seed = pack_ids(_prompts(1)[0]), seed_of(MODEL, "")
    return _median_us(lambda _: hashes_of(ids, seed))


def place_us() -> float:
    """Placing a prompt of which half of the replicas have beginnings of `DEPTHS` lengths, and some
    requests of the same prompt are in flight."""
    router = _router()
    seed = seed_of(MODEL, "")
    hashes = hashes_of(pack_ids(_prompts(1)[0]), seed)
    for replica in range(0, REPLICAS, 2):
        depth = len(hashes) * (1 + replica // 2 % DEPTHS) // DEPTHS
        router.events(CacheEvents(REPLICAS + replica, 1, hashes[:depth]))
    among = range(REPLICAS)
    for key in range(REPEAT):
        router.place(-1 - key, hashes, PROMPT, among)
    return _median_us(lambda key: router.place(key, hashes, PROMPT, among))


def event_us() -> float:
    """A block that is added, or removed later, where half of all replicas have it."""
    router = _router()
    prompts = [hashes_of(pack_ids(p), seed_of(MODEL, "")) for p in _prompts(4)]
    blocks = [name for hashes in prompts for name in hashes]
    for replica in range(0, REPLICAS, 2):
        router.events(CacheEvents(REPLICAS + replica, 1, blocks))
    messages = []
    for seq in range(1, REPEAT + 1):
        added, removed = (blocks, []) if seq % 2 else ([], blocks)
        messages.append(CacheEvents(REPLICAS + 1, seq, added, removed))
    return _median_us(lambda number: router.events(messages[number])) / len(blocks)


def token_us() -> float:
    """What the tree's insertions take longer with hashes, per token of prompts that come in chunks
    of 512."""
    prompts = _prompts(REPEAT)
    with_hashes, without = _insertions(prompts, BlockHashes(MODEL)), _insertions(prompts, None)
    taken = [a - b for a, b in zip(with_hashes, without, strict=True)]
    return median(taken) / PROMPT


def _insertions(prompts: list[np.ndarray], hashes: BlockHashes | None) -> list[float]:
    """The microseconds of each prompt's way into a tree, out of which another one has to go."""
    pool = TokenPool(8 * PROMPT)
    tree = RadixCache(pool, hashes)

    def insert(number: int) -> None:
        prompt = prompts[number]
        tree.evict(max(0, PROMPT - pool.free_size))
        slots = pool.alloc(PROMPT)
        assert slots is not None
        for stop in range(512, PROMPT + 1, 512):
            tree.insert(prompt[:stop], slots[:stop])
        if hashes is not None:
            hashes.take()

    return _times_us(insert, len(prompts))


def _router() -> Router:
    """One whose replicas are all known, idle and empty."""
    router = Router(REPLICAS, seed=0)
    for replica in range(REPLICAS):
        incarnation = REPLICAS + replica
        router.started(replica, incarnation)
        router.events(CacheEvents(incarnation, 0, is_snapshot=True))
        router.load(ReplicaLoad(incarnation, 0, prompt_token_s=0.001, request_s=0.1))
    return router


def _prompts(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(1, VOCAB, PROMPT, dtype=np.int32) for _ in range(count)]


def _median_us(act: Callable[[int], object]) -> float:
    return median(_times_us(act, REPEAT))


def _times_us(act: Callable[[int], object], count: int) -> list[float]:
    """Of calls with the numbers up to `count`."""
    times = []
    for number in range(count):
        began = time.thread_time()
        act(number)
        times.append(1e6 * (time.thread_time() - began))
    return times
