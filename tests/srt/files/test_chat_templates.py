"""Chat templates that a server is given: by name, or in a file."""

from dataclasses import replace
from pathlib import Path

import pytest

from srt.args import ServerArgs
from srt.files import vocab as vocabs
from srt.files.chat_templates import MAX_BYTES, NAMES, chosen_template, template_advice
from srt.files.model_files import resolve_model
from srt.files.vocab import load_vocab
from srt.wire.errors import ConfigError, RequestError
from srt.wire.messages import ChatMessage
from tokenizer_proc.prompt.chat_template import ChatTemplate

HI, HELLO, MORE = (
    ChatMessage(role, text)
    for role, text in (("user", "Hi"), ("assistant", "Hello."), ("user", "More"))
)
SYSTEM = ChatMessage("system", "Be brief.")
OWN = ChatMessage("assistant", " Yes.")
INTRODUCTION = (
    "Below is an instruction that describes a task. Write a response that appropriately completes "
    "the request.\n\n"
)
# By name: a chat without and with a system message.
EXPECTED = {
    "alpaca": (
        (
            f"{INTRODUCTION}### Instruction:\nHi\n\n### Response:Hello.</s>\n\n"
            "### Instruction:\nMore\n\n### Response:"
        ),
        "Be brief.\n\n### Instruction:\nHi\n\n### Response:",
    ),
    "chatml": (
        (
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n"
            "<|im_start|>user\nMore<|im_end|>\n<|im_start|>assistant\n"
        ),
        (
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n"
        ),
    ),
    "dolly": (
        (
            f"{INTRODUCTION}### Instruction:\nHi\n\n### Response:\nHello.\n\n### End\n\n"
            "### Instruction:\nMore\n\n### Response:\n"
        ),
        "Be brief.\n\n### Instruction:\nHi\n\n### Response:\n",
    ),
    "koala": (
        "BEGINNING OF CONVERSATION: USER: Hi GPT: Hello.</s>USER: More GPT:",
        "BEGINNING OF CONVERSATION: USER: Be brief.\n\nHi GPT:",
    ),
    "llama-2": (
        "[INST] Hi [/INST] Hello. </s><s>[INST] More [/INST]",
        "[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST]",
    ),
    "openassistant": (
        "<|prompter|>Hi</s><|assistant|>Hello.</s><|prompter|>More</s><|assistant|>",
        "<|system|>Be brief.</s><|prompter|>Hi</s><|assistant|>",
    ),
    "stablelm": (
        "could harm a human.\n<|USER|>Hi<|ASSISTANT|>Hello.<|USER|>More<|ASSISTANT|>",
        "<|SYSTEM|>Be brief.\n<|USER|>Hi<|ASSISTANT|>",
    ),
    "vicuna": (
        "answers to the user's questions. USER: Hi ASSISTANT: Hello.</s>USER: More ASSISTANT:",
        "Be brief. USER: Hi ASSISTANT:",
    ),
    "zephyr": (
        "<|user|>\nHi</s>\n<|assistant|>\nHello.</s>\n<|user|>\nMore</s>\n<|assistant|>\n",
        "<|system|>\nBe brief.</s>\n<|user|>\nHi</s>\n<|assistant|>\n",
    ),
}


@pytest.mark.parametrize("name", NAMES)
def test_the_formats(name: str) -> None:
    plain, with_system = EXPECTED[name]
    chosen = chosen_template(name)
    assert chosen is not None and chosen[1]
    template = ChatTemplate(chosen[0], bos_token="<s>", eos_token="</s>")
    assert template.render([HI, HELLO, MORE]).endswith(plain)
    assert template.render([SYSTEM, HI]) == with_system


@pytest.mark.parametrize(
    ("name", "chat", "text"),
    [
        ("vicuna", [SYSTEM, HI, MORE], "Be brief. USER: Hi USER: More ASSISTANT:"),
        ("vicuna", [SYSTEM, HI, OWN, MORE], "Be brief. USER: Hi ASSISTANT: Yes.</s>USER: More "),
        ("koala", [HI, OWN, MORE], "CONVERSATION: USER: Hi GPT: Yes.</s>USER: More GPT:"),
        ("llama-2", [HI, OWN, MORE], "[INST] Hi [/INST] Yes. </s><s>[INST] More [/INST]"),
        ("llama-2", [SYSTEM], "[INST] Be brief. [/INST]"),
    ],
)
def test_chats_that_are_no_alternation(name: str, chat: list[ChatMessage], text: str) -> None:
    """Also answers as these models write them, with a blank at the head."""
    chosen = chosen_template(name)
    assert chosen is not None
    template = ChatTemplate(chosen[0], bos_token="<s>", eos_token="</s>")
    assert text in template.render(chat)


@pytest.mark.parametrize("adds_bos", [True, False])
def test_a_model_gets_the_template(
    adds_bos: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = resolve_model("smollm2")
    own = load_vocab(files)
    monkeypatch.setattr(vocabs, "_from_gguf", lambda *_: replace(own, add_bos=adds_bos))
    text = ChatTemplate.from_vocab(load_vocab(files, "zephyr")).render([HI])
    bos, eos = own.named_tokens["bos_token"], own.named_tokens["eos_token"]
    assert text == f"{bos if adds_bos else ''}<|user|>\nHi{eos}\n<|assistant|>\n"
    file = tmp_path / "my.jinja"
    file.write_text("{{ bos_token }}é{{ messages[0].content }}", encoding="utf-8-sig")
    assert ChatTemplate.from_vocab(load_vocab(files, str(file))).render([HI]) == f"{bos}éHi"
    assert load_vocab(files).chat_template == own.chat_template


def test_turns_end_where_the_template_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of that text, where the model has them, beside its own EOS."""
    files = resolve_model("smollm2")
    own = load_vocab(files)
    pieces = [*own.token_bytes[:-3], b"<|USER|>", b"### End", b"<|im_end|>"]
    changed = replace(own, token_bytes=pieces, eos_ids=(0,))
    monkeypatch.setattr(vocabs, "_from_gguf", lambda *_: changed)
    size = own.vocab_size
    ends = {name: load_vocab(files, name).eos_ids for name in ("stablelm", "dolly", "vicuna")}
    assert ends == {"stablelm": (0, size - 3), "dolly": (0, size - 2), "vicuna": (0,)}
    assert load_vocab(files, "chatml").eos_ids[-1] == size - 1 and load_vocab(files).eos_ids == (0,)


def test_what_is_no_template(tmp_path: Path) -> None:
    large, bytes_ = tmp_path / "large.jinja", tmp_path / "bytes.jinja"
    large.write_text(" " * (MAX_BYTES + 1))
    bytes_.write_bytes(b"\xff")
    for given, reason in (
        ("vikuna", "is neither a file nor one of alpaca, chatml, "),
        (str(tmp_path), "is neither a file"),
        (str(large), "has more than"),
        (str(bytes_), "is not UTF-8"),
    ):
        with pytest.raises(ConfigError, match=f"^--chat-template .*{reason}"):
            ServerArgs(chat_template=given).check()


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("vicuna-13b-v1.5.Q4_K_M", "vicuna"),
        ("Llama-2-7b-chat-hf", "llama-2"),
        ("oasst-sft-4-pythia-12b", "openassistant"),
        ("stablelm-tuned-alpha-7b", "stablelm"),
        ("dolly-v2-3b", "dolly"),
        ("Nous-Hermes-Llama2-13b", "alpaca"),
        ("Nous-Hermes-2-Mistral-7B", "chatml"),
        ("stable-vicuna-13b", "gives it one"),
        ("gpt2", "gives it one: a Jinja file, or one of alpaca"),
    ],
)
def test_a_model_without_a_template_is_told_which_it_could_have(model: str, name: str) -> None:
    assert f"--chat-template {name}" in template_advice(model)
    vocab = replace(load_vocab(resolve_model("smollm2")), model_name=model, chat_template=None)
    with pytest.raises(RequestError, match=f"--chat-template {name}"):
        ChatTemplate.from_vocab(vocab).render([HI])
