"""What penalties and `logit_bias` do to the logits of a req's next token, kept up to date token by
token. A `Req` owns one, if it has any of these; the plan copies its arrays into the batch.
"""

import numpy as np

from srt.sampling_params import SamplingParams


class LogitChanges:
    """Changes of single tokens' logits, as the `adjust_` arrays of a ForwardBatch.

    Invariant: the arrays are a function of the prompt and of how often the output has each token,
    up to order and to entries that change nothing, which are what is left of tokens taken back.
    """

    def __init__(self, sampling: SamplingParams, prompt: np.ndarray) -> None:
        """`prompt` int32 [n]; the output is empty."""
        self._repetition = sampling.repetition_penalty
        self._frequency = sampling.frequency_penalty
        self._presence = sampling.presence_penalty
        self._bias = sampling.logit_bias
        bias_ids = np.array(list(self._bias), np.int32)
        prompt_ids = np.unique(prompt) if self._repetition != 1.0 else prompt[:0]
        self._prompt_size = len(prompt_ids)  # those of the prompt come first, and stay
        ids = np.concatenate((prompt_ids, np.setdiff1d(bias_ids, prompt_ids)))
        self._size = len(ids)
        self._index: dict[int, int] = dict(zip(ids.tolist(), range(self._size), strict=True))
        self._counts = [0] * self._size  # in the output
        self._ids = ids
        self._repeat = np.ones(self._size, np.float32)
        self._repeat[: self._prompt_size] = self._repetition
        self._add = np.zeros(self._size, np.float32)
        for token, bias in self._bias.items():
            self._add[self._index[token]] = bias

    def __len__(self) -> int:
        return self._size

    @property
    def ids(self) -> np.ndarray:
        """The tokens: int32 [n], distinct; a view, not to be kept, as are the other two."""
        return self._ids[: self._size]

    @property
    def repeat(self) -> np.ndarray:
        """By what their logits are divided if positive, else multiplied: float32 [n]."""
        return self._repeat[: self._size]

    @property
    def add(self) -> np.ndarray:
        """What is added then: float32 [n]."""
        return self._add[: self._size]

    def count(self, token: int, change: int) -> None:
        """The output has `token` once more (`change` 1) or once less (-1)."""
        at = self._index.get(token)
        if at is None:
            at = self._append(token)
        count = self._counts[at] = self._counts[at] + change
        is_known = count > 0 or at < self._prompt_size
        self._repeat[at] = self._repetition if is_known else 1.0
        penalty = self._frequency * count + self._presence * (count > 0)
        self._add[at] = self._bias.get(token, 0.0) - penalty

    def _append(self, token: int) -> int:
        """A new entry, which changes nothing yet; its place."""
        at = self._size
        if at == len(self._ids):
            room = max(16, at)
            self._ids = np.concatenate((self._ids, np.empty(room, np.int32)))
            self._repeat = np.concatenate((self._repeat, np.empty(room, np.float32)))
            self._add = np.concatenate((self._add, np.empty(room, np.float32)))
        self._ids[at] = token
        self._index[token] = at
        self._counts.append(0)
        self._size += 1
        return at
