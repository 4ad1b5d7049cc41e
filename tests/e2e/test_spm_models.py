"""Models with SentencePiece's kind of tokenizer, from GGUF files, through the whole server."""

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import httpx2
import pytest

from srt import Engine
from srt.client.generation import GenerateOutput
from srt.files.gguf_tokens import SPM_SPACE
from srt.files.model_files import ModelFiles
from srt.files.tokenizer import load_plain_tokenizer, load_tokenizer
from srt.files.vocab import load_vocab
from srt.wire.messages import ChatMessage
from tests.e2e.server import running_server
from tests.running.late import late
from tests.running.profiles import seeds
from tests.scheduler_proc.models.families import random_family
from tests.scheduler_proc.models.gguf_families import write_family
from tests.spm_files import add_spm_tokenizer, pieces_and_types, scores

if TYPE_CHECKING:
    import torch
else:
    torch = late("torch")

PATTERN = r'\{"name": "[a-z]{3}", "size": [0-9]{2}, "place": "(on|under) the mat"\}'
ITEMS = {"enum": ["the cat", "größer", "これは猫です", 12]}
SCHEMA = json.dumps({"type": "array", "items": ITEMS, "minItems": 3, "maxItems": 5})
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|user|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
GREEDY = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}
PROMPT = "the cat sat on"


def write_model(path: Path, family: str) -> tuple[ModelFiles, Any]:
    """A random model of `family` with that tokenizer, and transformers' model."""
    model = random_family(family, vocab_size=len(pieces_and_types()[0]))

    def tokenizer(writer: gguf.GGUFWriter) -> None:
        prefix = not family.startswith("gemma")
        add_spm_tokenizer(writer, add_space_prefix=prefix)
        writer.add_chat_template(TEMPLATE)

    return write_family(model, path, tokenizer=tokenizer), model


class Served:
    """A model that an engine serves."""

    def __init__(self, path: Path, family: str) -> None:
        self.files, self.model = write_model(path, family)
        self.vocab, self.tokenizer = load_vocab(self.files), load_tokenizer(self.files)
        args: dict[str, Any] = {"max_total_tokens": 2048, "check_invariants": True, "threads": 1}
        self.engine = Engine(str(self.files.path), **args)

    def text_of(self, output: GenerateOutput) -> str:
        pieces = self.vocab.pieces(skip_special_tokens=True)
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")  # up to a cut character
        return decoder.decode(b"".join(pieces[i] for i in output.output_ids))


@pytest.fixture(scope="module", params=["llama", pytest.param("gemma3", marks=pytest.mark.full)])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("spm") / "spm.gguf", request.param)
    with served.engine as engine:
        yield served
        assert engine.stats()["num_used_tokens"] == 0


def test_greedy_tokens_are_those_of_transformers(served: Served) -> None:
    ids = served.tokenizer.encode(PROMPT).tolist()
    with torch.inference_mode():
        expected = served.model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=12)
    output = served.engine.generate(PROMPT, GREEDY)
    assert output.prompt_tokens == len(ids)
    assert output.output_ids == expected[0, len(ids) :].tolist()
    assert output.text == served.text_of(output)


@pytest.mark.parametrize("seed", seeds(1))
def test_constrained_text_with_jumps(served: Served, seed: int) -> None:
    passes = {}
    for mode in ("off", "canonical"):
        sampling = {"regex": PATTERN, "max_new_tokens": 200, "seed": seed, "jump_forward": mode}
        output = served.engine.generate(PROMPT, sampling)
        assert re.fullmatch(PATTERN, output.text), output.text
        assert served.text_of(output) == output.text
        assert (output.jump_forward_tokens > 0) == (mode == "canonical")
        assert output.completion_tokens == output.jump_forward_tokens + output.forward_passes
        passes[mode] = output.forward_passes
    assert passes["canonical"] < 0.6 * passes["off"]


def test_forced_text_has_the_tokens_of_the_tokenizer(served: Served) -> None:
    text = 'a table of numbers: {"name": "cat", "size": 12}'
    output = served.engine.generate(PROMPT, {"regex": re.escape(text), "max_new_tokens": 100})
    assert output.text == text
    assert output.output_ids[:-1] == load_plain_tokenizer(served.files).split(text).ids
    assert output.jump_forward_tokens > 0


def test_schemas(served: Served) -> None:
    sampling = {"json_schema": SCHEMA, "max_new_tokens": 100}
    output = served.engine.generate(PROMPT, sampling)
    items = json.loads(output.text)
    assert 3 <= len(items) <= 5 and all(item in ITEMS["enum"] for item in items)
    assert served.text_of(output) == output.text


def test_token_healing(served: Served) -> None:
    """After a prompt that ends inside a word, the output continues this word."""
    plain = served.engine.generate("the c", GREEDY)
    healed = served.engine.generate("the c", GREEDY | {"token_healing": True})
    assert healed.text == served.text_of(healed)[len(" c") :]
    assert served.text_of(healed).startswith(" c")
    assert served.text_of(plain) == plain.text


def test_a_chat_and_its_end(served: Served) -> None:
    engine, end = served.engine, served.vocab.token_bytes.index(b"<|end|>")
    assert end in served.vocab.eos_ids
    sampling = {"max_new_tokens": 3, "logit_bias": {end: 100.0}, "temperature": 0}
    messages = [ChatMessage("user", "the cat")]
    output = engine.call(engine.client.generate(messages=messages, sampling=sampling))
    assert (output.output_ids, output.text) == ([end], "")
    text = "<s><|user|>\nthe cat<|end|>\n<|assistant|>"
    assert output.prompt_tokens == len(served.tokenizer.encode(text, add_special_tokens=False))


def test_scores_of_text_behind_ids(served: Served) -> None:
    """The continuation follows the ids as it follows their text."""
    ids = served.tokenizer.encode(PROMPT).tolist()
    by_text = served.engine.score(PROMPT, [" the mat"])
    by_ids = served.engine.score(None, [" the mat"], input_ids=ids)
    assert by_text.choices == by_ids.choices


@pytest.mark.full
def test_jump_forward_is_off_where_words_are_not_encoded_one_by_one(tmp_path: Path) -> None:
    tokens, types = pieces_and_types()
    model = random_family("llama", vocab_size=len(tokens) + 1)

    def tokenizer(writer: gguf.GGUFWriter) -> None:
        add_spm_tokenizer(
            writer,
            tokens=[*tokens, f"t{SPM_SPACE}"],
            token_type=[*map(int, types), 1],
            scores=[*scores(), -1.0],
        )

    files = write_family(model, tmp_path / "m.gguf", tokenizer=tokenizer)
    sampling = {"regex": PATTERN, "max_new_tokens": 200, "seed": 0}
    with running_server(tmp_path, "--model", str(files.path), "--threads", "1") as server:
        body = {"text": PROMPT, "sampling_params": sampling}
        answer = httpx2.post(server.url + "/generate", json=body, timeout=60).json()
        log = server.log()
    assert re.fullmatch(PATTERN, answer["text"])
    assert answer["meta_info"]["jump_forward_tokens"] == 0
    assert log.count("jump-forward is off: the tokenizer does not encode word by word") == 1
