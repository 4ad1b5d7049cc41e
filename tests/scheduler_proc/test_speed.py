"""What is measured to say how fast a model would be."""

import numpy as np
import pytest

from scheduler_proc import speed
from scheduler_proc.executor.native_executor import NativeExecutor
from scheduler_proc.kernels.library import NativeUnavailable, load
from scheduler_proc.models.checkpoint import first_layers, open_checkpoint
from scheduler_proc.models.tensors import check_tensors
from srt.files.model_files import resolve_model
from srt.files.sizes import ModelSizes

FILES = resolve_model("smollm2")


@pytest.fixture(autouse=True)
def _kernels() -> None:
    try:
        load()
    except NativeUnavailable as error:
        pytest.skip(str(error))


def test_the_first_layers_are_a_model() -> None:
    whole = open_checkpoint(FILES)
    part = first_layers(whole, 3)
    check_tensors(part)
    assert part.config.layers == 3
    assert 0.1 < part.num_bytes / whole.num_bytes < 0.6
    assert np.array_equal(part.raw("model.norm.weight").data, whole.raw("model.norm.weight").data)


@pytest.mark.full
def test_all_layers_compute_what_the_model_does() -> None:
    results = []
    for layers in (None, 30, 29):
        executor = NativeExecutor(FILES, max_total_tokens=300, num_threads=1, num_layers=layers)
        results.append(int(executor.run(speed._step(np.ones(256, np.int32), 0)).next_ids[0]))
        executor.close()
    assert results[0] == results[1]


def test_a_line_through_two_excerpts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []

    def measured(files: object, layers: int | None) -> float:
        asked.append(layers)
        return 0.002 + 0.001 * (30 if layers is None else layers)

    monkeypatch.setattr(speed, "_measured", measured)
    assert speed.decode_seconds(FILES) == pytest.approx(0.032)  # small enough to run whole
    assert speed.decode_seconds(FILES, 2**24) == pytest.approx(0.032)
    whole, few, more = asked
    assert whole is None and few is not None and more == 2 * few < 30


def test_an_excerpt_of_a_mixture_has_more_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a token reads is large, too: a sixteenth of the weights in place of all."""
    sizes = ModelSizes(3200, 6400, 1, 1, 1, 3200)
    monkeypatch.setattr(speed, "model_sizes", lambda files: sizes)
    assert speed.excerpt_layers(FILES, 100.0, 1000) == 10
    sizes = sizes._replace(active_bytes=200, expert_bytes=3100)
    assert speed.excerpt_layers(FILES, 100.0, 1000) == 40
    assert speed.excerpt_layers(FILES, 1e9, 1000) == 2
