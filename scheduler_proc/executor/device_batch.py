"""A step's index arrays on the device: what a forward pass needs besides the plan of attention."""

from dataclasses import dataclass

import torch

from scheduler_proc.batch import ForwardBatch
from scheduler_proc.step import NO_LATE_TOKENS, LateTokens
from scheduler_proc.transfers import Sent, Upload


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """The arrays of `host` that have the same names, int64 on the device.

    On the host the late tokens may still be missing, and nothing that is queued may read its
    arrays: the scheduler fills in the tokens when it knows them.
    """

    host: ForwardBatch
    input_ids: torch.Tensor  # [T]
    positions: torch.Tensor  # [T]
    out_slots: torch.Tensor  # [T]
    sample_tokens: torch.Tensor  # [S]
    logprob_tokens: torch.Tensor  # [L]
    logprob_targets: torch.Tensor  # [L]

    @classmethod
    def of(cls, batch: ForwardBatch, device: torch.device) -> "DeviceBatch":
        """Copy a batch whose tokens are all known."""
        upload = Upload(device)
        sending = SendingBatch(batch, NO_LATE_TOKENS, upload)
        upload.send()
        return sending.arrived(None)


class SendingBatch:
    """A batch that is part of an upload, and its late tokens."""

    def __init__(self, batch: ForwardBatch, late: LateTokens, upload: Upload) -> None:
        self._host = batch
        self._columns: list[Sent] = [
            upload.indices(values)
            for values in (
                batch.input_ids,
                batch.positions,
                batch.out_slots,
                batch.sample_tokens,
                batch.logprob_tokens,
                batch.logprob_targets,
            )
        ]
        self._has_late = len(late.at) > 0
        self._at, self._samples = upload.indices(late.at), upload.indices(late.samples)

    def arrived(self, previous_ids: torch.Tensor | None) -> DeviceBatch:
        """The batch, once the upload is sent. `previous_ids` int64 [S of the step before] are what
        that samples, if any token is late."""
        batch = DeviceBatch(self._host, *(sent.tensor for sent in self._columns))
        if self._has_late:
            assert previous_ids is not None
            batch.input_ids.index_copy_(0, self._at.tensor, previous_ids[self._samples.tensor])
        return batch
