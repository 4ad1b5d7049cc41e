"""What a tower computes in slices is what it computes at once, to the bit."""

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from scheduler_proc.executor.media_store import MediaStore
from srt.wire.media import MediaItem
from tests.checkpoints_vision import FAMILIES
from tests.running.late import late
from tests.scheduler_proc.media_items import embeds_of
from tests.scheduler_proc.models.vision.showing import Showing

if TYPE_CHECKING:
    import torch

    from scheduler_proc.executor import torch_slices
    from scheduler_proc.models.vision import choice

    Store = MediaStore[torch.Tensor, torch.Tensor]
else:
    choice = late("scheduler_proc.models.vision.choice")
    torch = late("torch")
    torch_slices = late("scheduler_proc.executor.torch_slices")


class Sliced:
    """A tower whose parts are encoded in slices, and the items of a picture."""

    def __init__(self, family: str, path: Path) -> None:
        self.processed = Showing(family, path).picture(150, 80).processed
        self.vision = choice.load_vision(path, torch.float32, torch.device("cpu"))
        self.slices = torch_slices.torch_slices()
        self.store = self._store(self.slices)

    def _store(self, slices: Any) -> "Store":
        vision = self.vision
        return MediaStore(vision.width, vision.num_parts, vision.encode, vision.join, slices)

    def at_once(self, item: MediaItem, pixels: np.ndarray) -> "torch.Tensor":
        store = self._store(None)
        with torch.inference_mode():
            for part in range(store.num_parts(item)):
                assert store.encode(item, pixels, part)
        return self.rows(store, item)

    def in_slices(self, item: MediaItem, pixels: np.ndarray) -> int:
        """The number of slices."""
        count = 0
        for part in range(self.store.num_parts(item)):
            count += 1
            while not self.store.encode(item, pixels, part, 0.0):
                count += 1
        return count

    def rows(self, store: "Store", item: MediaItem) -> "torch.Tensor":
        return store.rows(embeds_of((0, item.length, 0, item)))[0]


def num_threads() -> int:
    return sum(thread.name == "slices" for thread in threading.enumerate())


@pytest.mark.parametrize("family", FAMILIES)
def test_slices_change_no_bit(family: str, tmp_path: Path) -> None:
    sliced = Sliced(family, tmp_path)
    for item, pixels in sliced.processed[:2]:
        expected = sliced.at_once(item, pixels)
        assert sliced.in_slices(item, pixels) > 20
        assert torch.equal(sliced.rows(sliced.store, item), expected)
    assert num_threads() == 0


def test_an_item_that_is_dropped_in_the_middle_of_a_part(tmp_path: Path) -> None:
    sliced = Sliced("idefics3", tmp_path)
    item, pixels = sliced.processed[0]
    for _ in range(9):
        assert not sliced.store.encode(item, pixels, 0, 0.0)
    sliced.store.drop(b"another")
    assert num_threads() == 1
    sliced.store.drop(item.digest)
    assert num_threads() == 0 and len(sliced.store) == 0
    sliced.in_slices(item, pixels)
    assert torch.equal(sliced.rows(sliced.store, item), sliced.at_once(item, pixels))


def test_an_error_in_the_middle_of_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sliced = Sliced("llava", tmp_path)
    item, pixels = sliced.processed[0]
    for _ in range(9):
        assert not sliced.store.encode(item, pixels, 0, 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(torch.nn.functional, "linear", lambda *args: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            while not sliced.store.encode(item, pixels, 0, 0.0):
                pass
    assert num_threads() == 0 and sliced.slices.paused is None
    sliced.in_slices(item, pixels)
    assert torch.equal(sliced.rows(sliced.store, item), sliced.at_once(item, pixels))


def test_the_thread_computes_as_the_others_do() -> None:
    slices, seen = torch_slices.torch_slices(), list[tuple[int, bool]]()

    def call() -> None:
        seen.append((torch.get_num_threads(), torch.ones(1).is_inference()))

    assert slices.run((b"a", 0), call, 1e6)
    assert seen == [(torch.get_num_threads(), True)]
