"""Who gives way when the server is full: the newest waiting request of the caller with most.

A caller that with its new request would be at a lower level than another (`Holdings`) is admitted
all the same, and that other's newest request that has not begun ends: with all its parts, or not at
all. One that is not read or whose grammar is not ready ends here; a scheduler is asked about the
others, and answers that one stays if it has begun, was retracted or is resumed. Then the next one
is asked. Until all have answered, more may be in flight than the bounds say. Where all that others
hold has begun, a caller is admitted up to its share: what is in flight is then above the bounds by
what the others hold above their shares, and goes on to its end.
"""

from srt.wire.errors import OVERLOADED, ErrorInfo, RequestError
from srt.wire.messages import Refused
from srt.wire.ring_messages import Stays, TokenizedReq
from tokenizer_proc.admission.grammars import Grammars
from tokenizer_proc.dispatch.admission import Admission, Answer, charged_tokens
from tokenizer_proc.dispatch.dispatch import Dispatch
from tokenizer_proc.dispatch.relay import Kept
from tokenizer_proc.queueing.callers import Callers
from tokenizer_proc.queueing.capacity import overloaded
from tokenizer_proc.queueing.holdings import KINDS, Kind
from tokenizer_proc.queueing.turns import Piece, Turns

_MADE_ROOM = ErrorInfo(
    OVERLOADED,
    "the server is at its limit: the request made room for another caller's, as this caller has "
    "the most that waits to be tokenized or decoded",
    retryable=True,
)

_Victim = Piece | Admission | list[Kept]  # not read; parked; at a scheduler


class GivingWay:
    """Makes room at one front. `answers` are refusals for clients, to be sent."""

    def __init__(
        self, dispatch: Dispatch, turns: Turns, grammars: Grammars, callers: Callers
    ) -> None:
        self.answers: list[Answer] = []
        self._dispatch, self._turns, self._grammars = dispatch, turns, grammars
        self._callers = callers

    def check_room(self, caller: str, count: int, now: float) -> None:
        """Raise RequestError (429) unless `count` more requests of a caller have room, or others
        give way to them."""
        places = self._dispatch.places
        if not places.has_room(count) and not self._comes_before("requests", caller, count):
            retry_s = self._retry_after_s(caller, count, now)
            raise overloaded(f"{len(places)} requests are in flight", retry_s)

    def check_tokens(self, caller: str, count: int, now: float) -> None:
        """The same of the tokens of a prompt."""
        places = self._dispatch.places
        if not places.has_room_for_tokens(count):
            if not self._comes_before("tokens", caller, count):
                retry_s = self._retry_after_s(caller, 1, now)
                raise overloaded(f"{places.num_tokens} prompt tokens are in flight", retry_s)

    def _retry_after_s(self, caller: str, count: int, now: float) -> float:
        """When as much of the caller's own has ended; 0 if it is alone: all that ends is its own,
        so that it may try at once."""
        if self._dispatch.places.holdings.is_alone(caller):
            return 0.0
        return self._callers.retry_after_s(caller, count, now)

    def make_room(self, caller: str, now: float) -> None:
        """Have as much of others give way as is in flight above the bounds, after `caller` has been
        admitted."""
        for kind in KINDS:
            while self._excess(kind) > 0 and (victim := self._next(kind, caller)) is not None:
                self._end(victim, now)

    def _excess(self, kind: Kind) -> int:
        """How much is in flight above a bound, without what schedulers were asked to end."""
        places, leaving = self._dispatch.places, self._dispatch.leaving.asked[kind].total()
        if kind == "requests":
            return len(places) - leaving - places.max_requests
        return places.num_tokens - leaving - places.max_tokens

    def stay(self, message: Stays, now: float) -> None:
        """A request has begun, and stays: another one gives way."""
        replicas = self._dispatch.replicas
        if message.incarnation not in replicas.incarnations:
            return
        self._dispatch.leaving.stay((message.client, rid) for rid in message.rids)
        lowest = self._dispatch.places.holdings.lowest()
        if lowest is not None:
            self.make_room(lowest, now)

    def end_piece(self, piece: Piece, error: ErrorInfo) -> None:
        """Refuse a request that is not read yet."""
        self._turns.forget(piece)
        self._dispatch.places.free(piece.client, piece.rids)
        self.answers.append((piece.client, Refused(piece.req.rid, piece.req.epoch, error)))

    def end_waiting(self, piece: Piece) -> None:
        """Refuse one that waits to be read, or for its media: another caller's takes its room."""
        self._callers.count("gave_way", piece.caller)
        if piece.num_places:
            self._callers.rates.take(piece.caller, requests=-1)
        self.end_piece(piece, _MADE_ROOM)

    def take_answers(self) -> list[Answer]:
        """The refusals since the last call."""
        answers, self.answers = self.answers, []
        return answers

    def _comes_before(self, kind: Kind, caller: str, more: int) -> bool:
        """Whether a caller with `more` is below another, and what gives way already is enough, or
        it is within its share, or one of those above it has something to give way."""
        places, leaving = self._dispatch.places, self._dispatch.leaving.asked[kind]
        bound = places.max_requests if kind == "requests" else places.max_tokens
        if not places.holdings.above(kind, caller, more):  # as in a flood of one's own
            return False
        if self._excess(kind) + more <= 0:
            return True
        if places.holdings.is_within_share(kind, caller, more, bound):
            return True
        above = places.holdings.above(kind, caller, more, leaving)
        return any(self._newest(kind, other) is not None for other in above)

    def _next(self, kind: Kind, caller: str) -> _Victim | None:
        leaving = self._dispatch.leaving.asked[kind]
        above = self._dispatch.places.holdings.above(kind, caller, 0, leaving)
        found = (self._newest(kind, other) for other in above)
        return next((victim for victim in found if victim is not None), None)

    def _newest(self, kind: Kind, caller: str) -> _Victim | None:
        """The newest request of a caller that has not begun, and holds something of this kind: what
        is not read came last, and its tokens are not known."""
        piece = self._turns.newest_of(caller) if kind == "requests" else None
        if piece is not None:
            return piece
        parked = self._grammars.parking.newest_of(caller)
        if parked is not None:
            return parked
        return self._dispatch.leaving.newest_waiting(caller) or None

    def _end(self, victim: _Victim, now: float) -> None:
        caller, count = _size(victim)
        self._callers.count("gave_way", caller)
        retry_s = self._callers.retry_after_s(caller, count, now)
        reason = "the server is at its limit, and other callers are below their shares"
        error = RequestError(reason, code=OVERLOADED, retryable=True, retry_after_s=retry_s).info
        if isinstance(victim, Piece):
            self._callers.rates.take(caller, requests=-1)
            self.end_piece(victim, error)
            return
        parts = _parts(victim)
        self._callers.rates.take(caller, requests=-1, tokens=-charged_tokens(parts))
        if isinstance(victim, Admission):
            part = parts[0]
            self._grammars.parking.remove(part.client, part.rid)
            self.answers += self._grammars.refuse(victim, error)
            return
        self._dispatch.leaving.ask(victim, error)


def _size(victim: _Victim) -> tuple[str, int]:
    """Whose it is, and how many requests."""
    if isinstance(victim, Piece):
        return victim.caller, victim.num_places
    parts = _parts(victim)
    return parts[0].caller, len(parts)


def _parts(victim: Admission | list[Kept]) -> list[TokenizedReq]:
    return victim.parts if isinstance(victim, Admission) else [kept.req for kept in victim]
