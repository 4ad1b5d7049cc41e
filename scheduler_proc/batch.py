"""The ragged batch that the scheduler plans and an executor runs, and what comes back.

Everything is an extend: row r contributes `extend_len >= 1` tokens (1 when decoding, a chunk when
prefilling). T = sum of extend lengths, R = rows, S = rows that sample, L = prompt logprobs,
A = changes of single logits, D = detail rows, M = ids that these ask for.
"""

from dataclasses import dataclass, field
from typing import Annotated, NamedTuple, get_type_hints

import numpy as np

from scheduler_proc.ragged import both_indptr, entries_of, taken_indptr


class Samples(NamedTuple):
    """How each sample is drawn: columns [S] of the dtypes noted here.

    The only list of these columns, in the order of srt_batch: the sampling table, the binding of
    the kernels and what cuts or joins batches go through its fields. Those that have the name of a
    sampling parameter hold its value.
    """

    temperature: Annotated[np.ndarray, np.float32]  # <= 1e-6 is greedy
    top_p: Annotated[np.ndarray, np.float32]
    min_p: Annotated[np.ndarray, np.float32]
    top_n_sigma: Annotated[np.ndarray, np.float32]  # up to 0 is off
    top_k: Annotated[np.ndarray, np.int32]  # -1 is off
    uniform: Annotated[np.ndarray, np.float64]  # in [0, 1): the draw, made from the row's seed
    want_logprob: Annotated[np.ndarray, np.bool_]  # return the chosen token's log-probability

    def take(self, numbers: np.ndarray) -> "Samples":
        """The samples with these numbers."""
        return Samples(*(column[numbers] for column in self))

    def followed_by(self, others: "Samples") -> "Samples":
        """These samples, then the others."""
        return Samples(*map(_both, self, others))


SAMPLE_DTYPES: dict[str, np.dtype] = {
    name: np.dtype(hint.__metadata__[0])
    for name, hint in get_type_hints(Samples, include_extras=True).items()
}


class SuppressedIds(NamedTuple):
    """Token ids that sample row `row` (an index into S) must not produce."""

    row: int
    ids: np.ndarray  # [n] int32


class Masks(NamedTuple):
    """Sample s may only produce ids whose bit is set in words[rows[s]]; -1: no mask."""

    words: np.ndarray  # [*, ceil(vocab/32)] uint32, lowest bit first
    rows: np.ndarray  # [S] int32

    def take(self, samples: np.ndarray) -> "Masks":
        """The masks of the samples with these numbers."""
        return self._replace(rows=self.rows[samples])


class Adjust(NamedTuple):
    """Changes of single tokens' logits. For sample s, the logits of ids[indptr[s]:indptr[s+1]]
    (distinct) are first divided by `repeat` if positive, else multiplied by it; then `add` is
    added."""

    indptr: np.ndarray  # [S+1] int32
    ids: np.ndarray  # [A] int32
    repeat: np.ndarray  # [A] float32, 1 is off
    add: np.ndarray  # [A] float32

    @classmethod
    def none(cls, samples: int) -> "Adjust":
        """No changes, for this many samples."""
        indptr, floats = np.zeros(samples + 1, np.int32), np.empty(0, np.float32)
        return cls(indptr, np.empty(0, np.int32), floats, floats)

    def take(self, samples: np.ndarray) -> "Adjust":
        """The changes of the samples with these numbers."""
        entries = entries_of(self.indptr, samples)
        return Adjust(taken_indptr(self.indptr, samples), *(c[entries] for c in self[1:]))

    def followed_by(self, others: "Adjust") -> "Adjust":
        """The changes of these samples, then those of the others."""
        return Adjust(both_indptr(self.indptr, others.indptr), *map(_both, self[1:], others[1:]))


class Details(NamedTuple):
    """Detail row d asks for more log-probabilities at sample rows[d], or, from S on, at prompt
    log-probability rows[d] - S: of the top[d] most likely tokens, and of ids[indptr[d]:
    indptr[d+1]]."""

    rows: np.ndarray  # [D] int32, ascending
    top: np.ndarray  # [D] int32, up to the vocabulary size
    indptr: np.ndarray  # [D+1] int32
    ids: np.ndarray  # [M] int32

    def take(self, numbers: np.ndarray) -> "Details":
        """The detail rows with these numbers, in the order of the numbers."""
        ids = self.ids[entries_of(self.indptr, numbers)]
        return Details(
            self.rows[numbers], self.top[numbers], taken_indptr(self.indptr, numbers), ids
        )

    def followed_by(self, others: "Details") -> "Details":
        """These detail rows, then the others; the values in `rows` stay unchanged."""
        return Details(
            _both(self.rows, others.rows),
            _both(self.top, others.top),
            both_indptr(self.indptr, others.indptr),
            _both(self.ids, others.ids),
        )


_NO_IDS = np.empty(0, np.int32)
NO_DETAILS = Details(_NO_IDS, _NO_IDS, np.zeros(1, np.int32), _NO_IDS)


class Embeds(NamedTuple):
    """Tokens whose embeddings are those of media: the lengths[i] tokens of the batch from at[i] on
    take those of item digests[i] from offsets[i] on."""

    at: np.ndarray  # [E] int32, ascending
    lengths: np.ndarray  # [E] int32
    offsets: np.ndarray  # [E] int32
    digests: list[bytes]  # [E]


@dataclass(slots=True)
class ForwardBatch:
    """One step's work. All index arrays are int32 numpy arrays.

    KV slots are page-size-one indices into the token pool. Row r owns tokens
    `qo_indptr[r]:qo_indptr[r+1]`; it attends to the slots
    `kv_indices[kv_indptr[r]:kv_indptr[r+1]]`, in sequence order, the last `extend_len` of which
    are this step's own (`out_slots`). A token attends causally: to itself and all before it.
    `masks`, `adjust` and `details` are None where no row has any.
    """

    input_ids: np.ndarray  # [T]
    positions: np.ndarray  # [T]
    out_slots: np.ndarray  # [T] where each token's K and V are written
    qo_indptr: np.ndarray  # [R+1]
    kv_indptr: np.ndarray  # [R+1]
    kv_indices: np.ndarray  # [sum of sequence lengths]

    sample_tokens: np.ndarray  # [S] token index in [0, T) whose logits are sampled from
    samples: Samples
    suppressed: list[SuppressedIds] = field(default_factory=list)
    masks: Masks | None = None
    adjust: Adjust | None = None
    details: Details | None = None

    logprob_tokens: np.ndarray = field(default_factory=lambda: _NO_IDS)  # [L]
    logprob_targets: np.ndarray = field(default_factory=lambda: _NO_IDS)  # [L]

    # Where the model sees media; None where no row shows any.
    embeds: Embeds | None = None  # of what the executor has encoded
    grid_positions: np.ndarray | None = None  # [3, T], if rotary positions are of three parts
    visible_until: np.ndarray | None = None  # [T], see attention.base.RaggedRows

    @property
    def num_rows(self) -> int:
        return len(self.qo_indptr) - 1

    @property
    def num_tokens(self) -> int:
        return len(self.input_ids)

    @property
    def num_samples(self) -> int:
        return len(self.sample_tokens)


class DetailLogprobs(NamedTuple):
    """What the detail rows ask for, one row after the other. Each row's most likely tokens come
    best first; of equal logits, the lowest id first."""

    top_ids: np.ndarray  # [sum of Details.top] int32
    top_logprobs: np.ndarray  # [sum of Details.top] float32
    id_logprobs: np.ndarray  # [M] float32


class StepResult(NamedTuple):
    """What a step computed. Log-probabilities are natural logs of the unmodified softmax."""

    next_ids: np.ndarray  # [S] int32
    logprobs: np.ndarray  # [S] float32, NaN where not wanted
    prompt_logprobs: np.ndarray  # [L] float32: log p(logprob_targets[i] | ... logprob_tokens[i])
    details: DetailLogprobs | None = None  # None where nobody asked

    @property
    def columns(self) -> tuple[np.ndarray, ...]:
        """All arrays, those of the details last."""
        return (self.next_ids, self.logprobs, self.prompt_logprobs, *(self.details or ()))


def _both(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.concatenate((first, second))
