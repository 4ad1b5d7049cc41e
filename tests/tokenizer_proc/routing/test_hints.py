"""What hints change in placement: nothing without them, classes apart, groups by seconds, prompts
ahead of time."""

import hashlib
import random

import numpy as np
import pytest

from srt.block_hash import BLOCK, hashes_of, seed_of
from srt.wire.ring_messages import CacheEvents, ReplicaLoad
from tokenizer_proc.routing.router import Router

SEED = seed_of("model", "")


def blocks(first_id: int, count: int) -> list[bytes]:
    """The hashes of a prompt of its own."""
    ids = np.arange(first_id, first_id + count * BLOCK, dtype=np.int32)
    return hashes_of(ids.tobytes(), SEED)


def started(replicas: int, rows: int = 64, token_s: float = 0.001) -> Router:
    """A router whose replicas have incarnations from `replicas` on, and empty trees."""
    router = Router(replicas, seed=1, rows=rows)
    for replica in range(replicas):
        router.started(replica, replicas + replica)
        assert router.events(CacheEvents(replicas + replica, 0, is_snapshot=True))
        router.load(ReplicaLoad(replicas + replica, 0, prompt_token_s=token_s, request_s=0.1))
    return router


def test_without_hints_the_decisions_are_those_of_the_router_that_knew_none() -> None:
    """Random traffic; the digest is of the router before it read hints."""
    chosen = []
    for seed in range(6):
        rng = random.Random(seed)
        replicas = 2 + seed
        router, here = Router(replicas, seed=1), [*range(replicas)]
        for replica in here:
            router.started(replica, replicas + replica)
            router.events(CacheEvents(replicas + replica, 0, is_snapshot=True))
        prompts = [blocks(100_000 * i, 12) for i in range(6)]
        seqs, received, placed = [0] * replicas, [0] * replicas, []
        for number in range(150):
            prompt = rng.choice(prompts)[: rng.randint(0, 12)] + blocks(number * 1000 + 7, 1)
            among = sorted(rng.sample(here, rng.randint(1, replicas)))
            tokens, requests = len(prompt) * BLOCK + rng.randint(0, 63), rng.choice((1, 1, 1, 4))
            replica = router.place(number, prompt, tokens, among, requests)
            chosen.append(replica)
            placed.append(number)
            received[replica] += requests
            if rng.random() < 0.7:
                router.ended(placed.pop(rng.randrange(len(placed))))
            if rng.random() < 0.3:
                seqs[replica] += 1
                router.events(CacheEvents(replicas + replica, seqs[replica], prompt))
            if rng.random() < 0.3:
                token_s, request_s = rng.uniform(9e-4, 1e-3), rng.uniform(0.2, 0.21)
                uncomputed = rng.randrange(500)
                load = ReplicaLoad(
                    replicas + replica,
                    received[replica],
                    uncomputed=uncomputed,
                    prompt_token_s=token_s,
                    request_s=request_s,
                )
                router.load(load)
    assert hashlib.sha256(bytes(chosen)).hexdigest()[:16] == "4f2647c9df32ef49"
