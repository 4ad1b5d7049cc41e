"""What penalties and `logit_bias` do to the logits of a req's next token, kept up to date token by
token. A `Req` owns one, if it has any of these; the plan copies its arrays into the batch. If the
newest token is still being sampled then, a `LateChange` goes along, which puts it in.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from scheduler_proc.batch import Adjust
from scheduler_proc.ragged import both_indptr, indptr_of
from srt.wire.filled_params import FilledParams


class Entries(NamedTuple):
    """What happens to the logits of single tokens: each [n], of tokens that are distinct."""

    ids: np.ndarray  # int32
    repeat: np.ndarray  # float32: by what they are divided if positive, else multiplied
    add: np.ndarray  # float32: what is added then
    counts: np.ndarray  # int32: how often the output has the token


class LogitChanges:
    """Changes of single tokens' logits, as the `Adjust` of a batch has them.

    Invariant: the arrays are a function of the prompt and of how often the output has each token,
    up to order and to entries that change nothing, which are what is left of tokens taken back.
    """

    def __init__(self, sampling: FilledParams, prompt: np.ndarray, vocab_size: int) -> None:
        """`prompt` int32 [n]; the output is empty."""
        self.count_outputs = sampling.has_penalties
        self._vocab_size = vocab_size
        self._unknown = 0  # all smaller ids have entries
        self._repetition = sampling.repetition_penalty
        self._frequency = sampling.frequency_penalty
        self._presence = sampling.presence_penalty
        self._bias = sampling.logit_bias
        bias_ids = np.array(list(self._bias), np.int32)
        prompt_ids = np.unique(prompt) if self._repetition != 1.0 else prompt[:0]
        self._prompt_size = len(prompt_ids)  # the prompt's come first, and stay there
        ids = np.concatenate((prompt_ids, np.setdiff1d(bias_ids, prompt_ids)))
        self._size = len(ids)
        self._index: dict[int, int] = dict(zip(ids.tolist(), range(self._size), strict=True))
        self._counts = np.zeros(self._size, np.int32)  # in the output
        self._ids = ids
        self._repeat = np.ones(self._size, np.float32)
        self._repeat[: self._prompt_size] = self._repetition
        self._add = np.zeros(self._size, np.float32)
        # Of the tokens with a bias: the places of their entries, and the bias.
        self._biased = np.array([self._index[token] for token in self._bias], np.int64)
        self._biases = np.array(list(self._bias.values()), np.float64)
        self._add[self._biased] = self._biases

    def __len__(self) -> int:
        return self._size

    @property
    def entries(self) -> Entries:
        """As they are now; views, not to be kept."""
        size = self._size
        return Entries(self._ids[:size], self._repeat[:size], self._add[:size], self._counts[:size])

    def place(self, token: int) -> int:
        """The number of the token's entry, which it keeps; without one, how many there are."""
        return self._index.get(token, self._size)

    def count(self, token: int, change: int) -> None:
        """`token` is in the output once more (`change` 1) or once less (-1)."""
        if not self.count_outputs:
            return
        at = self._index.get(token)
        if at is None:
            at = self._append(token)
        self._counts[at] += change
        self._repeat[at], self._add[at] = self.effect(token, at, int(self._counts[at]))

    def effect(self, token: int, at: int, count: int) -> tuple[float, float]:
        """What divides, and what is added, for an entry whose token has come `count` times."""
        is_known = count > 0 or at < self._prompt_size
        penalty = self._frequency * count + self._presence * (count > 0)
        return self._repetition if is_known else 1.0, self._bias.get(token, 0.0) - penalty

    def effects(self, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`effect` of the first entries, [n] float32 each, whose tokens have come `counts` times,
        [n], at least once."""
        add = np.zeros(len(counts), np.float64)
        add[self._biased] = self._biases
        add -= self._frequency * counts + self._presence
        return np.full(len(counts), self._repetition, np.float32), add.astype(np.float32)

    def entries_with_room(self) -> Entries:
        """Copies, with one more that changes nothing yet if some token has no entry."""
        while self._unknown in self._index:
            self._unknown += 1
        size = self._size + (self._unknown < self._vocab_size)
        copies = Entries(
            np.full(size, self._unknown, np.int32),
            np.ones(size, np.float32),
            np.zeros(size, np.float32),
            np.zeros(size, np.int32),
        )
        for copy, values in zip(copies, self.entries, strict=True):
            copy[: self._size] = values
        return copies

    def entries_along(self, tokens: Sequence[int]) -> list[Entries]:
        """The entries as they are now, and as they would be after each of `tokens`; views, if
        there are no tokens or they change nothing."""
        if not tokens or not self.count_outputs:
            return [self.entries] * (1 + len(tokens))
        found = [Entries(*(column.copy() for column in self.entries))]
        for token in tokens:
            self.count(token, 1)
            found.append(Entries(*(column.copy() for column in self.entries)))
        for token in tokens:
            self.count(token, -1)
        return found

    def _append(self, token: int) -> int:
        """Add an entry, which changes nothing yet; returns its place."""
        at = self._size
        if at == len(self._ids):
            room = max(16, at)
            self._ids = np.concatenate((self._ids, np.empty(room, np.int32)))
            self._repeat = np.concatenate((self._repeat, np.empty(room, np.float32)))
            self._add = np.concatenate((self._add, np.empty(room, np.float32)))
            self._counts = np.concatenate((self._counts, np.zeros(room, np.int32)))
        self._ids[at] = token
        self._index[token] = at
        self._counts[at] = 0
        self._size += 1
        return at


class LateChange(NamedTuple):
    """A token that was still being sampled when a step was laid out, but changes what the step may
    sample: that of `sample` in the step before. In the batch, the entries of `changes` begin at
    `start`; there is one for each of the `counts`, as they were when the step was laid out."""

    changes: LogitChanges
    sample: int
    start: int
    counts: np.ndarray

    def fill_in(self, adjust: Adjust, token: int) -> None:
        """Count the token, whose entry is the last if it had none."""
        number = min(self.changes.place(token), len(self.counts) - 1)
        repeat, add = self.changes.effect(token, number, int(self.counts[number]) + 1)
        at = self.start + number
        adjust.ids[at], adjust.repeat[at], adjust.add[at] = token, repeat, add


def with_entries(adjust: Adjust, lists: Sequence[Entries | None]) -> Adjust:
    """The changes of these samples, then those with these entries; None has no changes."""
    indptr = indptr_of([0 if entries is None else len(entries.ids) for entries in lists])
    present = [entries[:3] for entries in lists if entries is not None]
    columns = zip(adjust[1:], *present, strict=True)
    return Adjust(both_indptr(adjust.indptr, indptr), *map(np.concatenate, columns))
