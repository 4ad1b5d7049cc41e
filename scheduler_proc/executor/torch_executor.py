"""Runs plans with torch, on any device: the reference for every other executor.

Made once by the scheduler process and called from its one model thread. Owns the weights and the
KV pool; keeps nothing else between steps, so a step's result depends on the plan and the pool.
"""

import logging
from functools import partial
from typing import Any

import numpy as np
import torch

from scheduler_proc.attention.base import RaggedRows
from scheduler_proc.attention.choice import make_attention
from scheduler_proc.attention.kv_store import FP8
from scheduler_proc.batch import NO_DETAILS, ForwardBatch, StepResult
from scheduler_proc.executor.cuda_graphs import (
    CudaRecorder,
    DecodeGraphs,
    Recorder,
    as_graph_backend,
)
from scheduler_proc.executor.device_memory import CudaMemory, DeviceMemory
from scheduler_proc.executor.start import NO_OPTIONS, Bounds, measured_tokens
from scheduler_proc.logprobs import DetailRows, token_logprobs
from scheduler_proc.models.decoder import TokenLayout
from scheduler_proc.models.torch_models import load_model
from scheduler_proc.sampling import sample
from srt.files.model_files import ModelFiles
from srt.wire.errors import ConfigError

log = logging.getLogger(__name__)

# Rows of logits held at once for prompt log-probabilities (50 MB at a 49k vocabulary).
_LOGPROB_ROWS = 256

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class TorchExecutor:
    """An Executor. dtype "auto" is float32 on the CPU, else the checkpoint's 16-bit type.

    `max_total_tokens` 0 is as many as `memory` has room for, which needs a CUDA device; see
    `start.measured_tokens`. `memory` and `recorder` are the device's if it is one, else nothing.
    """

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
        kv_dtype: str = "auto",
        attention_backend: str = "auto",
        deterministic: bool = False,
        disable_cuda_graph: bool = False,
        bounds: Bounds = NO_OPTIONS,
        memory: DeviceMemory | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        self._device = _torch_device(device)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
            memory = memory or CudaMemory(self._device)
            recorder = recorder or CudaRecorder(self._device)
        available = 0 if memory is None else memory.free()
        choose_dtype = partial(_torch_dtype, dtype, self._device)
        self.model = load_model(files, model_impl, self._device, choose_dtype)
        self._kv_dtype = _torch_kv_dtype(kv_dtype, self.model.dtype)
        self.dtype: object = self._kv_dtype
        self.vocab_size = self.model.vocab_size
        self.context_len = self.model.context_len
        self._attention = make_attention(
            attention_backend,
            list(dict.fromkeys(self.model.layer_kinds)),
            device=self._device,
            dtype=self.model.dtype,
            kv_dtype=self._kv_dtype,
            deterministic=deterministic,
        )
        can_record = as_graph_backend(self._attention) is not None and not disable_cuda_graph
        self._recorder = recorder if can_record else None
        self._graphs: DecodeGraphs | None = None
        self._pool: Any = None
        self._max_rows = bounds.max_running_requests
        if memory is not None:
            max_total_tokens = measured_tokens(self, memory, available, bounds, max_total_tokens)
        self.use_pool(max_total_tokens)
        self._graphs = self.new_graphs()
        if self._graphs is not None:
            self._graphs.record_all(memory)

    @property
    def weight_bytes(self) -> int:
        """Memory that the weights take."""
        return self.model.num_bytes

    @property
    def pool_bytes(self) -> int:
        """Memory that the KV pool takes once every slot has been used."""
        return int(self._pool.num_bytes)

    def use_pool(self, num_tokens: int) -> None:
        """Have a KV pool of this size in place of any other; 0 is none. No step is replayed."""
        self._graphs, self._pool = None, None
        self.max_total_tokens = num_tokens
        if num_tokens:
            self._pool = self.model.new_pool(self.num_slots, self._kv_dtype)

    @property
    def num_slots(self) -> int:
        """Slots that the pool's tensors have: one more, for padding, if there are to be graphs."""
        return self.max_total_tokens + (0 if self._recorder is None else 1)

    def forgo_graphs(self, why: str) -> None:
        """Steps run without graphs from now on, which is logged."""
        self._graphs = self._recorder = None
        log.warning("decodes run without graphs, each kernel launched by itself: %s", why)

    def new_graphs(self) -> DecodeGraphs | None:
        """Graphs over the pool, none recorded yet; None if steps run without."""
        backend = as_graph_backend(self._attention)
        if self._recorder is None or backend is None:
            return None
        return DecodeGraphs(
            self.model,
            self._pool,
            backend,
            self._recorder,
            device=self._device,
            max_rows=self._max_rows,
            padding_slot=self.max_total_tokens,
            pool_tokens=self.max_total_tokens,
        )

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
        rows = RaggedRows(batch.qo_indptr, batch.kv_indptr, batch.kv_indices)
        columns = (batch.input_ids, batch.positions, batch.out_slots)
        return self._hidden(rows, *(self._index(column) for column in columns))

    def _hidden(
        self,
        rows: RaggedRows,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        out_slots: torch.Tensor,
    ) -> torch.Tensor:
        """The same of tokens that are on the device: replayed, or by kernels of its own."""
        if self._graphs is not None:
            replayed = self._graphs.run(rows, input_ids, positions, out_slots)
            if replayed is not None:
                return replayed
        layout = TokenLayout(positions, out_slots, self._attention.plan(rows))
        return self.model.forward(input_ids, layout, self._pool)

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


def _torch_kv_dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    """The element type of the KV pool: the weights', or eight bits."""
    if name == "fp8_e4m3":
        return FP8
    if name not in ("auto", str(dtype).removeprefix("torch.")):
        raise ConfigError(
            f"--kv-cache-dtype {name}: the torch executor's KV pool has the type of the weights "
            f"({str(dtype).removeprefix('torch.')}, see --dtype) or fp8_e4m3"
        )
    return dtype


def _half_dtype(checkpoint: str | None) -> str:
    return "float16" if checkpoint == "float16" else "bfloat16"
