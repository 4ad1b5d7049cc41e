"""Runs plans with the native CPU kernels: a whole step in one call that releases the GIL.

Made once by the scheduler process and called from its one model thread, which is one of the
engine's own threads while a step runs. Does not import torch when the model is a GGUF file.
"""

import os
from collections.abc import Iterable
from ctypes import byref, c_double, c_float, c_int32, c_uint8, c_uint32
from threading import Thread
from typing import Any
from weakref import ref

import numpy as np

from scheduler_proc.batch import ForwardBatch, StepResult
from scheduler_proc.kernels.library import (
    NUM_PHASES,
    Batch,
    Format,
    Library,
    Model,
    huge_memory,
    load,
    pointer,
    populate,
)
from scheduler_proc.models.checkpoint import open_checkpoint
from scheduler_proc.models.packed import Choice, native_attn_scale, pack_model, pool_shape
from srt.files.model_files import ModelFiles
from srt.wire.errors import ConfigError

KV_DTYPES = {"float16": (Format.F16, np.float16), "float32": (Format.F32, np.float32)}
ACTIVATION_BITS = {"auto": 0, "8": 8, "16": 16}


class NativeExecutor:
    """An Executor. `exact` holds weights and KV as float32: for parity with a reference.
    `activations`, one of ACTIVATION_BITS, is the width of those that meet quantised weights.

    Raises ConfigError for a model or an option that the kernels cannot run, NativeUnavailable if
    there is no library.
    """

    name = "native"

    def __init__(
        self,
        files: ModelFiles,
        *,
        max_total_tokens: int,
        num_threads: int | None = None,
        kv_dtype: str = "auto",
        quantization: str = "none",
        exact: bool = False,
        activations: str = "auto",
        share_prefixes: bool = True,
        isa: str | None = None,
    ) -> None:
        self._library: Library = load()
        checkpoint = open_checkpoint(files)
        config = checkpoint.config
        self.dtype: object = _kv_dtype(kv_dtype, exact)
        self.vocab_size = config.vocab_size
        self.context_len = config.context_len
        self.max_total_tokens = max_total_tokens
        self.share_prefixes = share_prefixes
        self._pool = _KVMemory(pool_shape(config, max_total_tokens), str(self.dtype))
        has_tiles = self._library.has_tiles(isa)
        activation_bits = _activation_bits(activations, exact, has_tiles)
        choice = Choice(quantization, exact, tiles=has_tiles)
        self._weights = pack_model(checkpoint, self._library, choice)
        self._pool.attach(self._weights.layers)
        model = Model(
            num_layers=config.layers,
            hidden=config.hidden,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            intermediate=config.intermediate,
            vocab=config.vocab_size,
            num_slots=max_total_tokens,
            kv_format=KV_DTYPES[str(self.dtype)][0],
            activation_bits=activation_bits,
            rms_eps=config.rms_eps,
            attn_scale=native_attn_scale(config),
            rope_freqs=pointer(self._weights.rope_frequencies, c_float),
            final_norm=pointer(self._weights.norm, c_float),
            embed=self._weights.embed,
            head=self._weights.head,
            layers=self._weights.layers,
        )
        self._engine = self._create(model, num_threads or _available_cores(), isa)

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
        return self._weights.num_bytes

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

    def run(self, batch: ForwardBatch) -> StepResult:
        """Compute one step: write K/V to the out slots, sample, return."""
        _check_arrays(batch, self.vocab_size)
        result = _empty_result(batch)
        fields = _fields(batch, result) | _adjusted(batch) | _details(batch, result)
        step = Batch(
            num_tokens=batch.num_tokens,
            num_rows=batch.num_rows,
            num_samples=len(batch.sample_tokens),
            num_logprobs=len(batch.logprob_tokens),
            num_details=0 if batch.detail_rows is None else len(batch.detail_rows),
            share_prefixes=self.share_prefixes,
            **{name: pointer(array, kind) for name, (array, kind) in fields.items()},
        )
        self._library.check(self._library.c.srt_engine_step(self._engine, byref(step)))
        return result


# Arrays of a step and their C types, by the names of srt_batch.
_Fields = dict[str, tuple[np.ndarray, Any]]


def _empty_result(batch: ForwardBatch) -> StepResult:
    result = StepResult(
        np.empty(len(batch.sample_tokens), np.int32),
        np.empty(len(batch.sample_tokens), np.float32),
        np.empty(len(batch.logprob_tokens), np.float32),
    )
    if batch.detail_top is None or batch.detail_ids is None:
        return result
    top = int(batch.detail_top.sum(dtype=np.int64))
    return result._replace(
        top_ids=np.empty(top, np.int32),
        top_logprobs=np.empty(top, np.float32),
        id_logprobs=np.empty(len(batch.detail_ids), np.float32),
    )


def _fields(batch: ForwardBatch, result: StepResult) -> _Fields:
    fields: _Fields = {
        name: (getattr(batch, name), c_int32)
        for name in (
            *("input_ids", "positions", "out_slots", "qo_indptr", "kv_indptr", "kv_indices"),
            *("sample_tokens", "top_k", "logprob_tokens", "logprob_targets"),
        )
    }
    fields |= {name: (getattr(batch, name), c_float) for name in ("temperature", "top_p", "min_p")}
    fields["uniform"] = (batch.uniform, c_double)
    fields["want_logprob"] = (batch.want_logprob.view(np.uint8), c_uint8)
    fields["next_ids"] = (result.next_ids, c_int32)
    fields["logprobs"] = (result.logprobs, c_float)
    fields["prompt_logprobs"] = (result.prompt_logprobs, c_float)
    if batch.suppressed:
        counts = np.zeros(len(batch.sample_tokens) + 1, np.int32)
        for entry in batch.suppressed:
            counts[entry.row + 1] += len(entry.ids)
        in_order = sorted(batch.suppressed, key=lambda entry: entry.row)
        fields["suppress_indptr"] = (np.cumsum(counts, dtype=np.int32), c_int32)
        fields["suppress_ids"] = (np.concatenate([entry.ids for entry in in_order]), c_int32)
    if batch.masks is not None and batch.mask_rows is not None:
        fields["masks"] = (batch.masks, c_uint32)
        fields["mask_rows"] = (batch.mask_rows, c_int32)
    return fields


def _adjusted(batch: ForwardBatch) -> _Fields:
    if batch.adjust_indptr is None:
        return {}
    floats = ("adjust_repeat", "adjust_add")
    _check_lists(batch, "adjust_indptr", len(batch.sample_tokens), ("adjust_ids", *floats))
    return {
        **{name: (getattr(batch, name), c_int32) for name in ("adjust_indptr", "adjust_ids")},
        **{name: (getattr(batch, name), c_float) for name in floats},
    }


def _details(batch: ForwardBatch, result: StepResult) -> _Fields:
    if batch.detail_rows is None or batch.detail_top is None:
        return {}
    rows = len(batch.detail_rows)
    _check_lengths(batch, rows, "detail_top")
    _check_lists(batch, "detail_indptr", rows, ("detail_ids",))
    return {
        "top_indptr": (np.append(0, batch.detail_top).cumsum(dtype=np.int32), c_int32),
        **{
            name: (getattr(batch, name), c_int32)
            for name in ("detail_rows", "detail_indptr", "detail_ids")
        },
        "top_ids": (result.top_ids, c_int32),
        "top_logprobs": (result.top_logprobs, c_float),
        "id_logprobs": (result.id_logprobs, c_float),
    }


def _check_arrays(batch: ForwardBatch, vocab_size: int) -> None:
    """The kernels see no lengths, and not how many masks there are."""
    samples = len(batch.sample_tokens)
    _check_lengths(batch, batch.num_tokens, "positions", "out_slots")
    _check_lists(batch, "kv_indptr", batch.num_rows, ("kv_indices",))
    columns = ("temperature", "top_p", "top_k", "min_p", "uniform", "want_logprob")
    _check_lengths(batch, samples, *columns)
    _check_lengths(batch, len(batch.logprob_tokens), "logprob_targets")
    if batch.masks is None or batch.mask_rows is None:
        return
    _check_lengths(batch, samples, "mask_rows")
    masks, words = batch.masks.shape
    if words != (vocab_size + 31) // 32:
        raise ValueError(f"masks have {words} words for {vocab_size} ids")
    if (last := int(batch.mask_rows.max(initial=-1))) >= masks:
        at = int(batch.mask_rows.argmax())
        raise ValueError(f"mask_rows[{at}] = {last} is not below {masks}")


def _check_lengths(batch: ForwardBatch, length: int, *names: str) -> None:
    for name in names:
        if (found := len(getattr(batch, name))) != length:
            raise ValueError(f"{name} has {found} entries, not {length}")


def _check_lists(batch: ForwardBatch, indptr: str, rows: int, names: Iterable[str]) -> None:
    """`indptr` must have an end for each row, and be all that the arrays `names` hold."""
    _check_lengths(batch, rows + 1, indptr)
    _check_lengths(batch, int(getattr(batch, indptr)[-1]), *names)


def _available_cores() -> int:
    """The cores that this process may use: spinning threads must not share one."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _kv_dtype(name: str, exact: bool) -> str:
    if name == "auto":
        return "float32" if exact else "float16"
    if name not in KV_DTYPES:
        raise ConfigError(f"KV dtype {name!r} is not one of auto, {', '.join(KV_DTYPES)}")
    return name


def _activation_bits(name: str, exact: bool, has_tiles: bool) -> int:
    if name not in ACTIVATION_BITS:
        raise ConfigError(f"--activations {name} is not one of {', '.join(ACTIVATION_BITS)}")
    if name != "auto" and exact:
        raise ConfigError(f"--activations {name}: with --exact activations are float32")
    if name != "auto" and has_tiles:
        raise ConfigError(
            f"--activations {name}: the level amx rounds activations to bfloat16; SRT_ISA=avx512 "
            "quantises them"
        )
    return ACTIVATION_BITS[name]


class _KVMemory:
    """The pool: [layers, K and V, slots, kv_heads, head_dim].

    Huge pages, where the system grants them on request: slots of a request may lie anywhere. Its
    pages are asked for while the model is loaded, so that the first prompts do not wait for them.
    """

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self.format, element = KV_DTYPES[dtype]
        self.num_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(element).itemsize
        self.values = huge_memory(self.num_bytes).view(element).reshape(shape)
        Thread(target=populate, args=(ref(self.values),), name="kv-pages", daemon=True).start()

    def attach(self, layers: Any) -> None:
        """Tell each layer where its part is."""
        for layer, part in zip(layers, self.values, strict=True):
            layer.k_pool, layer.v_pool = part[0].ctypes.data, part[1].ctypes.data
