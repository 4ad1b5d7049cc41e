"""Admission: checks each request, has its text read, and keeps the bounds on what is in flight.

The tokenizer actor calls `Front` with decoded messages, sends what it returns to clients, and what
`dispatch` has to the scheduler. No I/O, no clock. A request with text waits for its turn
(`turns`), is read elsewhere by `text`, and comes back (`has_read`); one with media waits before
that until they are known (`media`, `take_known`). Invariant: an admitted
request holds its place (one request, its prompt tokens) until its Credit comes or the epoch
changes, a waiting or parked one until it is refused or aborted; a refused one holds nothing. A
score is as many requests as it has continuations, and a request for n samples is n of them:
admitted together or not at all. Where there is no room, others may give way (`giving_way`).
"""

from collections.abc import Sequence

from msgspec import convert

from srt.callers.names import caller_of
from srt.ring.socket import Blob
from srt.wire.answer_meta import NO_META
from srt.wire.errors import CONFLICT, DUE_EARLIER, TIMED_OUT_EARLY, ErrorInfo, RequestError
from srt.wire.messages import (
    AbortReq,
    Admitted,
    Captured,
    CaptureReq,
    ControlReq,
    GenerateReq,
    Refused,
    ScoreReq,
    Tokenized,
    TokenizeReq,
)
from srt.wire.pause import Pause, PauseMode
from srt.wire.ring_messages import Control, Credit
from tokenizer_proc.admission.builder import Builder
from tokenizer_proc.admission.giving_way import GivingWay
from tokenizer_proc.admission.grammars import Grammars
from tokenizer_proc.admission.parking import Parked
from tokenizer_proc.admission.validator import Validator
from tokenizer_proc.dispatch.admission import (
    Admission,
    Answer,
    charged_tokens,
    prompt_tokens,
    without,
)
from tokenizer_proc.dispatch.dispatch import Dispatch
from tokenizer_proc.media.desk import MediaDesk
from tokenizer_proc.queueing.callers import Callers
from tokenizer_proc.queueing.turns import Piece, Question, TextReq, Turns, is_ahead
from tokenizer_proc.tokenizing.reading import (
    ReadCaptures,
    Reading,
    ReadPrompt,
    TextReader,
    Unreadable,
    has_text,
)

_ABORTED = ErrorInfo(CONFLICT, "the request was aborted")

Word = Admission | Parked | Refused | Tokenized | Captured  # what becomes of a request


class Front:
    """The admission core of one ring.

    `dispatch` has the bounds on what is in flight, `text` reads requests, in children too, and
    `builder` knows the model's limits. The actor also uses the parts: it takes texts to read from
    `turns`, files from `media`, and has news of the compiler for `grammars`.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        text: TextReader,
        builder: Builder,
        media: MediaDesk,
        grammars: Grammars,
        callers: Callers | None = None,
    ) -> None:
        self.dispatch, self.text, self.media, self.grammars = dispatch, text, media, grammars
        self.turns = Turns()
        self.callers = callers or Callers()
        self.giving_way = GivingWay(dispatch, self.turns, grammars, self.callers)
        self.validator = Validator(dispatch, self.turns, media, text, self.giving_way, self.callers)
        self._builder = builder
        self.turns.gave_way = media.gave_way = self.giving_way.end_waiting
        dispatch.places.freed = media.release
        self.callers.changed = lambda: dispatch.places.holdings.reweigh(self.callers.weight)
        self.callers.changed()

    def submit(
        self, client: bytes, req: TextReq, now: float, blobs: Sequence[Blob] = ()
    ) -> Word | None:
        """Take a request, or refuse it; `blobs` are the files of its media. None: it waits for
        these, or for its text to be read."""
        caller = caller_of(client, req.tenant)
        try:
            piece = self.validator.checked(client, req, now, blobs)
        except RequestError as error:
            if not is_ahead(req):  # no client's
                self.callers.count("refused", caller)
            return Refused(req.rid, req.epoch, error.info)
        if isinstance(req, GenerateReq) and req.timeout_ms:
            piece.deadline_s = self._served_s(now) + req.timeout_ms / 1e3
        if isinstance(req, GenerateReq) and req.hints is not None and req.hints.deadline_ms:
            piece.due_s = now + req.hints.deadline_ms / 1e3
        if piece.is_ahead:
            self.dispatch.places.take_ahead(client, piece.rids, caller)
        elif not isinstance(req, Question):
            self.dispatch.places.take(client, piece.rids, caller)
            self.callers.rates.take(caller, requests=1)
            self.callers.count("requests", caller)
            self.giving_way.make_room(caller, now)
        if isinstance(req, GenerateReq | ScoreReq) and req.media:
            self.media.add(piece, req.media, blobs)
            self.turns.hold(piece)
        elif has_text(req):
            self.turns.add(piece)
        else:
            return self._judged(piece, self.text.read(req), now)
        return None

    def take_known(self) -> list[Answer]:
        """Let requests go on whose media are known; refuses those of which a file is not shown."""
        answers: list[Answer] = []
        for piece, error in self.media.take_known():
            if error is None:
                self.turns.add(piece)
            else:
                self.turns.forget(piece)
                answers.append((piece.client, self._refuse(piece, error)))
        return answers

    def has_read(self, piece: Piece, reading: Reading, now: float) -> Word | None:
        """Admit, park or refuse a request that was taken from `turns` and read. None if nobody
        waits for it now."""
        self.turns.done(piece)
        return None if piece.gone else self._judged(piece, reading, now)

    def _judged(self, piece: Piece, reading: Reading, now: float) -> Word:
        self.turns.forget(piece)
        client, req, places = piece.client, piece.req, self.dispatch.places
        caller = caller_of(client, req.tenant)
        try:
            if isinstance(reading, Unreadable):
                raise RequestError.from_info(reading.error)
            if isinstance(req, TokenizeReq):
                assert isinstance(reading, ReadPrompt)
                return Tokenized(req.rid, self.dispatch.epoch, reading.ids)
            if isinstance(req, CaptureReq):
                assert isinstance(reading, ReadCaptures)
                return Captured(req.rid, self.dispatch.epoch, reading.captures)
            if has_text(req):  # the prompts of those before it are known now
                self.validator.check_wait(req, 0, len(places) - piece.num_places, caller)
            lowered = self.callers.lowered(caller, req)
            admission, constraint = self._builder.build(client, lowered, reading)
            admission = admission.of_caller(caller, self.callers.limits(caller))
            num_tokens = sum(map(prompt_tokens, admission.parts))
            self.giving_way.check_tokens(caller, num_tokens, now, is_ahead=piece.is_ahead)
            charged = charged_tokens(admission.parts)
            self.callers.rates.check_tokens(caller, charged, now)
            if 0.0 < piece.deadline_s <= self._served_s(now):
                raise RequestError.from_info(TIMED_OUT_EARLY)
            if 0.0 < piece.due_s <= now:
                raise RequestError.from_info(DUE_EARLIER)
        except RequestError as error:
            return self._refuse(piece, error.info)
        for part in admission.parts:
            places.fill(client, part.rid, prompt_tokens(part))
        if not piece.is_ahead:  # else the request that will have the prompt counts
            self.callers.rates.take(caller, tokens=charged)
            self.callers.count("prompt_tokens", caller, charged)
            self.giving_way.make_room(caller, now)
        admission = admission.until(piece.deadline_s).due(piece.due_s)
        if constraint is not None:
            return self.grammars.enter(admission, constraint, piece, now)
        return self.dispatch.hand_on(without(admission, piece.aborted), now)

    def _refuse(self, piece: Piece, error: ErrorInfo) -> Refused:
        """Free the places of a request that no longer waits, and refuse it. It does not count for
        its caller's rate."""
        if piece.num_places:
            caller = caller_of(piece.client, piece.req.tenant)
            self.callers.rates.take(caller, requests=-1)
            self.callers.count("refused", caller)
        self.dispatch.places.free(piece.client, piece.rids)
        return Refused(piece.req.rid, piece.req.epoch, error)

    def abort(self, client: bytes, req: AbortReq) -> Admission | Refused | None:
        """End a request. One that the scheduler has gets its credit later; one that waits or is
        parked ends here; with its last sample it is answered as admitted, so that its client learns
        of it.
        """
        name = (client, req.rid)
        if req.epoch != self.dispatch.epoch:
            return None
        piece = self.turns.named(*name)
        if piece is not None:
            return self._abort_unread(piece, req.rid)
        if name not in self.dispatch.places:
            return None
        if not self.grammars.parking.holds(*name):
            self.dispatch.relay.abort(client, req.rid)
            return None
        self.dispatch.places.free(client, [req.rid])
        return self.grammars.parking.abort(*name)

    def _abort_unread(self, piece: Piece, rid: str) -> Admission | Refused | None:
        """Abort a sample, or a whole score, that waits for its text to be read."""
        req, is_score = piece.req, isinstance(piece.req, ScoreReq)
        ended = piece.rids if is_score else [rid]
        self.turns.abort(piece, ended)
        self.dispatch.places.free(piece.client, ended)
        if len(piece.aborted) < len(piece.rids):
            return None
        self.turns.forget(piece)
        if isinstance(req, GenerateReq):
            return Admission(Admitted(req.rid, req.epoch, NO_META, aborted=piece.aborted), [])
        return Refused(req.rid, req.epoch, _ABORTED) if is_score else None

    def credit(self, credit: Credit, now: float) -> None:
        """A request has ended. One that gave way does not count for how fast its caller's end, nor
        one that was ahead of time."""
        name = credit.client, credit.rid
        caller = self.dispatch.places.caller(*name)
        counts = not self.dispatch.leaving.is_asked(name)
        counts = counts and not self.dispatch.places.is_ahead(*name)
        if caller is not None and credit.epoch == self.dispatch.epoch and counts:
            self.callers.ended(caller, credit.tokens, now)
        self.dispatch.credit(credit)

    def control(self, client: bytes, req: ControlReq, now: float) -> list[Answer]:
        """Check an operation and send it to the scheduler. A draining server still takes it.
        Returns the refusal, or the answers to the requests that a pause aborts."""
        try:
            self.validator.check_control(req)
        except RequestError as error:
            return [(client, Refused(req.rid, req.epoch, error.info))]
        answers, pause = self._paused(req, now)
        counts = self._counts() if req.op == "stats" else {}
        control = Control(client, req.rid, 0, req.op, req.timeout_s, counts, node=req.node)
        self.dispatch.control(control, pause)
        return answers

    def _paused(self, req: ControlReq, now: float) -> tuple[list[Answer], Pause | None]:
        """What an operation aborts, and the pause that holds after it, if it is about that."""
        pause, answers = self.dispatch.replicas.pause, list[Answer]()
        if req.op == "continue":
            return answers, pause.ended(now)
        if req.op != "pause":
            return answers, None
        if req.mode == "abort":
            for client, rid in list(self.dispatch.places):
                answer = self.abort(client, AbortReq(rid, self.dispatch.epoch))
                answers += [] if answer is None else [(client, answer)]
        return answers, pause.begun(convert(req.mode, PauseMode), now)

    def _served_s(self, now: float) -> float:
        """The clock of the requests' time limits."""
        return self.dispatch.replicas.pause.served_s(now)

    def _counts(self) -> dict[str, float]:
        unread, in_flight = self.turns.before(""), len(self.dispatch.places)
        return {
            "generation_paused": float(self.dispatch.replicas.pause.is_on),
            "num_tokenizing_reqs": len(self.turns),
            "expected_queue_wait_seconds": self.dispatch.waits.expected_s(unread, in_flight),
            **self.grammars.counts(),
            **self.callers.counts(self.dispatch.places.holdings),
            **self.media.counts(),
        }

    def expire(self, now: float) -> list[Answer]:
        """Refuse those that timed out before their text was read or their grammar was ready, and
        those that have been parked for too long."""
        pieces = self.turns.late(self._served_s(now))
        for piece in pieces:
            self.turns.forget(piece)
        late = [(piece.client, self._refuse(piece, TIMED_OUT_EARLY)) for piece in pieces]
        return [*late, *self.grammars.expire(now)]

    def reset(self, epoch: int, incarnations: Sequence[int]) -> None:
        """Start a new epoch: everything that was in flight has failed."""
        self.dispatch.reset(epoch, incarnations)
        self.grammars.parking.clear()
        self.turns.clear()
        self.media.clear()
        self.giving_way.take_answers()
