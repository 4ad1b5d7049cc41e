"""Requests that wait for what their pictures and videos are, and schedulers that want pixels.

The front owns one; no I/O, no clock. The tokenizer actor hashes what `take_file` gives, in a
thread, and decodes what `take_decode` gives, in children, and hands both back. Callers take turns
in both. A file that is known, or is being decoded for another request, is not decoded for this one.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from srt.fair_queue import SerialQueue
from srt.ring.socket import Blob
from srt.wire.errors import UNAVAILABLE, ErrorInfo
from srt.wire.media import MediaItem, MediaRef
from srt.wire.ring_messages import MediaSent, MediaWanted
from tokenizer_proc.media.checks import check_media, files_of
from tokenizer_proc.media.store import Held, MediaStore, Name
from tokenizer_proc.queueing.turns import Piece

_NOT_THERE = ErrorInfo(UNAVAILABLE, "a picture of the request is not there any more", None, True)

Made = list[tuple[MediaItem, Blob]]  # with its pixels


class _Want(NamedTuple):
    """The scheduler of this incarnation waits for an item's pixels."""

    incarnation: int
    digest: bytes


@dataclass(eq=False)
class _Waiter:
    """A request whose media are not all known. `files` are those of its media; `names` are its
    parts that have not ended."""

    piece: Piece
    files: list[Held]
    names: set[Name]


@dataclass(eq=False)
class File:
    """A file to be hashed."""

    held: Held
    waiter: _Waiter

    @property
    def ref(self) -> MediaRef:
        return self.held.ref

    @property
    def frames(self) -> Sequence[Blob]:
        return self.held.frames


@dataclass(eq=False)
class Decode:
    """A file to be decoded, once for all who wait for it."""

    held: Held
    frames: Sequence[Blob]
    waiters: list[_Waiter] = field(default_factory=list)
    wants: list[_Want] = field(default_factory=list)
    has_begun: bool = False

    @property
    def ref(self) -> MediaRef:
        return self.held.ref


class Known(NamedTuple):
    """A request waits no more: its media are known, or it is to be refused."""

    piece: Piece
    error: ErrorInfo | None = None


class _Decodes:
    """The files that are to be decoded, or are being decoded: each once."""

    def __init__(self) -> None:
        self._queue: SerialQueue[str, Decode] = SerialQueue()
        self._by_file: dict[Held, Decode] = {}

    def of(self, held: Held, caller: str) -> Decode:
        """The work of decoding a file, for which this caller waits too."""
        decode = self._by_file.get(held)
        if decode is None:
            decode = self._by_file[held] = Decode(held, held.frames)
        if not decode.has_begun:
            self._queue.add(caller, decode)
        return decode

    def take(self) -> tuple[str, Decode] | None:
        """The next one, which then has begun, and the caller whose turn it is."""
        while (taken := self._queue.take()) is not None:
            caller, decode = taken
            is_waited_for = decode.wants or any(waiter.names for waiter in decode.waiters)
            if not decode.has_begun and self._by_file.get(decode.held) is decode:
                if is_waited_for:
                    decode.has_begun = True
                    return caller, decode
                del self._by_file[decode.held]
            self._queue.done(caller)
        return None

    def done(self, caller: str, decode: Decode) -> bool:
        """One has ended; returns whether it is of this epoch."""
        self._queue.done(caller)
        if self._by_file.get(decode.held) is not decode:
            return False
        del self._by_file[decode.held]
        return True

    def clear(self) -> None:
        """Forget all. One that has begun keeps its caller's turn until its end."""
        self._queue.clear()
        self._by_file.clear()


class MediaDesk:
    """For a model that takes these `kinds` of media, none if it sees nothing: at most `limit` of
    them a request, of which `max_bytes` are held."""

    def __init__(self, kinds: Collection[str], limit: int, max_bytes: int) -> None:
        self._takes = kinds, limit
        self.store = MediaStore(max_bytes, self._waits, self._give_way)
        # Called with a request that waits, and is to be refused as another needs its room.
        self.gave_way: Callable[[Piece], None] = lambda piece: None
        self._waiters: dict[Name, _Waiter] = {}
        self._files: SerialQueue[str, File] = SerialQueue()
        self._decodes = _Decodes()
        self._known: list[Known] = []
        self._sent: list[tuple[MediaSent, list[Blob]]] = []
        self._num_decoded = self._num_known = 0

    def __len__(self) -> int:
        """The requests that wait."""
        return len({id(waiter) for waiter in self._waiters.values()})

    def counts(self) -> dict[str, float]:
        """For statistics, by their names."""
        return {
            "num_media_queue_reqs": len(self),
            "media_held_bytes": self.store.num_bytes,
            "num_media_decoded_total": self._num_decoded,
            "num_media_known_total": self._num_known,
        }

    def check(self, caller: str, refs: Sequence[MediaRef], blobs: Sequence[Blob]) -> None:
        """Raise RequestError for media that cannot be shown, or for which a caller has no room."""
        check_media(refs, blobs, *self._takes)
        if refs:
            self.store.check_room(caller, sum(map(len, blobs)))

    def add(self, piece: Piece, refs: Sequence[MediaRef], blobs: Sequence[Blob]) -> None:
        """Let a request that was checked wait for its media."""
        files = files_of(refs, blobs)
        names = [(piece.client, rid) for rid in piece.rids]
        waiter = _Waiter(piece, files, set(names))
        self._waiters.update((name, waiter) for name in names)
        fresh = dict.fromkeys(files)
        self.store.hold(piece.caller, names, fresh)
        for held in fresh:
            self._files.add(piece.caller, File(held, waiter))

    # ---- hashing and decoding ------------------------------------------------------------------

    def take_file(self) -> tuple[str, File] | None:
        """The next file to hash, to be handed back with `hashed`."""
        while (taken := self._files.take()) is not None:
            caller, file = taken
            if file.waiter.names:
                return caller, file
            self._files.done(caller)
        return None

    def hashed(self, caller: str, file: File, key: bytes) -> None:
        """A file's key is known."""
        self._files.done(caller)
        waiter, held = file.waiter, file.held
        if not waiter.names:
            return
        known = self.store.identify(held, key)
        waiter.files = [known if one is held else one for one in waiter.files]
        if known.items is not None:
            self._num_known += 1
        else:
            self._decodes.of(known, caller).waiters.append(waiter)
        self._look(waiter)

    def take_decode(self) -> tuple[str, Decode] | None:
        """The next file to decode, to be handed back with `decoded`."""
        return self._decodes.take()

    def decoded(self, caller: str, decode: Decode, made: Made | ErrorInfo) -> None:
        """What a file has become; an error is about its medium, which it does not name."""
        self._num_decoded += 1
        held = decode.held
        if not isinstance(made, ErrorInfo):
            self.store.made(held, made)
        if not self._decodes.done(caller, decode):
            return
        for waiter in decode.waiters:
            if isinstance(made, ErrorInfo):
                self._give_up(waiter, held, made)
            else:
                self._look(waiter)
        pixels = {} if isinstance(made, ErrorInfo) else {item.digest: (item, b) for item, b in made}
        for want in decode.wants:
            if want.digest in pixels:
                self._send(want, *pixels[want.digest])
            else:
                self._fail(want, made if isinstance(made, ErrorInfo) else _NOT_THERE)

    def take_known(self) -> list[Known]:
        """The requests that wait no more, since the last call."""
        known, self._known = self._known, []
        return known

    def _look(self, waiter: _Waiter) -> None:
        """Let a request go on if all of its media are known."""
        items = [held.items for held in waiter.files if held.items is not None]
        if waiter.names and len(items) == len(waiter.files):
            self._forget(waiter)
            waiter.piece.items = items
            self._known.append(Known(waiter.piece))

    def _give_up(self, waiter: _Waiter, held: Held, error: ErrorInfo) -> None:
        if waiter.names:
            self._forget(waiter)
            named = replace(error, param=f"media[{waiter.files.index(held)}]")
            self._known.append(Known(waiter.piece, named))

    def _waits(self, name: Name) -> bool:
        return name in self._waiters

    def _give_way(self, held: Held) -> None:
        """End the requests that hold a file, all of which wait."""
        waiters = [self._waiters[name] for name in held.holders]
        for piece in dict.fromkeys(waiter.piece for waiter in waiters):
            self.gave_way(piece)

    def _forget(self, waiter: _Waiter) -> None:
        for name in waiter.names:
            del self._waiters[name]
        waiter.names.clear()

    # ---- schedulers ----------------------------------------------------------------------------

    def want(self, message: MediaWanted, incarnations: Sequence[int]) -> None:
        """A scheduler needs pixels; those of these incarnations are there."""
        if message.incarnation not in incarnations:
            return
        for digest in message.digests:
            want = _Want(message.incarnation, digest)
            held = self.store.find(digest)
            if held is None or held.items is None:
                self._fail(want, _NOT_THERE)
            elif digest in held.pixels:
                item = next(item for item in held.items if item.digest == digest)
                self._send(want, item, held.pixels[digest])
            else:
                # Each scheduler has a turn of its own.
                scheduler = f"scheduler:{message.incarnation}"
                self._decodes.of(held, scheduler).wants.append(want)

    def take_sent(self, incarnations: Sequence[int]) -> list[tuple[int, MediaSent, list[Blob]]]:
        """The answers to schedulers that are still there, with their replicas and the frames
        behind them; `incarnations` are the present ones, by replica."""
        if not self._sent:
            return []
        sent, self._sent = self._sent, []
        replicas = {number: replica for replica, number in enumerate(incarnations)}
        return [
            (replicas[message.incarnation], message, blobs)
            for message, blobs in sent
            if message.incarnation in replicas
        ]

    def _send(self, want: _Want, item: MediaItem, pixels: Blob) -> None:
        self._sent.append((MediaSent(item, want.incarnation), [pixels]))

    def _fail(self, want: _Want, error: ErrorInfo) -> None:
        item = MediaItem(want.digest, "image", 0, (0, 0, 0, 0))
        reason = f"a file{error.reason}" if error.follows_param else error.reason
        error = ErrorInfo(UNAVAILABLE, reason, retryable=True)
        self._sent.append((MediaSent(item, want.incarnation, error), []))

    # ---- ends ----------------------------------------------------------------------------------

    def release(self, client: bytes, rid: str) -> None:
        """A part of a request has ended, whether it still waited or not."""
        name = (client, rid)
        waiter = self._waiters.pop(name, None)
        if waiter is not None:
            waiter.names.discard(name)
        self.store.release(name)

    def clear(self) -> None:
        """A new epoch: nobody waits, nothing is held."""
        for waiter in {id(waiter): waiter for waiter in self._waiters.values()}.values():
            waiter.names.clear()
        self._waiters.clear()
        self._files.clear()
        self._decodes.clear()
        self._known.clear()
        self._sent.clear()
        self.store.clear()
