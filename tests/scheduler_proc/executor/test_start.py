"""The KV pool's size, from a device's memory: the sums, the measuring, and what is refused."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from srt.files.model_files import ModelFiles
from srt.wire.errors import ConfigError
from tests.running.late import late
from tests.scheduler_proc.models.checkpoints import random_llama, save_directory

if TYPE_CHECKING:
    import torch

    from scheduler_proc.executor import device_memory, start, torch_executor
    from tests.scheduler_proc.executor import cpu_graphs
else:
    cpu_graphs = late("tests.scheduler_proc.executor.cpu_graphs")
    device_memory = late("scheduler_proc.executor.device_memory")
    start = late("scheduler_proc.executor.start")
    torch = late("torch")
    torch_executor = late("scheduler_proc.executor.torch_executor")


GIB = 2**30


def h100(**changes: int) -> "device_memory.Budget":
    budget = device_memory.Budget(80 * GIB, 78 * GIB, 16 * GIB, 1 * GIB, 2 * GIB, 2**17)
    return budget._replace(**changes)


def tokens(budget: "device_memory.Budget | None" = None, **changes: int) -> int:
    wishes = {"at_most": 0, "context_len": 8192, "spare": 1} | changes
    return device_memory.pool_tokens(budget or h100(), 0.9, **wishes)


def test_weights_and_pool_take_the_fraction() -> None:
    assert h100().pool(0.9) == pytest.approx(78 * GIB * 0.9 - 16 * GIB, abs=1)
    assert tokens() == int((78 * 0.9 - 16) * 2**13) - 1
    assert tokens(spare=0) == tokens() + 1


def test_a_step_and_graphs_find_room_whatever_the_fraction() -> None:
    assert h100().pool(0.99) == (78 - 16 - 3) * GIB
    assert h100(step=20 * GIB).pool(0.9) == (78 - 16 - 22) * GIB


def test_an_upper_bound_on_the_tokens() -> None:
    assert tokens(at_most=10_000) == 10_000
    assert tokens(at_most=10_000_000) == tokens()
    assert tokens(at_most=100, context_len=10_000_000) == 100


def test_too_little_memory_is_an_error_with_the_figures() -> None:
    with pytest.raises(ConfigError) as failure:
        tokens(h100(weights=70 * GIB), context_len=131_072)
    assert str(failure.value) == (
        "too little memory: the device has 80.00 GiB, 78.00 GiB were free; weights take 70.00 GiB, "
        "the largest step 1.00 GiB, graphs 2.00 GiB; with --mem-fraction-static 0.9 this leaves "
        "0.20 GiB for the KV pool, 1637 tokens of 131072 bytes each, and a request may have "
        "131072, which take 16.00 GiB; free memory of the device, or raise --mem-fraction-static, "
        "or allow shorter requests only (--max-model-len 1637)"
    )
    assert tokens(h100(weights=70 * GIB), context_len=131_072, at_most=1637) == 1637
    with pytest.raises(ConfigError, match=r"leaves 0\.00 GiB .* or raise --mem-fraction-static$"):
        tokens(h100(weights=79 * GIB))


class Memory:
    """A device's memory with `free_bytes` at each question, in turn; tensors take `peak_bytes` at
    most, of which `kept_bytes` before the step."""

    def __init__(self, *free_bytes: int, peak_bytes: int = 0, kept_bytes: int = 0) -> None:
        self._free = iter(free_bytes)
        self.peak_bytes, self.kept_bytes = peak_bytes, kept_bytes
        self.calls: list[str] = []

    def total(self) -> int:
        return 1 << 24

    def free(self) -> int:
        self.calls.append("free")
        return next(self._free)

    def allocated(self) -> int:
        return self.kept_bytes

    def peak(self) -> int:
        self.calls.append("peak")
        return self.peak_bytes

    def reset_peak(self) -> None:
        self.calls.append("reset")

    def release(self) -> None:
        self.calls.append("release")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return save_directory(random_llama(), tmp_path_factory.mktemp("small"))


BYTES = 4 * 2 * 3 * 2 * 8  # of one token


def test_the_pool_is_what_weights_and_the_largest_step_leave(
    small: ModelFiles, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    memory = Memory(1 << 20, (1 << 20) - 100_000, peak_bytes=250_000, kept_bytes=50_000)
    bounds = start.Bounds(0.99, max_running_requests=6, chunked_prefill_size=16)
    executor = torch_executor.TorchExecutor(small, max_total_tokens=0, memory=memory, bounds=bounds)
    assert executor.max_total_tokens == ((1 << 20) - 100_000 - 200_000) // BYTES
    assert executor.pool_bytes == executor.max_total_tokens * BYTES
    assert memory.calls == ["free", "release", "reset", "peak", "release", "free"]
    assert f"{executor.max_total_tokens} tokens of {BYTES} bytes" in caplog.text
    assert executor._graphs is None


@pytest.mark.full
def test_graphs_are_counted_and_recorded_over_the_pool(
    small: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two are recorded to see what they take: 5,000 bytes the first, 700 each of the others."""
    queue = cpu_graphs.Queue()
    backend = cpu_graphs.ReplayableAttention(queue)
    monkeypatch.setattr(f"{torch_executor.__name__}.make_attention", lambda *_, **__: backend)
    mib = 1 << 20
    seen = (mib, 900_000, 895_000, 895_000, 894_300, mib - 100_000, 50_000, 30_000)
    memory = Memory(*seen, peak_bytes=10_000)
    bounds = start.Bounds(0.999, max_running_requests=6, chunked_prefill_size=16)
    executor = torch_executor.TorchExecutor(
        small,
        max_total_tokens=0,
        memory=memory,
        bounds=bounds,
        recorder=cpu_graphs.CpuRecorder(queue),
    )
    assert executor._graphs is not None and executor._graphs.count == 8
    left = mib - 100_000 - 10_000 - (5_000 + 7 * 700)
    assert executor.max_total_tokens == left // BYTES - 1  # and the slot of padding
    assert len(executor._pool.k[0]) == executor.max_total_tokens + 1
    bounded = torch_executor.TorchExecutor(
        *(small,),
        max_total_tokens=300,
        memory=Memory(*seen),
        bounds=bounds,
        recorder=cpu_graphs.CpuRecorder(queue),
    )
    assert bounded.max_total_tokens == 300


def test_calls_that_cannot_be_recorded_leave_no_graphs(
    small: ModelFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue = cpu_graphs.Queue()
    backend = cpu_graphs.ReplayableAttention(queue)
    monkeypatch.setattr(f"{torch_executor.__name__}.make_attention", lambda *_, **__: backend)
    recorder = cpu_graphs.CpuRecorder(queue)
    recorder.fails_with = torch.AcceleratorError(
        "CUDA error: operation not permitted when stream is capturing", 900
    )
    options: dict[str, Any] = {"max_total_tokens": 300, "recorder": recorder}
    memory = Memory(1 << 20, 900_000, (1 << 20) - 100_000)
    executor = torch_executor.TorchExecutor(small, memory=memory, **options)
    assert executor._graphs is None and len(executor._pool.k[0]) == 300
    assert "decodes run without graphs" in caplog.text
    recorder.fails_with = RuntimeError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(RuntimeError, match="illegal memory"):
        torch_executor.TorchExecutor(small, memory=Memory(1 << 20, 900_000), **options)


def test_the_largest_step_is_as_large_as_can_be(small: ModelFiles) -> None:
    executor = torch_executor.TorchExecutor(small, max_total_tokens=300)
    # One row is for a request ahead of time.
    step = start.largest_step(executor, start.Bounds(0.9, 5, 16))
    assert (step.num_rows, step.num_tokens, step.num_samples) == (6, 5 + 16, 6)
    assert len(step.logprob_tokens) == 16
    executor.run(step)
    guessing = start.largest_step(executor, start.Bounds(0.9, 5, 16, speculative_max_tokens=2))
    assert guessing.num_tokens == 5 + 16
    assert guessing.sample_tokens.tolist() == [*range(5), *range(8, 21)]
    assert len(executor.run(guessing).next_ids) == 6 + 12
    assert start.largest_step(executor, start.Bounds(0.9, 5, 16, 8)).num_samples == 6 + 15
    long = start.largest_step(executor, start.Bounds(0.9, 1, 100_000))
    assert long.num_tokens == 1 + executor.context_len
    assert np.array_equal(long.positions[1:], np.arange(executor.context_len))


def test_too_little_memory_ends_the_start(small: ModelFiles) -> None:
    memory = Memory(1 << 20, 100_000)
    with pytest.raises(ConfigError, match=r"too little memory: the device has 0\.02 GiB"):
        torch_executor.TorchExecutor(small, max_total_tokens=0, memory=memory)


@pytest.mark.full
def test_a_pool_of_eight_bits_has_room_for_four_times_the_tokens(tmp_path: Path) -> None:
    files = save_directory(random_llama(), tmp_path)
    sizes = []
    for kv_dtype in ("auto", "fp8_e4m3"):
        memory = Memory(1 << 20, 1 << 20, peak_bytes=48_576)
        executor = torch_executor.TorchExecutor(
            files, max_total_tokens=0, memory=memory, kv_dtype=kv_dtype, bounds=start.Bounds(0.999)
        )
        sizes.append(executor.max_total_tokens)
    assert sizes == [1_000_000 // BYTES, 4_000_000 // BYTES]
