"""How a step's index arrays reach the device: one copy, from memory that stays unchanged until it
has run."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

_ALIGNMENT = 4  # int32 numbers: 16 bytes, which kernels may rely on


class Event(Protocol):
    """A place in a device's work."""

    def synchronize(self) -> None:
        """Wait until the device has come to it."""
        ...


class Staging:
    """Sends int32 arrays to the device, one after another in one buffer.

    On CUDA they go through pinned memory and the copy is only queued on the current stream. Host
    buffers take turns, and each is written again only once the event after its last copy has come:
    planning a step cannot overwrite what a queued one has not read. It does not wait either, if
    there are two buffers for each `send` of a step.
    """

    def __init__(self, device: torch.device, num_buffers: int = 2) -> None:
        self._device = device
        self._turn = 0
        self._buffers = [torch.empty(0, dtype=torch.int32) for _ in range(num_buffers)]
        self._copied: list[Event | None] = [None] * num_buffers

    def send(
        self, arrays: Sequence[np.ndarray], to: torch.Tensor | None = None
    ) -> list[torch.Tensor]:
        """The arrays, flat, as views of `to` or of a new tensor; each begins at 16 bytes."""
        rooms = [-(-array.size // _ALIGNMENT) * _ALIGNMENT for array in arrays]
        if to is None:
            to = torch.empty(sum(rooms), dtype=torch.int32, device=self._device)
        host, at, views = self._free_buffer(sum(rooms)), 0, []
        for array, room in zip(arrays, rooms, strict=True):
            host.numpy()[at : at + array.size] = array.reshape(-1)
            views.append(to[at : at + array.size])
            at += room
        at = min(at, len(to))  # the last array need not fill its room
        self.copy(to[:at], host[:at])
        self._copied[self._turn] = self.mark()
        return views

    def copy(self, to: torch.Tensor, host: torch.Tensor) -> None:
        """Queue a copy from this object's memory."""
        to.copy_(host, non_blocking=True)

    def mark(self) -> Event | None:
        """An event after all that has been queued so far; None where nothing is queued."""
        if self._device.type != "cuda":
            return None
        event: Event = torch.cuda.current_stream(self._device).record_event()
        return event

    def _free_buffer(self, size: int) -> torch.Tensor:
        """The next buffer, of at least `size`, once nothing reads it any more."""
        self._turn = (self._turn + 1) % len(self._buffers)
        copied = self._copied[self._turn]
        if copied is not None:
            copied.synchronize()
        if len(self._buffers[self._turn]) < size:
            room = 1 << (size - 1).bit_length()
            pinned = self._device.type == "cuda"
            with torch.inference_mode(False):  # the buffer outlives the step
                self._buffers[self._turn] = torch.empty(room, dtype=torch.int32, pin_memory=pinned)
        return self._buffers[self._turn]
