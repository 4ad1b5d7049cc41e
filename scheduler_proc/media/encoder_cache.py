"""Which items' embeddings the executor has, is to make, or is to forget.

Called by the scheduler core; no I/O, no pixels, no embeddings: those are the actor's and the
executor's. A req that is about to be admitted asks for the items that its cached prefix does not
cover (`need`). They are pinned for it, all or none; then their pixels are asked for, and they are
encoded part by part. What nobody has pinned is kept as long as there is room, and the least
recently pinned is forgotten first.

Invariant: the bytes of all entries, ready or not, are at most `max_bytes`. Since a req pins all
that it needs at once, and is refused if that is more than there may ever be, none waits for another
that waits for it.
"""

import math
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field

from scheduler_proc.media.spans import Spans
from srt.wire.media import MediaItem

MAX_PIXEL_BYTES = 128 << 20  # that are held, or on their way: embeddings may take much less


@dataclass(slots=True)
class _Entry:
    item: MediaItem
    num_bytes: int
    users: set[int] = field(default_factory=set)  # the handles of the reqs that have it pinned
    is_asked: bool = False  # its pixels are on their way, or there
    num_parts: int = 0  # 0: its pixels are not there
    done: int = 0  # parts that are encoded

    @property
    def is_ready(self) -> bool:
        return 0 < self.num_parts == self.done

    @property
    def pixel_bytes(self) -> int:
        return math.prod(self.item.shape)


class EncoderCache:
    """Of one executor, one token of whose items takes `embedding_bytes`."""

    def __init__(self, max_bytes: int, embedding_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._embedding_bytes = embedding_bytes
        self._entries: dict[bytes, _Entry] = {}  # by digest, the least recently pinned first
        self._pinned: dict[int, set[bytes]] = {}  # by handle
        self._counted: dict[int, set[bytes]] = {}  # by handle: what it needed, found or not
        self._wanted: list[bytes] = []  # not asked for yet
        self._dropped: list[bytes] = []  # the executor has to forget them
        self._came: dict[bytes, None] = {}  # that are to be encoded, the oldest first
        self._is_shortest_next = False
        self._encoding: bytes | None = None
        self._begun: bytes | None = None  # a part of this item is encoded in part
        self._pixel_bytes = 0  # of items that are asked for and not encoded yet
        self.version = 0  # grows when a req that lacks something may get it
        self.num_bytes = 0
        self.num_encoded = 0  # items, since the start
        self.num_hits = 0  # items that a req needed first when they were there, or on their way

    # ---- for reqs ------------------------------------------------------------------------------

    def fits(self, spans: Spans) -> bool:
        """Whether there can ever be room for all that these show."""
        items = {span.item.digest: span.item for span in spans.spans}
        return sum(map(self._size, items.values())) <= self._max_bytes

    def need(self, handle: int, items: Sequence[MediaItem]) -> bool:
        """Pin these for a req, in place of what it had pinned, and have made what is missing;
        whether all are ready. False too if others have pinned so much that there is no room."""
        wanted = {item.digest: item for item in items}
        pinned = self._pinned.get(handle, set())
        if pinned == wanted.keys():
            return all(self._entries[digest].is_ready for digest in wanted)
        self._unpin(handle)
        missing = [item for digest, item in wanted.items() if digest not in self._entries]
        if not self._make_room(sum(map(self._size, missing)), keep=wanted.keys()):
            self._forget_begun(pinned)
            if pinned:
                self.version += 1
            return False
        if wanted:
            counted = self._counted.setdefault(handle, set())
            self.num_hits += sum(d in self._entries for d in wanted.keys() - counted)
            counted.update(wanted)
        for item in missing:
            self._entries[item.digest] = _Entry(item, self._size(item))
            self.num_bytes += self._size(item)
            self._wanted.append(item.digest)
        for digest in wanted:
            entry = self._entries[digest] = self._entries.pop(digest)  # as the most recent
            entry.users.add(handle)
        if wanted:
            self._pinned[handle] = {*wanted}
        self._forget_begun(pinned - wanted.keys())
        return all(self._entries[digest].is_ready for digest in wanted)

    def release(self, handle: int) -> None:
        """A req needs nothing any more, if it did. What was to be encoded for it alone is not."""
        self._counted.pop(handle, None)
        digests = self._unpin(handle)
        self._forget_begun(digests)
        if digests:
            self.version += 1

    def _unpin(self, handle: int) -> set[bytes]:
        digests = self._pinned.pop(handle, set())
        for digest in digests:
            self._entries[digest].users.discard(handle)
        return digests

    def _forget_begun(self, digests: Iterable[bytes]) -> None:
        """Of these, forget those whose pixels are there for nobody: they take memory too."""
        for digest in digests:
            entry = self._entries.get(digest)
            if entry is None or entry.users or entry.is_ready or digest == self._encoding:
                continue
            if entry.num_parts > 0:
                self._forget(digest)

    # ---- for the actor -------------------------------------------------------------------------

    def take_wanted(self) -> list[bytes]:
        """The digests of items whose pixels are needed, since the last call: as long as those on
        their way and those that wait to be encoded are not many, and one at least."""
        taken = []
        wanted, self._wanted = self._wanted, []
        for number, digest in enumerate(wanted):
            entry = self._entries.get(digest)
            if entry is None or entry.is_asked:
                continue
            if self._pixel_bytes > 0 and self._pixel_bytes + entry.pixel_bytes > MAX_PIXEL_BYTES:
                self._wanted = wanted[number:]
                break
            entry.is_asked = True
            self._pixel_bytes += entry.pixel_bytes
            taken.append(digest)
        return taken

    def awaits(self, digest: bytes) -> bool:
        """Whether an item's pixels are needed, and not there."""
        entry = self._entries.get(digest)
        return entry is not None and entry.num_parts == 0

    def users_of(self, digest: bytes) -> set[int]:
        """The handles of the reqs that need an item."""
        return self._entries[digest].users

    def came(self, digest: bytes, num_parts: int) -> bool:
        """The pixels of an item are there, which is encoded in `num_parts` parts. False if nobody
        waits for them any more."""
        entry = self._entries.get(digest)
        if entry is None or entry.num_parts > 0:
            return False
        if not entry.users:
            self._forget(digest)
            return False
        entry.num_parts = num_parts
        self._came[digest] = None
        return True

    def next_part(self) -> tuple[MediaItem, int] | None:
        """What is to be encoded now, if anything; the next call gives nothing before `encoded` has
        been called for it. A part that has been begun goes on. Others begin in turn of the item
        that came first and of the one of which the least is left: a picture passes a long video,
        which takes twice as long at most."""
        if self._encoding is not None:
            return None
        if self._begun is not None:
            self._encoding = self._begun
            return self._entries[self._begun].item, self._entries[self._begun].done
        entries = [self._entries[digest] for digest in self._came if self._entries[digest].users]
        if not entries:
            return None
        entry = min(entries, key=_left) if self._is_shortest_next else entries[0]
        self._is_shortest_next = not self._is_shortest_next
        self._encoding = entry.item.digest
        return entry.item, entry.done

    def encoded(self, digest: bytes, is_done: bool = True) -> bool:
        """The part that `next_part` has named is encoded, or if it is not done, some of it; whether
        all of the item is."""
        assert self._encoding == digest
        self._encoding, self._begun = None, None if is_done else digest
        entry = self._entries[digest]
        entry.done += is_done
        if entry.is_ready:
            self.num_encoded += 1
            self._pixel_bytes -= entry.pixel_bytes
            self.version += 1
            del self._came[digest]
        elif not entry.users:
            self._forget(digest)
        return entry.is_ready

    def failed(self, digest: bytes) -> list[int]:
        """The item cannot be had; returns the handles of the reqs that need it."""
        if self._encoding == digest:
            self._encoding = self._begun = None  # only its own part can be what has failed
        entry = self._entries.get(digest)
        if entry is None:
            return []
        users = sorted(entry.users)
        for handle in users:
            self._pinned[handle].discard(digest)
        self._forget(digest)
        return users

    def take_dropped(self) -> list[bytes]:
        """What the executor has to forget, once all steps that are sealed have been queued."""
        dropped, self._dropped = self._dropped, []
        entries = (self._entries.get(digest) for digest in dropped)
        pairs = zip(dropped, entries, strict=True)
        return [digest for digest, entry in pairs if entry is None or entry.num_parts == 0]

    def clear(self) -> None:
        """Forget all that is not pinned."""
        for digest, entry in list(self._entries.items()):
            if not entry.users and digest != self._encoding:
                self._forget(digest)

    def reset(self) -> None:
        """No pixels that were asked for will come any more; no req has anything pinned."""
        self._wanted = []
        for digest, entry in list(self._entries.items()):
            if entry.num_parts == 0:
                self._forget(digest)

    def check(self) -> None:
        """Raise AssertionError if the books do not add up."""
        total = sum(entry.num_bytes for entry in self._entries.values())
        assert total == self.num_bytes <= self._max_bytes, f"{self.num_bytes} bytes, not {total}"
        asked = [entry for entry in self._entries.values() if entry.is_asked]
        pixels = sum(entry.pixel_bytes for entry in asked if not entry.is_ready)
        assert pixels == self._pixel_bytes, f"{self._pixel_bytes} bytes of pixels, not {pixels}"
        pins = {(handle, d) for handle, digests in self._pinned.items() for d in digests}
        users = {(handle, d) for d, entry in self._entries.items() for handle in entry.users}
        assert pins == users, "pins and users differ"
        assert self._begun is None or self._begun in self._came, "nobody needs what was begun"
        for digest in self._came:
            entry = self._entries[digest]
            assert entry.done < entry.num_parts, "a part is encoded that is not there"

    @property
    def pinned(self) -> dict[int, set[bytes]]:
        """By a req's handle, the digests that it has pinned."""
        return self._pinned

    def has(self, digest: bytes) -> bool:
        """Whether an item's embeddings are ready."""
        entry = self._entries.get(digest)
        return entry is not None and entry.is_ready

    def _size(self, item: MediaItem) -> int:
        return item.length * self._embedding_bytes

    def _make_room(self, num_bytes: int, keep: Set[bytes]) -> bool:
        """Forget what is not pinned, and not to be kept, until so much more fits."""
        free = self._max_bytes - self.num_bytes
        chosen = []
        for digest, entry in self._entries.items():
            if free >= num_bytes:
                break
            if not entry.users and digest not in keep and digest != self._encoding:
                chosen.append(digest)
                free += entry.num_bytes
        if free < num_bytes:
            return False
        for digest in chosen:
            self._forget(digest)
        return True

    def _forget(self, digest: bytes) -> None:
        entry = self._entries.pop(digest)
        self._begun = None if self._begun == digest else self._begun
        self.version += 1
        if entry.is_asked and not entry.is_ready:
            self._pixel_bytes -= entry.pixel_bytes
        self.num_bytes -= entry.num_bytes
        self._came.pop(digest, None)
        if entry.num_parts > 0:
            self._dropped.append(digest)


def _left(entry: _Entry) -> int:
    return entry.num_parts - entry.done
