"""Chat templates: SmolLM2's own, the names that templates use, and the sandbox's limits."""

import json
import re

import pytest

from srt.answers.tool_format import HERMES
from srt.files.model_files import resolve_model
from srt.files.vocab import load_vocab
from srt.wire.errors import RequestError
from srt.wire.messages import ChatMessage, ToolCall, ToolSpec
from tokenizer_proc.prompt.chat_template import ChatTemplate

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


# ---- tools ---------------------------------------------------------------------------------------

ADD = ToolSpec("add", "Add two numbers.", '{"type":"object","properties":{"a":{"type":"integer"}}}')
NOW = ToolSpec("now")
TOOL_CHAT = [
    ChatMessage("system", "Be brief."),
    USER,
    ChatMessage(
        "assistant", "Well.", [ToolCall("c1", "add", '{"a": 1}'), ToolCall("c2", "now", "")]
    ),
    ChatMessage("tool", "3", tool_call_id="c1", name="add"),
    ChatMessage("tool", "noon", tool_call_id="c2", name="now"),
    ChatMessage("assistant", "Three.", reasoning="Hm."),
]
CALLS_AND_RESULTS = (
    "<|im_start|>user\nHi <b><|im_end|>\n"
    "<|im_start|>assistant\nWell.\n"
    '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call><|im_end|>\n'
    "<|im_start|>user\n<tool_response>\n3\n</tool_response>\n"
    "<tool_response>\nnoon\n</tool_response><|im_end|>\n"
    "<|im_start|>assistant\nThree.<|im_end|>\n"
)


def test_tools_as_text_for_a_template_that_has_none() -> None:
    template = ChatTemplate.from_vocab(load_vocab(resolve_model("smollm2")))
    text = template.render(TOOL_CHAT, False, tools=[ADD, NOW])
    head, tail = text.split("<|im_end|>\n", 1)
    assert head == "<|im_start|>system\nBe brief.\n\n" + HERMES.instructions([ADD, NOW])
    assert tail == CALLS_AND_RESULTS
    assert template.render(TOOL_CHAT, False).endswith("Be brief.<|im_end|>\n" + CALLS_AND_RESULTS)
    alone = template.render([USER], tools=[NOW])
    assert alone.startswith("<|im_start|>system\n" + HERMES.instructions([NOW]) + "<|im_end|>")


def test_the_instructions() -> None:
    lines = HERMES.instructions([ADD, NOW]).splitlines()
    first, second = (json.loads(line) for line in lines if line.startswith('{"type"'))
    assert first["function"] == {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    }
    assert second == {"type": "function", "function": {"name": "now"}}
    assert {"<tools>", "</tools>", "<tool_call>", "</tool_call>"} <= set(lines)


def test_tools_for_a_template_that_writes_them() -> None:
    """Tools and calls appear as the template writes them; arguments are objects."""
    source = (
        "{% if tools %}{% for t in tools %}{{ t.function | tojson }}{% endfor %}{% endif %}"
        "{% for m in messages %}|{{ m.role }}:{{ m.content }}"
        "{% for c in m.tool_calls %}<tool_call>{{ c.function | tojson }}</tool_call>{{ c.id }}"
        "{% endfor %}"
        "{{ m.tool_call_id }}{{ m.name }}{{ m.reasoning_content }}{% endfor %}"
    )
    assert ChatTemplate(source).render(TOOL_CHAT, tools=[NOW]) == (
        '{"name": "now"}|system:Be brief.|user:Hi <b>|assistant:Well.'
        '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>c1'
        '<tool_call>{"name": "now", "arguments": {}}</tool_call>c2'
        "|tool:3c1add|tool:noonc2now|assistant:Three.Hm."
    )
    other = source.replace("<tool_call>", "[CALL]")
    text = ChatTemplate(other).render(TOOL_CHAT, tools=[NOW])
    assert HERMES.instructions([NOW]) in text and "[CALL]" not in text


def test_mistral_takes_short_ids_only() -> None:
    source = (
        "{{ tools | length }}{% for m in messages %}{% for c in m.tool_calls %}[TOOL_CALLS]"
        """ [{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }},"""
        """ "id": "{{ c.id }}"}]{% endfor %}{{ m.tool_call_id }}|{% endfor %}"""
    )
    chat = [
        ChatMessage("assistant", "", tool_calls=[ToolCall("call_0123456789abcdef", "now", "{}")]),
        ChatMessage("tool", "noon", tool_call_id="call_0123456789abcdef"),
        ChatMessage("assistant", "", tool_calls=[ToolCall("c-1", "now", "{}")]),
    ]
    text = ChatTemplate(source).render(chat, tools=[NOW])
    assert re.findall("[0-9a-f]{9}", text) == ["789abcdef", "789abcdef", "0000000c1"]


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
