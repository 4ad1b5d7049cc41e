"""Decodes that are replayed, on a CPU: padding, plans, turns, and which steps run without."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scheduler_proc.attention.base import RaggedRows
from scheduler_proc.batch import ForwardBatch
from scheduler_proc.executor import cuda_graphs, torch_executor
from scheduler_proc.executor.cuda_graphs import graph_sizes, max_indices, padded
from scheduler_proc.executor.start import Bounds
from scheduler_proc.executor.torch_executor import TorchExecutor
from srt.files.model_files import ModelFiles
from srt.wire.filled_params import FilledParams
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.executor.cpu_graphs import (
    CpuRecorder,
    Later,
    Queue,
    ReplayableAttention,
)
from tests.scheduler_proc.models.checkpoints import random_llama, save_directory
from tests.scheduler_proc.models.families import random_family
from tests.scheduler_proc.ragged import Row, int32, make_batch

pytestmark = pytest.mark.full

POOL = 300


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return save_directory(random_llama(), tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    model = random_family("mistral, some windows")
    return save_directory(model, tmp_path_factory.mktemp("windowed"))


class Graphed:
    """A torch executor whose decodes are replayed from a queue, and one without."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, files: ModelFiles, **options: Any) -> None:
        self.queue = Queue()
        self.backend = ReplayableAttention(self.queue)
        bounds = Bounds(max_running_requests=12)
        options.setdefault("max_total_tokens", POOL)
        options["bounds"] = bounds
        self.eager = TorchExecutor(files, **options)
        with monkeypatch.context() as patch:
            patch.setattr(torch_executor, "make_attention", lambda *_, **__: self.backend)
            recorder = CpuRecorder(self.queue)
            self.executor = TorchExecutor(files, recorder=recorder, **options)
        assert self.executor._graphs is not None
        self.graphs = self.executor._graphs
        self.queue.log.clear()

    def hidden(self, batch: ForwardBatch) -> torch.Tensor:
        with torch.inference_mode():
            result = self.executor.forward(batch)
            self.queue.finish()
            return result

    def pools(self, executor: TorchExecutor) -> list[torch.Tensor]:
        return [*executor._pool.k, *executor._pool.v]

    def fill(self, seed: int) -> None:
        """Both pools with the same random K and V; every slot after these has NaN."""
        generator = torch.Generator().manual_seed(seed)
        ours, theirs = self.pools(self.executor), self.pools(self.eager)
        for own, other in zip(ours, theirs, strict=True):
            own.fill_(torch.nan)
            other.copy_(torch.randn(other.shape, generator=generator).to(other.dtype))
            own[:POOL].copy_(other)


def decodes(rng: np.random.Generator, count: int, vocab: int = 131) -> ForwardBatch:
    """Rows of one token each; their prefixes share slots, their own slots are theirs."""
    slots = rng.permutation(POOL)
    own, prefix = slots[:count], slots[count:]
    rows = []
    for slot in own:
        length = int(rng.integers(0, 60))
        shared = prefix[: length // 2].tolist()
        rows.append(Row([int(rng.integers(vocab))], [*shared, *prefix[40 : 40 + length], slot]))
    return make_batch(rows)


def test_the_sizes() -> None:
    assert graph_sizes(1) == [1]
    assert graph_sizes(5) == [1, 2, 4, 5]
    assert graph_sizes(24) == [1, 2, 4, 8, 16, 24]
    assert graph_sizes(30) == [1, 2, 4, 8, 16, 24, 30]


def test_room_for_slots_is_that_of_the_longest_rows_or_of_the_pool() -> None:
    assert max_indices(2, 10_000, 256) == 512
    assert max_indices(256, 10_000, 131_072) == cuda_graphs.MIN_INDICES
    assert max_indices(256, 1 << 22, 131_072) == 1 << 22


def test_padding_rows_read_one_slot() -> None:
    rows = RaggedRows(int32([0, 1, 2]), int32([0, 3, 4]), int32([5, 6, 7, 2]))
    longer = padded(rows, 4, 9)
    assert longer.qo_indptr.tolist() == [0, 1, 2, 3, 4]
    assert longer.kv_indptr.tolist() == [0, 3, 4, 5, 6]
    assert longer.kv_indices.tolist() == [5, 6, 7, 2, 9, 9]
    assert all(column.dtype == np.int32 for column in longer[:3] if column is not None)
    assert padded(rows, 2, 9).kv_indices.tolist() == [5, 6, 7, 2]


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("small", {}),
        ("small", {"kv_dtype": "fp8_e4m3"}),
        ("small", {"dtype": "bfloat16"}),
        ("windowed", {}),
        ("windowed", {"model_impl": "transformers"}),
    ],
)
def test_replays_are_what_eager_steps_give(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, model: str, options: Any
) -> None:
    """Of any number of rows, in any order; the pool has NaN wherever no row has a slot. Beyond the
    rows' own slots and that of padding, no slot of the pool changes."""
    pair = Graphed(monkeypatch, request.getfixturevalue(model), **options)
    rng = np.random.default_rng(0)
    tolerance = 0.06 if "dtype" in options else 2e-4
    for step, count in enumerate([3, 12, 1, 9, 7, 8, 2, 12, 5, 4, 4, 4]):
        pair.fill(step)
        batch = decodes(rng, count)
        before = [pool.clone() for pool in pair.pools(pair.executor)]
        with torch.inference_mode():
            expected = pair.eager.forward(batch)
        got = pair.hidden(batch)
        torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)
        untouched = np.delete(np.arange(POOL), batch.out_slots)
        for old, new in zip(before, pair.pools(pair.executor), strict=True):
            assert torch.equal(old[untouched].view(torch.uint8), new[untouched].view(torch.uint8))
        written = zip(pair.pools(pair.eager), pair.pools(pair.executor), strict=True)
        for theirs, ours in written:
            out = torch.from_numpy(batch.out_slots).long()
            torch.testing.assert_close(
                ours[out].float(), theirs[out].float(), atol=tolerance, rtol=0.13
            )
    assert pair.graphs.num_replays == 12 and pair.backend.num_plans == 0


def test_a_plan_is_updated_before_each_replay(
    monkeypatch: pytest.MonkeyPatch, small: ModelFiles
) -> None:
    pair = Graphed(monkeypatch, small)
    rng = np.random.default_rng(1)
    pair.fill(0)
    for count in (3, 3, 12, 1):
        pair.hidden(decodes(rng, count))
    expected = [f"{what} {size}" for size in (4, 4, 12, 1) for what in ("update", "replay")]
    assert pair.queue.log == expected


@pytest.mark.parametrize("counts", [(3, 4, 3), (12, 12, 12, 12), (1, 2, 1, 2, 1)])
def test_steps_that_are_queued_keep_what_they_read(
    monkeypatch: pytest.MonkeyPatch, small: ModelFiles, counts: tuple[int, ...]
) -> None:
    """A step is queued while nothing of the one before has run, as the actor does it. Nobody waits
    for anything."""
    pair = Graphed(monkeypatch, small)
    pair.fill(0)
    rng = np.random.default_rng(2)
    batches = [decodes(rng, count) for count in counts]
    results, ends = list[torch.Tensor](), []
    with torch.inference_mode():
        expected = [pair.eager.forward(batch) for batch in batches]
        for batch in batches:
            with Later(pair.queue):
                results.append(pair.executor.forward(batch))
            ends.append(pair.queue.mark())
            if len(ends) > 1:
                assert not pair.queue.has_run(ends[-2].number)
                pair.queue.finish(ends[-2].number)
                torch.testing.assert_close(
                    results[-2], expected[len(ends) - 2], atol=2e-4, rtol=2e-4
                )
        pair.queue.finish()
        torch.testing.assert_close(results[-1], expected[-1], atol=2e-4, rtol=2e-4)
    assert pair.queue.waits == 0


def test_a_third_step_waits_for_the_copies_of_the_first(
    monkeypatch: pytest.MonkeyPatch, small: ModelFiles
) -> None:
    """Nobody else waits for anything. With one graph for a size, the second would have to."""
    pair = Graphed(monkeypatch, small)
    pair.fill(0)
    rng = np.random.default_rng(3)
    batches = [decodes(rng, 4) for _ in range(3)]
    with torch.inference_mode():
        expected = [pair.eager.forward(batch) for batch in batches]
        with Later(pair.queue):
            results = [pair.executor.forward(batch) for batch in batches[:2]]
            assert pair.queue.waits == 0
            third = pair.executor.forward(batches[2])
        assert pair.queue.waits == 1
        pair.queue.finish()
    torch.testing.assert_close(results[1], expected[1], atol=2e-4, rtol=2e-4)
    torch.testing.assert_close(third, expected[2], atol=2e-4, rtol=2e-4)


def test_what_runs_without_a_graph(monkeypatch: pytest.MonkeyPatch, small: ModelFiles) -> None:
    pair = Graphed(monkeypatch, small)
    pair.fill(0)
    rng = np.random.default_rng(4)
    extend = make_batch([Row([1, 2], range(2)), Row([3], [5])])
    beyond = decodes(rng, 13)
    for batch in (extend, beyond):
        with torch.inference_mode():
            expected = pair.eager.forward(batch)
        torch.testing.assert_close(pair.hidden(batch), expected, atol=2e-4, rtol=2e-4)
    assert pair.graphs.num_replays == 0 and pair.backend.num_plans == 2
    batch, inputs = decodes(rng, 4), torch.zeros(4, dtype=torch.int64)
    rows = RaggedRows(batch.qo_indptr, batch.kv_indptr, batch.kv_indices)
    images = rows._replace(visible_until=np.zeros(4, np.int32))
    assert pair.graphs.run(images, inputs, inputs, inputs) is None
    pair.backend.eager_above = 3
    assert pair.graphs.run(rows, inputs, inputs, inputs) is None
    pair.backend.eager_above = 4
    assert pair.graphs.run(rows, inputs, inputs, inputs) is not None
    monkeypatch.setattr(pair.graphs, "_limits", [len(batch.kv_indices) - 1] * 6)
    assert pair.graphs.run(rows, inputs, inputs, inputs) is None


@pytest.mark.parametrize("lag", [0, 1])
def test_requests_get_the_tokens_that_they_get_without_graphs(
    monkeypatch: pytest.MonkeyPatch, small: ModelFiles, lag: int
) -> None:
    """Through the whole core, whose pool ends before the slot of padding; some are retracted."""
    pair = Graphed(monkeypatch, small, max_total_tokens=120)
    assert pair.executor.max_total_tokens == 120
    assert len(pair.executor._pool.k[0]) == 121 and len(pair.eager._pool.k[0]) == 120

    def outputs(executor: Any) -> dict[str, list[int]]:
        driver = Driver(
            lag,
            executor=executor,
            max_total_tokens=120,
            vocab_size=131,
            chunked_prefill_size=16,
            max_running_requests=12,
        )
        rng = np.random.default_rng(5)
        for i in range(14):
            prompt = rng.integers(0, 131, int(rng.integers(1, 20))).tolist()
            sampling = FilledParams(temperature=1.0, seed=i)
            driver.add(f"r{i}", prompt, int(rng.integers(1, 25)), sampling=sampling)
        driver.run()
        return driver.outputs

    replay = cuda_graphs._Turn.run

    def replayed(*args: Any) -> torch.Tensor:
        result = replay(*args)
        pair.queue.finish()
        return result

    monkeypatch.setattr(cuda_graphs._Turn, "run", replayed)
    assert outputs(pair.executor) == outputs(pair.eager)
    assert pair.graphs.num_replays > 20


def test_time_and_memory_are_logged(
    monkeypatch: pytest.MonkeyPatch, small: ModelFiles, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        Graphed(monkeypatch, small)
    (text,) = (text for text in caplog.messages if text.startswith("recorded"))
    assert text.startswith("recorded 10 graphs of decodes, up to 12 rows, in ")
    assert text.endswith(" MiB")


def test_graphs_can_be_turned_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = save_directory(random_llama(), tmp_path)
    queue = Queue()
    backend = ReplayableAttention(queue)
    monkeypatch.setattr(torch_executor, "make_attention", lambda *_, **__: backend)
    options: dict[str, Any] = {"max_total_tokens": 20, "recorder": CpuRecorder(queue)}
    options["bounds"] = Bounds(max_running_requests=4)
    executor = TorchExecutor(files, disable_cuda_graph=True, **options)
    assert executor._graphs is None and len(executor._pool.k[0]) == 20
    assert TorchExecutor(files, **options)._graphs is not None
