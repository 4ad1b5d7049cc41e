"""A step's index arrays on the device: what a forward pass needs besides the plan of attention."""

from dataclasses import dataclass
from typing import Any

import torch

from scheduler_proc.batch import ForwardBatch
from scheduler_proc.core.steps.step import NO_LATE_TOKENS, LateTokens
from scheduler_proc.executor.media_store import tokens_of
from scheduler_proc.sampling.transfers import Sent, Upload


@dataclass(frozen=True, slots=True)
class DeviceBatch:
    """The arrays of `host` that have the same names, int64 on the device.

    On the host the late tokens may still be missing, and nothing that is queued may read its
    arrays: the scheduler fills in the tokens when it knows them.
    """

    host: ForwardBatch
    input_ids: torch.Tensor  # [T]
    positions: torch.Tensor  # [T]; [3, T] if they have three parts that differ
    out_slots: torch.Tensor  # [T]
    sample_tokens: torch.Tensor  # [S]
    logprob_tokens: torch.Tensor  # [L]
    logprob_targets: torch.Tensor  # [L]
    shown_tokens: torch.Tensor | None  # those of the host's `embeds`

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
        grid = batch.grid_positions
        positions = batch.positions if grid is None else grid[0]
        # Where all three are the same, as of all text, one will do.
        self._grid = None
        if grid is not None and (grid[1:] != grid[0]).any():
            self._grid = upload.indices(grid.reshape(-1))
        self._shown = None
        if batch.embeds is not None:
            self._shown = upload.indices(tokens_of(batch.embeds, batch.num_tokens))
        self._columns: list[Sent] = [
            upload.indices(values)
            for values in (
                batch.input_ids,
                positions,
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
        shown = None if self._shown is None else self._shown.tensor
        columns: list[Any] = [sent.tensor for sent in self._columns]
        if self._grid is not None:
            columns[1] = self._grid.tensor.view(3, -1)
        columns.append(shown)
        batch = DeviceBatch(self._host, *columns)
        if self._has_late:
            assert previous_ids is not None
            batch.input_ids.index_copy_(0, self._at.tensor, previous_ids[self._samples.tensor])
        return batch
