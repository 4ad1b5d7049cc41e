"""Chat templates: SmolLM2's own, the names that templates use, and the sandbox's limits."""

import pytest

from srt.errors import RequestError
from srt.messages import ChatMessage
from srt.model.files import resolve_model
from srt.model.vocab import load_vocab
from tokenizer_proc.chat_template import ChatTemplate

USER = ChatMessage("user", "Hi <b>")


def test_smollm2() -> None:
    template = ChatTemplate.from_vocab(load_vocab(resolve_model("smollm2")))
    assert template.render([USER]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi <b><|im_end|>\n<|im_start|>assistant\n"
    )
    chat = [ChatMessage("system", "Be brief."), USER, ChatMessage("assistant", "Hello.")]
    assert template.render(chat, add_generation_prompt=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <b><|im_end|>\n"
        "<|im_start|>assistant\nHello.<|im_end|>\n"
    )


def test_whitespace_control_and_names() -> None:
    source = (
        "{{ bos_token }}\n"
        "  {% for m in messages %}\n"
        "{% if m.role == 'skip' %}{% continue %}{% endif %}\n"
        "{% generation %}{{ m.content | tojson }}{% endgeneration %}\n"
        "  {% endfor %}\n"
        "{{ eos_token }}{{ strftime_now('%%') }}{% if tools %}T{% endif %}"
    )
    chat = [USER, ChatMessage("skip", "x"), ChatMessage("user", "é")]
    rendered = ChatTemplate(source, bos_token="<s>", eos_token="</s>").render(chat)
    assert rendered == '<s>\n"Hi <b>""é"</s>%'


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[5].content }}", "no element 5"),
        ("{{ 1 // 0 }}", "zero"),
        ("{{ messages.append(1) }}", "append"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% for %}", "cannot be compiled"),
        (None, "no chat template"),
    ],
)
def test_failures_name_messages(source: str | None, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as caught:
        ChatTemplate(source).render([USER])
    assert caught.value.info.param == "messages"


def test_output_is_bounded() -> None:
    template = ChatTemplate("{% for i in range(90000) %}x{% endfor %}")
    with pytest.raises(RequestError, match="exceeds 1000 characters"):
        template.render([USER], max_chars=1000)
    assert ChatTemplate("{{ 'x' * 1000 }}").render([USER], max_chars=1000) == "x" * 1000
