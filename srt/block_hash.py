"""Hashes of blocks of a prompt, for all that must agree on which prefix is cached where.

A block is BLOCK tokens; its hash is of its tokens and of the hash of the block before it, so that
it names the whole prefix that ends there. The first block follows a seed. The tokens of a picture
are all alike: the block in which it begins is named by its digest too.
"""

from collections.abc import Sequence
from hashlib import blake2b

from srt.wire.packing import packed_size

BLOCK = 64
_HASH_BYTES = 16

Shown = tuple[int, bytes]  # the position at which an item begins, and its digest


def seed_of(model: str, salt: str) -> bytes:
    """What the first blocks of prompts with this cache salt follow. `model` is the fingerprint of
    all that their KV depends on besides: the same for all replicas, on whichever machine."""
    return blake2b(f"{model}\0{salt}".encode(), digest_size=_HASH_BYTES).digest()


def hashes_of(
    ids: bytes, parent: bytes, block: int = BLOCK, shown: Sequence[Shown] = ()
) -> list[bytes]:
    """The hashes of the whole blocks of `ids` (int32, packed), which follow the block or seed
    `parent`. `shown` are the items that begin among them, in their order."""
    hashes, size, extra = [], packed_size(block), _by_block(shown, block)
    for number, end in enumerate(range(size, len(ids) + 1, size)):
        data = parent + ids[end - size : end] + extra.get(number, b"")
        parent = blake2b(data, digest_size=_HASH_BYTES).digest()
        hashes.append(parent)
    return hashes


def _by_block(shown: Sequence[Shown], block: int) -> dict[int, bytes]:
    """What names the items that begin in each block, by its number."""
    named: dict[int, bytes] = {}
    for position, digest in shown:
        number, offset = divmod(position, block)
        named[number] = named.get(number, b"") + offset.to_bytes(4, "little") + digest
    return named
