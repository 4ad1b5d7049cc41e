"""Embeddings in place of ids in the native executor: against transformers, and to the bit."""

import copy
from collections.abc import Iterator, Sequence
from ctypes import byref, c_float
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from scheduler_proc.batch import Embeds, ForwardBatch
from scheduler_proc.executor.base import seeing
from scheduler_proc.executor.media_store import MediaStore
from scheduler_proc.executor.native_executor import NativeExecutor
from scheduler_proc.kernels.library import pointer
from srt.files.model_files import ModelFiles
from srt.wire.media import MediaItem, MediaSpan
from tests.running.late import late
from tests.running.profiles import some
from tests.scheduler_proc.executor.test_native_executor import (
    POOL,
    SIZES,
    load,
    random_ids,
    random_slots,
)
from tests.scheduler_proc.kernels.ops import levels, load_or_skip
from tests.scheduler_proc.media_items import GivenVision, embeds_of, item_of, pixels_of
from tests.scheduler_proc.models.checkpoints import random_llama, save_directory
from tests.scheduler_proc.ragged import Row, make_batch

if TYPE_CHECKING:
    import torch
else:
    torch = late("torch")


PLACEHOLDER = 5
LENGTH = 60


class Shown(NamedTuple):
    """A prompt with placeholders, and what stands there."""

    ids: np.ndarray
    spans: tuple[MediaSpan, ...]

    def embeds(self, start: int, stop: int, first: int = 0) -> Embeds | None:
        """Of the tokens [start, stop), the first of which is the batch's token `first`."""
        runs = []
        for span in self.spans:
            begin, end = max(start, span.start), min(stop, span.stop)
            if begin < end:
                runs.append((first + begin - start, end - begin, begin - span.start, span.item))
        return embeds_of(*runs) if runs else None


@pytest.fixture(scope="module")
def model() -> Any:
    return random_llama(**SIZES)


@pytest.fixture(scope="module")
def files(model: Any, tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return save_directory(model, tmp_path_factory.mktemp("media"))


def shown_prompt(*spans: tuple[int, MediaItem]) -> Shown:
    ids = random_ids(LENGTH)
    for start, item in spans:
        ids[start : start + item.length] = PLACEHOLDER
    return Shown(ids, tuple(MediaSpan(start, item) for start, item in spans))


A, B = item_of("a", 12), item_of("b", 9, tiles=2)
PROMPT = shown_prompt((4, A), (16, B), (40, A))  # A and B side by side, A twice
ROWS = {
    item.digest: np.random.default_rng(seed).normal(0, 0.5, (item.length, 96)).astype(np.float32)
    for seed, item in enumerate((A, B))
}


def seeing_executor(files: ModelFiles, **options: Any) -> NativeExecutor:
    """An executor that has encoded A and B."""
    vision = GivenVision(96)
    executor = load(files, vision=vision, **options)
    for item in (A, B):
        show(executor, vision, item, ROWS[item.digest])
    return executor


def show(executor: NativeExecutor, vision: GivenVision, item: MediaItem, rows: np.ndarray) -> None:
    vision.give(item, rows)
    for part in range(executor.num_parts(item)):
        executor.encode(item, pixels_of(item), part)


def step(executor: NativeExecutor, rows: Sequence[tuple[Shown, int, int, np.ndarray]]) -> Any:
    """One step of rows (prompt, start, stop, slots), all of whose ids are scored."""
    return executor.run(batch_of(rows))


def batch_of(rows: Sequence[tuple[Shown, int, int, np.ndarray]]) -> ForwardBatch:
    batch = make_batch(
        [
            Row(prompt.ids[start:stop], slots[:stop], targets=prompt.ids[start + 1 : stop + 1])
            for prompt, start, stop, slots in rows
        ],
        want_logprob=True,
    )
    runs = [
        prompt.embeds(start, stop, int(batch.qo_indptr[i]))
        for i, (prompt, start, stop, _) in enumerate(rows)
    ]
    joined = [run for run in runs if run is not None]
    if joined:
        batch.embeds = Embeds(
            np.concatenate([run.at for run in joined]),
            np.concatenate([run.lengths for run in joined]),
            np.concatenate([run.offsets for run in joined]),
            [digest for run in joined for digest in run.digests],
        )
    return batch


def logprobs(executor: NativeExecutor, prompt: Shown, chunk: int = LENGTH) -> np.ndarray:
    """log p of every id after the first, computed in chunks, and the id that follows."""
    slots, parts = random_slots(LENGTH), []
    for start in range(0, LENGTH, chunk):
        result = step(executor, [(prompt, start, min(start + chunk, LENGTH), slots)])
        parts.append(result.prompt_logprobs)
    return np.concatenate([*parts, result.next_ids])


def transformers_logprobs(model: Any, prompt: Shown) -> np.ndarray:
    """The same, of transformers in float64."""
    ids, double = torch.from_numpy(prompt.ids)[None], copy.deepcopy(model).double()
    with torch.inference_mode():
        embeddings = double.get_input_embeddings()(ids)
        for span in prompt.spans:
            embeddings[0, span.start : span.stop] = torch.from_numpy(ROWS[span.item.digest])
        logits = double(inputs_embeds=embeddings).logits[0]
    found = logits.log_softmax(-1)[:-1].gather(1, ids[0, 1:, None])[:, 0]
    return np.concatenate([found.numpy(), [int(logits[-1].argmax())]])


@pytest.mark.parametrize("isa", levels())
@pytest.mark.parametrize("chunk", some([LENGTH, 7], 7))
def test_as_transformers_with_the_same_embeddings(
    model: Any, files: ModelFiles, isa: str, chunk: int
) -> None:
    """Chunks of 7 cut every span."""
    expected = transformers_logprobs(model, PROMPT)
    found = logprobs(seeing_executor(files, exact=True, isa=isa), PROMPT, chunk)
    np.testing.assert_allclose(found, expected, atol=1e-3)
    text = logprobs(seeing_executor(files, exact=True, isa=isa), Shown(PROMPT.ids, ()))
    assert np.abs(text - expected)[:-1].max() > 0.1


@pytest.mark.parametrize("isa", levels())
@pytest.mark.parametrize("options", some([{"exact": True}, {}, {"quantization": "q8"}], {}))
def test_rows_of_the_table_are_what_ids_are(
    files: ModelFiles, isa: str, options: dict[str, Any]
) -> None:
    """To the bit, in any format of the table."""
    prompt = Shown(random_ids(LENGTH), PROMPT.spans[:2])
    vision = GivenVision(96)
    executor = load(files, vision=vision, isa=isa, **options)
    for span in prompt.spans:
        show(executor, vision, span.item, table_rows(executor, prompt.ids[span.start : span.stop]))
    expected = logprobs(executor, Shown(prompt.ids, ()))
    np.testing.assert_array_equal(logprobs(executor, prompt, chunk=11), expected)


def table_rows(executor: NativeExecutor, ids: np.ndarray) -> np.ndarray:
    library, rows = load_or_skip(), np.empty((len(ids), 96), np.float32)
    for row, token in zip(rows, ids.tolist(), strict=True):
        table = byref(executor._weights.embed)
        library.check(library.c.srt_unpack_row(table, token, pointer(row, c_float)))
    return rows


@pytest.mark.parametrize("isa", levels())
@pytest.mark.parametrize("options", some([{"exact": True}, {}, {"quantization": "q8"}], {}))
def test_the_same_bits_in_chunks_in_company_and_after_a_prefix(
    files: ModelFiles, isa: str, options: dict[str, Any]
) -> None:
    executor = seeing_executor(files, isa=isa, **options)
    alone = logprobs(executor, PROMPT)
    for chunk in (1, 13):
        np.testing.assert_array_equal(logprobs(executor, PROMPT, chunk), alone)
    slots = np.random.default_rng(3).permutation(POOL).reshape(-1, 80)
    others = Shown(random_ids(LENGTH, seed=7), ()), shown_prompt((30, B))
    crowd = [(others[0], 0, 50, slots[0]), (PROMPT, 0, LENGTH, slots[1])]
    crowd += [(others[1], 0, LENGTH, slots[2]), (PROMPT, 0, 20, slots[3])]
    result = step(executor, crowd)
    np.testing.assert_array_equal(result.prompt_logprobs[50 : 50 + LENGTH - 1], alone[:-1])
    assert result.next_ids[1] == alone[-1]
    np.testing.assert_array_equal(result.prompt_logprobs[-20:], alone[:20])
    # The prefix ends within B's span, and another row shares it.
    rest = step(executor, [(PROMPT, 20, LENGTH, np.append(slots[3][:20], slots[4]))])
    np.testing.assert_array_equal(rest.prompt_logprobs, alone[20:-1])
    assert rest.next_ids[0] == alone[-1]


def test_nan_stays_in_its_row(files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """Embeddings that are no numbers are refused; if they were not, they would spoil one row."""
    vision = GivenVision(96)
    executor = load(files, vision=vision)
    odd = np.full((A.length, 96), np.nan, np.float32)
    with pytest.raises(ValueError, match="not finite"):
        show(executor, vision, A, odd)
    monkeypatch.setattr(MediaStore, "_checked", lambda _, __, rows: rows)
    show(executor, vision, A, odd)
    text = Shown(random_ids(LENGTH, seed=7), ())
    slots = np.random.default_rng(3).permutation(POOL).reshape(-1, 80)
    alone = step(executor, [(text, 0, LENGTH, slots[0])])
    spoilt = Shown(PROMPT.ids, PROMPT.spans[:1])
    result = step(executor, [(spoilt, 0, LENGTH, slots[1]), (text, 0, LENGTH, slots[2])])
    assert np.isnan(result.prompt_logprobs[30])
    np.testing.assert_array_equal(result.prompt_logprobs[LENGTH - 1 :], alone.prompt_logprobs)
    assert (result.next_ids[1], result.logprobs[1]) == (alone.next_ids[0], alone.logprobs[0])


# ---- what is refused ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def executor(files: ModelFiles) -> Iterator[NativeExecutor]:
    executor = seeing_executor(files, exact=True)
    yield executor
    executor.close()


def test_bad_steps_are_refused_and_harm_nothing(executor: NativeExecutor) -> None:
    rows = [(PROMPT, 0, LENGTH, random_slots(LENGTH))]
    good = step(executor, rows)
    unknown = item_of("unknown", 3)
    for runs, message in (
        ([(0, 3, 0, unknown)], "not encoded"),
        ([(0, 3, 10, A)], "rows 10 to 13 of 12"),
        ([(LENGTH - 1, 2, 0, A)], "embeds: runs at"),
        ([(3, 2, 0, A), (4, 1, 0, B)], "embeds: runs at"),
    ):
        bad = batch_of(rows)
        bad.embeds = embeds_of(*runs)
        with pytest.raises(ValueError, match=message):
            executor.run(bad)
    for field in ("grid_positions", "visible_until"):
        bad = batch_of(rows)
        setattr(bad, field, bad.positions)
        with pytest.raises(ValueError, match="three parts"):
            executor.run(bad)
    for before, after in zip(good.columns, step(executor, rows).columns, strict=True):
        np.testing.assert_array_equal(before, after)


def test_facts(executor: NativeExecutor, files: ModelFiles) -> None:
    assert seeing(executor) is executor
    assert executor.media_facts is not None
    assert executor.media_facts == (4 * 96, False, False, True)
    blind = load(files)
    assert seeing(blind) is None
    with pytest.raises(ValueError, match="sees no media"):
        step(blind, [(PROMPT, 0, LENGTH, random_slots(LENGTH))])


def test_a_dropped_item_is_not_there(files: ModelFiles) -> None:
    executor = seeing_executor(files, exact=True)
    executor.drop_media(A.digest)
    with pytest.raises(ValueError, match="not encoded"):
        logprobs(executor, PROMPT)
    assert len(logprobs(executor, shown_prompt((16, B)))) == LENGTH
