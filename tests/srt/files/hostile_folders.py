"""Model directories made to stop, fill or crash what reads them: each a small Llama, spoilt in one
way."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.model_files import byte_level_tokenizer, save_directory, write_json

Spoil = Callable[[Path], object]

HIDDEN, INNER, LAYERS, HEADS = 64, 96, 2, 4
_DEEP = 200_000
_FAR = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}
_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}


def write_llama(path: Path) -> None:
    """A whole model with random weights."""
    path.mkdir()
    tokenizer = byte_level_tokenizer()
    save_directory(path, tokenizer, _LLAMA)
    rng = np.random.default_rng(0)
    rows = tokenizer.get_vocab_size() + 5
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens": (rows, HIDDEN), "norm": (HIDDEN,)}
    for i in range(LAYERS):
        at = f"layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[at + name] = (HIDDEN,)
        for name in "qkvo":
            shapes[f"{at}self_attn.{name}_proj"] = (HIDDEN, HIDDEN)
        shapes |= {f"{at}mlp.{name}_proj": (INNER, HIDDEN) for name in ("gate", "up")}
        shapes[f"{at}mlp.down_proj"] = (HIDDEN, INNER)
    tensors = {
        f"model.{name}.weight": rng.standard_normal(shape).astype(np.float32) / 7
        for name, shape in shapes.items()
    }
    save_file(tensors, path / "model.safetensors")


def config(**changes: Any) -> Spoil:
    """Changes of config.json."""
    return _json("config.json", lambda content: content.update(changes))


def _far(**changes: Any) -> Spoil:
    """The same of an architecture that only transformers knows."""
    return config(**_FAR, **changes)


def _json(name: str, change: Callable[[dict[str, Any]], object]) -> Spoil:
    def spoil(path: Path) -> None:
        file = path / name
        content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        change(content)
        write_json(file, content)

    return spoil


def _tokenizer(**parts: Any) -> Spoil:
    return _json("tokenizer.json", lambda content: content.update(parts))


def _growing(times: int) -> Spoil:
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}
    return _tokenizer(normalizer={"type": "Sequence", "normalizers": [step] * times})


def _split(pattern: str) -> Spoil:
    cut = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    bytes_too = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    bytes_too["trim_offsets"] = True
    return _tokenizer(pre_tokenizer={"type": "Sequence", "pretokenizers": [cut, bytes_too]})


def _added(token_id: int) -> Spoil:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    token = {"id": token_id, "content": "<far>", "special": True, **flags}
    return _json("tokenizer.json", lambda content: content["added_tokens"].append(token))


def _model(**changes: Any) -> Spoil:
    return _json("tokenizer.json", lambda content: content["model"].update(changes))


def _bytes(name: str, data: bytes) -> Spoil:
    return lambda path: (path / name).write_bytes(data)


def _sparse(name: str, size: int = 2**30) -> Spoil:
    def spoil(path: Path) -> None:
        with (path / name).open("wb") as file:
            file.truncate(size)

    return spoil


def _pipe(name: str) -> Spoil:
    def spoil(path: Path) -> None:
        (path / name).unlink(missing_ok=True)
        os.mkfifo(path / name)

    return spoil


def _link(name: str, target: str) -> Spoil:
    def spoil(path: Path) -> None:
        (path / name).unlink(missing_ok=True)
        (path / name).symlink_to(target)

    return spoil


def _index(file: str) -> Spoil:
    index = {"metadata": {}, "weight_map": {"model.norm.weight": file}}
    return lambda path: write_json(path / "model.safetensors.index.json", index)


def _template(source: str) -> Spoil:
    return _json("tokenizer_config.json", lambda content: content.update(chat_template=source))


_WORDS = {"type": "WordLevel", "vocab": {"zebra": 5}, "unk_token": "no"}
_PIECES = {"type": "Unigram", "unk_id": 7, "vocab": [["a", math.nan]], "byte_fallback": False}
_WORD_PIECES: dict[str, Any] = {
    **{"type": "WordPiece", "vocab": {"zebra": 5}, "unk_token": "no"},
    **{"continuing_subword_prefix": "", "max_input_chars_per_word": 2**62},
}
_BLOATED = "{{ 'x' * 10 ** 10 }}{% for i in range(9 ** 9) %}{{ i }}{% endfor %}"

# What a server may make of each: "launcher" refuses it before any part starts, a "part" at its
# start, or the server "runs".
HOSTILE: dict[str, tuple[Spoil, str]] = {
    "nine chained normalizers": (_growing(9), "launcher"),
    "four chained normalizers": (_growing(4), "launcher"),
    "a pattern that backtracks": (_split("(a+a+)+$"), "launcher"),
    "a normalizer that backtracks": (
        _tokenizer(
            normalizer={"type": "Replace", "pattern": {"Regex": "(a|a)*$"}, "content": "b"}
        ),
        "launcher",
    ),
    "an added token of id 2e9": (_added(2_000_000_000), "runs"),
    "an id of 4e9": (_json("tokenizer.json", lambda c: c["model"]["vocab"].update(z=2**32 - 1)),
                     "launcher"),
    "an empty vocabulary": (
        _json("tokenizer.json", lambda c: c.update(
            model={**c["model"], "vocab": {}, "merges": []}, added_tokens=[])), "launcher"),
    "words without one for the unknown": (_json("tokenizer.json", lambda c: c.update(
        model=_WORDS, added_tokens=[])), "launcher"),
    "pieces without a score": (_json("tokenizer.json", lambda c: c.update(model=_PIECES)),
                               "launcher"),
    "pieces of words of any length": (_json("tokenizer.json", lambda c: c.update(
        model=_WORD_PIECES)), "launcher"),
    "a tokenizer of 1 GiB": (_sparse("tokenizer.json"), "launcher"),
    "an empty tokenizer": (_bytes("tokenizer.json", b""), "launcher"),
    "a tokenizer that never ends": (_link("tokenizer.json", "/dev/zero"), "launcher"),
    "a config of 1 GiB": (_sparse("config.json"), "launcher"),
    "a config that is a pipe": (_pipe("config.json"), "launcher"),
    "a config of 200,000 levels": (
        _bytes("config.json", b'{"a":' + b"[" * _DEEP + b"]" * _DEEP + b"}"),
        "launcher",
    ),
    "2e9 rows of the embedding": (config(vocab_size=2_000_000_000), "launcher"),
    "a million layers": (config(num_hidden_layers=1_000_000), "part"),
    "a million layers of another architecture": (_far(num_hidden_layers=1_000_000), "part"),
    "a width of 2e9 of another architecture": (
        _far(hidden_size=2_000_000_000, num_attention_heads=2), "part"),
    "a billion experts": (_far(num_local_experts=1_000_000_000), "part"),
    "no width": (config(hidden_size=0), "part"),
    "minus one head": (config(num_attention_heads=-1), "part"),
    "an epsilon that is no number": (config(rms_norm_eps=math.nan), "launcher"),
    "an inner width of 2**40": (config(intermediate_size=2**40), "part"),
    "a rope that stretches by 1e308": (
        config(rope_scaling={"type": "yarn", "factor": 1e308,
                             "original_max_position_embeddings": 64}), "launcher"),
    "1e12 positions": (config(max_position_embeddings=10**12), "launcher"),
    "a header of 2**40": (_bytes("model.safetensors", (2**40).to_bytes(8, "little") + b"{}"),
                          "part"),
    "weights that are a pipe": (_pipe("model.safetensors"), "part"),
    "weights elsewhere": (_index("../../etc/passwd"), "part"),
    "no weights": (lambda path: (path / "model.safetensors").unlink(), "part"),
    "weights of another width": (config(hidden_size=128), "part"),
    "a template that writes for ever": (_template(_BLOATED), "runs"),
    "a template that is folded for ever": (_template("{{ 9 ** (9 ** 9) }}"), "runs"),
    "absurd sampling": (_bytes("generation_config.json",
                        b'{"temperature": 1e999, "top_k": -5, "eos_token_id": [4000000000, -1]}'),
                        "runs"),
}  # fmt: skip


def write_hostile(path: Path, name: str) -> None:
    """A directory of HOSTILE, in a new folder."""
    write_llama(path)
    HOSTILE[name][0](path)
