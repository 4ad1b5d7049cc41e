"""The token ids of one request: its prompt, its output so far, and how many are being sampled."""

import numpy as np

from scheduler_proc.sampling.penalties import LogitChanges
from srt.wire.filled_params import FilledParams


class Tokens:
    """prompt_len <= known_len <= seq_len <= max_len. The tokens from `known_len` to `seq_len` are
    sampled by steps whose results have not been read yet; the newest of them is sample
    `late_sample` of its step. A plan adds them, `append` makes them known."""

    __slots__ = (
        *("prompt_len", "known_len", "seq_len", "max_len", "late_sample", "logit_changes"),
        *("_buffer", "_replaced"),
    )

    def __init__(self, prompt: np.ndarray, sampling: FilledParams, vocab_size: int) -> None:
        """`prompt` int32 [n]; there is room for `max_new_tokens` more."""
        self.prompt_len = self.known_len = self.seq_len = len(prompt)
        self.max_len = len(prompt) + (sampling.max_new_tokens or 0)
        self.late_sample = 0  # meaningless while all tokens are known
        self._buffer = np.empty(self.max_len, np.int32)
        self._buffer[: len(prompt)] = prompt
        self._replaced: list[int] = []  # where each replaced tail began
        self.logit_changes: LogitChanges | None = None
        if sampling.has_penalties or sampling.logit_bias:
            self.logit_changes = LogitChanges(sampling, prompt, vocab_size)

    @property
    def known(self) -> np.ndarray:
        """Prompt and output ids known so far, int32 [known_len]; a view, not to be kept."""
        return self._buffer[: self.known_len]

    @property
    def outputs(self) -> np.ndarray:
        """The known output ids, int32 [known_len - prompt_len]; a view, not to be kept."""
        return self._buffer[self.prompt_len : self.known_len]

    @property
    def num_replaced(self) -> int:
        """How often known tokens were replaced."""
        return len(self._replaced)

    @property
    def are_late(self) -> bool:
        """Whether some are still being sampled."""
        return self.seq_len > self.known_len

    @property
    def num_outputs(self) -> int:
        """Output tokens, those that are being sampled included."""
        return self.seq_len - self.prompt_len

    def append(self, token: int) -> None:
        """Make the oldest token that was being sampled known, or a further one that was guessed."""
        self._buffer[self.known_len] = token
        self.known_len += 1
        self.seq_len = max(self.seq_len, self.known_len)  # of a guess, several become known
        if self.logit_changes is not None:
            self.logit_changes.count(token, 1)

    def replace_tail(self, drop: int, tokens: list[int]) -> None:
        """Put `tokens` in the place of the last `drop` outputs, while none is being sampled."""
        first = self.known_len - drop
        if drop > 0:
            self._replaced.append(first)
        if self.logit_changes is not None:
            for token in self.known[first:].tolist():
                self.logit_changes.count(token, -1)
            for token in tokens:
                self.logit_changes.count(token, 1)
        self.known_len = self.seq_len = first + len(tokens)
        self._buffer[first : self.known_len] = tokens

    def kept_since(self, num_replaced: int) -> int:
        """Before which position no token has been replaced since `num_replaced` was this;
        `max_len` if none has."""
        return min(self._replaced[num_replaced:], default=self.max_len)
