"""Executors run the scheduler's plans. `make_executor` is how the scheduler process gets one.

Importing this package does not import torch; making a torch executor does.
"""

import importlib.util
import logging
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scheduler_proc.executor.base import Executor
from scheduler_proc.models.checkpoint import open_checkpoint
from scheduler_proc.models.config import NotComputed, WrongValues
from scheduler_proc.models.counts import check_counts
from scheduler_proc.models.tensors import check_tensors
from scheduler_proc.models.vision.seeing import seeing_config
from srt.args import DEFAULT_MEM_FRACTION, ServerArgs, torch_option
from srt.files.model_files import ModelFiles
from srt.files.sizes import model_sizes
from srt.sizing import plan_for
from srt.wire.errors import ConfigError

if TYPE_CHECKING:
    from scheduler_proc.models.vision.base import VisionModel

log = logging.getLogger(__name__)

EXECUTORS = ("auto", "native", "torch")
TORCH_EXTRA = "srt-lang[torch]"
VISION_EXTRA = "srt-lang[vision]"


@dataclass(frozen=True, slots=True)
class ExecutorOptions:
    """What can be chosen about an executor; the command line's options of the same names. With
    `max_total_tokens` 0 a CUDA device's memory says how large the pool is. `planned_bytes` of
    memory, for all `replicas`, are what this pool was planned by, as a native one; 0: somebody
    asked for its size. Unless it `sees`, a model is loaded without its vision tower
    (`--limit-media 0`)."""

    max_total_tokens: int
    planned_bytes: int = 0
    replicas: int = 1
    device: str = "cpu"
    model_impl: str = "auto"
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    quantization: str = "none"
    exact: bool = False
    activations: str = "auto"
    num_threads: int | None = None
    attention_backend: str = "auto"
    deterministic: bool = False
    disable_cuda_graph: bool = False
    mem_fraction_static: float = DEFAULT_MEM_FRACTION
    max_running_requests: int = 64
    max_model_len: int = 0  # 0: the model's context
    speculative_max_tokens: int = 0  # 0: nothing is guessed
    chunked_prefill_size: int = 512
    sees: bool = True


def make_executor(kind: str, files: ModelFiles, options: ExecutorOptions) -> Executor:
    """Load the model at `files` into an executor of `kind` (one of EXECUTORS).

    "auto" is native on a CPU where its library and the model allow, else torch; why not native is
    logged, and an error if the environment has SRT_REQUIRE_NATIVE=1. Raises ConfigError for an
    unknown kind and for a model, device or option that the executor cannot run.
    """
    if kind not in EXECUTORS:
        raise ConfigError(f"executor {kind!r} is not one of {', '.join(EXECUTORS)}")
    if options.max_total_tokens < (0 if options.device.startswith("cuda") else 1):
        raise ConfigError(f"the token pool needs at least one slot, not {options.max_total_tokens}")
    if kind == "torch" or (kind == "auto" and torch_option(options)):
        _check_model(files, options.model_impl)
        return _make_torch(files, options)
    from scheduler_proc.kernels.library import NativeUnavailable

    try:
        return _make_native(files, options)
    except WrongValues:
        raise
    except (NativeUnavailable, ConfigError) as error:
        if kind == "native" or _needs_native(options):
            raise ConfigError(f"executor native: {error}") from error
        _check_model(files, options.model_impl)
        _require_torch(f"the native executor cannot run this: {error}; torch may")
        log.warning("running on torch, which is slower: %s", error)
    return _make_torch(files, options)


def _check_model(files: ModelFiles, impl: str) -> None:
    """Raise ConfigError for values and tensors that are wrong, whatever computes the model, before
    torch is imported for it. Transformers computes directories only."""
    if files.kind != "hf":
        check_tensors(open_checkpoint(files))
        return
    if impl != "transformers":
        with suppress(NotComputed):
            check_tensors(open_checkpoint(files))
            return
    check_counts(files.path)


def _needs_native(options: ExecutorOptions) -> bool:
    """Whether torch would be something else than what was asked for."""
    required = os.environ.get("SRT_REQUIRE_NATIVE") == "1"
    quantizes = options.quantization != "none" or options.activations != "auto"
    return required or options.exact or quantizes


def _make_native(files: ModelFiles, options: ExecutorOptions) -> Executor:
    from scheduler_proc.executor.native_executor import NativeExecutor

    if options.device != "cpu":
        raise ConfigError(f"--device {options.device}: the native executor runs on the CPU")
    if options.dtype != "auto":
        raise ConfigError(f"--dtype {options.dtype}: the native executor keeps the file's weights")
    if options.model_impl == "transformers":
        raise ConfigError("--model-impl transformers: the native executor runs our own code")
    if options.attention_backend != "auto":
        name = options.attention_backend
        raise ConfigError(f"--attention-backend {name}: the native executor has its own attention")
    return NativeExecutor(
        files,
        vision=_vision(files) if options.sees else None,
        max_total_tokens=options.max_total_tokens,
        max_model_len=options.max_model_len,
        num_threads=options.num_threads,
        kv_dtype=options.kv_cache_dtype,
        quantization=options.quantization,
        exact=options.exact,
        activations=options.activations,
    )


def _require_vision() -> None:
    """Raise ConfigError unless there is what a model that sees needs."""
    lacks = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if lacks:
        raise ConfigError(
            f"the model sees pictures, for which {' and '.join(lacks)} must be installed: `pip "
            f"install '{VISION_EXTRA}'`; or serve its text alone, with --limit-media 0"
        )


def _vision(files: ModelFiles) -> "VisionModel | None":
    """What encodes media for the native executor; None if the model sees none. Raises ConfigError
    if the kernels cannot compute what its decoder does with them."""
    if seeing_config(files) is None:
        return None
    _require_vision()
    import torch

    from scheduler_proc.models.vision.choice import load_vision, vision_family

    family = vision_family(files)
    if family is None:
        return None
    lacks = {
        "attention to later tokens of the same picture": family.sees_both_ways,
        "positions of three parts for pictures": family.has_grid_positions,
    }
    missing = [name for name, is_needed in lacks.items() if is_needed]
    if missing:
        raise ConfigError(f"the native executor does not have {', '.join(missing)}")
    return load_vision(files.path, torch.float32, torch.device("cpu"))


def _require_torch(why: str) -> None:
    """Raise ConfigError, which says `why` it is wanted, if there is no torch."""
    if importlib.util.find_spec("torch") is None:
        raise ConfigError(f"{why}, and is not installed: `pip install '{TORCH_EXTRA}'`")


def _make_torch(files: ModelFiles, options: ExecutorOptions) -> Executor:
    asked = torch_option(options) or "--executor torch"
    _require_torch(f"{asked} runs on torch, which is not a part of every install")
    from scheduler_proc.executor.start import Bounds
    from scheduler_proc.executor.torch_executor import TorchExecutor

    for name, is_default in (
        ("--quantization", options.quantization == "none"),
        ("--exact", not options.exact),
        ("--activations", options.activations == "auto"),
    ):
        if not is_default:
            raise ConfigError(f"{name}: the torch executor does not have this")
    return TorchExecutor(
        files,
        max_total_tokens=_torch_pool(files, options),
        max_model_len=options.max_model_len,
        device=options.device,
        dtype=options.dtype,
        model_impl=options.model_impl,
        num_threads=options.num_threads,
        kv_dtype=options.kv_cache_dtype,
        attention_backend=options.attention_backend,
        deterministic=options.deterministic,
        disable_cuda_graph=options.disable_cuda_graph,
        sees=options.sees,
        bounds=Bounds(
            options.mem_fraction_static,
            options.max_running_requests,
            options.chunked_prefill_size,
            options.speculative_max_tokens,
        ),
    )


def _torch_pool(files: ModelFiles, options: ExecutorOptions) -> int:
    """Its size in tokens: less than planned where memory is short, as torch has weights and KV in
    wider numbers. Raises MemoryShort, a ConfigError."""
    if not options.planned_bytes:
        return options.max_total_tokens
    args = ServerArgs(
        executor="torch",
        dtype=options.dtype,
        kv_cache_dtype=options.kv_cache_dtype,
        dp=options.replicas,
        max_running_requests=options.max_running_requests,
        max_model_len=options.max_model_len,
    )
    tokens = plan_for(args, model_sizes(files), options.planned_bytes).pool_tokens
    if tokens < options.max_total_tokens:
        text = "the pool has %d tokens, not %d, as weights and KV of torch take more memory"
        log.warning(text, tokens, options.max_total_tokens)
    return min(tokens, options.max_total_tokens)
