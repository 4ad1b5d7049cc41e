"""What kind of failure an exception of a step is: torch's, told apart without importing torch."""

import sys
import traceback

# What errors of a CUDA device say, whichever library raises them.
_DEVICE_WORDS = ("CUDA error", "Triton Error [CUDA]", "cudaError", "CUDA driver error")
_MEMORY_WORDS = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "cudaErrorMemoryAllocation")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device, or the host, had too little memory for the step: nothing else is lost."""
    torch = sys.modules.get("torch")
    if isinstance(error, MemoryError) or (
        torch is not None and isinstance(error, torch.OutOfMemoryError)
    ):
        return True
    return _is_of_device(error) and any(words in str(error) for words in _MEMORY_WORDS)


def is_device_lost(error: BaseException) -> bool:
    """Whether a CUDA device has failed otherwise: its context is lost, and every later call of this
    process fails too."""
    return _is_of_device(error) and not is_out_of_memory(error)


def is_unrecordable(error: BaseException) -> bool:
    """Whether the calls that were to be recorded as a graph cannot be: they wait for the device.
    Nothing is lost."""
    return isinstance(error, RuntimeError) and "captur" in str(error).lower()


def release_memory(error: BaseException) -> None:
    """Give up what the failed step has still allocated, and all that torch has cached on a CUDA
    device."""
    one: BaseException | None = error
    while one is not None:
        traceback.clear_frames(one.__traceback__)
        one = one.__cause__ or one.__context__
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _is_of_device(error: BaseException) -> bool:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(error, getattr(torch, "AcceleratorError", ())):
        return True
    is_runtime = isinstance(error, RuntimeError)
    return is_runtime and any(words in str(error) for words in _DEVICE_WORDS)
