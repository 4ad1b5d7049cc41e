"""The sampler and the restrictions on a batch by itself, as the torch executor calls them."""

from typing import TYPE_CHECKING

import numpy as np

from scheduler_proc.batch import DetailLogprobs, Details, ForwardBatch
from tests.running.late import late

if TYPE_CHECKING:
    import torch

    from scheduler_proc.sampling import logprobs as logprobs_module
    from scheduler_proc.sampling import restrictions as restrictions_module
    from scheduler_proc.sampling import sampling, transfers
else:
    logprobs_module = late("scheduler_proc.sampling.logprobs")
    restrictions_module = late("scheduler_proc.sampling.restrictions")
    sampling = late("scheduler_proc.sampling.sampling")
    torch = late("torch")
    transfers = late("scheduler_proc.sampling.transfers")


def sample(
    logits: "torch.Tensor", batch: ForwardBatch, may_look: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """logits [S, V] -> (ids [S] int64, log-probabilities [S] float32, NaN where not wanted)."""
    upload = transfers.Upload(logits.device)
    sampler = sampling.Sampler(batch, logits.shape[1], upload, may_look=may_look)
    upload.send()
    ids, chosen = sampler.sample(logits)
    logprobs = np.full(len(logits), np.nan, np.float32)
    logprobs[batch.samples.want_logprob] = chosen.numpy()
    return ids.numpy(), logprobs


def restricted(logits: "torch.Tensor", batch: ForwardBatch) -> "torch.Tensor":
    """The logits [S, V] with what the batch changes in them."""
    upload = transfers.Upload(logits.device)
    restrictions = restrictions_module.Restrictions(batch, (), upload)
    upload.send()
    return restrictions.applied(logits, None)


def details_in_parts(
    details: Details, parts: "list[tuple[torch.Tensor, int]]", may_look: bool
) -> DetailLogprobs:
    """What the details ask for in `parts`: logits, and the first of their rows."""
    upload = transfers.Upload(torch.device("cpu"))
    rows = logprobs_module.DetailRows(details, upload, may_look)
    upload.send()
    for logits, first in parts:
        rows.add(logits, first)
    return rows.result([tensor.numpy() for tensor in rows.found])
