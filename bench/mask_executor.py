"""An executor that stands in for a model where only constraints matter."""

import numpy as np

from scheduler_proc.batch import ForwardBatch, StepResult
from srt.files.vocab import Vocab

SMALL_POOL = 384  # tokens: so few that requests are retracted


class MaskExecutor:
    """Stands in for a model: greedily, what follows depends on the token before, so that texts
    repeat themselves and guesses are right now and then; else every allowed token is as likely."""

    name = "masks"
    dtype: object = None
    weight_bytes = pool_bytes = 0
    context_len = 8192
    max_total_tokens = SMALL_POOL

    def __init__(self, vocab: Vocab) -> None:
        self.vocab_size = len(vocab.token_bytes)
        self._ranks = np.random.default_rng(0).permutation(self.vocab_size).astype(np.int64)
        self._rng = np.random.default_rng(1)

    def run(self, batch: ForwardBatch) -> StepResult:
        tokens = [self._chosen(batch, i) for i in range(len(batch.sample_tokens))]
        return StepResult(
            np.array(tokens, np.int32),
            np.full(len(tokens), np.nan, np.float32),
            np.zeros(len(batch.logprob_tokens), np.float32),
        )

    def _chosen(self, batch: ForwardBatch, sample: int) -> int:
        masks = batch.masks
        row = -1 if masks is None else int(masks.rows[sample])
        if masks is None or row < 0:
            return int(self._rng.integers(self.vocab_size))
        bits = np.unpackbits(masks.words[row].view(np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits[: self.vocab_size])
        if batch.samples.temperature[sample] > 0:
            return int(self._rng.choice(allowed))
        before = int(batch.input_ids[batch.sample_tokens[sample]])
        return int(allowed[np.argmin((self._ranks[allowed] + 7919 * before) % self.vocab_size)])
