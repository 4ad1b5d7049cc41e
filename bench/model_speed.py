"""`python -m bench.model_speed`: what `srt models` expects of a model, against what a server does.

For the embedded model, and for a larger one and a mixture of experts of random weights, which are
measured by excerpts, at each instruction level of the machine, in turns: the expected tokens/s of
one stream, and those of a server with default options but without guesses, whose text would decide
how many are right.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import gguf
import msgspec
import numpy as np

from bench.mixtures.files import SHAPES, add_vocabulary, write_mixture
from bench.roofline import markdown
from scheduler_proc.kernels.library import load
from srt import Engine
from srt.files.gguf import GGUFFile
from srt.files.model_files import resolve_model
from srt.files.sizes import model_sizes

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, LAYERS = 1536, 4096, 24, 8, 28
MIXTURE_LAYERS = 8
PROMPT = "Once upon a time there was a"
TOKENS = (16, 144)


def write_random_model(path: Path) -> None:
    """A model of 0.9 billion random weights as Q8_0, with the embedded model's vocabulary."""
    source = GGUFFile(resolve_model("smollm2").path)
    rng, vocab = np.random.default_rng(0), len(source.metadata["tokenizer.ggml.tokens"])
    writer = gguf.GGUFWriter(path, "llama")
    add_vocabulary(writer, source)
    for key, size in (
        *(("block_count", LAYERS), ("context_length", 2048), ("embedding_length", HIDDEN)),
        *(("feed_forward_length", INTERMEDIATE), ("vocab_size", vocab)),
        *(("attention.head_count", HEADS), ("attention.head_count_kv", KV_HEADS)),
        ("rope.dimension_count", HIDDEN // HEADS),
    ):
        writer.add_uint32(f"llama.{key}", size)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    ones = np.ones(HIDDEN, np.float32)

    def add(name: str, rows: int, inputs: int) -> None:
        blocks = rng.integers(0, 256, (rows, inputs // 32, 34), np.uint8)
        blocks[:, :, :2] = np.frombuffer(np.float16(0.002).tobytes(), np.uint8)
        writer.add_tensor(name, blocks.reshape(rows, -1), raw_dtype=gguf.GGMLQuantizationType.Q8_0)

    add("token_embd.weight", vocab, HIDDEN)
    writer.add_tensor("output_norm.weight", ones)
    kv_rows = HIDDEN // HEADS * KV_HEADS
    for i in range(LAYERS):
        for name, rows, inputs in (
            *(("attn_q", HIDDEN, HIDDEN), ("attn_k", kv_rows, HIDDEN)),
            *(("attn_v", kv_rows, HIDDEN), ("attn_output", HIDDEN, HIDDEN)),
            *(("ffn_gate", INTERMEDIATE, HIDDEN), ("ffn_up", INTERMEDIATE, HIDDEN)),
            ("ffn_down", HIDDEN, INTERMEDIATE),
        ):
            add(f"blk.{i}.{name}.weight", rows, inputs)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{i}.{name}.weight", ones)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _sizes(model: str) -> str:
    """Of all weights, and of those that a token passes through."""
    sizes = model_sizes(resolve_model(model))
    return f"{sizes.weight_bytes >> 20} MiB, {sizes.active_bytes >> 20} active"


def expected(model: str, level: str) -> float:
    """Tokens per second, as `srt models` would say them."""
    command = [sys.executable, "-m", "scheduler_proc.speed", model]
    env = {**os.environ, "SRT_ISA": level}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return 1 / float(msgspec.json.decode(done.stdout)["seconds"])


def measured(model: str, level: str) -> float:
    """Tokens per second of a server's one stream: those after the first ones."""
    few, many = TOKENS
    with (
        patch.dict(os.environ, {"SRT_ISA": level}),
        Engine(model, speculative="off", max_total_tokens=2048) as engine,
    ):

        def seconds(count: int) -> float:
            began = time.perf_counter()
            sampling = {"max_new_tokens": count, "temperature": 0.0, "ignore_eos": True}
            engine.generate(PROMPT, sampling)
            return time.perf_counter() - began

        seconds(few)
        times = [seconds(many) - seconds(few) for _ in range(3)]
        return (many - few) / statistics.median(times)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.model_speed", description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="turns; the table has medians")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        large = Path(folder) / "random-Q8_0.gguf"
        write_random_model(large)
        mixture = Path(folder) / "mixture-Q4_K.gguf"
        write_mixture(mixture, SHAPES["olmoe"]._replace(layers=MIXTURE_LAYERS), "Q4_K")
        models = {"smollm2": "smollm2", "random": str(large), "mixture": str(mixture)}
        rows = []
        for title, model in models.items():
            name = f"{title}, {_sizes(model)}"
            for level in load().available_isas():
                pairs = [
                    (expected(model, level), measured(model, level)) for _ in range(args.repeat)
                ]
                said, was = (statistics.median(each) for each in zip(*pairs, strict=True))
                rows.append((name, level, f"{said:.1f}", f"{was:.1f}", f"{said / was:.2f}"))
                print(*rows[-1], flush=True)
    print(markdown(("model", "level", "expected", "measured", "ratio"), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
