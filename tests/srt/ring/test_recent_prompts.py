"""How much of a prompt is its own, against counting ids one by one."""

import random

from srt.ring.recent_prompts import HEAD_BYTES, MOST, RecentPrompts
from srt.wire.filled_params import FilledParams
from srt.wire.messages import pack_ids
from srt.wire.ring_messages import TokenizedReq

HEAD = HEAD_BYTES // 4


def wire(ids: list[int], salt: str = "") -> TokenizedReq:
    return TokenizedReq(b"c", "r", 0, pack_ids(ids), FilledParams(), cache_salt=salt)


def shared(a: list[int], b: list[int]) -> int:
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))


def test_the_longest_beginning_that_one_of_the_last_had() -> None:
    rng = random.Random(0)
    for _ in range(20):
        recent, before = RecentPrompts(), list[tuple[str, list[int]]]()
        for _ in range(80):
            document = [rng.randrange(3)] * rng.choice([HEAD, 40, 60])
            ids = document + [rng.randrange(3) for _ in range(rng.randrange(1, 6))]
            salt = rng.choice(["", "", "other"])
            last = [theirs for key, theirs in before[-MOST:] if key == salt]
            most = max((shared(ids, theirs) for theirs in last), default=0)
            most = most if most >= HEAD else 0
            assert recent.own_len(wire(ids, salt)) == len(ids) - min(most, len(ids) - 1)
            before.append((salt, ids))


def test_short_prompts_are_their_own() -> None:
    recent = RecentPrompts()
    assert [recent.own_len(wire([7] * HEAD)) for _ in range(3)] == [HEAD] * 3
