"""The ragged batch that the scheduler plans and an executor runs, and what comes back.

Everything is an extend: row r contributes `extend_len >= 1` tokens (1 when decoding, a chunk when
prefilling). T = sum of extend lengths, R = rows, S = rows that sample, L = prompt logprobs.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np


class SuppressedIds(NamedTuple):
    """Token ids that sample row `row` (an index into S) must not produce."""

    row: int
    ids: np.ndarray  # [n] int32


@dataclass(slots=True)
class ForwardBatch:
    """One step's work. All index arrays are int32 numpy arrays.

    KV slots are page-size-one indices into the token pool. Row r owns tokens
    `qo_indptr[r]:qo_indptr[r+1]`; it attends to the slots
    `kv_indices[kv_indptr[r]:kv_indptr[r+1]]`, in sequence order, the last `extend_len` of which
    are this step's own (`out_slots`). A token attends causally: to itself and all before it.
    """

    input_ids: np.ndarray  # [T]
    positions: np.ndarray  # [T]
    out_slots: np.ndarray  # [T] where each token's K and V are written
    qo_indptr: np.ndarray  # [R+1]
    kv_indptr: np.ndarray  # [R+1]
    kv_indices: np.ndarray  # [sum of sequence lengths]

    sample_tokens: np.ndarray  # [S] token index in [0, T) whose logits are sampled from
    temperature: np.ndarray  # [S] float32; <= 1e-6 is greedy
    top_p: np.ndarray  # [S] float32
    top_k: np.ndarray  # [S] int32, -1 is off
    min_p: np.ndarray  # [S] float32
    uniform: np.ndarray  # [S] float64 in [0, 1): the row's random draw, made from its seed
    want_logprob: np.ndarray  # [S] bool: return the chosen token's log-probability
    suppressed: list[SuppressedIds] = field(default_factory=list)
    # Sample s may only produce ids whose bit is set in masks[mask_rows[s]]; -1: no mask.
    masks: np.ndarray | None = None  # [*, ceil(vocab/32)] uint32, lowest bit first
    mask_rows: np.ndarray | None = None  # [S] int32, with `masks`

    # What is known of single tokens changes the logits of sample s, in this order: those of
    # adjust_ids[adjust_indptr[s]:adjust_indptr[s+1]] (distinct) are divided by adjust_repeat if
    # positive, else multiplied by it, and adjust_add is added. None where no row has any.
    adjust_indptr: np.ndarray | None = None  # [S+1] int32
    adjust_ids: np.ndarray | None = None  # [A] int32
    adjust_repeat: np.ndarray | None = None  # [A] float32, 1 is off
    adjust_add: np.ndarray | None = None  # [A] float32

    # Detail row d asks for more log-probabilities at sample detail_rows[d], or, from S on, at
    # prompt log-probability detail_rows[d] - S: of the detail_top[d] most likely tokens, and of
    # detail_ids[detail_indptr[d]:detail_indptr[d+1]]. None where nobody asks.
    detail_rows: np.ndarray | None = None  # [D] int32, ascending
    detail_top: np.ndarray | None = None  # [D] int32, up to the vocabulary size
    detail_indptr: np.ndarray | None = None  # [D+1] int32
    detail_ids: np.ndarray | None = None  # [M] int32

    logprob_tokens: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))  # [L]
    logprob_targets: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))  # [L]

    @property
    def num_rows(self) -> int:
        return len(self.qo_indptr) - 1

    @property
    def num_tokens(self) -> int:
        return len(self.input_ids)


class StepResult(NamedTuple):
    """What a step computed. Log-probabilities are natural logs of the unmodified softmax."""

    next_ids: np.ndarray  # [S] int32
    logprobs: np.ndarray  # [S] float32, NaN where not wanted
    prompt_logprobs: np.ndarray  # [L] float32: log p(logprob_targets[i] | ... logprob_tokens[i])
    # By detail rows one after the other; of the most likely tokens the best first, of equal logits
    # the one with the lowest id. None where nobody asked.
    top_ids: np.ndarray | None = None  # [sum of detail_top] int32
    top_logprobs: np.ndarray | None = None  # [sum of detail_top] float32
    id_logprobs: np.ndarray | None = None  # [M] float32
