"""Embeddings are transformers' own, part by part."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from scheduler_proc.models.vision.choice import load_vision
from scheduler_proc.models.vision.pixels import Normalise
from srt.wire.errors import ConfigError
from tests.checkpoints_vision import FAMILIES, make_vision_checkpoint
from tests.scheduler_proc.models.vision.showing import VIDEO_FAMILIES, Showing, Shown, patches

pytestmark = pytest.mark.full

CPU = torch.device("cpu")


def encoded(vision: Any, shown: Shown) -> torch.Tensor:
    """The embeddings of a medium's items."""
    found = []
    with torch.inference_mode():
        for item, pixels in shown.processed:
            parts = range(vision.num_parts(item))
            found.append(vision.join(item, [vision.encode(item, pixels, part) for part in parts]))
            assert found[-1].shape == (item.length, vision.width)
    return torch.cat(found)


@pytest.mark.parametrize("family", FAMILIES)
def test_pictures(family: str, tmp_path: Path) -> None:
    showing = Showing(family, tmp_path)
    vision = load_vision(tmp_path, torch.float32, CPU)
    for size in ((150, 80), (60, 60), (90, 170)):
        shown = showing.picture(*size)
        ours, theirs = encoded(vision, shown), showing.features(shown)
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    without = showing.model.get_parameter_or_buffer
    names = {name for name, _ in showing.model.named_parameters() if "language" not in name}
    names = {n for n in names if "text_model" not in n and "lm_head" not in n}
    assert vision.num_bytes >= 4 * sum(without(name).numel() for name in names) > 0


@pytest.mark.parametrize("family", VIDEO_FAMILIES)
def test_videos(family: str, tmp_path: Path) -> None:
    """Also of a number of frames that groups do not divide."""
    showing = Showing(family, tmp_path)
    vision = load_vision(tmp_path, torch.float32, CPU)
    for frames in (1, 4, 5):
        shown = showing.video(frames, 60, 90)
        ours, theirs = encoded(vision, shown), showing.features(shown)
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_patches_of_the_tests_are_those_of_transformers(tmp_path: Path) -> None:
    showing = Showing("qwen2_5_vl", tmp_path)
    shown = showing.picture(60, 90)
    frame = Normalise(tmp_path, CPU, torch.float32)(shown.processed[0].pixels)
    ours = patches(torch.cat((frame, frame)), 14)
    torch.testing.assert_close(ours, shown.inputs["pixel_values"])


def test_videos_may_be_normalised_in_their_own_way(tmp_path: Path) -> None:
    pixels = np.full((1, 1, 1, 3), 100, np.uint8)

    def made(kind: str) -> float:
        return float(Normalise(tmp_path, CPU, torch.float32)(pixels, kind)[0, 0, 0, 0])

    def write(name: str, values: dict[str, Any]) -> None:
        (tmp_path / name).write_text(json.dumps(values))

    write("preprocessor_config.json", {"image_mean": [0.5] * 3, "image_std": [0.5] * 3})
    assert made("image") == made("video") == pytest.approx(100 / 127.5 - 1)
    write("video_preprocessor_config.json", {"do_normalize": False, "rescale_factor": 0.5})
    assert made("image") == pytest.approx(100 / 127.5 - 1)
    assert made("video") == 50
    nested = {"do_rescale": False, "image_mean": [1] * 3, "image_std": [3] * 3}
    write("processor_config.json", {"image_processor": nested})
    assert (made("image"), made("video")) == (33, 50)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (None, "preprocessor_config.json is missing"),
        ({}, "not three numbers"),
        ({"image_mean": [0.5], "image_std": [1]}, "not three numbers"),
        ({"image_mean": [0, 0, 0], "image_std": [1, 0, 1]}, "not three numbers"),
        ({"do_normalize": False, "rescale_factor": "much"}, "broken"),
        ([], "not an object"),
    ],
)
def test_broken_settings(settings: object, message: str, tmp_path: Path) -> None:
    if settings is not None:
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match=message):
        Normalise(tmp_path, CPU, torch.float32)


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
def test_a_tensor_is_missing(family: str, tmp_path: Path) -> None:
    make_vision_checkpoint(family, tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if "vi" in name and name.endswith("weight"))
    del tensors[name]
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(ConfigError, match="is missing"):
        load_vision(tmp_path, torch.float32, CPU)


def test_the_executor_needs_no_transformers_for_models_of_text() -> None:
    code = (
        "import sys, scheduler_proc.executor.torch_executor; print('transformers' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert found.stdout == "False\n"
