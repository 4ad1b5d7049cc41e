"""What both sides make of a picture or a video: items of our processor, inputs of transformers'."""

import importlib
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image

from srt.files.model_files import resolve_model
from srt.wire.media import MediaRef
from tests.checkpoints_vision import FAMILIES, make_vision_checkpoint
from tests.running.late import late
from tokenizer_proc.media.base import Processed
from tokenizer_proc.media.load import load_processor

if TYPE_CHECKING:
    import torch
else:
    torch = late("torch")


VIDEO_FAMILIES = ("llava_onevision", "qwen2_5_vl", "qwen3_vl", "smolvlm")
_OF_OTHERS = {"image_processor_type", "video_sampling"}  # settings
_PROCESSORS = {
    "llava": ("clip", "CLIP"),
    "llava_next": ("llava_next", "LlavaNext"),
    "llava_onevision": ("llava_onevision", "LlavaOnevision"),
    "idefics3": ("idefics3", "Idefics3"),
    "smolvlm": ("smolvlm", "SmolVLM"),
    "gemma3": ("gemma3", "Gemma3"),
    "qwen2_5_vl": ("qwen2_vl", "Qwen2VL"),
    "qwen3_vl": ("qwen2_vl", "Qwen2VL"),
}
_INPUTS = {"pixel_values", "image_sizes", "image_grid_thw", "pixel_attention_mask"}


class Shown(NamedTuple):
    """One medium."""

    kind: str
    processed: list[Processed]
    inputs: "dict[str, torch.Tensor]"  # of transformers' model


class Showing:
    """A checkpoint of a family with transformers' model of it, and media to show."""

    def __init__(self, family: str, path: Path) -> None:
        self.family = family
        self.model = make_vision_checkpoint(family, path)
        processor = load_processor(resolve_model(str(path)))
        assert processor is not None
        self.processor = processor
        self.settings = dict(FAMILIES[family].preprocessor)
        self.rng = np.random.default_rng(5)

    def placeholder(self, kind: str) -> int:
        mine = self.processor
        return mine.placeholder_id if kind == "image" else mine.video_placeholder_id

    def picture(self, height: int, width: int) -> Shown:
        picture = self._noise(height, width)
        processed = self.processor.process(MediaRef("image", b""), [_png(picture)])
        module, name = _PROCESSORS[self.family]
        module = f"transformers.models.{module}.image_processing_pil_{module}"
        settings = {k: v for k, v in self.settings.items() if k not in _OF_OTHERS}
        theirs = getattr(importlib.import_module(module), f"{name}ImageProcessorPil")(**settings)
        inputs = theirs(picture, return_tensors="pt")
        names = _INPUTS - ({"image_sizes"} if self.family == "llava" else set())
        return Shown("image", processed, {k: v for k, v in inputs.items() if k in names})

    def video(self, frames: int, height: int, width: int) -> Shown:
        files = [_png(self._noise(height, width)) for _ in range(frames)]
        processed = self.processor.process(MediaRef("video", b"", frames), files)
        pixels = np.concatenate([pixels for _, pixels in processed])
        mean, std = (torch.tensor(self.settings[name]) for name in ("image_mean", "image_std"))
        shown = ((torch.from_numpy(pixels) / 255 - mean) / std).permute(0, 3, 1, 2)
        if self.family == "llava_onevision":
            return Shown("video", processed, {"pixel_values_videos": shown[None]})
        if self.family == "smolvlm":  # whose frames are pictures
            mask = torch.ones(1, len(shown), *shown.shape[2:], dtype=torch.int64)
            inputs = {"pixel_values": shown[None], "pixel_attention_mask": mask}
            return Shown("video", processed, inputs)
        side = self.settings["patch_size"]
        grid = (len(shown) // 2, shown.shape[2] // side, shown.shape[3] // side)
        inputs = {
            "pixel_values_videos": patches(shown, side),
            "video_grid_thw": torch.tensor([grid]),
        }
        if self.family == "qwen2_5_vl":
            speed = self.model.config.vision_config.tokens_per_second
            inputs["second_per_grid_ts"] = torch.tensor([processed[0].item.time_step / speed])
        return Shown("video", processed, inputs)

    def features(self, shown: Shown) -> "torch.Tensor":
        """The embeddings that transformers' model makes of a medium, [n, width]."""
        inputs = {k: v for k, v in shown.inputs.items() if k != "second_per_grid_ts"}
        kind = "image" if self.family == "smolvlm" else shown.kind
        with torch.inference_mode():
            found = getattr(self.model.model, f"get_{kind}_features")(**inputs)
        embeds = torch.cat([part.reshape(-1, part.shape[-1]) for part in found.pooler_output])
        deep = [features[0] for features in getattr(found, "deepstack_features", None) or ()]
        return torch.cat([embeds, *deep], dim=-1)

    def _noise(self, height: int, width: int) -> Image.Image:
        return Image.fromarray(self.rng.integers(0, 255, (height, width, 3), np.uint8))


def patches(frames: "torch.Tensor", side: int) -> "torch.Tensor":
    """As Qwen's towers take frames [n, 3, height, width]: two frames and squares of two by two
    patches at a time."""
    _, _, height, width = frames.shape
    corners = [
        (time, row + y, column + x)
        for time in range(0, len(frames), 2)
        for row in range(0, height, 2 * side)
        for column in range(0, width, 2 * side)
        for y in (0, side)
        for x in (0, side)
    ]
    cut = [frames[t : t + 2, :, y : y + side, x : x + side] for t, y, x in corners]
    return torch.stack([patch.transpose(0, 1).flatten() for patch in cut])


def together(shown: list[Shown], family: str) -> dict[str, Any]:
    """What transformers takes for all media of one prompt."""
    found = {}
    for name in {name: None for one in shown for name in one.inputs}:
        values = [one.inputs[name] for one in shown if name in one.inputs]
        if family in ("idefics3", "smolvlm"):  # all tiles of a prompt, [1, tiles, ...]
            found[name] = torch.cat(values, dim=1)
            continue
        if values[0].ndim == 5:  # as many tiles for each picture
            most = max(value.shape[1] for value in values)
            missing = [(0,) * 7 + (most - value.shape[1],) for value in values]
            pairs = zip(values, missing, strict=True)
            values = [torch.nn.functional.pad(value, pad) for value, pad in pairs]
        found[name] = torch.cat(values)
    return found


def _png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()
