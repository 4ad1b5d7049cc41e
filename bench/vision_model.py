"""A checkpoint of SmolVLM-256M's shape with random weights, made on the fly.

No package index has real weights of a model that sees: its answers mean nothing, its times do.
`python -m bench.vision_model` prints what a tile's encoding takes.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from itertools import islice, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import Idefics3Config, Idefics3ForConditionalGeneration

TILE = 512  # pixels on a side
TILE_TOKENS = 64
GRID = 4  # tiles on a side of a large picture, where pictures are split

_VOCAB = 49280
_IMAGE, _BOS, _END, _PAD = "<image>", "<|im_start|>", "<end_of_utterance>", "<pad>"
_AROUND, _GLOBAL = "<fake_token_around_image>", "<global-img>"
_TILES = [f"<row_{row + 1}_col_{column + 1}>" for row in range(GRID) for column in range(GRID)]
_SPECIAL = (_BOS, _END, _PAD, _IMAGE, _AROUND, _GLOBAL, *_TILES)

_TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}:"
    "{% if message['content'] is string %} {{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %} {{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
_VISION: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": TILE,
    "patch_size": 16,
}
_TEXT: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": _VOCAB,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e5},
    "tie_word_embeddings": False,
}


def write_vision_model(path: Path, *, splits: bool = False, seed: int = 0) -> None:
    """Write the model's directory: bfloat16 weights, tokenizer, chat template, processor.

    A picture is one tile; with `splits` it is 16 tiles and one of the whole, if it is large.
    """
    tokenizer = _tokenizer()
    tokenizer.save(str(path / "tokenizer.json"))
    _model(tokenizer, seed).to(torch.bfloat16).save_pretrained(path)
    tokens = {"bos_token": _BOS, "eos_token": _END, "pad_token": _PAD, "unk_token": None}
    _write(path / "tokenizer_config.json", {**tokens, "chat_template": _TEMPLATE})
    processor = {"processor_class": "Idefics3Processor"}
    _write(path / "processor_config.json", {**processor, "image_seq_len": TILE_TOKENS})
    _write(
        path / "preprocessor_config.json",
        {
            **processor,
            "image_processor_type": "Idefics3ImageProcessor",
            "do_convert_rgb": True,
            "do_image_splitting": splits,
            "do_normalize": True,
            "do_pad": True,
            "do_rescale": True,
            "do_resize": True,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "max_image_size": {"longest_edge": TILE},
            "resample": 1,
            "rescale_factor": 1 / 255,
            "size": {"longest_edge": GRID * TILE},
        },
    )


def _write(path: Path, content: Any) -> None:
    path.write_bytes(msgspec.json.encode(content))


def _model(tokenizer: Tokenizer, seed: int) -> Any:
    """The model in float32."""
    torch.manual_seed(seed)
    config = Idefics3Config(
        vision_config=_VISION,
        text_config={
            **_TEXT,
            "pad_token_id": _id(tokenizer, _PAD),
            "bos_token_id": _id(tokenizer, _BOS),
            "eos_token_id": _id(tokenizer, _END),
        },
        image_token_id=_id(tokenizer, _IMAGE),
        scale_factor=4,
        tie_word_embeddings=False,
    )
    return Idefics3ForConditionalGeneration(config).eval()


def _id(tokenizer: Tokenizer, token: str) -> int:
    number = tokenizer.token_to_id(token)
    assert number is not None
    return number


def _tokenizer() -> Tokenizer:
    """Bytes and pairs of them, as many as the model has ids: every id that it may choose is a
    token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [*islice(product(alphabet, alphabet), _VOCAB - len(_SPECIAL) - len(alphabet))]
    tokens = [*alphabet, *("".join(pair) for pair in pairs)]
    vocab = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in _SPECIAL])
    return tokenizer


# ---- the tower's time ---------------------------------------------------------------------------


def tile_times(model: Any, dtype: torch.dtype, tiles: int, runs: int) -> list[float]:
    """Seconds of each of `runs` encodings of `tiles` tiles at once, after one that is not
    counted."""
    model = model.to(dtype)
    pixels = torch.rand(1, tiles, 3, TILE, TILE, dtype=dtype) * 2 - 1
    found = []
    with torch.inference_mode():
        for _ in range(runs + 1):
            started = time.perf_counter()
            model.model.get_image_features(pixels)
            found.append(time.perf_counter() - started)
    return found[1:]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.vision_model", description=__doc__)
    parser.add_argument("--tiles", type=int, nargs="+", default=[1, 4], help="encoded at once")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, help="default: as many as torch takes")
    parser.add_argument("--keep", type=Path, help="also write the checkpoint into this directory")
    args = parser.parse_args(argv)
    if args.threads:
        torch.set_num_threads(args.threads)
    with TemporaryDirectory() as temporary:
        path = args.keep or Path(temporary)
        path.mkdir(parents=True, exist_ok=True)
        started = time.perf_counter()
        write_vision_model(path)
        size = sum(file.stat().st_size for file in path.iterdir())
        print(f"checkpoint: {size / 1e6:.0f} MB in {time.perf_counter() - started:.1f} s")
        model = Idefics3ForConditionalGeneration.from_pretrained(path, dtype=torch.float32)
        for dtype in (torch.float32, torch.bfloat16):
            for tiles in args.tiles:
                times = [s / tiles for s in tile_times(model, dtype, tiles, args.runs)]
                print(
                    f"{str(dtype).removeprefix('torch.'):8} {tiles} at once, "
                    f"{torch.get_num_threads()} threads: {statistics.median(times):.3f} s a tile "
                    f"({min(times):.3f} to {max(times):.3f})"
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
