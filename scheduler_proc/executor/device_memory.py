"""How much memory a device has, and how large a KV pool it leaves.

The numbers come through `DeviceMemory`, so that the sums can be tried without a device.
"""

import gc
from typing import NamedTuple, Protocol

import torch

from srt.wire.errors import ConfigError


class DeviceMemory(Protocol):
    """The memory of one device, in bytes."""

    def total(self) -> int:
        """All that the device has."""
        ...

    def free(self) -> int:
        """What no process has taken; what this one has cached counts as taken."""
        ...

    def allocated(self) -> int:
        """What tensors of this process take."""
        ...

    def peak(self) -> int:
        """The most that they have taken since the last `reset_peak`."""
        ...

    def reset_peak(self) -> None: ...

    def release(self) -> None:
        """Give back what is cached."""
        ...


class CudaMemory:
    """That of a CUDA device, as torch sees it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def total(self) -> int:
        """See DeviceMemory."""
        return int(torch.cuda.mem_get_info(self._device)[1])

    def free(self) -> int:
        """See DeviceMemory."""
        return int(torch.cuda.mem_get_info(self._device)[0])

    def allocated(self) -> int:
        """See DeviceMemory."""
        return int(torch.cuda.memory_allocated(self._device))

    def peak(self) -> int:
        """See DeviceMemory."""
        return int(torch.cuda.max_memory_allocated(self._device))

    def reset_peak(self) -> None:
        """See DeviceMemory."""
        torch.cuda.reset_peak_memory_stats(self._device)

    def release(self) -> None:
        """See DeviceMemory."""
        torch.cuda.synchronize(self._device)
        gc.collect()
        torch.cuda.empty_cache()


class Budget(NamedTuple):
    """What a device's memory goes to, in bytes."""

    total: int
    available: int  # that was free before the weights were loaded
    weights: int  # and whatever else stays: the attention's workspaces, the libraries' handles
    step: int  # that the largest step takes for a while
    graphs: int
    per_token: int  # of the KV pool

    def pool(self, fraction: float) -> int:
        """What is left for the KV pool. Weights and pool together take at most `fraction` of what
        was available; and a step and the graphs must find room beside them."""
        beside = max(self.step + self.graphs, int(self.available * (1 - fraction)))
        return max(0, self.available - self.weights - beside)


def pool_tokens(
    budget: Budget, fraction: float, *, at_most: int, context_len: int, spare: int
) -> int:
    """How many tokens the KV pool has room for, up to `at_most` (0: any number), besides `spare`
    slots that are nobody's.

    Raises ConfigError with all figures if they are not enough for a request of `context_len`
    tokens, or of `at_most`, if that is less.
    """
    room = budget.pool(fraction)
    tokens = max(0, room // budget.per_token - spare)
    needed = min(context_len, at_most or context_len)
    if tokens < needed:
        raise ConfigError(_too_little(budget, fraction, room, tokens, needed))
    return min(tokens, at_most or tokens)


def _too_little(budget: Budget, fraction: float, room: int, tokens: int, needed: int) -> str:
    def gib(size: int) -> str:
        return f"{size / 2**30:.2f} GiB"

    remedies = ["free memory of the device", "raise --mem-fraction-static"]
    if tokens > 0:
        remedies.append(f"allow shorter requests only (--max-model-len {tokens})")
    return (
        f"too little memory: the device has {gib(budget.total)}, {gib(budget.available)} were "
        f"free; weights take {gib(budget.weights)}, the largest step {gib(budget.step)}, graphs "
        f"{gib(budget.graphs)}; with --mem-fraction-static {fraction:g} this leaves {gib(room)} "
        f"for the KV pool, {tokens} tokens of {budget.per_token} bytes each, and a request may "
        f"have {needed}, which take {gib(needed * budget.per_token)}; {', or '.join(remedies)}"
    )
