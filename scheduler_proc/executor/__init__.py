"""Executors run the scheduler's plans. `make_executor` is how the scheduler process gets one.

Importing this package does not import torch; making an executor does.
"""

from scheduler_proc.executor.base import Executor
from srt.errors import ConfigError
from srt.model.files import ModelFiles

EXECUTORS = ("auto", "torch")


def make_executor(
    kind: str,
    files: ModelFiles,
    *,
    max_total_tokens: int,
    device: str = "cpu",
    dtype: str = "auto",
    num_threads: int | None = None,
) -> Executor:
    """Load the model at `files` into an executor of `kind` (one of EXECUTORS).

    Raises ConfigError for an unknown kind and for a model or device that it cannot run.
    """
    if kind not in EXECUTORS:
        raise ConfigError(f"executor {kind!r} is not one of {', '.join(EXECUTORS)}")
    if max_total_tokens < 1:
        raise ConfigError(f"the token pool needs at least one slot, not {max_total_tokens}")
    from scheduler_proc.executor.torch_executor import TorchExecutor

    return TorchExecutor(
        files,
        max_total_tokens=max_total_tokens,
        device=device,
        dtype=dtype,
        num_threads=num_threads,
    )
