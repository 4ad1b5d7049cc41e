"""Runs plans with torch, on any device: the reference for every other executor.

Made once by the scheduler process and called from its one model thread. Owns the weights and the
KV pool; keeps nothing else between steps, so a step's result depends on the plan, the pool and, for
one that is launched, the samples of the step before.
"""

import logging
import math
from functools import partial
from typing import Any

import numpy as np
import torch

from scheduler_proc.attention.base import RaggedRows
from scheduler_proc.attention.choice import make_attention
from scheduler_proc.attention.kv_store import FP8
from scheduler_proc.batch import NO_DETAILS, ForwardBatch, StepResult
from scheduler_proc.core.steps.step import NO_LATE_TOKENS, LateTokens, Step
from scheduler_proc.executor.base import ExpertCounter, MediaFacts, Pending
from scheduler_proc.executor.cuda_graphs import (
    CudaRecorder,
    DecodeGraphs,
    Recorder,
    as_graph_backend,
)
from scheduler_proc.executor.device_batch import DeviceBatch, SendingBatch
from scheduler_proc.executor.device_memory import CudaMemory, DeviceMemory
from scheduler_proc.executor.media_store import MediaHolder, MediaStore
from scheduler_proc.executor.start import NO_OPTIONS, Bounds, measured_tokens
from scheduler_proc.executor.torch_slices import torch_slices
from scheduler_proc.models.decoder import Shown, TokenLayout
from scheduler_proc.models.torch_models import load_model
from scheduler_proc.models.vision.base import VisionModel
from scheduler_proc.models.vision.choice import load_vision_of
from scheduler_proc.sampling.logprobs import DetailRows, token_logprobs
from scheduler_proc.sampling.sampling import Sampler
from scheduler_proc.sampling.transfers import Download, Upload
from srt.files.context import capped
from srt.files.model_files import ModelFiles
from srt.wire.errors import ConfigError
from srt.wire.media import MediaItem

log = logging.getLogger(__name__)

# Rows of logits held at once for prompt log-probabilities (50 MB at a 49k vocabulary).
_LOGPROB_ROWS = 256

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class TorchExecutor(MediaHolder, ExpertCounter):
    """An AsyncExecutor. dtype "auto" is float32 on the CPU, else the checkpoint's 16-bit type.

    `max_total_tokens` 0 is as many as `memory` has room for, which needs a CUDA device; see
    `start.measured_tokens`. `memory` and `recorder` are the device's if it is one, else nothing.
    Unless it `sees`, a model's vision tower is not loaded.
    """

    name = "torch"

    def __init__(
        self,
        files: ModelFiles,
        *,
        max_total_tokens: int,
        max_model_len: int = 0,
        device: str = "cpu",
        dtype: str = "auto",
        model_impl: str = "auto",
        num_threads: int | None = None,
        kv_dtype: str = "auto",
        attention_backend: str = "auto",
        deterministic: bool = False,
        disable_cuda_graph: bool = False,
        sees: bool = True,
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
        self._vision = load_vision_of(files, self.model.dtype, self._device) if sees else None
        self._media = None if self._vision is None else self._new_store(self._vision)
        self._kv_dtype = _torch_kv_dtype(kv_dtype, self.model.dtype)
        self.dtype: object = self._kv_dtype
        self.vocab_size = self.model.vocab_size
        self.context_len = capped(self.model.context_len, max_model_len)
        # Whether values are read on the host while a step is computed: shorter, but it waits.
        self.may_look = self._device.type == "cpu"
        self._attention = make_attention(
            attention_backend,
            list(dict.fromkeys(self.model.layer_kinds)),
            device=self._device,
            dtype=self.model.dtype,
            kv_dtype=self._kv_dtype,
            deterministic=deterministic,
            sees_both_ways=self._vision is not None and self._vision.sees_both_ways,
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
        return self.model.num_bytes + (0 if self._vision is None else self._vision.num_bytes)

    @property
    def media_facts(self) -> MediaFacts | None:
        """See MediaExecutor; None if the model sees nothing."""
        vision = self._vision
        if vision is None or self._media is None:
            return None
        width = self.model.dtype.itemsize * self._media.hidden
        both_ways, has_grid = vision.sees_both_ways, vision.has_grid_positions
        return MediaFacts(width, both_ways, has_grid, in_slices=not self.runs_ahead)

    def encode(
        self, item: MediaItem, pixels: np.ndarray, part: int, seconds: float = math.inf
    ) -> bool:
        """See MediaExecutor."""
        with torch.inference_mode():
            return super().encode(item, pixels, part, seconds)

    def _new_store(self, vision: VisionModel) -> MediaStore[torch.Tensor, torch.Tensor]:
        slices = None if self.runs_ahead else torch_slices()
        return MediaStore(vision.width, vision.num_parts, vision.encode, vision.join, slices)

    @property
    def pool_bytes(self) -> int:
        """Memory that the KV pool takes once every slot has been used."""
        return int(self._pool.num_bytes)

    def _count_experts(self) -> np.ndarray | None:
        """None for a model of transformers. Waits for the steps that a device has."""
        counts = getattr(self.model, "expert_counts", None)
        return None if counts is None else counts.cpu().numpy()

    @property
    def runs_ahead(self) -> bool:
        """Whether steps are to be launched: not where torch computes on the host's own cores."""
        return self._device.type == "cuda"

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
        return self._started(batch, NO_LATE_TOKENS, None).result()

    def launch(self, step: Step, previous: Pending | None) -> Pending:
        """See AsyncExecutor. Nothing here waits for the device, except for memory that it lacks."""
        if previous is None:
            return self._started(step.batch, NO_LATE_TOKENS, None)
        assert isinstance(previous, _PendingStep)
        return self._started(step.batch, step.late_tokens, previous.next_ids)

    def _started(
        self, batch: ForwardBatch, late: LateTokens, previous_ids: torch.Tensor | None
    ) -> "_PendingStep":
        """Queue all that a step computes. `previous_ids` are the samples of the step before, on
        the device, for the tokens that are late."""
        with torch.inference_mode():
            upload = Upload(self._device)
            sending = SendingBatch(batch, late, upload)
            sampler = Sampler(
                batch, self.vocab_size, upload, may_look=self.may_look, late=late.changes
            )
            details = DetailRows(batch.details or NO_DETAILS, upload, self.may_look)
            upload.send()
            on_device = sending.arrived(previous_ids)
            hidden = self.forward_on_device(on_device)
            ids, logprobs = self._samples(hidden, on_device, sampler, details, previous_ids)
            prompt_logprobs = self._prompt_logprobs(hidden, on_device, details)
            results = [ids.int(), logprobs, prompt_logprobs, *details.found]
            download = Download(results, self._device)
        return _PendingStep(batch, ids, details, download, upload)

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """The last hidden states [T, hidden] of the batch; writes K/V to the out slots."""
        return self.forward_on_device(DeviceBatch.of(batch, self._device))

    def forward_on_device(self, batch: DeviceBatch) -> torch.Tensor:
        """The same of a batch that is on the device: replayed, or by kernels of its own."""
        host, shown = batch.host, None
        rows = RaggedRows(host.qo_indptr, host.kv_indptr, host.kv_indices, host.visible_until)
        if host.embeds is not None and batch.shown_tokens is not None:
            shown = Shown(batch.shown_tokens, torch.cat(self._store.rows(host.embeds)))
        if self._graphs is not None and shown is None and batch.positions.ndim == 1:
            inputs = (batch.input_ids, batch.positions, batch.out_slots)
            replayed = self._graphs.run(rows, *inputs)
            if replayed is not None:
                return replayed
        attention = self._attention.plan(rows)
        layout = TokenLayout(batch.positions, batch.out_slots, attention, shown)
        return self.model.forward(batch.input_ids, layout, self._pool)

    def _samples(
        self,
        hidden: torch.Tensor,
        batch: DeviceBatch,
        sampler: Sampler,
        details: DetailRows,
        previous_ids: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See Sampler.sample."""
        if not len(batch.sample_tokens):
            return batch.sample_tokens, hidden.new_empty(0, dtype=torch.float32)
        logits = self.model.logits(hidden[batch.sample_tokens])
        details.add(logits, first=0)
        return sampler.sample(logits, previous_ids)

    def _prompt_logprobs(
        self, hidden: torch.Tensor, batch: DeviceBatch, details: DetailRows
    ) -> torch.Tensor:
        """The log-probabilities of the targets, [L] float32."""
        parts = [hidden.new_empty(0, dtype=torch.float32)]
        for start in range(0, len(batch.logprob_tokens), _LOGPROB_ROWS):
            part = slice(start, start + _LOGPROB_ROWS)
            logits = self.model.logits(hidden[batch.logprob_tokens[part]])
            parts.append(token_logprobs(logits, batch.logprob_targets[part]))
            details.add(logits, first=batch.host.num_samples + start)
        return torch.cat(parts)


class _PendingStep:
    """A step that is queued on the device. Holds what its copies read and write on the host."""

    def __init__(
        self,
        batch: ForwardBatch,
        next_ids: torch.Tensor,
        details: DetailRows,
        download: Download,
        upload: Upload,
    ) -> None:
        self.next_ids = next_ids  # [S] int64, on the device
        self._wanted = batch.samples.want_logprob
        self._details = None if batch.details is None else details
        self._download = download
        self._upload = upload

    def result(self) -> StepResult:
        """See Pending."""
        next_ids, chosen, prompt_logprobs, *found = self._download.wait()
        logprobs = np.full(len(self._wanted), np.nan, np.float32)
        logprobs[self._wanted] = chosen
        details = None if self._details is None else self._details.result(found)
        return StepResult(next_ids, logprobs, prompt_logprobs, details)


def _torch_device(device: str) -> torch.device:
    try:
        parsed = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"--device {device!r} is not a device that torch knows") from error
    if parsed.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"--device {device}: torch {torch.__version__} sees no CUDA device")
    if parsed.type == "cuda" and parsed.index is None:
        return torch.device("cuda", torch.cuda.current_device())  # torch asks for a number
    return parsed


def _torch_dtype(dtype: str, device: torch.device, checkpoint: str | None) -> torch.dtype:
    if dtype == "auto":
        # Without AMX or AVX512-BF16, 16-bit matrix products are several times slower on a CPU.
        half = "float16" if checkpoint == "float16" else "bfloat16"
        dtype = "float32" if device.type == "cpu" else half
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
