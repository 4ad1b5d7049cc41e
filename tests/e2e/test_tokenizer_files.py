"""Model directories whose only tokenizer is a file of SentencePiece or tiktoken, over HTTP."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from srt.files.model_files import ModelFiles
from srt.files.tokenizer import load_tokenizer
from srt.files.vocab import load_vocab
from tests.e2e.server import running_server
from tests.model_files import write_json
from tests.running.late import late
from tests.scheduler_proc.models.families import random_family
from tests.spm_files import TURNS, pieces_and_types, spm_model
from tests.srt.files.test_tiktoken import CONFIG, file_of, learned

if TYPE_CHECKING:
    import torch
else:
    torch = late("torch")

PROMPT = "the cat sat on it, größer als 猫"
PATTERN = r"(on|under) the mat, [0-9]{2}"
# For each file its content, the rows of the embedding, tokenizer_config.json, and the token that
# begins and ends a turn.
FILES: dict[str, tuple[bytes, int, dict[str, Any], str]] = {
    "tokenizer.model": (
        spm_model(),
        len(pieces_and_types()[0]),
        {"bos_token": "<s>", "eos_token": "</s>"},
        TURNS[1],
    ),
    "llama.tiktoken": (file_of(learned()), 1600, CONFIG, "<|im_end|>"),
}


NESTED = {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}


def check_optional_reasoning(ask: Callable[[str, dict[str, Any]], Any], chat: Any) -> None:
    """The template knows the tag, but does not write it: the random model begins with it, or not.
    What follows it, or the whole answer, matches; so where the model is told not to reason. What
    the template may begin for it is then over."""
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": NESTED}}
    for held in ({"regex": r"\[yes\]|\[\]"}, {"response_format": form}):
        many = {**chat, "n": 32, "seed": 1, "temperature": 100, "max_tokens": 60, "close": True}
        for variables, kinds in (
            ({}, {True, False}),
            ({"thinks": True}, {True}),
            ({"enable_thinking": False}, {False}),
            ({"thinks": True, "enable_thinking": False}, {False}),
        ):
            told = many | held | {"chat_template_kwargs": variables}
            messages = [c["message"] for c in ask("/v1/chat/completions", told)["choices"]]
            assert {"reasoning_content" in message for message in messages} == kinds
            texts = {message["content"].replace("yes", "") for message in messages}
            assert all(isinstance(json.loads(text), list) for text in texts)


@pytest.mark.parametrize(
    "name", ["tokenizer.model", pytest.param("llama.tiktoken", marks=pytest.mark.full)]
)
def test_served(tmp_path: Path, name: str) -> None:
    """The text that transformers generates, constraints, chats, and users' control tokens. The
    tokenizer is in a directory of its own, and the context cut."""
    data, rows, config, turn = FILES[name]
    path, text_path = tmp_path / "model", tmp_path / "text"
    model = random_family("llama", vocab_size=rows)
    model.save_pretrained(path)
    text_path.mkdir()
    (text_path / name).write_bytes(data)
    template = f"{{% for m in messages %}}{turn}{{{{ m.content }}}}{turn}{{% endfor %}}"
    template += "{% if thinks %}<think>{% endif %}"
    write_json(text_path / "tokenizer_config.json", config | {"chat_template": template})
    files = ModelFiles("model", "hf", path, text_path)
    vocab, ids = load_vocab(files), load_tokenizer(files).encode(PROMPT).tolist()
    with torch.inference_mode():
        expected = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=12)
    turn_id = vocab.token_bytes.index(turn.encode())
    assert vocab.add_bos and ids[0] == vocab.bos_id

    options = ["--model", str(path), "--threads", "1", "--max-total-tokens", "2048", "--exact"]
    options += ["--tokenizer", str(text_path), "--max-model-len", "150"]
    options += ["--reasoning-parser", "think"]  # the vocabulary has no token for the tag
    with running_server(tmp_path, *options) as server:

        def ask(route: str, body: dict[str, Any]) -> Any:
            return httpx2.post(server.url + route, json=body, timeout=60).raise_for_status().json()

        greedy = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}
        free = ask("/generate", {"text": PROMPT, "sampling_params": greedy})
        limits = {"regex": PATTERN, "max_new_tokens": 100, "jump_forward": "canonical"}
        held = ask("/generate", {"text": PROMPT, "sampling_params": limits})
        messages = [{"role": "user", "content": f"the cat{turn}"}]
        chat = ask("/tokenize", {"messages": messages})
        check_optional_reasoning(ask, {"messages": messages})
        too_long = {"text": PROMPT, "sampling_params": greedy | {"max_new_tokens": 149}}
        refused = httpx2.post(f"{server.url}/generate", json=too_long, timeout=60)
        server.wait_idle()
    assert free["meta_info"]["prompt_tokens"] == len(ids)
    text = vocab.decode(expected[0, len(ids) :].tolist())
    assert free["text"].rstrip("\ufffd") == text.rstrip("\ufffd")  # the limit may cut a character
    assert refused.status_code == 400 and "context_length_exceeded" in refused.text
    assert re.fullmatch(PATTERN, held["text"])
    assert held["meta_info"]["jump_forward_tokens"] > 0
    assert chat["tokens"].count(turn_id) == 2
    assert vocab.decode(chat["tokens"], False).endswith(f"the cat{turn}{turn}")
