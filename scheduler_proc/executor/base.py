"""The interface between the scheduler core and what computes its steps."""

from typing import Protocol

from scheduler_proc.batch import ForwardBatch, StepResult


class Executor(Protocol):
    """Runs plans on a model with a KV pool of `max_total_tokens` one-token slots."""

    name: str
    vocab_size: int
    context_len: int
    max_total_tokens: int

    @property
    def dtype(self) -> object:
        """The element type of the KV pool."""
        ...

    @property
    def weight_bytes(self) -> int:
        """Memory that the weights take."""
        ...

    @property
    def pool_bytes(self) -> int:
        """Memory that the KV pool takes once every slot has been used."""
        ...

    def run(self, batch: ForwardBatch) -> StepResult:
        """Compute one step: write K/V to the out slots, sample, return. Called from one thread."""
        ...
