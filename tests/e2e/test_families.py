"""Checkpoint directories of families other than the embedded model's, served over HTTP."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
import tokenizers
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from tests.e2e.server import running_server
from tests.running.late import late
from tests.scheduler_proc.models.families import random_family

if TYPE_CHECKING:
    import torch
    import transformers
else:
    torch = late("torch")
    transformers = late("transformers")

TEXT = (
    "The quick brown fox jumps over the lazy dog while seven wizards vex bold knights. "
    "Every family of models has its own norms, windows and rotations; all of them are served."
)
VOCAB_SIZE = 128
PROMPTS = (TEXT, "Seven wizards", TEXT[:90] + "vex the dog")
NEW_TOKENS = 24


def save_tokenizer(path: Path) -> Any:
    """A byte-level BPE learned from TEXT, in `path`; its tokens are ASCII."""
    tokenizer = tokenizers.Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(vocab_size=VOCAB_SIZE, special_tokens=["<s>"], show_progress=False)
    tokenizer.train_from_iterator([TEXT], trainer)
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    make_tokenizer: Any = transformers.PreTrainedTokenizerFast
    make_tokenizer(tokenizer_object=tokenizer, bos_token="<s>").save_pretrained(path)
    return transformers.AutoTokenizer.from_pretrained(path)


def continuation(model: Any, tokenizer: Any, prompt: str) -> str:
    """What transformers generates greedily."""
    ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False).input_ids
    with torch.inference_mode():
        out = model.generate(ids, do_sample=False, max_new_tokens=NEW_TOKENS)
    text: str = tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
    return text.rstrip("\ufffd")  # the limit may cut a character


@pytest.mark.full
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("qwen3, windows", ("--executor", "native", "--exact")),
        pytest.param("gemma3", ("--executor", "auto"), marks=pytest.mark.full),
    ],
)
def test_greedy_text_is_that_of_transformers(
    tmp_path: Path, family: str, options: tuple[str, ...]
) -> None:
    """Prompts longer than the windows, with a common prefix, one after the other and at once."""
    path = tmp_path / "model"
    model = random_family(family, vocab_size=VOCAB_SIZE)
    model.save_pretrained(path)
    tokenizer = save_tokenizer(path)
    expected = [continuation(model, tokenizer, prompt) for prompt in PROMPTS]
    limits: dict[str, Any] = {"temperature": 0, "max_new_tokens": NEW_TOKENS}
    server_options = ("--model", str(path), "--threads", "1", "--max-total-tokens", "2048")
    with running_server(tmp_path, *server_options, *options) as server:

        def ask(text: Any) -> Any:
            body = {"text": text, "sampling_params": limits}
            return httpx2.post(server.url + "/generate", json=body, timeout=60).json()

        alone = [ask(prompt) for prompt in PROMPTS]
        together = ask(list(PROMPTS))
        server.wait_idle()
        log = server.log()
    assert [answer["text"].rstrip("\ufffd") for answer in alone] == expected
    assert [answer["text"].rstrip("\ufffd") for answer in together] == expected
    assert alone[2]["meta_info"]["cached_tokens"] > 20
    assert ("running on torch" in log) == (family == "gemma3"), log
