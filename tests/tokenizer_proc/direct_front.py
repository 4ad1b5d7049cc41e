"""A front that reads texts at once and has a scheduler, for tests of what it makes of requests."""

from typing import Any

from srt.wire.messages import (
    AbortReq,
    Captured,
    ControlReq,
    GenerateReq,
    Refused,
    ScoreReq,
    Tokenized,
    TokenizeReq,
)
from srt.wire.ring_messages import Abort, Control, SchedulerMessage
from tokenizer_proc.admission.front import Front, Word
from tokenizer_proc.admission.parking import Parked
from tokenizer_proc.dispatch.admission import Admission
from tokenizer_proc.dispatch.dispatch import Dispatch
from tokenizer_proc.dispatch.placing import Placing
from tokenizer_proc.queueing.turns import TextReq


class DirectFront(Front):
    """One call takes a request, reads it and judges it. The incarnation is the epoch."""

    def __init__(
        self,
        *args: Any,
        epoch: int,
        max_requests: int,
        max_tokens: int,
        max_queue_wait_s: float = 0.0,
        random_seed: int = -1,
        **limits: Any,
    ) -> None:
        dispatch = Dispatch(
            epoch,
            [epoch],
            Placing("model"),
            max_requests=max_requests,
            max_tokens=max_tokens,
            max_queue_wait_s=max_queue_wait_s,
            random_seed=random_seed,
        )
        tokenizer, template, vocab = args
        super().__init__(tokenizer, template, vocab, dispatch, **limits)
        self.dispatch.hear([epoch], [0])

    def sent(self, kind: type[SchedulerMessage]) -> list[SchedulerMessage]:
        """What has gone to the scheduler since the last call, of one kind."""
        return [message for _, message in self.dispatch.take() if isinstance(message, kind)]

    def aborted(self, client: bytes, req: AbortReq) -> Abort | Admission | Refused | None:
        """What becomes of an abort: an answer, or what the scheduler gets."""
        self.sent(Abort)
        answer = self.abort(client, req)
        sent = self.sent(Abort)
        assert len(sent) <= 1 and not (answer and sent)
        return sent[0] if sent else answer  # type: ignore[return-value]

    def controlled(self, client: bytes, req: ControlReq) -> Control | Refused | None:
        """What becomes of an operation, in the same way."""
        self.sent(Control)
        answer = self.control(client, req)
        sent = self.sent(Control)
        assert len(sent) <= 1 and not (answer and sent)
        return sent[0] if sent else answer  # type: ignore[return-value]

    def _at_once(self, client: bytes, req: TextReq, now: float) -> Word:
        word = self.submit(client, req, now)
        if word is None:
            piece = self.take_text()
            assert piece is not None and piece.req is req
            word = self.has_read(piece, self.read(req), now)
        assert word is not None
        return word

    def generate(self, client: bytes, req: GenerateReq, now: float) -> Admission | Parked | Refused:
        word = self._at_once(client, req, now)
        assert not isinstance(word, Tokenized | Captured)
        return word

    def score(self, client: bytes, req: ScoreReq) -> Admission | Refused:
        word = self._at_once(client, req, 0.0)
        assert isinstance(word, Admission | Refused)
        return word

    def tokenize(self, req: TokenizeReq) -> Tokenized | Refused:
        word = self._at_once(b"client", req, 0.0)
        assert isinstance(word, Tokenized | Refused)
        return word
