"""What the front holds of pictures and videos: the files of requests in flight or their pixels, and
what items the files of earlier ones made.

No I/O, no clock. A file is known by its key, a hash of its bytes and of how it is to be shown, that
is computed here in this process and never taken from a client. Invariant: a file, or its pixels, is
held as long as one of its holders, which are requests, and counts once, for the caller of one of
them; facts have no pixels.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from cachetools import LRUCache

from srt.callers.shares import Shares
from srt.ring.socket import Blob
from srt.wire.errors import OVERLOADED, RequestError
from srt.wire.media import MediaItem, MediaRef

MAX_FACTS = 16_384  # items of files that are not held any more: some hundred bytes each

Name = tuple[bytes, str]  # client, rid


@dataclass(eq=False)
class Held:
    """A file, as frames or as the pixels of its items, by their digests. `items` is None until they
    are known, `key` until the file was hashed. `holders` are requests, with their callers."""

    ref: MediaRef
    frames: Sequence[Blob]
    key: bytes = b""
    items: list[MediaItem] | None = None
    pixels: dict[bytes, Blob] = field(default_factory=dict)
    holders: dict[Name, str] = field(default_factory=dict)
    num_bytes: int = 0


def key_of(ref: MediaRef, frames: Sequence[Blob]) -> bytes:
    """The key of a file. It reads all of the bytes: called in a thread."""
    how = f"{ref.kind} {ref.detail} {ref.num_frames} {[len(frame) for frame in frames]}"
    digest = sha256(how.encode())
    for frame in frames:
        digest.update(frame)
    return digest.digest()


class MediaStore:
    """Holds at most `max_bytes` of files and pixels of one caller, or one request's whose files are
    more, and twice as much of all. Where several have some, each leaves a rest to the next one.
    Without room, files of the caller that has most are given to `gave_way`, which is to end the
    requests that hold them: those for which it `may_leave`."""

    def __init__(
        self,
        max_bytes: int,
        may_leave: Callable[[Name], bool] = lambda name: False,
        gave_way: Callable[[Held], object] = lambda held: None,
    ) -> None:
        self._max_bytes = max_bytes
        self._may_leave = may_leave
        self._shares: Shares[str, Held] = Shares(
            2 * max_bytes,
            max_bytes,
            give_way=gave_way,
            order=self._leaving,
            takes_any=True,
            leaves_rest=True,
        )
        self._of: dict[Name, list[Held]] = {}
        self._by_key: dict[bytes, Held] = {}
        self._by_digest: dict[bytes, dict[Held, None]] = {}  # files may look alike
        # The newest are kept even if they are more than the bound, without any others.
        self._facts: LRUCache[bytes, list[MediaItem]] = LRUCache(
            MAX_FACTS, getsizeof=lambda items: min(len(items), MAX_FACTS)
        )

    @property
    def num_bytes(self) -> int:
        """The bytes of all that is held."""
        return self._shares.total

    def check_room(self, caller: str, num_bytes: int) -> None:
        """Raise RequestError (429) if there is no room for this many bytes more of a caller. What
        is too much even for an empty store is taken when that is empty."""
        whose = self._shares.full(caller, num_bytes) if num_bytes else ""
        if whose:
            held = self._shares.held(caller) if whose == "caller" else self.num_bytes
            of = " of this caller" if whose == "caller" else ""
            raise RequestError(
                f"the server is at its limit: {held // 2**20} MB of pictures and videos{of} are in "
                "flight",
                code=OVERLOADED,
                retryable=True,
            )

    def hold(self, caller: str, names: Sequence[Name], files: Iterable[Held]) -> None:
        """Hold files that are not hashed yet for these requests of a caller; others give way."""
        files = list(files)
        for held in files:
            held.num_bytes = sum(map(len, held.frames))
            held.holders.update(dict.fromkeys(names, caller))
            for name in names:
                self._of.setdefault(name, []).append(held)
        if files:  # others give way to all of them at once, or to none
            self._shares.take(caller, files[0], sum(held.num_bytes for held in files))
        for held in files:
            self._shares.put(caller, held, held.num_bytes)

    def identify(self, held: Held, key: bytes) -> Held:
        """A file was hashed. Returns it, or the one with the same key that is held already and
        takes its place; its items are set if they are known."""
        known = self._by_key.get(key)
        if known is None:
            self._by_key[key] = held
            held.key = key
            if key in self._facts:
                self._set_items(held, self._facts[key])
            return held
        for name in held.holders:
            files = self._of[name]
            files.remove(held)
            if known not in files:
                files.append(known)
        known.holders |= held.holders
        held.holders.clear()
        self._drop(held)
        return known

    def made(self, held: Held, items: Sequence[tuple[MediaItem, Blob]]) -> None:
        """These are a file's items. Their pixels take its place if there is room for them: else the
        file stays, to be read again."""
        self._facts[held.key] = [item for item, _ in items]
        if self._by_key.get(held.key) is not held:
            return  # nobody waits for it any more
        self._set_items(held, [item for item, _ in items])
        pixels = {item.digest: blob for item, blob in items}
        size = sum(map(len, pixels.values()))
        caller, more = next(iter(held.holders.values())), size - held.num_bytes
        its = self._shares.held(caller) + more > self._max_bytes
        if more > 0 and (its or self.num_bytes + more > 2 * self._max_bytes):
            return
        held.pixels, held.frames, held.num_bytes = pixels, (), size
        self._shares.put(caller, held, size)

    def find(self, digest: bytes) -> Held | None:
        """A file that has an item of this digest, one with its pixels if there is one."""
        files = self._by_digest.get(digest, {})
        return next((held for held in files if held.pixels), next(iter(files), None))

    def release(self, name: Name) -> None:
        """A request has ended. Unknown ones are ignored."""
        for held in self._of.pop(name, ()):
            caller = held.holders.pop(name)
            callers = held.holders.values()
            if not callers:
                self._drop(held)
            elif caller not in callers:
                self._shares.put(next(iter(callers)), held, held.num_bytes)

    def clear(self) -> None:
        """Release all; facts stay."""
        self._of.clear()
        self._by_key.clear()
        self._by_digest.clear()
        self._shares.clear()

    def _drop(self, held: Held) -> None:
        self._shares.give_back(held)
        held.num_bytes = 0
        if self._by_key.get(held.key) is held:
            del self._by_key[held.key]
        for item in held.items or ():
            files = self._by_digest.get(item.digest, {})
            files.pop(held, None)
            if not files:
                self._by_digest.pop(item.digest, None)

    def _leaving(self, files: Collection[Held]) -> list[Held]:
        """Those of a caller's files that may give way, the newest first: no other caller has them,
        and none of their requests has gone on."""
        return [
            held
            for held in reversed(list(files))
            if len(set(held.holders.values())) == 1 and all(map(self._may_leave, held.holders))
        ]

    def _set_items(self, held: Held, items: list[MediaItem]) -> None:
        held.items = items
        for item in items:
            self._by_digest.setdefault(item.digest, {})[held] = None
