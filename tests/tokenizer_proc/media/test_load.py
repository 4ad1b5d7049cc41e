"""Which models see, and which settings are refused by their names."""

import json
from pathlib import Path
from typing import Any

import pytest

from srt.files.model_files import ModelFiles
from srt.wire.errors import ConfigError
from srt.wire.media import MediaRef
from tests.tokenizer_proc.media.checkpoints import config, load, token_id, write
from tests.tokenizer_proc.media.gallery import encoded, rgb
from tests.tokenizer_proc.media.test_families import CASES, ours, shown
from tokenizer_proc.media.base import MediaError
from tokenizer_proc.media.load import load_processor

LLAVA = config("Llava", image_token_index=token_id("<image>"))


def test_models_of_text_have_no_processor(tmp_path: Path) -> None:
    assert load_processor(ModelFiles("m", "gguf", tmp_path / "m.gguf")) is None
    assert load_processor(write(tmp_path, config={"architectures": ["LlamaForCausalLM"]})) is None
    gemma = {"architectures": ["Gemma3ForCausalLM"]}
    assert load_processor(write(tmp_path, config=gemma)) is None
    assert load_processor(write(tmp_path, config={})) is None


def test_unknown_vision_is_refused(tmp_path: Path) -> None:
    files = write(tmp_path, config=config("PaliGemma"))
    with pytest.raises(ConfigError, match=r"PaliGemmaForConditionalGeneration.*not supported"):
        load_processor(files)


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        ({}, {"image_processor_type": "BitImageProcessor"}, "image_processor_type: 'BitImage"),
        ({}, {"do_pad": True}, "do_pad: is not supported"),
        ({}, {"resample": 9}, "resample: 9 is no filter"),
        ({}, {"size": {"longest_edge": 9}}, "size: longest_edge alone"),
        ({}, {"size": {"height": 9}}, "size:.*is not a size"),
        ({}, {"size": {"max_height": 9, "max_width": 9}}, "size:.*max_height"),
        ({}, {"size": {"shortest_edge": -1}}, "size:.*is not a size"),
        ({}, {"size": [1, 2, 3]}, "size: is not a height and a width"),
        ({}, {"size": "large"}, "size:"),
        ({}, {"image_mean": [0.5]}, "image_mean:"),
        ({}, {"crop_size": {"shortest_edge": 4}}, "crop_size: has no height"),
        ({}, {"do_resize": "yes"}, "do_resize:"),
        ({"vision_feature_select_strategy": "odd"}, {}, "select_strategy: 'odd'"),
        ({"vision_config": {"model_type": "pixtral"}}, {}, "model_type: 'pixtral'"),
        ({"vision_config": {"patch_size": 0}}, {}, "patch_size: 0 is not positive"),
        ({"image_token_index": 9}, {}, "token 9,.* added tokens"),
    ],
)
def test_settings_of_llava(
    model: dict[str, Any], settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    files = write(tmp_path, config=LLAVA | model, preprocessor_config=settings)
    with pytest.raises(ConfigError, match=message):
        load_processor(files)


@pytest.mark.parametrize(
    ("case", "settings", "message"),
    [
        ("LLaVA-NeXT", {"image_grid_pinpoints": [[28, 30]]}, r"pinpoints: \[28, 30\]"),
        ("LLaVA-NeXT", {"image_grid_pinpoints": []}, "pinpoints: is empty"),
        ("Idefics3", {"max_image_size": {"height": 4, "width": 4}}, "max_image_size: only"),
        ("Gemma 3", {"do_resize": False}, "do_resize: false"),
        ("Qwen2.5-VL", {"do_resize": False}, "do_resize: false"),
        ("Qwen2.5-VL", {"min_pixels": 9, "max_pixels": 4}, "size: must have"),
        ("Qwen3-VL", {"size": {"longest_edge": 99999}}, "size: must have"),
    ],
)
def test_settings_of_others(
    case: str, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    changed = CASES[case]._replace(settings=CASES[case].settings | settings)
    with pytest.raises(ConfigError, match=message):
        ours(changed, tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vision_feature_select_strategy": "default"}, "only 'full'"),
        ({"vision_aspect_ratio": "anyres"}, "vision_aspect_ratio: 'anyres'"),
        ({"num_image_tokens": 17}, "17 is not a square"),
    ],
)
def test_settings_of_onevision(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    case = CASES["LLaVA-OneVision"]
    with pytest.raises(ConfigError, match=message):
        ours(case._replace(processor=case.processor | settings), tmp_path)


def test_pictures_must_be_described(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no preprocessor_config\.json"):
        load_processor(write(tmp_path, config=LLAVA))
    (tmp_path / "preprocessor_config.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"preprocessor_config\.json: cannot be read"):
        load_processor(ModelFiles("m", "hf", tmp_path))


def test_settings_may_stand_in_one_file(tmp_path: Path) -> None:
    """As transformers 5 writes them; what stands there counts."""
    image = {"image_processor_type": "CLIPImageProcessor", "size": 28, "crop_size": 28}
    one = load(
        tmp_path,
        config=LLAVA,
        preprocessor_config={"size": 99},
        processor_config={"image_processor": image, "patch_size": 7},
    )
    assert one.process(MediaRef("image", b""), [encoded(rgb(9, 9))])[0].item.length == 16


def test_names_of_sizes_that_have_changed(tmp_path: Path) -> None:
    """Of transformers' versions; and null where a size has no such edge."""
    case, data = CASES["Qwen2.5-VL"], encoded(rgb(300, 300))
    expected = shown(ours(case, tmp_path), data)[0].item
    least, most = case.settings["min_pixels"], case.settings["max_pixels"]
    for size in (
        {"min_pixels": least, "max_pixels": most},
        {"shortest_edge": least, "longest_edge": most, "height": None},
    ):
        other = ours(case._replace(settings={"size": size}), tmp_path)
        assert shown(other, data)[0].item == expected
    clip = CASES["LLaVA, CLIP"]
    nulls = {"size": {"shortest_edge": 28, "height": None, "max_height": None}}
    item = shown(ours(clip, tmp_path), data)[0].item
    assert (
        shown(ours(clip._replace(settings=clip.settings | nulls), tmp_path), data)[0].item == item
    )


def test_tokens_of_the_older_kind_of_tokenizer(tmp_path: Path) -> None:
    """Their texts stand in tokenizer_config.json."""
    added = {"31": {"content": "<picture>", "special": True}}
    files = write(tmp_path, config=LLAVA | {"image_token_index": 31}, preprocessor_config={})
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    processor = load_processor(files)
    assert processor is not None
    assert processor.placeholder("image") == "<picture>"


def test_tokens_of_a_tokenizer_from_elsewhere(tmp_path: Path) -> None:
    files = write(tmp_path / "model", config=LLAVA, preprocessor_config={})
    place = tmp_path / "other.json"
    (tmp_path / "model" / "tokenizer.json").rename(place)
    processor = load_processor(files._replace(tokenizer=place))
    assert processor is not None
    assert processor.placeholder("image") == "<image>"


def test_what_is_no_picture_of_one_file_is_refused(tmp_path: Path) -> None:
    mine = ours(CASES["LLaVA, CLIP"], tmp_path)
    with pytest.raises(MediaError, match="a picture is one file, not 2"):
        mine.process(MediaRef("image", b"", 2), [encoded(rgb(9, 9))] * 2)
    with pytest.raises(MediaError, match="takes no videos"):
        mine.process(MediaRef("video", b""), [b""])
    with pytest.raises(MediaError, match="not an image"):
        shown(mine, b"<svg/>")


def test_very_long_pictures_are_refused_where_their_sides_matter(tmp_path: Path) -> None:
    line = encoded(rgb(3000, 3))
    for name in ("Qwen2.5-VL", "Qwen3-VL"):
        with pytest.raises(MediaError, match="200 times"):
            shown(ours(CASES[name], tmp_path / name), line)
    assert shown(ours(CASES["LLaVA, CLIP"], tmp_path / "llava"), line)
    longer = encoded(rgb(60_000, 1))
    with pytest.raises(MediaError, match="resized for the model"):
        shown(ours(CASES["LLaVA, CLIP"], tmp_path / "llava"), longer)
