"""The serving workloads of `bench.serving` on our server, with a random model of a real shape."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers

from bench.gpu_report.sections import Context
from bench.measure import measure
from bench.serving import parse_args
from srt.benchmark.corpus import built_in
from tests.e2e.server import running_server

# Eight of Llama-3-8B's layers: its kernels and step times, in a file that is soon written.
FULL: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 8,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 8192,
}
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
}
BACKENDS = ("flashinfer", "triton")


def run(context: Context) -> None:
    """The section `server`."""
    with tempfile.TemporaryDirectory() as directory:
        model = Path(directory) / "model"
        save_model(model, FULL if context.is_full else SMALL, context.device)
        if context.device.type != "cuda":
            context.sink.put("cpu", _served(context, model, Path(directory), "--dtype", "float32"))
            return
        for backend in BACKENDS:
            options = ("--device", "cuda", "--attention-backend", backend)
            context.sink.put(backend, _served(context, model, Path(directory), *options))


def save_model(path: Path, shape: dict[str, Any], device: torch.device) -> None:
    """A directory as transformers writes it, with a tokenizer of the workloads' texts."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = _tokenizer()
    vocab_size = -(-tokenizer.get_vocab_size() // 64) * 64
    config = LlamaConfig(**shape, vocab_size=vocab_size, bos_token_id=0, eos_token_id=1)
    with torch.device(device):
        model: Any = LlamaForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(path)
    tokenizer.save(str(path / "tokenizer.json"))


def _tokenizer() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2048,
        special_tokens=["<bos>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(built_in().bodies, trainer)
    return tokenizer


def _served(context: Context, model: Path, directory: Path, *options: str) -> dict[str, Any]:
    """The figures of the workloads by name, and what the server says of itself."""
    place = Path(tempfile.mkdtemp(dir=directory))
    names = ["--workload", "all"] if context.is_full else ["--workload", "single"]
    scale = "1" if context.is_full else "0.01"
    with running_server(place, "--model", str(model), *options) as server:
        args = parse_args([*names, "--scale", scale, "--url", server.url])
        report = asyncio.run(measure(args))
    return {"figures": report["figures"], "server": report["server"]["internal_states"]}
