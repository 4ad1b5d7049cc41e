"""What a batch changes in its logits before they are sampled: changes of single tokens, ids that
must not come, masks. Prepared on the host, applied on the device, where nobody looks at a value.
"""

from collections.abc import Sequence

import numpy as np
import torch

from scheduler_proc.batch import Adjust, ForwardBatch, Masks, SuppressedIds
from scheduler_proc.ragged import indptr_of
from scheduler_proc.sampling.penalties import LateChange
from scheduler_proc.sampling.transfers import Upload


class Restrictions:
    """Those of one batch, as a part of an upload."""

    def __init__(self, batch: ForwardBatch, late: Sequence[LateChange], upload: Upload) -> None:
        """`late` are changes by tokens that the step before is still sampling."""
        self._adjust = None if batch.adjust is None else _Changes(batch.adjust, late, upload)
        self._suppressed = _Suppressed(batch.suppressed, upload) if batch.suppressed else None
        self._masks = None if batch.masks is None else _Masks(batch.masks, upload)

    def applied(self, logits: torch.Tensor, previous_ids: torch.Tensor | None) -> torch.Tensor:
        """The logits [S, V] with the changes, and -inf at what its rows may not produce; the same
        tensor if the batch has none of these. `previous_ids` int64 [S of the step before] are what
        that samples, if any change is late."""
        parts = (self._adjust, self._suppressed, self._masks)
        if parts == (None, None, None):
            return logits
        result = logits.clone()
        if self._adjust is not None:
            self._adjust.apply(result, previous_ids)
        if self._suppressed is not None:
            self._suppressed.apply(result)
        if self._masks is not None:
            self._masks.apply(result)
        return result


class _Changes:
    """Changes of single tokens' logits: what repeats, then what is added."""

    def __init__(self, adjust: Adjust, late: Sequence[LateChange], upload: Upload) -> None:
        counts = np.diff(adjust.indptr)
        self._rows = upload.indices(np.repeat(np.arange(len(counts), dtype=np.int32), counts))
        self._ids = upload.indices(adjust.ids)
        self._repeat, self._add = upload.values(adjust.repeat), upload.values(adjust.add)
        self._late = _LateChanges(late, upload) if late else None

    def apply(self, logits: torch.Tensor, previous_ids: torch.Tensor | None) -> None:
        rows, ids = self._rows.tensor, self._ids.tensor
        repeat, add = self._repeat.tensor, self._add.tensor
        if self._late is not None:
            assert previous_ids is not None
            self._late.fill_in(ids, repeat, add, previous_ids)
        values = logits[rows, ids]
        changed = torch.where(values > 0, values / repeat, values * repeat) + add
        logits.index_put_((rows, ids), changed)


class _LateChanges:
    """`LateChange.fill_in` on the device, of all late changes at once.

    C changes have E entries in all. The entry of a change that becomes its token's is the one that
    has the token, else the last, which was laid out for that.
    """

    def __init__(self, late: Sequence[LateChange], upload: Upload) -> None:
        counts = [len(change.counts) for change in late]
        stops, starts = indptr_of(counts)[1:], np.array([change.start for change in late], np.int32)
        owners = np.repeat(np.arange(len(late), dtype=np.int32), counts)
        entries = np.arange(stops[-1], dtype=np.int32) + (starts - stops + counts)[owners]
        # For each of a change's entries if the token is that entry's.
        effects = [change.changes.effects(change.counts + 1) for change in late]
        self._samples = upload.indices(np.array([change.sample for change in late], np.int32))
        self._entries = upload.indices(entries.astype(np.int32))  # [E] among all of the batch
        self._owners = upload.indices(owners)  # [E]
        self._lasts = upload.indices(stops - 1)  # [C] among the entries
        self._repeat = upload.values(np.concatenate([repeat for repeat, _ in effects]))
        self._add = upload.values(np.concatenate([add for _, add in effects]))

    def fill_in(
        self, ids: torch.Tensor, repeat: torch.Tensor, add: torch.Tensor, previous: torch.Tensor
    ) -> None:
        """Count the tokens, in place: of the batch's [A] ids, what divides, what is added."""
        entries, owners, lasts = self._entries.tensor, self._owners.tensor, self._lasts.tensor
        tokens = previous[self._samples.tensor]
        own = ids[entries]
        hits = own == tokens[owners]
        found = torch.zeros_like(tokens).index_add_(0, owners, hits.long()) > 0
        hits.index_copy_(0, lasts, hits[lasts] | ~found)
        own.index_copy_(0, lasts, torch.where(found, own[lasts], tokens))
        ids.index_copy_(0, entries, own)
        repeat.index_copy_(0, entries, torch.where(hits, self._repeat.tensor, repeat[entries]))
        add.index_copy_(0, entries, torch.where(hits, self._add.tensor, add[entries]))


class _Suppressed:
    def __init__(self, suppressed: Sequence[SuppressedIds], upload: Upload) -> None:
        rows = [np.full(len(entry.ids), entry.row, np.int32) for entry in suppressed]
        self._rows = upload.indices(np.concatenate(rows))
        self._ids = upload.indices(np.concatenate([entry.ids for entry in suppressed]))

    def apply(self, logits: torch.Tensor) -> None:
        gone = logits.new_full((), -torch.inf)
        logits.index_put_((self._rows.tensor, self._ids.tensor), gone)


class _Masks:
    """The words go up as they are, and become bits on the device."""

    def __init__(self, masks: Masks, upload: Upload) -> None:
        rows = np.flatnonzero(masks.rows >= 0).astype(np.int32)
        self._rows = upload.indices(rows)
        self._bytes = upload.values(masks.words[masks.rows[rows]].view(np.uint8))

    def apply(self, logits: torch.Tensor) -> None:
        rows, masks = self._rows.tensor, self._bytes.tensor
        bits = 1 << torch.arange(8, dtype=torch.uint8, device=logits.device)
        allowed = (masks[:, :, None] & bits).flatten(1)[:, : logits.shape[1]] != 0
        logits.index_copy_(0, rows, logits[rows].masked_fill_(~allowed, -torch.inf))
