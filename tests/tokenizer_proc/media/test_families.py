"""Pixels and texts of pictures are those of transformers' processors."""

import io
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
from PIL import Image, ImageOps

from srt.wire.media import MediaRef
from tests.running.late import late
from tests.running.profiles import some
from tests.tokenizer_proc.media.checkpoints import (
    MEAN,
    STD,
    config,
    load,
    make_tokenizer,
    token_id,
)
from tests.tokenizer_proc.media.gallery import encoded, gallery, rgb
from tokenizer_proc.media.base import MediaProcessor, Processed

if TYPE_CHECKING:
    import transformers
else:
    transformers = late("transformers")


class Case(NamedTuple):
    """A family with settings, and what transformers has for it."""

    family: str
    image_class: str
    settings: dict[str, Any]
    processor_class: str
    processor: dict[str, Any]
    config: dict[str, Any]
    placeholder: str = "<image>"
    named: Mapping[str, str] = MappingProxyType({})


_TOWER = {"patch_size": 7, "vision_feature_select_strategy": "default"}
_IMAGE_ID = {"image_token_index": token_id("<image>")}
_QWEN_IDS = {
    "image_token_id": token_id("<|image_pad|>"),
    "video_token_id": token_id("<|video_pad|>"),
    "vision_start_token_id": token_id("<|vision_start|>"),
    "vision_end_token_id": token_id("<|vision_end|>"),
}
_GEMMA_IDS = {
    "image_token_index": token_id("<image_soft_token>"),
    "boi_token_index": token_id("<start_of_image>"),
    "eoi_token_index": token_id("<end_of_image>"),
}
_ONEVISION_IDS = _IMAGE_ID | {"video_token_index": token_id("<video>")}
_GEMMA_NAMES = {
    "boi_token": "<start_of_image>",
    "eoi_token": "<end_of_image>",
    "image_token": "<image_soft_token>",
}
_GRID = [[28, 56], [56, 28], [56, 56], [84, 28], [28, 84]]
_SMALL_QWEN = {"min_pixels": 56 * 56, "max_pixels": 28 * 28 * 20}
_SMOL = {"size": {"longest_edge": 128}, "max_image_size": {"longest_edge": 32}}
CASES = {
    "LLaVA, CLIP": Case(
        "Llava",
        "CLIPImageProcessorPil",
        {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}},
        "LlavaProcessor",
        _TOWER | {"num_additional_image_tokens": 1},
        _IMAGE_ID,
    ),
    "LLaVA, crops larger than pictures": Case(
        "Llava",
        "CLIPImageProcessorPil",
        {"size": 28, "crop_size": 35, "resample": 2},
        "LlavaProcessor",
        _TOWER | {"num_additional_image_tokens": 1},
        _IMAGE_ID,
    ),
    "LLaVA, SigLIP": Case(
        "Llava",
        "SiglipImageProcessorPil",
        {"size": {"height": 28, "width": 35}, "resample": 0, "do_center_crop": None},
        "LlavaProcessor",
        {"patch_size": 7, "vision_feature_select_strategy": "full"},
        _IMAGE_ID | {"vision_config": {"model_type": "siglip_vision_model"}},
    ),
    "LLaVA, padded": Case(
        "Llava",
        "LlavaImageProcessorPil",
        {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}, "do_pad": True},
        "LlavaProcessor",
        _TOWER | {"num_additional_image_tokens": 1},
        _IMAGE_ID,
    ),
    "LLaVA, edges": Case(
        "Llava",
        "CLIPImageProcessorPil",
        {"size": {"shortest_edge": 28, "longest_edge": 60}, "crop_size": 28},
        "LlavaProcessor",
        _TOWER | {"num_additional_image_tokens": 1},
        _IMAGE_ID,
    ),
    "LLaVA-NeXT": Case(
        "LlavaNext",
        "LlavaNextImageProcessorPil",
        {"size": {"shortest_edge": 28}, "crop_size": 28, "image_grid_pinpoints": _GRID},
        "LlavaNextProcessor",
        _TOWER | {"num_additional_image_tokens": 1},
        _IMAGE_ID,
    ),
    "LLaVA-OneVision": Case(
        "LlavaOnevision",
        "LlavaOnevisionImageProcessorPil",
        {
            "size": {"height": 28, "width": 28},
            "image_grid_pinpoints": [[a, b] for a in (28, 56, 84) for b in (28, 56, 84, 112)],
        },
        "LlavaOnevisionProcessor",
        {
            "num_image_tokens": 16,
            "vision_feature_select_strategy": "full",
            "vision_aspect_ratio": "anyres_max_4",
        },
        _ONEVISION_IDS,
    ),
    "Idefics3": Case(
        "Idefics3",
        "Idefics3ImageProcessorPil",
        {"size": {"longest_edge": 120}, "max_image_size": {"longest_edge": 40}},
        "Idefics3Processor",
        {"image_seq_len": 5},
        {"image_token_id": token_id("<image>")},
    ),
    "Idefics3, whole pictures": Case(
        "Idefics3",
        "Idefics3ImageProcessorPil",
        _SMOL | {"do_image_splitting": False},
        "Idefics3Processor",
        {"image_seq_len": 5},
        {"image_token_id": token_id("<image>")},
    ),
    "SmolVLM": Case(
        "SmolVLM",
        "SmolVLMImageProcessorPil",
        _SMOL,
        "Idefics3Processor",
        {"image_seq_len": 4},
        {"image_token_id": token_id("<image>")},
    ),
    "Gemma 3": Case(
        "Gemma3",
        "Gemma3ImageProcessorPil",
        {"size": {"height": 48, "width": 48}, "do_pan_and_scan": None},
        "Gemma3Processor",
        {"image_seq_length": 6},
        _GEMMA_IDS,
        "<start_of_image>",
        _GEMMA_NAMES,
    ),
    "Gemma 3, pan and scan": Case(
        "Gemma3",
        "Gemma3ImageProcessorPil",
        {
            "size": {"height": 48, "width": 48},
            "do_pan_and_scan": True,
            "pan_and_scan_min_crop_size": 30,
            "pan_and_scan_max_num_crops": 3,
            "pan_and_scan_min_ratio_to_activate": 1.2,
        },
        "Gemma3Processor",
        {"image_seq_length": 6},
        _GEMMA_IDS,
        "<start_of_image>",
        _GEMMA_NAMES,
    ),
    "Qwen2.5-VL": Case(
        "Qwen2_5_VL",
        "Qwen2VLImageProcessorPil",
        _SMALL_QWEN,
        "Qwen2_5_VLProcessor",
        {},
        _QWEN_IDS,
        "<|image_pad|>",
    ),
    "Qwen3-VL": Case(
        "Qwen3VL",
        "Qwen2VLImageProcessorPil",
        {"patch_size": 16, "size": {"shortest_edge": 64 * 64, "longest_edge": 32 * 32 * 30}},
        "Qwen3VLProcessor",
        {},
        _QWEN_IDS,
        "<|image_pad|>",
    ),
}
PICTURES = cache(gallery)


def ours(case: Case, path: Path) -> MediaProcessor:
    """Our processor."""
    name = case.image_class.removesuffix("Pil")
    norms = {"image_mean": MEAN, "image_std": STD}
    return load(
        path,
        config=config(case.family, **case.config),
        preprocessor_config={"image_processor_type": name, **norms, **case.settings},
        processor_config=case.processor,
    )


def theirs(case: Case) -> "transformers.ProcessorMixin":
    """The processor of transformers."""
    image = getattr(transformers, case.image_class)(image_mean=MEAN, image_std=STD, **case.settings)
    # Those of videos need torchvision, so there is none, which a processor does not like.
    with patch.object(transformers.ProcessorMixin, "check_argument_for_proper_class"):
        made: transformers.ProcessorMixin = getattr(transformers, case.processor_class)(
            image_processor=image, tokenizer=make_tokenizer(**case.named), **case.processor
        )
    return made


def shown(processor: MediaProcessor, data: bytes, detail: str = "auto") -> list[Processed]:
    """The items of a picture."""
    return processor.process(MediaRef("image", b"", detail=detail), [data])


def upright(data: bytes) -> Image.Image:
    """The picture as transformers loads it, but for its colours, which its processors convert."""
    return ImageOps.exif_transpose(Image.open(io.BytesIO(data)))


def normalised(pixels: np.ndarray) -> np.ndarray:
    """Rescaled and normalised: float32 [tiles, 3, height, width]."""
    mean, std = np.array(MEAN, np.float32), np.array(STD, np.float32)
    made = (pixels.astype(np.float32) / 255 - mean) / std
    return np.moveaxis(made, -1, 1)


def patches(pixels: np.ndarray, patch: int) -> np.ndarray:
    """A picture [1, 3, height, width] as Qwen's towers take it, each patch for two times."""
    _, channels, height, width = pixels.shape
    rows, columns = height // patch // 2, width // patch // 2
    cut = pixels[0].reshape(channels, rows, 2, patch, columns, 2, patch)
    cut = cut.transpose(1, 4, 2, 5, 0, 3, 6)[:, :, :, :, :, None]
    return np.repeat(cut, 2, axis=5).reshape(rows * columns * 4, -1)


def laid_out(case: Case, items: list[Processed]) -> np.ndarray:
    """All pixels of a picture as transformers has them, without what fills up a batch."""
    pixels = [normalised(item.pixels) for item in items]
    if case.placeholder == "<|image_pad|>":
        return patches(pixels[0], case.settings.get("patch_size", 14))
    return np.concatenate(pixels)


@pytest.mark.parametrize("name", some(CASES, "LLaVA-NeXT", "SmolVLM", "Qwen2.5-VL"))
def test_pixels_and_ids_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    mine, reference = ours(case, tmp_path), theirs(case)
    assert mine.placeholder("image") == case.placeholder
    pan = {k: v for k, v in case.settings.items() if "pan_and_scan" in k and v is not None}
    tokenizer = make_tokenizer()
    for what, data in PICTURES().items():
        text = f"See {case.placeholder}: what?"
        made = reference(images=[upright(data)], text=[text], return_tensors="np", **pan)
        items = shown(mine, data)
        pixels = laid_out(case, items)
        expected = made["pixel_values"].reshape(-1, *pixels.shape[1:])
        assert pixels.shape == expected.shape, what
        assert np.abs(pixels - expected).max() < 1e-5, what
        expansion = mine.expansion("image", [item for item, _ in items])
        ids = tokenizer(text.replace(case.placeholder, expansion))["input_ids"]
        assert ids == made["input_ids"][0].tolist(), what
        marks = ids.count(mine.placeholder_id)
        assert marks == sum(item.length for item, _ in items), what
        for item, own in items:
            assert item.shape == own.shape and own.dtype == np.uint8 and own.flags.c_contiguous
            assert item.size == upright(data).size[::-1], what


def test_sizes_count_where_the_model_looks_at_them(tmp_path: Path) -> None:
    """Pictures of other sizes may have equal pixels, and other embeddings for LLaVA-NeXT."""
    grey = [encoded(Image.new("RGB", size, (9, 9, 9))) for size in ((56, 56), (112, 112))]
    for name, same in (("LLaVA, CLIP", True), ("LLaVA-NeXT", False), ("SmolVLM", True)):
        path = tmp_path / name
        first, second = (shown(ours(CASES[name], path), data)[-1] for data in grey)
        assert np.array_equal(first.pixels, second.pixels)
        assert (first.item.digest == second.item.digest) is same


def test_digests_are_of_pixels_and_what_was_done(tmp_path: Path) -> None:
    case = CASES["LLaVA, CLIP"]
    mine = ours(case, tmp_path / "a")
    colours = rgb(60, 40)
    [png], [webp] = (
        shown(mine, encoded(colours, form, **more))
        for form, more in (("PNG", {}), ("WEBP", {"lossless": True}))
    )
    assert png.item == webp.item
    assert len(png.item.digest) == 32
    other = ours(case._replace(processor=case.processor | {"patch_size": 14}), tmp_path / "b")
    [again] = shown(other, encoded(colours))
    assert np.array_equal(again.pixels, png.pixels)
    assert again.item.digest != png.item.digest
    dot = colours.copy()
    dot.putpixel((30, 20), (0, 255, 0))
    assert shown(mine, encoded(dot))[0].item.digest != png.item.digest


def test_grids_count_embeddings(tmp_path: Path) -> None:
    for name, factor in (("Qwen2.5-VL", 28), ("Qwen3-VL", 32)):
        [(item, _)] = shown(ours(CASES[name], tmp_path / name), encoded(rgb(150, 90)))
        _, height, width, _ = item.shape
        assert item.grid == (1, height // factor, width // factor)
        assert item.length == item.grid[1] * item.grid[2]


@pytest.mark.parametrize("name", ["LLaVA, CLIP", "LLaVA-NeXT", "Gemma 3"])
def test_low_detail_changes_nothing_with_one_way_to_look(name: str, tmp_path: Path) -> None:
    mine, data = ours(CASES[name], tmp_path), encoded(rgb(200, 90))
    first, second = shown(mine, data), shown(mine, data, "low")
    assert [item for item, _ in first] == [item for item, _ in second]


@pytest.mark.parametrize("name", ["Idefics3", "SmolVLM", "Gemma 3, pan and scan"])
def test_low_detail_is_the_whole_picture_alone(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    mine, data = ours(case, tmp_path), encoded(rgb(200, 90))
    tiles, [whole] = shown(mine, data), shown(mine, data, "low")
    index = 0 if "Gemma" in name else -1
    assert len(tiles) > 1 and tiles[index].item == whole.item
    never = {"do_image_splitting": False, "do_pan_and_scan": False}
    other = ours(case._replace(settings=case.settings | never), tmp_path)
    alone = other.expansion("image", [item for item, _ in shown(other, data)])
    assert mine.expansion("image", [whole.item]) == alone


def test_low_detail_of_onevision_is_its_view_of_several_pictures(tmp_path: Path) -> None:
    case = CASES["LLaVA-OneVision"]
    mine, reference = ours(case, tmp_path), theirs(case)
    pair = [rgb(83, 61), rgb(40, 97)]
    made = reference(images=[pair], text=["<image>, <image>"], return_tensors="np")
    low = [shown(mine, encoded(image), "low")[0] for image in pair]
    expected = made["pixel_values"].reshape(2, 3, 28, 28)
    assert np.abs(np.concatenate([normalised(p) for _, p in low]) - expected).max() < 1e-5
    text = ", ".join(mine.expansion("image", [item]) for item, _ in low)
    assert make_tokenizer()(text)["input_ids"] == made["input_ids"][0].tolist()


def test_low_detail_of_qwen_is_at_most_512_pixels_square(tmp_path: Path) -> None:
    case = CASES["Qwen2.5-VL"]._replace(settings={"min_pixels": 56 * 56, "max_pixels": 10**7})
    mine, data = ours(case, tmp_path), encoded(rgb(1200, 700))
    (high, _), (low, _) = shown(mine, data)[0], shown(mine, data, "low")[0]
    assert high.shape[1:3] == (700, 1204)
    assert low.length <= 512 * 512 // 28**2 < high.length
    with_more = CASES["Qwen2.5-VL"]._replace(settings={"min_pixels": 600**2, "max_pixels": 10**6})
    [(least, _)] = shown(ours(with_more, tmp_path), data, "low")
    assert 580**2 < least.shape[1] * least.shape[2] <= 600**2
