"""What stands for a GPU's attention on a CPU, so that the report's code runs there: the tests' fake
FlashInfer, and Triton's interpreter."""

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from scheduler_proc.attention import flashinfer


@contextmanager
def on_cpu(backend: str) -> Iterator[dict[str, Any]]:
    """The executor's options for a backend on a CPU; where Triton is not installed, those of the
    reference."""
    if backend == "flashinfer":
        from tests.gpu import fake_flashinfer

        with mock.patch.object(flashinfer, "load_package", lambda device: fake_flashinfer):
            yield {"attention_backend": backend, "dtype": "bfloat16"}
    elif importlib.util.find_spec("triton") is not None:
        os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported, which is yet to come
        yield {"attention_backend": backend, "dtype": "float32"}
    else:
        yield {"attention_backend": "reference"}
