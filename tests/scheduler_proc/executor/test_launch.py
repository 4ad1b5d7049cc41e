"""Steps that the torch executor launches: the same as those it runs, without a look at any value.

On the CPU; copies there have run when they are queued, and there are no events to wait for.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_proc.batch import Adjust, ForwardBatch, Masks, StepResult, SuppressedIds
from scheduler_proc.core.steps.step import LateTokens, Step
from scheduler_proc.sampling.penalties import Entries, LateChange, LogitChanges, with_entries
from srt.files.model_files import ModelFiles
from srt.wire.filled_params import FilledParams
from tests.running.late import late
from tests.running.profiles import seeds
from tests.scheduler_proc.models.checkpoints import random_llama, save_directory
from tests.scheduler_proc.ragged import Row, adjust_of, details_of, int32, make_batch

if TYPE_CHECKING:
    import torch

    from scheduler_proc.executor import torch_executor
    from scheduler_proc.sampling import restrictions as restrictions_module
    from scheduler_proc.sampling import sampling as sampling_module
    from scheduler_proc.sampling import transfers
    from tests.scheduler_proc.executor import no_looking
else:
    no_looking = late("tests.scheduler_proc.executor.no_looking")
    restrictions_module = late("scheduler_proc.sampling.restrictions")
    sampling_module = late("scheduler_proc.sampling.sampling")
    torch = late("torch")
    torch_executor = late("scheduler_proc.executor.torch_executor")
    transfers = late("scheduler_proc.sampling.transfers")


POOL, VOCAB = 640, 131


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return save_directory(random_llama(), tmp_path_factory.mktemp("small"))


def load(files: ModelFiles, **options: Any) -> "torch_executor.TorchExecutor":
    """An executor that may not look, as on a GPU."""
    executor = torch_executor.TorchExecutor(files, max_total_tokens=POOL, **options)
    executor.may_look = False
    return executor


class Drawn:
    """Random steps over the same rows, which grow: a prefill, then decodes and chunks."""

    def __init__(self, seed: int, rows: int = 6) -> None:
        self.rng = np.random.default_rng(seed)
        slots = self.rng.permutation(POOL)
        self.slots = [slots[100 * r : 100 * r + 100] for r in range(rows)]
        self.lens = [0] * rows

    def rows(self) -> list[Row]:
        """Each row extends by a token, or by several; some are scored; not all sample."""
        rows = []
        for r, slots in enumerate(self.slots):
            count = int(self.rng.choice([1, 1, 1, 7]))
            count = min(count if self.lens[r] else 9, 100 - self.lens[r])
            self.lens[r] += count
            ids = self.rng.integers(0, VOCAB, count)
            targets = self.rng.integers(0, VOCAB, count) if self.rng.random() < 0.3 else ()
            rows.append(Row(ids, slots[: self.lens[r]], targets, self.rng.random() < 0.9))
        return rows

    def batch(self) -> ForwardBatch:
        """A step with sampling parameters of all kinds."""
        rng, rows = self.rng, self.rows()
        count = sum(row.samples for row in rows)
        batch = make_batch(
            rows,
            temperature=rng.choice([0.0, 0.7, 1.5], count),
            top_k=rng.choice([-1, 1, 20, 125, 131], count),
            top_p=rng.choice([1.0, 0.3, 0.95], count),
            min_p=rng.choice([0.0, 0.0, 0.1], count),
            top_n_sigma=rng.choice([-1.0, 1.0], count),
            uniform=rng.random(count),
            want_logprob=rng.random(count) < 0.5,
        )
        if rng.random() < 0.5:
            changes = [
                {t: (rng.uniform(0.7, 1.5), rng.normal()) for t in rng.choice(VOCAB, 5, False)}
                for _ in range(count)
            ]
            batch.adjust = adjust_of(changes)
        if count and rng.random() < 0.5:
            ids = rng.integers(0, VOCAB, 3)
            batch.suppressed = [SuppressedIds(int(rng.integers(count)), int32(ids))]
        if rng.random() < 0.5:
            words = rng.integers(1, 2**32, (2, -(-VOCAB // 32)), dtype=np.uint32)
            batch.masks = Masks(words, int32(rng.integers(-1, 2, count)))
        total = count + len(batch.logprob_tokens)
        if total and rng.random() < 0.5:
            asking = np.flatnonzero(rng.random(total) < 0.5)
            top = rng.choice([0, 1, 5, VOCAB], len(asking))
            ids_asked = [rng.integers(0, VOCAB, rng.integers(0, 3)) for _ in asking]
            batch.details = details_of(asking.tolist(), top.tolist(), ids_asked)
        return batch


def late_step(batch: ForwardBatch, previous: ForwardBatch, result: StepResult) -> Step:
    """A step whose last token of some rows is what `previous` has sampled, with that missing."""
    count = min(previous.num_samples, batch.num_rows)
    at = batch.qo_indptr[1 : count + 1] - 1
    samples = np.arange(count)[::-1]
    batch.input_ids[at] = result.next_ids[samples]
    batch = copy.deepcopy(batch)
    batch.input_ids[at] = 0
    return Step(batch, [], LateTokens(at.astype(np.int64), samples.astype(np.int64)))


def assert_same(found: StepResult, expected: StepResult) -> None:
    assert (found.details is None) == (expected.details is None)
    for column, values in zip(found.columns, expected.columns, strict=True):
        assert column.dtype == values.dtype
        np.testing.assert_array_equal(column, values)


@pytest.mark.parametrize("seed", seeds(1))
def test_launched_steps_are_those_that_are_run(files: ModelFiles, seed: int) -> None:
    """In a chain, each on the samples of the one before, which nobody has read on the host."""
    drawn = Drawn(seed)
    running, launching = torch_executor.TorchExecutor(files, max_total_tokens=POOL), load(files)
    previous, batch = None, drawn.batch()
    result = running.run(batch)
    pending = launching.launch(Step(batch, [], LateTokens(int32([]), int32([]))), previous)
    for _ in range(8):
        following = drawn.batch()
        step = late_step(following, batch, result)
        with no_looking.NoLooking():
            after = launching.launch(step, pending)
        step.batch.input_ids[:] = 0  # read before the launch returned
        step.batch.kv_indices[:] = 0
        assert_same(pending.result(), result)
        result, pending, batch = running.run(following), after, following
    assert_same(pending.result(), result)


def test_a_look_at_a_value_is_noticed(files: ModelFiles) -> None:
    """An executor that may look does."""
    drawn, executor = Drawn(0), torch_executor.TorchExecutor(files, max_total_tokens=POOL)
    batch = drawn.batch()
    with (
        no_looking.NoLooking(),
        pytest.raises(AssertionError, match=r"looks at a value|are a mask"),
    ):
        executor.launch(Step(batch, [], LateTokens(int32([]), int32([]))), None)
    assert not executor.runs_ahead


def test_a_sampler_works_where_there_are_no_values() -> None:
    """On torch's device without data nothing can be read, so nothing waits."""
    for seed in range(12):
        batch = Drawn(seed).batch()
        upload = transfers.Upload(torch.device("meta"))
        sampler = sampling_module.Sampler(batch, VOCAB, upload, may_look=False)
        upload.send()
        ids, _ = sampler.sample(torch.empty(batch.num_samples, VOCAB, device="meta"))
        assert ids.shape == (batch.num_samples,)


TOKENS = st.integers(0, 9)
QUARTERS = st.integers(-8, 8).map(lambda n: n / 4)
SAMPLING = st.builds(
    FilledParams,
    frequency_penalty=QUARTERS,
    presence_penalty=QUARTERS,
    repetition_penalty=st.sampled_from([0.5, 1.0, 1.25]),
    logit_bias=st.dictionaries(TOKENS, st.floats(-3, 3, width=16)),
)
OUTPUTS = st.tuples(SAMPLING, st.lists(TOKENS, max_size=6), st.lists(TOKENS, max_size=8), TOKENS)


@given(st.lists(st.tuples(OUTPUTS, st.booleans()), min_size=1, max_size=5), st.randoms())
def test_late_tokens_are_counted_on_the_device_as_on_the_host(
    rows: Sequence[Any], random: Any
) -> None:
    """For each row its penalties, and whether its newest token is still being sampled."""
    lists: list[Entries] = []
    late: list[LateChange] = []
    previous = int32([token for (_, _, _, token), _ in rows])
    order = list(range(len(rows)))
    random.shuffle(order)
    for sample, ((sampling, prompt, outputs, _), is_late) in enumerate(rows):
        changes = LogitChanges(sampling, int32(prompt), vocab_size=10)
        for token in outputs:
            changes.count(token, 1)
        if is_late:
            start = sum(len(entries.ids) for entries in lists)
            lists.append(changes.entries_with_room())
            late.append(LateChange(changes, order[sample], start, lists[-1].counts))
        else:
            lists.append(changes.entries)
    adjust = with_entries(Adjust.none(0), lists)
    batch = replace(Drawn(0).batch(), adjust=adjust, suppressed=[], masks=None)
    logits = torch.from_numpy(np.random.default_rng(1).normal(0, 3, (len(rows), 10))).float()
    upload = transfers.Upload(torch.device("cpu"))
    restrictions = restrictions_module.Restrictions(batch, late, upload)
    upload.send()
    with no_looking.NoLooking():
        found = restrictions.applied(logits, torch.from_numpy(previous.astype(np.int64)))
    for change in late:
        change.fill_in(adjust, int(previous[change.sample]))
    upload = transfers.Upload(torch.device("cpu"))
    restrictions = restrictions_module.Restrictions(batch, (), upload)
    upload.send()
    expected = restrictions.applied(logits, None)
    np.testing.assert_array_equal(found.numpy(), expected.numpy())
