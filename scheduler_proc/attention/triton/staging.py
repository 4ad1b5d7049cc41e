"""How a step's arrays reach the device: one copy, from memory that stays unchanged until then."""

from collections.abc import Sequence

import numpy as np
import torch

_ALIGNMENT = 4  # int32 numbers: 16 bytes, which the kernels' compiled forms depend on


def padded(size: int) -> int:
    """The room that an array of `size` numbers takes."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class Staging:
    """Sends int32 arrays to the device, one after another in one buffer.

    On CUDA they go through pinned memory and the copy is only queued on the current stream. Two
    host buffers are used in turn, and each is written again only once the event after its last copy
    has come: planning a step cannot overwrite what a queued one has not read.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._turn = 0
        self._buffers = [torch.empty(0, dtype=torch.int32) for _ in range(2)]
        self._copied: list[torch.cuda.Event | None] = [None, None]

    def send(self, arrays: Sequence[np.ndarray], to: torch.Tensor | None = None) -> torch.Tensor:
        """The arrays, flat, each from a multiple of 16 bytes on, in `to` or in a new tensor."""
        size = sum(padded(array.size) for array in arrays)
        if to is None:
            to = torch.empty(size, dtype=torch.int32, device=self._device)
        host = self._free_buffer(size)
        view, at = host.numpy(), 0
        for array in arrays:
            view[at : at + array.size] = array.reshape(-1)
            at += padded(array.size)
        to[:size].copy_(host[:size], non_blocking=True)
        if self._device.type == "cuda":
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self._device))
            self._copied[self._turn] = event
        return to

    def _free_buffer(self, size: int) -> torch.Tensor:
        """The other buffer than last time, of at least `size`, once nothing reads it any more."""
        self._turn = 1 - self._turn
        copied = self._copied[self._turn]
        if copied is not None:
            copied.synchronize()
        if len(self._buffers[self._turn]) < size:
            room = 1 << (size - 1).bit_length()
            pinned = self._device.type == "cuda"
            with torch.inference_mode(False):
                self._buffers[self._turn] = torch.empty(room, dtype=torch.int32, pin_memory=pinned)
        return self._buffers[self._turn]
