"""Whose text is read next: callers take turns, so that a flood delays each other one by one piece.

The front queues here what has passed its cheap checks. Invariant: of each caller at most one piece
is being read at a time, and its pieces stay in order.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain, islice

from srt.callers.names import caller_of
from srt.callers.shares import Full, Shares
from srt.fair_queue import FairQueue, SerialQueue
from srt.wire.errors import OVERLOADED, RequestError
from srt.wire.hints import PerfClass, goes_before
from srt.wire.media import MediaItem
from srt.wire.messages import CaptureReq, GenerateReq, ScoreReq, TokenizeReq, sample_rid, score_rid

TextReq = GenerateReq | ScoreReq | TokenizeReq | CaptureReq
Question = TokenizeReq | CaptureReq  # these hold no place, and end at the front
# What may wait: of all callers, and of each.
MAX_PIECES, MAX_CALLER_PIECES = 4096, 1024
MAX_CHARS, MAX_CALLER_CHARS = 64 * 2**20, 16 * 2**20


@dataclass(eq=False)
class Piece:
    """A request whose text is to be read. `rids` are those of its parts; those in
    `aborted`, by number, have ended; `gone` says that nobody waits for it any more. It times out at
    `deadline_s` (0: never), and by its hints is due at `due_s` (0: no matter when). `items` are
    those of each of its media, once they are known."""

    client: bytes
    req: TextReq
    num_chars: int
    rids: list[str]
    aborted: list[int] = field(default_factory=list)
    gone: bool = False
    deadline_s: float = 0.0
    due_s: float = 0.0
    items: list[list[MediaItem]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.caller = caller_of(self.client, self.req.tenant)

    @property
    def is_ahead(self) -> bool:
        """Whether it computes a prompt ahead of time."""
        return is_ahead(self.req)

    @property
    def perf(self) -> PerfClass:
        """The class that its hints ask for."""
        hints = self.req.hints if isinstance(self.req, GenerateReq) else None
        return "" if hints is None else hints.perf

    @property
    def num_places(self) -> int:
        """How many requests it is that hold places."""
        return 0 if isinstance(self.req, Question) or self.is_ahead else len(self.rids)


def is_ahead(req: TextReq) -> bool:
    """Whether a request computes a prompt ahead of time."""
    hints = req.hints if isinstance(req, GenerateReq) else None
    return hints is not None and hints.is_ahead


def rids_of(req: TextReq) -> list[str]:
    """The rids of a request's parts: its continuations, its samples, or itself."""
    if isinstance(req, ScoreReq):
        return [score_rid(req.rid, i) for i in range(len(req.continuations))]
    if isinstance(req, GenerateReq) and req.sampling.n > 1:
        return [sample_rid(req.rid, i) for i in range(req.sampling.n)]
    return [req.rid]


class Turns:
    """The waiting pieces by caller; callers are in the order of their turns. Pieces that are held
    wait for something else before their turn. Without room for one more, the newest of the caller
    that has most is forgotten, and given to `gave_way`."""

    def __init__(self) -> None:
        self._waiting: SerialQueue[str, Piece] = SerialQueue()
        self._held: FairQueue[str, Piece] = FairQueue()
        # Of those that wait or are held.
        self._pieces: Shares[str, Piece] = Shares(
            MAX_PIECES, MAX_CALLER_PIECES, give_way=self._give_way
        )
        self._chars: Shares[str, Piece] = Shares(
            MAX_CHARS, MAX_CALLER_CHARS, give_way=self._give_way, takes_any=True
        )
        self.gave_way: Callable[[Piece], None] = lambda piece: None
        self._by_name: dict[tuple[bytes, str], Piece] = {}  # (client, rid) of each part
        self._placed: dict[str, dict[Piece, None]] = {}  # those with places, by caller

    def __len__(self) -> int:
        """The pieces that wait, are held, or are being read."""
        return self._pieces.total + len(self._waiting.in_progress)

    def check_room(self, caller: str, num_chars: int) -> None:
        """Raise RequestError (429) if there is no room for a piece of this many characters. One
        that is too long even for an empty queue is taken when that is empty."""
        for shares, more, what in (
            (self._pieces, 1, "requests"),
            (self._chars, num_chars, "characters"),
        ):
            if whose := shares.full(caller, more):
                raise _overloaded(what, whose)

    def before(self, caller: str, perf: PerfClass = "") -> int:
        """Requests whose texts are read before one of the class `perf` that `caller` adds now, and
        which it does not pass then: from each other caller, one piece for each piece of its own."""
        waits = self._waiting
        turns = len(waits.lane(caller)) + 1
        waiting = (islice(waits.lane(other), turns) for other in waits.askers)
        pieces = chain(waits.in_progress.values(), chain.from_iterable(waiting))
        return sum([p.num_places for p in pieces if not p.gone and goes_before(p.perf, perf)])

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
        if not self._held.discard(piece.caller, piece):
            self._enter(piece)
        self._waiting.add(piece.caller, piece)

    def hold(self, piece: Piece) -> None:
        """Keep a piece until it is added or forgotten."""
        self._enter(piece)
        self._held.add(piece.caller, piece)

    def _enter(self, piece: Piece) -> None:
        self._by_name.update(((piece.client, rid), piece) for rid in piece.rids)
        if piece.num_places:
            self._placed.setdefault(piece.caller, {})[piece] = None
        self._pieces.take(piece.caller, piece)
        self._chars.take(piece.caller, piece, piece.num_chars)

    def take(self) -> Piece | None:
        """The next piece, which then counts as being read; None if none may be read now."""
        taken = self._waiting.take()
        if taken is None:
            return None
        _, piece = taken
        self._give_back(piece)
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
        if piece in (placed := self._placed.get(piece.caller, {})):
            del placed[piece]
            if not placed:
                del self._placed[piece.caller]
        for rid in piece.rids:
            if self._by_name.get((piece.client, rid)) is piece:  # it may be another's by now
                del self._by_name[piece.client, rid]

    def _remove(self, piece: Piece) -> None:
        self._waiting.discard(piece.caller, piece)
        self._held.discard(piece.caller, piece)
        self._give_back(piece)

    def _give_back(self, piece: Piece) -> None:
        self._pieces.give_back(piece)
        self._chars.give_back(piece)

    def _give_way(self, piece: Piece) -> None:
        self.forget(piece)
        self.gave_way(piece)

    def clear(self) -> None:
        """Forget everything. A piece that is being read keeps its caller's turn until its end."""
        for piece in self._by_name.values():
            piece.gone = True
        self._by_name.clear()
        self._placed.clear()
        self._waiting.clear()
        self._held.clear()
        self._pieces.clear()
        self._chars.clear()


def _overloaded(what: str, whose: Full) -> RequestError:
    by = " of this caller" if whose == "caller" else ""
    reason = f"the server is at its limit: too many {what}{by} wait to be tokenized"
    return RequestError(reason, code=OVERLOADED, retryable=True)
