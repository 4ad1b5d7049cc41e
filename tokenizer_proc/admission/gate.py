"""The checks of a request that do not need its text, cheap ones first. Called by the front."""

from collections.abc import Sequence

from srt.ring.socket import Blob
from srt.wire.errors import UNAVAILABLE, RequestError
from srt.wire.messages import CaptureReq, GenerateReq, ScoreReq
from tokenizer_proc.admission.checks import check_generate, check_names, check_replica
from tokenizer_proc.dispatch.dispatch import Dispatch
from tokenizer_proc.media.desk import MediaDesk
from tokenizer_proc.prompt.prompt import PromptReader
from tokenizer_proc.prompt.scoring import ScoreReader
from tokenizer_proc.queueing.turns import Piece, Question, TextReq, Turns, rids_of
from tokenizer_proc.tokenizing.reading import has_text, num_chars


class Gate:
    """Lets requests in, until `is_closed`. Each check raises RequestError."""

    def __init__(
        self,
        dispatch: Dispatch,
        turns: Turns,
        media: MediaDesk,
        reader: PromptReader,
        scores: ScoreReader,
        vocab_size: int,
    ) -> None:
        self._dispatch, self._turns, self._media = dispatch, turns, media
        self._reader, self._scores = reader, scores
        self._vocab_size = vocab_size
        self.is_closed = False

    def checked(self, client: bytes, req: TextReq, blobs: Sequence[Blob] = ()) -> Piece:
        """The request to be read; `blobs` are the files of its media."""
        self.check_epoch(req.epoch)
        check_names(req)
        places = self._dispatch.places
        if not isinstance(req, Question):
            if self.is_closed:
                raise RequestError("the server is draining", code=UNAVAILABLE, retryable=True)
            self.check_wait(req, self._turns.before((client, req.tenant)), len(places))
        if isinstance(req, CaptureReq):
            self._reader.check_chars(len(req.text), "text")
        elif isinstance(req, ScoreReq):
            self._scores.check(req)
        else:
            if isinstance(req, GenerateReq):
                check_generate(req, self._vocab_size, places.max_requests)
                check_replica(req, len(self._dispatch.relay.incarnations))
            self._reader.check_size(req)
        piece = Piece(client, req, num_chars(req), rids_of(req))
        if any((client, rid) in places or self._turns.named(client, rid) for rid in piece.rids):
            raise RequestError(" is already in use by a request in flight", at="rid")
        if not isinstance(req, Question):
            self._media.check(req.media, blobs)
            places.check_room(len(piece.rids))
        if has_text(req):
            self._turns.check_room(piece.caller, piece.num_chars)
        return piece

    def check_wait(self, req: GenerateReq | ScoreReq, unread: int, in_flight: int) -> None:
        """Whether a request would get its first token soon enough."""
        waits = self._dispatch.waits
        if not isinstance(req, GenerateReq):
            waits.check(unread, in_flight)
        elif not req.joined:
            waits.check(unread, in_flight, req.routed_replica)

    def check_epoch(self, epoch: int) -> None:
        """Whether a message is of the present epoch."""
        if epoch != self._dispatch.epoch:
            reason = "the server restarted in between: send the request again"
            raise RequestError(reason, code=UNAVAILABLE, retryable=True)
