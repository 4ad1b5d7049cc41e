"""The checkpoint that the benchmark of pictures makes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoTokenizer

from bench.vision_model import TILE, TILE_TOKENS, tile_times, write_vision_model

pytestmark = pytest.mark.slow


def test_transformers_reads_it(tmp_path: Path) -> None:
    """Its own classes find all weights, every id is a token, and a tile is so many embeddings."""
    write_vision_model(tmp_path)
    models: Any = AutoModelForImageTextToText
    model, report = models.from_pretrained(tmp_path, dtype=torch.float32, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    pixels = torch.zeros(1, 1, 3, TILE, TILE)
    with torch.inference_mode():
        (embeddings,) = model.model.get_image_features(pixels).pooler_output
    assert embeddings.shape == (TILE_TOKENS, model.config.text_config.hidden_size)
    assert len(tile_times(model, torch.float32, tiles=1, runs=2)) == 2
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) == model.config.text_config.vocab_size
    shown = [{"type": "image"}, {"type": "text", "text": "What is it?"}]
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": shown}], tokenize=False, add_generation_prompt=True
    )
    assert prompt == "<|im_start|>User:<image> What is it?<end_of_utterance>\nAssistant:"
    ids = tokenizer(prompt).input_ids
    assert ids.count(model.config.image_token_id) == 1 and tokenizer.decode(ids) == prompt
