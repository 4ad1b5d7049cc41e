"""Runs plans with torch, on any device: the reference for every other executor.

Made once by the scheduler process and called from its one model thread. Owns the weights and the
KV pool; keeps nothing else between steps, so a step's result depends on the plan and the pool.
"""

from functools import partial

import numpy as np
import torch

from scheduler_proc.attention.base import AttentionBackend, RaggedRows
from scheduler_proc.attention.reference import ReferenceAttention
from scheduler_proc.batch import NO_DETAILS, ForwardBatch, StepResult
from scheduler_proc.executor.device_batch import DeviceBatch
from scheduler_proc.logprobs import DetailRows, token_logprobs
from scheduler_proc.models.decoder import TokenLayout
from scheduler_proc.models.torch_models import load_model
from scheduler_proc.sampling import sample
from srt.files.model_files import ModelFiles
from srt.wire.errors import ConfigError

# Rows of logits held at once for prompt log-probabilities (50 MB at a 49k vocabulary).
_LOGPROB_ROWS = 256

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class TorchExecutor:
    """An Executor. dtype "auto" is float32 on the CPU, else the checkpoint's 16-bit type."""

    name = "torch"

    def __init__(
        self,
        files: ModelFiles,
        *,
        max_total_tokens: int,
        device: str = "cpu",
        dtype: str = "auto",
        model_impl: str = "auto",
        num_threads: int | None = None,
    ) -> None:
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        self._device = _torch_device(device)
        choose_dtype = partial(_torch_dtype, dtype, self._device)
        self.model = load_model(files, model_impl, self._device, choose_dtype)
        self.dtype: object = self.model.dtype
        self.vocab_size = self.model.vocab_size
        self.context_len = self.model.context_len
        self.max_total_tokens = max_total_tokens
        self._pool = self.model.new_pool(max_total_tokens)
        self._attention: AttentionBackend = ReferenceAttention(self._device)

    @property
    def weight_bytes(self) -> int:
        """Memory that the weights take."""
        return self.model.num_bytes

    @property
    def pool_bytes(self) -> int:
        """Memory that the KV pool takes once every slot has been used."""
        return int(self._pool.num_bytes)

    def run(self, batch: ForwardBatch) -> StepResult:
        """Compute one step: write K/V to the out slots, sample, return."""
        with torch.inference_mode():
            hidden = self.forward(batch)
            details = DetailRows(batch.details or NO_DETAILS)
            next_ids, logprobs = self._samples(hidden, batch, details)
            prompt_logprobs = self._prompt_logprobs(hidden, batch, details)
            found = None if batch.details is None else details.result()
            return StepResult(next_ids, logprobs, prompt_logprobs, found)

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """The last hidden states [T, hidden] of the batch; writes K/V to the out slots."""
        return self.forward_on_device(DeviceBatch.of(batch, self._device))

    def forward_on_device(self, batch: DeviceBatch) -> torch.Tensor:
        """The same of a batch that is on the device already."""
        rows = RaggedRows(batch.host.qo_indptr, batch.host.kv_indptr, batch.host.kv_indices)
        layout = TokenLayout(
            positions=batch.positions,
            out_slots=batch.out_slots,
            attention=self._attention.plan(rows),
        )
        return self.model.forward(batch.input_ids, layout, self._pool)

    def _samples(
        self, hidden: torch.Tensor, batch: ForwardBatch, details: DetailRows
    ) -> tuple[np.ndarray, np.ndarray]:
        """The sampled ids [S] int32, and their log-probabilities [S] float32."""
        if not len(batch.sample_tokens):
            return np.empty(0, np.int32), np.empty(0, np.float32)
        logits = self.model.logits(hidden[self._index(batch.sample_tokens)])
        details.add(logits, first=0)
        return sample(logits, batch)

    def _prompt_logprobs(
        self, hidden: torch.Tensor, batch: ForwardBatch, details: DetailRows
    ) -> np.ndarray:
        """The log-probabilities of the targets, [L] float32."""
        result = np.empty(len(batch.logprob_tokens), np.float32)
        for start in range(0, len(result), _LOGPROB_ROWS):
            part = slice(start, start + _LOGPROB_ROWS)
            logits = self.model.logits(hidden[self._index(batch.logprob_tokens[part])])
            targets = self._index(batch.logprob_targets[part])
            result[part] = token_logprobs(logits, targets).cpu().numpy()
            details.add(logits, first=batch.num_samples + start)
        return result

    def _index(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.int64)).to(self._device)


def _torch_device(device: str) -> torch.device:
    try:
        parsed = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"--device {device!r} is not a device that torch knows") from error
    if parsed.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"--device {device}: torch {torch.__version__} sees no CUDA device")
    return parsed


def _torch_dtype(dtype: str, device: torch.device, checkpoint: str | None) -> torch.dtype:
    if dtype == "auto":
        # Without AMX or AVX512-BF16, 16-bit matrix products are several times slower on a CPU.
        dtype = "float32" if device.type == "cpu" else _half_dtype(checkpoint)
    if dtype not in _DTYPES:
        raise ConfigError(f"dtype {dtype!r} is not one of auto, {', '.join(_DTYPES)}")
    return _DTYPES[dtype]


def _half_dtype(checkpoint: str | None) -> str:
    return "float16" if checkpoint == "float16" else "bfloat16"
