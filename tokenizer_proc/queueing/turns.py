"""Whose text is read next: callers take turns, so that a flood delays each other one by one piece.

The front queues here what has passed its cheap checks. Invariant: of each caller, which is a client
of the ring and its tenant, at most one piece is being read at a time, and its pieces stay in order.
"""

from collections import Counter
from dataclasses import dataclass, field
from itertools import chain, islice

from srt.callers.names import caller_of
from srt.fair_queue import FairQueue, SerialQueue
from srt.wire.errors import OVERLOADED, RequestError
from srt.wire.media import MediaItem
from srt.wire.messages import CaptureReq, GenerateReq, ScoreReq, TokenizeReq, sample_rid, score_rid

TextReq = GenerateReq | ScoreReq | TokenizeReq | CaptureReq
Question = TokenizeReq | CaptureReq  # these hold no place, and end at the front
Caller = tuple[bytes, str]  # client, tenant
# What may wait: of all callers, and of each, so that none fills the queue alone.
MAX_PIECES, MAX_CALLER_PIECES = 4096, 1024
MAX_CHARS, MAX_CALLER_CHARS = 64 * 2**20, 16 * 2**20


@dataclass(eq=False)
class Piece:
    """A request whose text is to be read. `rids` are those of its parts; those in
    `aborted`, by number, have ended; `gone` says that nobody waits for it any more. It times out at
    `deadline_s` (0: never). `items` are those of each of its media, once they are known."""

    client: bytes
    req: TextReq
    num_chars: int
    rids: list[str]
    aborted: list[int] = field(default_factory=list)
    gone: bool = False
    deadline_s: float = 0.0
    items: list[list[MediaItem]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.caller: Caller = (self.client, self.req.tenant)
        self.num_places = 0 if isinstance(self.req, Question) else len(self.rids)


def rids_of(req: TextReq) -> list[str]:
    """The rids of a request's parts: its continuations, its samples, or itself."""
    if isinstance(req, ScoreReq):
        return [score_rid(req.rid, i) for i in range(len(req.continuations))]
    if isinstance(req, GenerateReq) and req.sampling.n > 1:
        return [sample_rid(req.rid, i) for i in range(req.sampling.n)]
    return [req.rid]


class Turns:
    """The waiting pieces by caller; callers are in the order of their turns. Pieces that are held
    wait for something else before their turn."""

    def __init__(self) -> None:
        self._waiting: SerialQueue[Caller, Piece] = SerialQueue()
        self._held: FairQueue[Caller, Piece] = FairQueue()
        self._chars: Counter[Caller] = Counter()  # of those that wait or are held
        self._num_pieces = 0
        self._by_name: dict[tuple[bytes, str], Piece] = {}  # (client, rid) of each part
        self._placed: dict[str, dict[Piece, None]] = {}  # those with places, by `caller_of`

    def __len__(self) -> int:
        """The pieces that wait, are held, or are being read."""
        return self._num_pieces + len(self._waiting.in_progress)

    def check_room(self, caller: Caller, num_chars: int) -> None:
        """Raise RequestError (429) if there is no room for a piece of this many characters."""
        mine = len(self._waiting.lane(caller)) + len(self._held.lane(caller))
        if mine >= MAX_CALLER_PIECES or self._num_pieces >= MAX_PIECES:
            raise _overloaded("requests")
        of_caller, of_all = self._chars[caller], self._chars.total()
        # A piece that is too long even for an empty queue is taken when the queue is empty.
        if of_caller and of_caller + num_chars > MAX_CALLER_CHARS:
            raise _overloaded("characters")
        if of_all and of_all + num_chars > MAX_CHARS:
            raise _overloaded("characters")

    def before(self, caller: Caller) -> int:
        """Requests whose texts are read before one that `caller` adds now: from each other caller,
        one piece for each piece of its own."""
        waits = self._waiting
        turns = len(waits.lane(caller)) + 1
        waiting = (islice(waits.lane(other), turns) for other in waits.askers)
        pieces = chain(waits.in_progress.values(), chain.from_iterable(waiting))
        return sum([p.num_places for p in pieces if not p.gone])

    def named(self, client: bytes, rid: str) -> Piece | None:
        """The piece, waiting, held or being read, that has this part."""
        return self._by_name.get((client, rid))

    def newest_of(self, caller: str) -> Piece | None:
        """The request of this caller that came last of those that are not read yet."""
        return next(reversed(self._placed.get(caller, {})), None)

    def late(self, now: float) -> list[Piece]:
        """The pieces that have passed their own deadline."""
        return [p for p in dict.fromkeys(self._by_name.values()) if 0.0 < p.deadline_s <= now]

    def add(self, piece: Piece) -> None:
        """Let a piece wait, after its caller's others; it may have been held before."""
        if piece in self._held.lane(piece.caller):
            self._remove(piece)
        else:
            self._name(piece)
        self._enter(self._waiting, piece)

    def hold(self, piece: Piece) -> None:
        """Keep a piece until it is added or forgotten."""
        self._name(piece)
        self._enter(self._held, piece)

    def _name(self, piece: Piece) -> None:
        self._by_name.update(((piece.client, rid), piece) for rid in piece.rids)
        if piece.num_places:
            caller = caller_of(piece.client, piece.req.tenant)
            self._placed.setdefault(caller, {})[piece] = None

    def _enter(self, pieces: FairQueue[Caller, Piece], piece: Piece) -> None:
        pieces.add(piece.caller, piece)
        self._chars[piece.caller] += piece.num_chars
        self._num_pieces += 1

    def take(self) -> Piece | None:
        """The next piece, which then counts as being read; None if none may be read now."""
        taken = self._waiting.take()
        if taken is None:
            return None
        _, piece = taken
        self._count_less(piece)
        return piece

    def done(self, piece: Piece) -> None:
        """A piece has been read."""
        if self._waiting.in_progress.get(piece.caller) is piece:
            self._waiting.done(piece.caller)

    def abort(self, piece: Piece, rids: list[str]) -> None:
        """End parts of a piece."""
        for rid in rids:
            del self._by_name[piece.client, rid]
            piece.aborted.append(piece.rids.index(rid))

    def forget(self, piece: Piece) -> None:
        """Nobody waits for a piece any more. One that is being read goes on."""
        piece.gone = True
        self._remove(piece)
        caller = caller_of(piece.client, piece.req.tenant)
        if piece in (placed := self._placed.get(caller, {})):
            del placed[piece]
            if not placed:
                del self._placed[caller]
        for rid in piece.rids:
            if self._by_name.get((piece.client, rid)) is piece:  # it may be another's by now
                del self._by_name[piece.client, rid]

    def _remove(self, piece: Piece) -> None:
        for pieces in (self._waiting, self._held):
            if pieces.discard(piece.caller, piece):
                self._count_less(piece)

    def _count_less(self, piece: Piece) -> None:
        self._num_pieces -= 1
        self._chars[piece.caller] -= piece.num_chars
        if not self._chars[piece.caller]:
            del self._chars[piece.caller]

    def clear(self) -> None:
        """Forget everything. A piece that is being read keeps its caller's turn until its end."""
        for piece in self._by_name.values():
            piece.gone = True
        self._by_name.clear()
        self._placed.clear()
        self._waiting.clear()
        self._held.clear()
        self._chars.clear()
        self._num_pieces = 0


def _overloaded(what: str) -> RequestError:
    reason = f"the server is at its limit: too many {what} wait to be tokenized"
    return RequestError(reason, code=OVERLOADED, retryable=True)
