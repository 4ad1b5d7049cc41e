"""Which failures mean what; and that what a failed step has allocated is given up."""

import builtins
import gc
import subprocess
import sys
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from scheduler_proc.executor.failures import (
    is_device_lost,
    is_out_of_memory,
    is_unrecordable,
    release_memory,
)
from tests.running.late import late

if TYPE_CHECKING:
    import torch
else:
    torch = late("torch")


# The types' names, and what they are made of.
MEMORY: list[tuple[Any, ...]] = [
    ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB"),
    ("AcceleratorError", "CUDA error: out of memory", 2),
    ("RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ("RuntimeError", "Triton Error [CUDA]: out of memory"),
    ("MemoryError",),
]
LOST: list[tuple[Any, ...]] = [
    ("AcceleratorError", "CUDA error: device-side assert triggered", 710),
    ("AcceleratorError", "CUDA error: unspecified launch failure", 719),
    ("RuntimeError", "CUDA error: an illegal memory access was encountered"),
    ("RuntimeError", "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`"),
    ("RuntimeError", "Triton Error [CUDA]: an illegal memory access was encountered"),
]
OTHERS: list[tuple[Any, ...]] = [
    ("RuntimeError", "mat1 and mat2 shapes cannot be multiplied"),
    ("RuntimeError", "the model ran out of memory for jokes"),
    ("ValueError", "CUDA error: of somebody's text"),
    ("IndexError", "index 7 is out of bounds"),
]


def made(name: str, *args: Any) -> Exception:
    """An error of that type, which is torch's or Python's."""
    of_torch = name in ("OutOfMemoryError", "AcceleratorError")
    error: Exception = getattr(torch if of_torch else builtins, name)(*args)
    return error


@pytest.mark.parametrize("error", [*MEMORY, *LOST, *OTHERS], ids=lambda error: str(error[1:])[:40])
def test_kinds(error: tuple[Any, ...]) -> None:
    assert is_out_of_memory(made(*error)) == (error in MEMORY)
    assert is_device_lost(made(*error)) == (error in LOST)


def test_what_cannot_be_recorded_is_known_by_its_words() -> None:
    words = "CUDA error: operation failed due to a previous error during capture"
    assert is_unrecordable(torch.AcceleratorError(words, 901))
    assert not is_unrecordable(made(*LOST[0]))


def test_a_failed_step_keeps_nothing() -> None:
    kept: list[weakref.ref[torch.Tensor]] = []

    def step() -> None:
        activations = torch.zeros(8)
        kept.append(weakref.ref(activations))
        raise torch.OutOfMemoryError("CUDA out of memory")

    try:
        step()
    except torch.OutOfMemoryError as error:
        failure = error
    gc.collect()
    assert kept[0]() is not None  # by the traceback
    release_memory(failure)
    assert kept[0]() is None


def test_torch_is_not_imported_to_tell() -> None:
    code = (
        "import sys; from scheduler_proc.executor.failures import *; error = RuntimeError('x'); "
        "assert not is_device_lost(error) and not is_out_of_memory(error); release_memory(error); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
