"""Reads out of a step's result the log-probabilities besides the chosen tokens': each row's part,
as the message that carries it. `plan` has the rows that ask for them.
"""

import numpy as np

from scheduler_proc.batch import ForwardBatch, StepResult
from scheduler_proc.ragged import indptr_of
from srt.wire.messages import LogprobDetail, pack_floats, pack_ids


class StepDetails:
    """The detail rows of one step, by their numbers."""

    def __init__(self, batch: ForwardBatch, result: StepResult) -> None:
        """`result` must be that of `batch`."""
        self._logprobs = result.details
        if batch.details is not None:
            self._top_indptr = indptr_of(batch.details.top)
            self._id_indptr = batch.details.indptr

    def read(self, first: int, count: int) -> LogprobDetail | None:
        """The log-probabilities of detail rows [first, first+count), which belong to one req. None
        if `first` is -1, which means that it has no detail rows."""
        if first < 0:
            return None
        logprobs = self._logprobs
        assert logprobs is not None
        top = slice(*self._top_indptr[[first, first + count]])
        ids = slice(*self._id_indptr[[first, first + count]])
        return LogprobDetail(
            top_ids=pack_ids(logprobs.top_ids[top]),
            top_values=pack_floats(logprobs.top_logprobs[top]),
            id_values=pack_floats(logprobs.id_logprobs[ids]),
        )


def joined(details: list[LogprobDetail]) -> LogprobDetail | None:
    """Those of positions that follow each other, as one. None if there are none."""
    if not details:
        return None
    return LogprobDetail(
        top_ids=b"".join([detail.top_ids for detail in details]),
        top_values=b"".join([detail.top_values for detail in details]),
        id_values=b"".join([detail.id_values for detail in details]),
    )


def no_detail(num_top: int, num_ids: int) -> LogprobDetail:
    """Of a position that has no log-probabilities."""
    return LogprobDetail(
        top_ids=pack_ids(np.zeros(num_top, np.int32)),
        top_values=pack_floats(np.full(num_top, np.nan)),
        id_values=pack_floats(np.full(num_ids, np.nan)),
    )
