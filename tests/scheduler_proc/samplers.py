"""The sampler and the restrictions on a batch by itself, as the torch executor calls them."""

import numpy as np
import torch

from scheduler_proc.batch import DetailLogprobs, Details, ForwardBatch
from scheduler_proc.logprobs import DetailRows
from scheduler_proc.restrictions import Restrictions
from scheduler_proc.sampling import Sampler
from scheduler_proc.transfers import Upload


def sample(
    logits: torch.Tensor, batch: ForwardBatch, may_look: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """logits [S, V] -> (ids [S] int64, log-probabilities [S] float32, NaN where not wanted)."""
    upload = Upload(logits.device)
    sampler = Sampler(batch, logits.shape[1], upload, may_look=may_look)
    upload.send()
    ids, chosen = sampler.sample(logits)
    logprobs = np.full(len(logits), np.nan, np.float32)
    logprobs[batch.samples.want_logprob] = chosen.numpy()
    return ids.numpy(), logprobs


def restricted(logits: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
    """The logits [S, V] with what the batch changes in them."""
    upload = Upload(logits.device)
    restrictions = Restrictions(batch, (), upload)
    upload.send()
    return restrictions.applied(logits, None)


def details_in_parts(
    details: Details, parts: list[tuple[torch.Tensor, int]], may_look: bool
) -> DetailLogprobs:
    """What the details ask for in `parts`: logits, and the first of their rows."""
    upload = Upload(torch.device("cpu"))
    rows = DetailRows(details, upload, may_look)
    upload.send()
    for logits, first in parts:
        rows.add(logits, first)
    return rows.result([tensor.numpy() for tensor in rows.found])
