"""Hashes of blocks of a prompt, for all that must agree on which prefix is cached where.

A block is BLOCK tokens; its hash is of its tokens and of the hash of the block before it, so that
it names the whole prefix that ends there. The first block follows a seed.
"""

from hashlib import blake2b

BLOCK = 64
_HASH_BYTES = 16


def seed_of(model: str, salt: str) -> bytes:
    """What the first blocks of prompts with this cache salt follow. `model` names all that their KV
    depends on besides."""
    return blake2b(f"{model}\0{salt}".encode(), digest_size=_HASH_BYTES).digest()


def hashes_of(ids: bytes, parent: bytes, block: int = BLOCK) -> list[bytes]:
    """The hashes of the whole blocks of `ids` (int32, packed), which follow the block or seed
    `parent`."""
    hashes, size = [], 4 * block
    for end in range(size, len(ids) + 1, size):
        parent = blake2b(parent + ids[end - size : end], digest_size=_HASH_BYTES).digest()
        hashes.append(parent)
    return hashes
