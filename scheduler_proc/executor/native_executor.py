"""Runs plans with the native CPU kernels: a whole step in one call that releases the GIL.

Made once by the scheduler process and called from its one model thread, which is one of the
engine's own threads while a step runs. Imports no torch, except for a model that sees: its tower
runs on torch, between two steps and with as many threads: the engine's sleep.
"""

from collections.abc import Sequence
from ctypes import byref, c_double, c_float, c_int64
from typing import TYPE_CHECKING, Any

import numpy as np

from scheduler_proc.batch import DetailLogprobs, ForwardBatch, Samples, StepResult
from scheduler_proc.executor.base import ExpertCounter, MediaFacts
from scheduler_proc.executor.media_store import MediaHolder, MediaStore, tokens_of
from scheduler_proc.executor.native_pool import KVPool, pool_dtype
from scheduler_proc.kernels.library import (
    INPUTS,
    NUM_PHASES,
    Batch,
    Library,
    Model,
    load,
    pointer,
)
from scheduler_proc.models.checkpoint import first_layers, open_checkpoint
from scheduler_proc.models.config import DecoderConfig
from scheduler_proc.models.packed import (
    Packing,
    native_attn_scale,
    pack_model,
    pool_shape,
    suits_integers,
)
from scheduler_proc.ragged import indptr_of
from srt.files.context import capped
from srt.files.model_files import ModelFiles
from srt.files.sizes import resolved_activations
from srt.machine import usable_cpus
from srt.wire.errors import ConfigError
from srt.wire.media import MediaItem

if TYPE_CHECKING:
    from scheduler_proc.models.vision.base import VisionModel

ACTIVATION_BITS = {"auto": 0, "8": 8, "12": 12, "16": 16}  # 0: what the level computes best with


class NativeExecutor(MediaHolder, ExpertCounter):
    """A MediaExecutor. `exact` holds weights and KV as float32: for parity with a reference.
    `activations`, one of ACTIVATION_BITS, is the width of those that meet quantised weights; "auto"
    becomes what the model's size calls for (`srt.files.sizes`). To measure, some of INPUTS may
    follow a colon, as in "8:o,down", which have 16 bits whatever the others have, or the bits that
    follow another colon, as in "8:o,down:12".
    `vision` is what encodes media, if the model sees any. With `num_layers` it is a model of the
    first layers alone, which is good for measuring only.

    Raises ConfigError for a model or an option that the kernels cannot run, NativeUnavailable if
    there is no library.
    """

    name = "native"

    def __init__(
        self,
        files: ModelFiles,
        *,
        max_total_tokens: int,
        max_model_len: int = 0,
        num_threads: int | None = None,
        kv_dtype: str = "auto",
        quantization: str = "none",
        exact: bool = False,
        activations: str = "auto",
        share_prefixes: bool = True,
        isa: str | None = None,
        vision: "VisionModel | None" = None,
        num_layers: int | None = None,
    ) -> None:
        num_threads = num_threads or usable_cpus()
        self._library: Library = load()
        checkpoint = open_checkpoint(files)
        if num_layers is not None:
            checkpoint = first_layers(checkpoint, num_layers)
        config = checkpoint.config
        self.vocab_size = config.vocab_size
        self.context_len = capped(config.context_len, max_model_len)
        self.max_total_tokens = max_total_tokens
        self.share_prefixes = share_prefixes
        has_tiles = self._library.has_tiles(isa)
        _check_activations(activations, exact, has_tiles)
        activation_bits = _activation_bits(resolved_activations(activations, files))
        choice = Packing(quantization, exact, tiles=has_tiles)
        integers = suits_integers(checkpoint, choice)
        dtype = pool_dtype(kv_dtype, exact, integers, isa or self._library.isa())
        self.dtype: object = dtype
        self._pool = KVPool(pool_shape(config, max_total_tokens), dtype)
        self._weights = pack_model(checkpoint, self._library, choice)
        self._pool.attach(self._weights.layers)
        self._tower_bytes = 0 if vision is None else vision.num_bytes
        self._media = None if vision is None else _media_store(vision, config.hidden, num_threads)
        self._engine = self._create(self._model(config, activation_bits), num_threads, isa)

    def _model(self, config: DecoderConfig, activation_bits: tuple[int, ...]) -> Model:
        """What the kernels know of the model."""
        return Model(
            num_layers=config.layers,
            hidden=config.hidden,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            intermediate=config.intermediate,
            vocab=config.vocab_size,
            num_slots=self.max_total_tokens,
            kv_format=self._pool.format,
            activation_bits=activation_bits,
            rms_eps=config.rms_eps,
            attn_scale=native_attn_scale(config),
            embed_scale=config.embed_scale,
            residual_scale=config.residual_scale,
            logit_scale=config.logit_scale,
            whole_norms=config.whole_qk_norms,
            rope_freqs=pointer(self._weights.rope_frequencies, c_float),
            final_norm=pointer(self._weights.norm, c_float),
            embed=self._weights.embed,
            head=self._weights.head,
            layers=self._weights.layers,
        )

    def _create(self, model: Model, threads: int, isa: str | None) -> int:
        level = isa.encode() if isa else None
        try:
            return self._library.created(
                self._library.c.srt_engine_create(byref(model), threads, level)
            )
        except RuntimeError as error:
            raise ConfigError(f"the native executor cannot run this model: {error}") from error

    def close(self) -> None:
        """End the engine's threads; the executor cannot be used after."""
        engine, self._engine = self._engine, 0
        if engine:
            self._library.c.srt_engine_destroy(engine)

    def __del__(self) -> None:
        if getattr(self, "_engine", 0):
            self.close()

    @property
    def weight_bytes(self) -> int:
        """Memory that the weights take."""
        return self._weights.num_bytes + self._tower_bytes

    @property
    def pool_bytes(self) -> int:
        """Memory that the KV pool takes once every slot has been used."""
        return self._pool.num_bytes

    @property
    def num_growths(self) -> int:
        """How often the engine has had to allocate."""
        growths: int = self._library.c.srt_engine_growths(self._engine)
        return growths

    def profile(self) -> dict[str, float]:
        """Seconds per phase of the steps since the last call."""
        seconds = np.zeros(NUM_PHASES, np.float64)
        self._library.c.srt_engine_profile(self._engine, pointer(seconds, c_double))
        names = (self._library.c.srt_phase_name(i).decode() for i in range(NUM_PHASES))
        return dict(zip(names, seconds.tolist(), strict=True))

    def _count_experts(self) -> np.ndarray | None:
        layers = self._weights.layers
        most = max(layer.experts.contents.count if layer.experts else 0 for layer in layers)
        if most == 0:
            return None
        counts = np.zeros((len(layers), most), np.int64)
        self._library.c.srt_engine_expert_counts(self._engine, pointer(counts, c_int64))
        return counts

    @property
    def media_facts(self) -> MediaFacts | None:
        """See MediaExecutor; None if the model sees nothing."""
        if self._media is None:
            return None
        return MediaFacts(4 * self._media.hidden, False, False, in_slices=True)

    def run(self, batch: ForwardBatch) -> StepResult:
        """Compute one step: write K/V to the out slots, sample, return."""
        result = empty_result(batch)
        arrays = step_arrays(batch, result)
        if batch.grid_positions is not None or batch.visible_until is not None:
            raise ValueError("the kernels have no positions of three parts and see no later token")
        num_embeds = 0
        if batch.embeds is not None:
            tokens = tokens_of(batch.embeds, batch.num_tokens)
            rows = np.concatenate(self._store.rows(batch.embeds))
            arrays |= {"embed_tokens": tokens, "embeds": rows}
            num_embeds = len(tokens)
        _check_arrays(batch, arrays, self.vocab_size)
        self._pool.use(int(batch.out_slots.max(initial=-1)) + 1)
        step = Batch.of(
            arrays,
            num_tokens=batch.num_tokens,
            num_rows=batch.num_rows,
            num_samples=batch.num_samples,
            num_logprobs=len(batch.logprob_tokens),
            num_details=0 if batch.details is None else len(batch.details.rows),
            num_embeds=num_embeds,
            share_prefixes=self.share_prefixes,
        )
        self._library.check(self._library.c.srt_engine_step(self._engine, byref(step)))
        return result


# What srt_batch and ForwardBatch both have, besides the groups of columns.
_COMMON = (
    *("input_ids", "positions", "out_slots", "qo_indptr", "kv_indptr", "kv_indices"),
    *("sample_tokens", "logprob_tokens", "logprob_targets"),
)


def empty_result(batch: ForwardBatch) -> StepResult:
    """Arrays for what the step computes, not initialised."""
    details = None
    if batch.details is not None:
        top = int(batch.details.top.sum(dtype=np.int64))
        ids, logprobs = np.empty(top, np.int32), np.empty(top, np.float32)
        details = DetailLogprobs(ids, logprobs, np.empty(len(batch.details.ids), np.float32))
    return StepResult(
        np.empty(batch.num_samples, np.int32),
        np.empty(batch.num_samples, np.float32),
        np.empty(len(batch.logprob_tokens), np.float32),
        details,
    )


def step_arrays(batch: ForwardBatch, result: StepResult) -> dict[str, np.ndarray]:
    """The arrays that C reads and writes, by their names in srt_batch."""
    arrays = {name: getattr(batch, name) for name in _COMMON} | batch.samples._asdict()
    arrays |= zip(StepResult._fields[:3], result[:3], strict=True)
    if batch.suppressed:
        counts = np.zeros(batch.num_samples, np.int32)
        for entry in batch.suppressed:
            counts[entry.row] += len(entry.ids)
        in_order = sorted(batch.suppressed, key=lambda entry: entry.row)
        arrays["suppress_indptr"] = indptr_of(counts)
        arrays["suppress_ids"] = np.concatenate([entry.ids for entry in in_order])
    if batch.masks is not None:
        arrays |= {"masks": batch.masks.words, "mask_rows": batch.masks.rows}
    if batch.adjust is not None:
        arrays |= {f"adjust_{name}": column for name, column in batch.adjust._asdict().items()}
    if batch.details is not None and result.details is not None:
        rows, top, indptr, ids = batch.details
        arrays |= {"detail_rows": rows, "top_indptr": indptr_of(top)}
        arrays |= {"detail_indptr": indptr, "detail_ids": ids, **result.details._asdict()}
    return arrays


def _check_arrays(batch: ForwardBatch, arrays: dict[str, np.ndarray], vocab_size: int) -> None:
    """Check what the kernels cannot see: the arrays' lengths and the number of masks."""
    samples = batch.num_samples
    _check_lengths(arrays, batch.num_tokens, "positions", "out_slots")
    _check_lists(arrays, "kv_indptr", batch.num_rows, "kv_indices")
    _check_lengths(arrays, samples, *Samples._fields)
    _check_lengths(arrays, len(batch.logprob_tokens), "logprob_targets")
    if batch.adjust is not None:
        _check_lists(arrays, "adjust_indptr", samples, "adjust_ids", "adjust_repeat", "adjust_add")
    if batch.details is not None:
        rows = len(batch.details.rows)
        _check_lengths(arrays, rows + 1, "top_indptr")
        _check_lists(arrays, "detail_indptr", rows, "detail_ids")
    if batch.masks is None:
        return
    _check_lengths(arrays, samples, "mask_rows")
    masks, words = batch.masks.words.shape
    if words != (vocab_size + 31) // 32:
        raise ValueError(f"masks have {words} words for {vocab_size} ids")
    if (last := int(batch.masks.rows.max(initial=-1))) >= masks:
        at = int(batch.masks.rows.argmax())
        raise ValueError(f"mask_rows[{at}] = {last} is not below {masks}")


def _check_lengths(arrays: dict[str, np.ndarray], length: int, *names: str) -> None:
    for name in names:
        if (found := len(arrays[name])) != length:
            raise ValueError(f"{name} has {found} entries, not {length}")


def _check_lists(arrays: dict[str, np.ndarray], indptr: str, rows: int, *names: str) -> None:
    """`indptr` must have an end for each row, the last being the length of all arrays `names`."""
    _check_lengths(arrays, rows + 1, indptr)
    _check_lengths(arrays, int(arrays[indptr][-1]), *names)


def _media_store(vision: "VisionModel", hidden: int, threads: int) -> MediaStore[Any, np.ndarray]:
    """Of a model on the CPU. What it computes runs on as many threads of torch's."""
    import torch

    from scheduler_proc.executor.torch_slices import torch_slices

    torch.set_num_threads(threads)

    def join(item: MediaItem, parts: Sequence[torch.Tensor]) -> np.ndarray:
        return np.ascontiguousarray(vision.join(item, parts).float().numpy())

    return MediaStore(hidden, vision.num_parts, vision.encode, join, torch_slices())


def _activation_bits(name: str) -> tuple[int, ...]:
    """The bits of each of INPUTS."""
    base, wide, bits = (*name.split(":"), "", "")[:3]
    widths = dict.fromkeys(wide.split(","), ACTIVATION_BITS[bits or "16"])
    return tuple(widths.get(each, ACTIVATION_BITS[base]) for each in INPUTS)


def _check_activations(name: str, exact: bool, has_tiles: bool) -> None:
    if name.partition(":")[0] not in ACTIVATION_BITS:
        raise ConfigError(f"--activations {name} is not one of {', '.join(ACTIVATION_BITS)}")
    if name != "auto" and exact:
        raise ConfigError(f"--activations {name}: with --exact activations are float32")
    if name != "auto" and has_tiles:
        raise ConfigError(
            f"--activations {name}: the level amx rounds activations to bfloat16; SRT_ISA=avx512 "
            "quantises them"
        )
