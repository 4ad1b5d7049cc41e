"""A front that reads texts at once, for tests of what it does with them."""

from srt.wire.messages import Captured, GenerateReq, Refused, ScoreReq, Tokenized, TokenizeReq
from tokenizer_proc.admission import Admission
from tokenizer_proc.front import Front, Word
from tokenizer_proc.parking import Parked
from tokenizer_proc.turns import TextReq


class DirectFront(Front):
    """One call takes a request, reads it and answers it."""

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
