"""Logits of models that see are those of transformers, whatever the batch: the torch executor."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from scheduler_proc.batch import ForwardBatch
from scheduler_proc.core.steps.media_layout import media_arrays
from scheduler_proc.executor import ExecutorOptions, make_executor
from scheduler_proc.media.spans import NO_SPANS, Spans, spans_of
from srt.files.model_files import resolve_model
from srt.wire.errors import ConfigError
from srt.wire.media import MediaSpan
from tests.checkpoints_vision import FAMILIES, make_vision_checkpoint
from tests.running.late import late
from tests.running.profiles import some
from tests.scheduler_proc.models.vision.showing import VIDEO_FAMILIES, Showing, Shown, together
from tests.scheduler_proc.ragged import Row, make_batch

if TYPE_CHECKING:
    import safetensors.torch as safetensors_torch
    import torch

    from scheduler_proc.executor import torch_executor
else:
    safetensors_torch = late("safetensors.torch")
    torch = late("torch")
    torch_executor = late("scheduler_proc.executor.torch_executor")


POOL = 512
TYPES = {"image": 1, "video": 2}


class Prompt(NamedTuple):
    """Ids with placeholders, what stands there, and what transformers takes beside them."""

    ids: np.ndarray
    media: list[MediaSpan]
    shown: list[Shown]


class Seeing(Showing):
    """The same in an executor."""

    def __init__(self, family: str, path: Path, make: Callable[..., Any] | None = None) -> None:
        super().__init__(family, path)
        make = make or torch_executor.TorchExecutor
        self.executor = make(resolve_model(str(path)), max_total_tokens=POOL)

    def prompt(self, *parts: int | tuple[int, ...]) -> Prompt:
        """So many tokens of text, pictures of these heights and widths, and videos of so many
        frames of these, in turn."""
        ids: list[int] = []
        media, collected = [], []
        for part in parts:
            if isinstance(part, int):
                ids += self.rng.integers(0, 250, part).tolist()
                continue
            shown = self.picture(*part) if len(part) == 2 else self.video(*part)
            collected.append(shown)
            for item, pixels in shown.processed:
                for number in range(self.executor.num_parts(item)):
                    self.executor.encode(item, pixels, number)
                media.append(MediaSpan(len(ids), item))
                ids += [self.placeholder(shown.kind)] * item.length + [7]
        return Prompt(np.array(ids, np.int32), media, collected)

    def theirs(self, prompt: Prompt) -> "torch.Tensor":
        ids = torch.from_numpy(prompt.ids).long()[None]
        types = torch.zeros_like(ids)
        for span in prompt.media:
            types[:, span.start : span.stop] = TYPES[span.item.kind]
        extra = {}
        if self.family == "gemma3":
            extra = {"token_type_ids": types}
        elif "qwen" in self.family:
            extra = {"mm_token_type_ids": types}
        inputs = together(prompt.shown, self.family)
        with torch.inference_mode():
            found: torch.Tensor = self.model(input_ids=ids, **inputs, **extra).logits[0]
        return found

    def spans(self, prompt: Prompt) -> Spans:
        return spans_of(prompt.media, self.executor.media_facts)

    def batch(self, *rows: tuple[Prompt, int, int, np.ndarray]) -> ForwardBatch:
        """Rows of prompts' tokens [start, stop), whose slots are given."""
        batch = make_batch([Row(p.ids[a:b], slots[:b]) for p, a, b, slots in rows])
        reqs: Any = [
            SimpleNamespace(
                start=a, extend_len=b - a, req=SimpleNamespace(spans=self.spans(p) or NO_SPANS)
            )
            for p, a, b, _ in rows
        ]
        media = media_arrays(reqs, batch.qo_indptr, batch.positions)
        batch.embeds, batch.grid_positions, batch.visible_until = media
        return batch

    def ours(self, *rows: tuple[Prompt, int, int, np.ndarray]) -> "torch.Tensor":
        with torch.inference_mode():
            hidden = self.executor.forward(self.batch(*rows))
            found: torch.Tensor = self.executor.model.logits(hidden)
        return found


SLOTS = np.random.default_rng(2).permutation(POOL).astype(np.int32)


@pytest.mark.parametrize("family", some(FAMILIES, "llava_next"))
def test_pictures(family: str, tmp_path: Path) -> None:
    """Two between texts."""
    check(Seeing(family, tmp_path), 3, (70, 60), 4, (60, 110), 5)


@pytest.mark.parametrize("family", some(VIDEO_FAMILIES, "qwen2_5_vl"))
def test_videos(family: str, tmp_path: Path) -> None:
    """One beside a picture."""
    check(Seeing(family, tmp_path), 3, (5, 60, 70), 4, (70, 60), 5)


def check(seeing: Seeing, *parts: int | tuple[int, ...]) -> None:
    """In one step beside a row of text, in chunks that cut a span where that is allowed, and on a
    prefix that is computed already."""
    prompt = seeing.prompt(*parts)
    theirs, length = seeing.theirs(prompt), len(prompt.ids)
    text = seeing.prompt(9)
    text_slots = SLOTS[-9:]
    both = seeing.ours((text, 0, 9, text_slots), (prompt, 0, length, SLOTS))
    torch.testing.assert_close(both[9:], theirs, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(both[:9], seeing.theirs(text), atol=1e-3, rtol=1e-3)
    chunks, at, other = [], 0, SLOTS[length:]
    spans = seeing.spans(prompt)
    while at < length:
        stop = spans.usable(min(at + 6, length))
        stop = stop if stop > at else spans.within(at, at + 1)[0].stop
        chunks.append(seeing.ours((prompt, at, stop, other)))
        at = stop
    torch.testing.assert_close(torch.cat(chunks), theirs, atol=1e-3, rtol=1e-3)
    again = seeing.ours((prompt, length - 2, length, SLOTS))
    torch.testing.assert_close(again, theirs[-2:], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("family", some(FAMILIES))
def test_names_of_tensors_of_other_generations(family: str, tmp_path: Path) -> None:
    """save_pretrained writes the names that files of the hubs have; these are the model's own."""
    first = Seeing(family, tmp_path)
    file = tmp_path / "model.safetensors"
    before = safetensors_torch.load_file(file)
    tensors = {name: t.clone() for name, t in first.model.state_dict().items()}
    if "lm_head.weight" not in before and "language_model.lm_head.weight" not in before:
        del tensors["lm_head.weight"]
    safetensors_torch.save_file(tensors, file, {"format": "pt"})
    prompt = first.prompt(3, (70, 60), 4)
    second = Seeing(family, tmp_path / "second")
    (tmp_path / "second" / "model.safetensors").write_bytes(file.read_bytes())
    second.executor = torch_executor.TorchExecutor(
        resolve_model(str(tmp_path / "second")), max_total_tokens=POOL
    )
    other = second.prompt(3, (70, 60), 4)
    assert np.array_equal(prompt.ids, other.ids)
    row = (0, len(prompt.ids), SLOTS)
    torch.testing.assert_close(second.ours((other, *row)), first.ours((prompt, *row)))


def test_transformers_has_no_text_of_models_that_see(tmp_path: Path) -> None:
    make_vision_checkpoint("llava", tmp_path)
    options = ExecutorOptions(max_total_tokens=8, model_impl="transformers")
    with pytest.raises(ConfigError, match="--model-impl transformers: the text of a model"):
        make_executor("torch", resolve_model(str(tmp_path)), options)


@pytest.mark.parametrize("family", some(FAMILIES, "qwen3_vl"))
def test_text_alone(family: str, tmp_path: Path) -> None:
    """Without the tower, whose tensors may be missing."""
    model = make_vision_checkpoint(family, tmp_path)
    file = tmp_path / "model.safetensors"
    others = ("vision", "visual", "projector", "connector", "image_newline")
    tensors = {
        k: t
        for k, t in safetensors_torch.load_file(file).items()
        if not any(o in k for o in others)
    }
    safetensors_torch.save_file(tensors, file, {"format": "pt"})
    options = ExecutorOptions(max_total_tokens=64, sees=False)
    ids = np.arange(3, 17, dtype=np.int32)
    executor = make_executor("torch", resolve_model(str(tmp_path)), options)
    assert isinstance(executor, torch_executor.TorchExecutor) and executor.media_facts is None
    batch = make_batch([Row(ids, np.arange(len(ids), dtype=np.int32))])
    with torch.inference_mode():
        ours = executor.model.logits(executor.forward(batch))
        theirs = model(input_ids=torch.from_numpy(ids).long()[None]).logits[0]
    torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-3)
    with pytest.raises(ConfigError):
        make_executor("torch", resolve_model(str(tmp_path)), ExecutorOptions(max_total_tokens=64))
