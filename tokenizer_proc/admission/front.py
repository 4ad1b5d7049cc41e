"""Admission: checks each request, has its text read, and keeps the bounds on what is in flight.

The tokenizer actor calls `Front` with decoded messages, sends what it returns to clients, and what
`dispatch` has to the scheduler. No I/O, no clock. A request with text waits for its turn
(`take_text`), is read elsewhere by `read`, and comes back (`has_read`); one with media waits before
that until they are known (`media`, `take_known`). Invariant: an admitted
request holds its place (one request, its prompt tokens) until its Credit comes or the epoch
changes, a waiting or parked one until it is refused or aborted; a refused one holds nothing. A
score is as many requests as it has continuations, and a request for n samples is n of them:
admitted together or not at all.
"""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from srt.files.tokenizer import Tokenizer
from srt.files.vocab import Vocab
from srt.ring.socket import Blob
from srt.wire.constraint import Constraint
from srt.wire.errors import (
    CONFLICT,
    TIMED_OUT_EARLY,
    UNAVAILABLE,
    ErrorInfo,
    RequestError,
)
from srt.wire.media import MediaItem
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
from srt.wire.ring_messages import (
    CompileCancel,
    CompileCounts,
    CompileReply,
    CompileReq,
    Control,
    GrammarLost,
    GrammarMade,
)
from tokenizer_proc.admission.builder import Builder
from tokenizer_proc.admission.checks import check_control
from tokenizer_proc.admission.gate import Gate
from tokenizer_proc.admission.grammars import compile_error, known_grammars
from tokenizer_proc.admission.parking import Parked, Parking, Recall
from tokenizer_proc.dispatch.admission import Admission, prompt_tokens, without
from tokenizer_proc.dispatch.dispatch import Dispatch
from tokenizer_proc.media.base import MediaProcessor
from tokenizer_proc.media.desk import MediaDesk
from tokenizer_proc.media.showing import Showing
from tokenizer_proc.prompt.chat_template import ChatTemplate
from tokenizer_proc.prompt.prompt import PromptReader
from tokenizer_proc.prompt.scoring import ScoreReader
from tokenizer_proc.queueing.turns import Piece, Question, TextReq, Turns
from tokenizer_proc.tokenizing.reading import (
    ReadCaptures,
    Reading,
    ReadPrompt,
    TextReader,
    Unreadable,
    has_text,
)

_ABORTED = ErrorInfo(CONFLICT, "the request was aborted")

Answer = tuple[bytes, Admission | Refused]  # with the client that gets it
Word = Admission | Parked | Refused | Tokenized | Captured  # what becomes of a request


class Front:
    """The admission core of one ring.

    `dispatch` has the bounds on what is in flight, and `max_total_tokens` is a scheduler's pool: no
    request may need more. A request with a constraint is parked until its grammar is compiled, for
    up to `max_compile_wait_s` seconds, or `max_silence_s` without news from the compiler; if `find`
    has the key of its grammar, it is admitted at once. Control tokens that users write in chats are
    text, unless `special_in_content`. `processor` is that of a model that sees: then a request may
    show `limit_media` pictures and videos, of which `media_bytes` are held.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        vocab: Vocab,
        dispatch: Dispatch,
        *,
        max_total_tokens: int,
        max_compile_wait_s: float,
        max_silence_s: float,
        find: Callable[[Constraint], str],
        special_in_content: bool = False,
        processor: MediaProcessor | None = None,
        limit_media: int = 0,
        media_bytes: int = 0,
        close_constrained: bool = False,
    ) -> None:
        self.dispatch = dispatch
        self._places, self._waits = dispatch.places, dispatch.waits
        self._relay = dispatch.relay
        self._vocab = vocab
        self._limit = min(vocab.context_len, max_total_tokens)
        showing = None if processor is None else Showing(processor)
        self._reader = PromptReader(
            tokenizer, template, vocab.vocab_size, self._limit, special_in_content, showing
        )
        places = dispatch.places
        self._scores = ScoreReader(
            self._reader, self._limit, places.max_tokens, places.max_requests
        )
        self._text = TextReader(tokenizer, self._reader, self._scores)
        self._builder = Builder(vocab, self._limit, close_constrained)
        self._epoch = dispatch.epoch
        self._turns = Turns()
        self.media = MediaDesk(processor.kinds if processor else (), limit_media, media_bytes)
        self._places.freed = self.media.release
        self._gate = Gate(
            dispatch, self._turns, self.media, self._reader, self._scores, vocab.vocab_size
        )
        self._parking = Parking(max_compile_wait_s, max_silence_s)
        self._find, self._known = find, known_grammars()
        self._num_found = 0
        self._compile_counts: dict[str, float] = {}

    @property
    def in_flight(self) -> int:
        """Admitted, waiting and parked requests that have not ended."""
        return len(self._places)

    @property
    def tokens_in_flight(self) -> int:
        """Prompt tokens of the requests in flight."""
        return self._places.num_tokens

    def submit(
        self, client: bytes, req: TextReq, now: float, blobs: Sequence[Blob] = ()
    ) -> Word | None:
        """Take a request, or refuse it; `blobs` are the files of its media. None: it waits for
        these, or for its text to be read."""
        try:
            piece = self._gate.checked(client, req, blobs)
        except RequestError as error:
            return Refused(req.rid, req.epoch, error.info)
        if isinstance(req, GenerateReq) and req.timeout_ms:
            piece.deadline_s = now + req.timeout_ms / 1e3
        if not isinstance(req, Question):
            self._places.take(client, piece.rids)
        if isinstance(req, GenerateReq | ScoreReq) and req.media:
            self.media.add(piece, req.media, blobs)
            self._turns.hold(piece)
        elif has_text(req):
            self._turns.add(piece)
        else:
            return self._judged(piece, self.read(req), now)
        return None

    def take_known(self) -> list[Answer]:
        """Let requests go on whose media are known; refuses those of which a file is not shown."""
        answers: list[Answer] = []
        for piece, error in self.media.take_known():
            if error is None:
                self._turns.add(piece)
            else:
                self._turns.forget(piece)
                answers.append((piece.client, self._refuse(piece, error)))
        return answers

    def take_text(self) -> Piece | None:
        """The next request to read. Each must be handed back with `has_read`."""
        return self._turns.take()

    def read(self, req: TextReq, items: Sequence[Sequence[MediaItem]] = ()) -> Reading:
        """Read the text of a request whose media have these items. It changes nothing here, so a
        forked child may do it."""
        return self._text.read(req, items)

    def has_read(self, piece: Piece, reading: Reading, now: float) -> Word | None:
        """Admit, park or refuse a request that was read. None if nobody waits for it now."""
        self._turns.done(piece)
        return None if piece.gone else self._judged(piece, reading, now)

    def _judged(self, piece: Piece, reading: Reading, now: float) -> Word:
        self._turns.forget(piece)
        client, req = piece.client, piece.req
        try:
            if isinstance(reading, Unreadable):
                raise RequestError.from_info(reading.error)
            if isinstance(req, TokenizeReq):
                assert isinstance(reading, ReadPrompt)
                return Tokenized(req.rid, self._epoch, reading.ids)
            if isinstance(req, CaptureReq):
                assert isinstance(reading, ReadCaptures)
                return Captured(req.rid, self._epoch, reading.captures)
            if has_text(req):  # the prompts of those before it are known now
                self._gate.check_wait(req, 0, self.in_flight - len(piece.rids))
            admission, constraint = self._builder.build(client, req, reading)
            self._places.check_tokens(sum(map(prompt_tokens, admission.parts)))
            if 0.0 < piece.deadline_s <= now:
                raise RequestError.from_info(TIMED_OUT_EARLY)
        except RequestError as error:
            return self._refuse(piece, error.info)
        for part in admission.parts:
            self._places.fill(client, part.rid, prompt_tokens(part))
        admission = admission.until(piece.deadline_s)
        if constraint is None:
            return self._hand_on(without(admission, piece.aborted), now)
        key = self._find(constraint)
        if key:
            self._num_found += 1
            made = self._with_grammar(admission, constraint, key)
            return self._hand_on(without(made, piece.aborted), now)
        asker, epoch = client + b"/" + req.tenant.encode(), self._epoch
        parked = self._parking.park(admission, constraint, asker=asker, epoch=epoch, now=now)
        for number in piece.aborted:  # not all of them: then it would be gone
            self._parking.abort(client, piece.rids[number])
        return parked

    def _refuse(self, piece: Piece, error: ErrorInfo) -> Refused:
        """Free the places of a request that no longer waits, and refuse it."""
        self._places.free(piece.client, piece.rids)
        return Refused(piece.req.rid, piece.req.epoch, error)

    def _hand_on(self, admission: Admission, now: float) -> Admission:
        """Send a request to the scheduler; later ones wait for it."""
        self.dispatch.hand_on(admission, now)
        return admission

    def abort(self, client: bytes, req: AbortReq) -> Admission | Refused | None:
        """End a request. One that the scheduler has gets its credit later; one that waits or is
        parked ends here; with its last sample it is answered as admitted, so that its client learns
        of it.
        """
        name = (client, req.rid)
        if req.epoch != self._epoch:
            return None
        piece = self._turns.named(*name)
        if piece is not None:
            return self._abort_unread(piece, req.rid)
        if name not in self._places:
            return None
        if not self._parking.holds(*name):
            self._relay.abort(client, req.rid)
            return None
        self._places.free(client, [req.rid])
        return self._parking.abort(*name)

    def _abort_unread(self, piece: Piece, rid: str) -> Admission | Refused | None:
        """Abort a sample, or a whole score, that waits for its text to be read."""
        req, is_score = piece.req, isinstance(piece.req, ScoreReq)
        ended = piece.rids if is_score else [rid]
        self._turns.abort(piece, ended)
        self._places.free(piece.client, ended)
        if len(piece.aborted) < len(piece.rids):
            return None
        self._turns.forget(piece)
        if isinstance(req, GenerateReq):
            return Admission(Admitted(req.rid, req.epoch, 0, aborted=piece.aborted), [])
        return Refused(req.rid, req.epoch, _ABORTED) if is_score else None

    def control(self, client: bytes, req: ControlReq) -> Refused | None:
        """Check an operation and send it to the scheduler. A draining server still takes it."""
        try:
            self._gate.check_epoch(req.epoch)
            check_control(req)
        except RequestError as error:
            return Refused(req.rid, req.epoch, error.info)
        counts = self._counts() if req.op == "stats" else {}
        control = Control(client, req.rid, 0, req.op, req.timeout_s, counts, node=req.node)
        self.dispatch.control(control)
        return None

    def _counts(self) -> dict[str, float]:
        counts = {
            "num_tokenizing_reqs": len(self._turns),
            "num_grammar_queue_reqs": len(self._parking),
            "expected_queue_wait_seconds": self._waits.expected_s(
                self._turns.before((b"", "")), self.in_flight
            ),
            **self._compile_counts,
            **self.media.counts(),
        }
        hits = "num_grammar_cache_hit_total"
        return {**counts, hits: counts.get(hits, 0) + self._num_found}

    # ---- grammars ------------------------------------------------------------------------------

    def compiled(self, reply: CompileReply, now: float) -> list[Answer]:
        """Admit or refuse those that waited for this reply."""
        if reply.epoch != self._epoch:
            return []
        return [
            answer
            for party, constraint in self._parking.take_compiled(reply.id)
            for answer in (
                self._refuse_parked(party, compile_error(reply.error, constraint))
                if reply.error is not None
                else self._go_on(party, constraint, reply.key, now)
            )
        ]

    def grammar_lost(self, message: GrammarLost, now: float) -> CompileReq | None:
        """A grammar is missing at the scheduler: what to ask the compiler, unless it is asked
        already, or the constraint is not known any more."""
        if message.incarnation not in self._relay.incarnations:
            return None
        constraint = self._known.get(message.key)
        recall = Recall(message.key, message.incarnation)
        if constraint is None:
            error = ErrorInfo(UNAVAILABLE, "the compiled grammar was removed", retryable=True)
            self._refuse_parked(recall, error)
            return None
        parked = self._parking.park(recall, constraint, asker=b"", epoch=self._epoch, now=now)
        return parked.question

    def hear(self, now: float) -> None:
        """A message of the compiler has arrived: it is alive."""
        self._parking.hear(now)

    def count(self, message: CompileCounts) -> None:
        """Keep the compiler's totals for the next statistics."""
        self._compile_counts = message.counts

    def unanswered(self) -> list[CompileReq]:
        """What a compiler that has just started must be asked again."""
        return self._parking.questions(self._epoch)

    def cancelled(self) -> list[CompileCancel]:
        """What the compiler was asked and need not answer, since the last call."""
        return self._parking.take_cancelled(self._epoch)

    def expire(self, now: float) -> list[Answer]:
        """Refuse those that timed out before their text was read or their grammar was ready, and
        those that have been parked for too long."""
        pieces = self._turns.late(now)
        for piece in pieces:
            self._turns.forget(piece)
        late, expired = self._parking.take_late(now), self._parking.take_expired(now)
        error = ErrorInfo(UNAVAILABLE, "the grammar compiler does not answer", retryable=True)
        return [
            *((piece.client, self._refuse(piece, TIMED_OUT_EARLY)) for piece in pieces),
            *(answer for party in late for answer in self._refuse_parked(party, TIMED_OUT_EARLY)),
            *(answer for party in expired for answer in self._refuse_parked(party, error)),
        ]

    def _go_on(
        self, party: Admission | Recall, constraint: Constraint, key: str, now: float
    ) -> list[Answer]:
        """Admit those whose grammar is ready. A recalled grammar keeps its key, which running
        requests have."""
        if isinstance(party, Recall):
            error = None
            if key != party.key:  # by a compiler with other code
                error = ErrorInfo(UNAVAILABLE, "the compiled grammar was replaced", retryable=True)
            self._relay.made(GrammarMade(party.key, party.incarnation, error))
            return []
        admission = self._hand_on(self._with_grammar(party, constraint, key), now)
        return [(admission.parts[0].client, admission)]

    def _with_grammar(self, admission: Admission, constraint: Constraint, key: str) -> Admission:
        self._known[key] = constraint
        parts = [replace(part, grammar=key) for part in admission.parts]
        return admission._replace(parts=parts)

    def _refuse_parked(self, party: Admission | Recall, error: ErrorInfo) -> list[Answer]:
        """Refuse a parked request."""
        if isinstance(party, Recall):
            self._relay.made(GrammarMade(party.key, party.incarnation, error))
            return []
        client = party.parts[0].client
        self._places.free(client, [part.rid for part in party.parts])
        return [(client, Refused(party.admitted.rid, self._epoch, error))]

    # ---- the ring ------------------------------------------------------------------------------

    def drain(self) -> None:
        """Refuse every later request; those in flight go on."""
        self._gate.is_closed = True

    def reset(self, epoch: int, incarnations: Sequence[int]) -> None:
        """Start a new epoch: everything that was in flight has failed."""
        self._epoch = epoch
        self.dispatch.reset(epoch, incarnations)
        self._parking.clear()
        self._turns.clear()
        self.media.clear()
