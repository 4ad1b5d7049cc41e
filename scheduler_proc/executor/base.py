"""The interface between the scheduler core and what computes its steps."""

import math
from typing import Protocol, cast

import numpy as np

from scheduler_proc.batch import ForwardBatch, StepResult
from scheduler_proc.core.steps.step import Step
from scheduler_proc.media.spans import MediaFacts as MediaFacts
from srt.wire.media import MediaItem


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


class MediaExecutor(Executor, Protocol):
    """An executor whose model sees media if it has `media_facts`. Called from the thread that calls
    `run`."""

    @property
    def media_facts(self) -> MediaFacts | None: ...

    def num_parts(self, item: MediaItem) -> int:
        """In how many parts of similar cost the item is encoded, at least one: tiles or frames.
        Called from any thread."""
        ...

    def encode(
        self, item: MediaItem, pixels: np.ndarray, part: int, seconds: float = math.inf
    ) -> bool:
        """Encode one part of an item's `pixels` (uint8, of its shape). The parts come in order;
        after the last one, batches may name its digest until `drop_media`.

        Returns whether the part is done. If not, as after about `seconds` where that is possible,
        the same call goes on with it; steps may be run in between, and another part begins only
        when this one is done or its item has been dropped.

        Raises if the part cannot be encoded; the item then begins anew, if it does.
        """
        ...

    def drop_media(self, digest: bytes) -> None:
        """Forget an item, encoded or not, or in the middle of a part, if it is there."""
        ...


class Pending(Protocol):
    """A step that is queued on a device, or runs there."""

    def result(self) -> StepResult:
        """Wait until the step has ended, and return what it computed. Called once, from a thread
        other than the one that launches.

        Raises what the step failed with. Steps that were launched between its launch and this have
        had no effect on the KV pool then, and raise too.
        """
        ...


class AsyncExecutor(Executor, Protocol):
    """An executor whose device computes while the host prepares the next step."""

    @property
    def runs_ahead(self) -> bool:
        """Whether steps are to be launched; otherwise they are run."""
        ...

    def launch(self, step: Step, previous: Pending | None) -> Pending:
        """Queue a step after those launched before, and return while it runs. Called from the
        thread that calls `run`.

        `previous` is the step launched before, whose samples the late tokens of `step` are: they
        are taken on the device. None: the step's tokens are all known. The step's arrays may change
        as soon as this returns.

        Raises if the step cannot be queued: it may have written to some of its out slots then.
        """
        ...


def asynchronous(executor: Executor) -> AsyncExecutor | None:
    """The executor, if its steps are to be launched."""
    if not getattr(executor, "runs_ahead", False):
        return None
    return cast(AsyncExecutor, executor)


def seeing(executor: Executor) -> MediaExecutor | None:
    """The executor, if its model sees media."""
    if getattr(executor, "media_facts", None) is None:
        return None
    return cast(MediaExecutor, executor)


class ExpertCounter:
    """What an executor inherits whose model may be a mixture of experts: how these are used."""

    def expert_counts(self) -> np.ndarray | None:
        """The tokens that each expert has had since the start, int64 [layers, experts], zeros for a
        layer without experts; None if the model is no mixture, or nobody counts. May be called from
        any thread, while a step runs too, whose tokens are then counted in part."""
        return self._count_experts()

    def _count_experts(self) -> np.ndarray | None:
        raise NotImplementedError


def expert_counts(executor: Executor) -> np.ndarray | None:
    """See ExpertCounter; None if the executor is none."""
    return executor.expert_counts() if isinstance(executor, ExpertCounter) else None
