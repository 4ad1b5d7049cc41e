"""A front that reads texts at once and has a scheduler, for tests of what it makes of requests."""

from collections.abc import Callable
from typing import Any

from srt.wire.constraint import Constraint
from srt.wire.filled_params import NEUTRAL, SamplingDefaults
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
from tokenizer_proc.admission.builder import Builder
from tokenizer_proc.admission.front import Front, Word
from tokenizer_proc.admission.grammars import Grammars
from tokenizer_proc.admission.parking import Parked, Parking
from tokenizer_proc.dispatch.admission import Admission
from tokenizer_proc.dispatch.dispatch import Dispatch
from tokenizer_proc.dispatch.placing import Placing
from tokenizer_proc.media.base import MediaProcessor
from tokenizer_proc.media.desk import MediaDesk
from tokenizer_proc.media.showing import Showing
from tokenizer_proc.prompt.prompt import PromptReader
from tokenizer_proc.prompt.scoring import ScoreReader
from tokenizer_proc.queueing.turns import TextReq
from tokenizer_proc.tokenizing.reading import TextReader


class DirectFront(Front):
    """One call takes a request, reads it and judges it. The incarnation is the epoch."""

    def __init__(
        self,
        *args: Any,
        epoch: int,
        max_requests: int,
        max_tokens: int,
        max_total_tokens: int,
        max_compile_wait_s: float,
        max_silence_s: float,
        find: Callable[[Constraint], str],
        max_queue_wait_s: float = 0.0,
        random_seed: int = -1,
        max_running: int = 64,
        has_classes: bool = True,
        special_in_content: bool = False,
        processor: MediaProcessor | None = None,
        limit_media: int = 0,
        media_bytes: int = 0,
        open_objects: bool = False,
        defaults: SamplingDefaults = NEUTRAL,
    ) -> None:
        tokenizer, template, vocab = args
        dispatch = Dispatch(
            epoch,
            [epoch],
            Placing("model"),
            max_requests=max_requests,
            max_tokens=max_tokens,
            max_queue_wait_s=max_queue_wait_s,
            random_seed=random_seed,
            max_running=max_running,
            has_classes=has_classes,
        )
        limit = min(vocab.context_len, max_total_tokens)
        prompts = PromptReader(
            tokenizer,
            template,
            vocab.vocab_size,
            limit,
            special_in_content,
            None if processor is None else Showing(processor),
        )
        scores = ScoreReader(prompts, limit, max_tokens, max_requests)
        super().__init__(
            dispatch,
            TextReader(tokenizer, prompts, scores),
            Builder(vocab, limit, open_objects=open_objects, defaults=defaults),
            MediaDesk(processor.kinds if processor else (), limit_media, media_bytes),
            Grammars(dispatch, Parking(max_compile_wait_s, max_silence_s), find),
        )
        self.dispatch.hear([epoch], [0])

    @property
    def in_flight(self) -> int:
        """Admitted, waiting and parked requests that have not ended."""
        return len(self.dispatch.places)

    @property
    def tokens_in_flight(self) -> int:
        """Prompt tokens of the requests in flight."""
        return self.dispatch.places.num_tokens

    def drain(self) -> None:
        """Refuse every later request."""
        self.validator.is_closed = True

    def sent(self, kind: type[SchedulerMessage]) -> list[SchedulerMessage]:
        """What has gone to the scheduler since the last call, of one kind."""
        return [
            message for _, message in self.dispatch.replicas.take() if isinstance(message, kind)
        ]

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
        answers = self.control(client, req, 0.0)
        sent = self.sent(Control)
        assert len(answers) + len(sent) <= 1
        return sent[0] if sent else answers[0][1]  # type: ignore[return-value]

    def _at_once(self, client: bytes, req: TextReq, now: float) -> Word:
        word = self.submit(client, req, now)
        if word is None:
            piece = self.turns.take()
            assert piece is not None and piece.req is req
            word = self.has_read(piece, self.text.read(req), now)
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
