"""Whole steps of a model of Llama-3-8B's shape: decodes, prompts, a shared prefix, waiting times.

A decode's figures are of a chain of steps, each queued while the one before runs, as the server
does it: `wall_s` is what a step takes there, `device_s` what its work takes on the device when
nothing waits for the host, and `exposed` the share of the first that is not the second.
"""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch

from bench.gpu_report.sections import Context
from bench.gpu_report.shape import (
    LLAMA_3_8B,
    TOY,
    executor_of,
    prefill_flops,
    random_decoder,
    step_bytes,
)
from bench.gpu_report.stand_ins import on_cpu
from scheduler_proc.batch import ForwardBatch, StepResult
from scheduler_proc.core.steps.step import NO_LATE_TOKENS, LateTokens, Step
from scheduler_proc.executor.torch_executor import TorchExecutor
from scheduler_proc.models.config import DecoderConfig
from scheduler_proc.models.decoder import Decoder
from tests.scheduler_proc.ragged import Row, make_batch


class Decode(NamedTuple):
    """`rows` requests over `shared` slots in common and `own` of each, which grow by one a step."""

    rows: int
    own: int
    shared: int = 0

    @property
    def slots(self) -> int:
        return self.shared + self.rows * self.own


class Sizes(NamedTuple):
    """What is measured at a scale."""

    config: DecoderConfig
    decodes: dict[str, Decode]
    prefills: tuple[int, ...]
    cascade: Decode
    chain: int  # steps of a chain
    spans: int  # of them whose time on the device is measured

    @property
    def slots(self) -> int:
        """Of a pool that holds each case."""
        cases = (*self.decodes.values(), self.cascade)
        return max(*self.prefills, *(case.slots + case.rows * self.chain for case in cases))


FULL = Sizes(
    LLAMA_3_8B,
    {f"decode {rows}": Decode(rows, 1024) for rows in (1, 16, 64, 256)},
    (512, 8192),
    Decode(64, 128, 8192),
    40,
    5,
)
SMALL = Sizes(
    TOY, {f"decode {rows}": Decode(rows, 8) for rows in (1, 3)}, (8, 20), Decode(3, 3, 16), 3, 1
)


def run(context: Context, backend: str) -> None:
    """The section of an attention backend."""
    options = {"attention_backend": backend, "max_running_requests": 256}
    with nullcontext(options) if context.device.type == "cuda" else on_cpu(backend) as options:
        _run(context, options)


def _run(context: Context, options: dict[str, Any]) -> None:
    sizes = FULL if context.is_full else SMALL
    context.sink.put("shape", sizes.config)
    dtype = torch.float32 if options.get("dtype") == "float32" else torch.bfloat16
    model = random_decoder(sizes.config, context.device, dtype)
    executor = executor_of(model, context.device, sizes.slots, **options)
    cases = _Cases(context, sizes, model, executor)
    for name, decode in sizes.decodes.items():
        context.sink.put(name, cases.decode(decode))
    for tokens in sizes.prefills:
        context.sink.put(f"prefill {tokens}", cases.prefill(tokens))
    context.sink.put("cascade", cases.cascade())
    context.sink.put("without graphs", cases.without_graphs())


class _Cases:
    def __init__(
        self, context: Context, sizes: Sizes, model: Decoder, executor: TorchExecutor
    ) -> None:
        self._context, self._sizes, self._executor = context, sizes, executor
        self._config = sizes.config
        self._weight_size = model.weights.embed.element_size()
        self._slot_bytes = executor.pool_bytes / executor.max_total_tokens

    def decode(self, case: Decode) -> dict[str, Any]:
        """Seconds of a step, and its bytes per second as a share of a copy's."""
        found = chain(self._executor, self._context, self._batches(case))
        slots = case.shared + case.rows * (case.own + self._sizes.chain / 2)
        moved = step_bytes(self._config, int(slots), self._weight_size, self._slot_bytes)
        share = self._context.share
        return {
            **found,
            "tokens_s": case.rows / found["wall_s"],
            "bytes": moved,
            "share_of_copy": share(moved / found["wall_s"], "copy_bytes_s"),
            "device_share_of_copy": share(moved / found["device_s"], "copy_bytes_s"),
        }

    def prefill(self, tokens: int) -> dict[str, Any]:
        """Seconds of a prompt in one step, and its rate as a share of a matrix product's."""
        ids = np.random.default_rng(0).integers(0, self._config.vocab_size, tokens)
        batch = make_batch([Row(ids, self._slots()[:tokens])])
        timing = self._context.clock(runs=10, warm=2).wall(lambda: self._executor.run(batch))
        rate = prefill_flops(self._config, tokens) / timing.median_s
        share = self._context.share(rate, "matmul_flop_s")
        return {"wall_s": timing.median_s, "flop_s": rate, "share_of_matmul": share}

    def cascade(self) -> dict[str, Any]:
        """A step with the shared prefix read once, and with graphs that know of no prefix."""
        cascades: Any = getattr(self._executor._attention, "cascades", None)
        if cascades is None:
            return {"not measured": "this attention knows no shared prefixes"}
        found: dict[str, Any] = {}
        for name, on in (("off", False), ("on", True)):
            cascades.is_on = on
            found[name] = chain(self._executor, self._context, self._batches(self._sizes.cascade))
        found["speedup"] = found["off"]["wall_s"] / found["on"]["wall_s"]
        return found

    def without_graphs(self) -> dict[str, Any]:
        """A decode whose kernels are launched one by one, and what that costs in a layer."""
        name, case = list(self._sizes.decodes.items())[1]
        graphs, self._executor._graphs = self._executor._graphs, None
        try:
            found = chain(self._executor, self._context, self._batches(case))
        finally:
            self._executor._graphs = graphs
        recorded = self._context.sink.figures[name]["wall_s"]
        return {
            "case": name,
            **found,
            "layer_s": (found["wall_s"] - recorded) / self._config.layers,
        }

    def _slots(self) -> np.ndarray:
        """All slots, scattered as in a pool that has been used for long."""
        return np.random.default_rng(1).permutation(self._executor.max_total_tokens)

    def _batches(self, case: Decode) -> list[ForwardBatch]:
        """The chain's steps: each row grows by a slot of its own."""
        slots, steps = self._slots(), self._sizes.chain
        common = slots[: case.shared]
        length = case.own + steps - 1
        own = slots[case.shared : case.shared + case.rows * length].reshape(case.rows, length)
        rng = np.random.default_rng(2)
        return [
            make_batch(
                [
                    Row([token], np.concatenate([common, mine[: case.own + step]]))
                    for token, mine in zip(
                        rng.integers(0, self._config.vocab_size, case.rows), own, strict=True
                    )
                ]
            )
            for step in range(steps)
        ]


def chain(
    executor: TorchExecutor, context: Context, batches: Sequence[ForwardBatch]
) -> dict[str, Any]:
    """Run the batches one after the other, each with the tokens that the one before samples."""
    rows = batches[0].num_rows
    late = LateTokens(np.arange(rows), np.arange(rows))
    steps = [Step(batch, [], late) for batch in batches]
    _follow(executor, steps[:4])  # kernels are compiled
    times = _follow(executor, steps)
    wall = float(np.median(np.diff(times)))
    num_spans = (FULL if context.is_full else SMALL).spans
    spans = [_device_span(executor, context, batch) for batch in batches[-num_spans:]]
    device = float(np.median(spans))
    return {"wall_s": wall, "device_s": device, "exposed": 1 - device / wall, "steps": len(times)}


def _follow(executor: TorchExecutor, steps: Sequence[Step]) -> list[float]:
    """When each step's result was there; a step is queued while the one before runs."""
    times, before = [], launch(executor, Step(steps[0].batch, [], NO_LATE_TOKENS), None)
    for step in steps[1:]:
        after = launch(executor, step, before)
        before.result()
        times.append(time.perf_counter())
        before = after
    before.result()
    times.append(time.perf_counter())
    return times


class _Run(NamedTuple):
    """A step that an executor without `launch` has run."""

    value: StepResult

    def result(self) -> StepResult:
        return self.value


def launch(executor: Any, step: Step, before: Any) -> Any:
    """Queue the step after the step `before`."""
    if hasattr(executor, "launch"):
        return executor.launch(step, before)
    step.finalize(None if before is None else before.result())
    return _Run(executor.run(step.batch))


def _device_span(executor: TorchExecutor, context: Context, batch: ForwardBatch) -> float:
    """Seconds of a step's work on the device."""
    held: list[Any] = []
    step = Step(batch, [], NO_LATE_TOKENS)
    seconds = context.clock().device_span(lambda: held.append(launch(executor, step, None)))
    held[0].result()
    return seconds
