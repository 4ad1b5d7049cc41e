"""Copies between the host and the device that torch computes on: few, and nobody waits for them.

All that a step needs goes up in one copy, and all that it gives comes back in another, each queued
on the device's current stream. On the host both lie in pinned memory, which CUDA copies while the
host goes on. On a CPU there is neither pinned memory nor anything to wait for.
"""

from collections.abc import Sequence

import numpy as np
import torch

_ALIGNED = 16  # bytes at which each array begins, so that any dtype can be viewed there


class Sent:
    """An array that goes to the device: `tensor` is there once its `Upload` has been sent."""

    __slots__ = ("tensor", "values")

    tensor: torch.Tensor

    def __init__(self, values: np.ndarray) -> None:
        self.values = values


class Upload:
    """Collects the arrays that a step needs on `device`, and sends them together.

    What the copy reads is held by this object, so it is kept until the step has ended.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._indices: list[Sent] = []
        self._others: list[Sent] = []
        self._host: torch.Tensor | None = None

    def indices(self, values: np.ndarray) -> Sent:
        """Indices [n], which fit into 31 bits: int64 on the device."""
        self._indices.append(Sent(values))
        return self._indices[-1]

    def values(self, values: np.ndarray) -> Sent:
        """An array of a dtype that torch has; its values are read when it is sent."""
        self._others.append(Sent(np.ascontiguousarray(values)))
        return self._others[-1]

    def send(self) -> None:
        """Queue the copy; all arrays are read before this returns."""
        counts = [len(sent.values) for sent in self._indices]
        starts, size = [], _aligned(4 * sum(counts))
        for sent in self._others:
            starts.append(size)
            size += _aligned(sent.values.nbytes)
        host = host_buffer(size, self.device)
        view = host.numpy()
        if counts:
            ints = view[: 4 * sum(counts)].view(np.int32)
            parts = [sent.values for sent in self._indices]
            np.concatenate(parts, out=ints, casting="same_kind")
        for sent, start in zip(self._others, starts, strict=True):
            stop = start + sent.values.nbytes
            view[start:stop] = sent.values.reshape(-1).view(np.uint8)
        there = host.to(self.device, non_blocking=True)
        longs = there[: 4 * sum(counts)].view(torch.int32).long()
        for sent, tensor in zip(self._indices, longs.split(counts), strict=True):
            sent.tensor = tensor
        for sent, start in zip(self._others, starts, strict=True):
            values = sent.values
            part = there[start : start + values.nbytes].view(_TORCH_DTYPES[values.dtype])
            sent.tensor = part.view(values.shape)
        self._host = host


class Download:
    """Tensors of 4-byte elements on their way to the host."""

    def __init__(self, tensors: Sequence[torch.Tensor], device: torch.device) -> None:
        """Queue one copy of all of them."""
        self._dtypes = [_NUMPY_DTYPES[tensor.dtype] for tensor in tensors]
        self._shapes = [tuple(tensor.shape) for tensor in tensors]
        flat = torch.cat([tensor.contiguous().view(torch.int32).view(-1) for tensor in tensors])
        self._host = host_buffer(4 * len(flat), device).view(torch.int32)
        self._host.copy_(flat, non_blocking=True)
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event(blocking=True)  # waiting for it takes no core
            self._event.record(torch.cuda.current_stream(device))

    def wait(self) -> list[np.ndarray]:
        """Wait until all that was queued before the copy, and the copy, has run; then the arrays.
        Raises what the device has failed with."""
        if self._event is not None:
            self._event.synchronize()
        counts = [int(np.prod(shape)) for shape in self._shapes]
        flat = self._host.numpy().copy()  # pinned memory is not for others to keep
        parts = np.split(flat, np.cumsum(counts)[:-1])
        columns = zip(parts, self._dtypes, self._shapes, strict=True)
        return [part.view(dtype).reshape(shape) for part, dtype, shape in columns]


def host_buffer(num_bytes: int, device: torch.device) -> torch.Tensor:
    """Memory on the host, uint8 [num_bytes]; pinned if the device is a GPU.

    Torch gives pinned memory to nobody else before the copies that were queued from it or to it
    have run, even if it is freed before.
    """
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNED) * _ALIGNED


_TORCH_DTYPES = {
    np.dtype(np.uint8): torch.uint8,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
}
_NUMPY_DTYPES = {torch.int32: np.int32, torch.float32: np.float32}
