"""Chat templates with the constructs of each family, compared with transformers' rendering."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer, models

from srt.answers.tool_calls import call_parser
from srt.answers.tool_events import CallArguments, CallStart, Content, Reasoning
from srt.answers.tool_format import HARMONY, QWEN3_CODER
from srt.files.vocab import load_vocab
from srt.wire.errors import RequestError
from srt.wire.messages import ChatMessage, ToolCall, ToolSpec
from tests.model_files import byte_level_tokenizer, save_directory
from tests.running.late import late
from tokenizer_proc.prompt.chat_template import ChatTemplate

if TYPE_CHECKING:
    import transformers
else:
    transformers = late("transformers")


LLAMA_3 = """\
{{- bos_token }}
{%- if not date is defined %}{% set date = strftime_now("%Y") %}{% endif %}
{%- if messages[0]["role"] == "system" %}
    {%- set system = messages[0]["content"] | trim %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set system, rest = "", messages %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Year " + date[:2] + "..\\n" + system + "<|eot_id|>" }}
{%- for m in rest %}
    {{- "<|start_header_id|>" + m.role + "<|end_header_id|>\\n\\n" }}
    {{- m.content | trim + "<|eot_id|>" }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "<|start_header_id|>assistant<|end_header_id|>\\n\\n" }}
{%- endif %}
"""
CHAT_ML = """\
{%- set ns = namespace(last=messages | length - 1, several=false) %}
{%- for m in messages[::-1] %}
    {%- set index = messages | length - 1 - loop.index0 %}
    {%- if m.role == "user" and not ns.several %}
        {%- set ns.several, ns.last = true, index %}
    {%- endif %}
{%- endfor %}
{%- for m in messages %}
{{- "<|im_start|>" + m.role + "\\n" }}
{%- if m.role == "assistant" and "</think>" in m.content and loop.index0 < ns.last %}
    {{- m.content.split("</think>")[-1].lstrip("\\n") }}
{%- else %}
    {%- generation %}{{ m.content }}{% endgeneration %}
{%- endif %}
{{- "<|im_end|>\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant\\n" }}{% endif %}
"""
MISTRAL = """\
{{ bos_token }}{% for m in messages %}\
{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('roles must alternate') }}{% endif %}\
{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}\
{% elif m['role'] == 'assistant' %}{{ ' ' + m['content'] + eos_token }}\
{% else %}{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}"""
GEMMA = """\
{{ bos_token }}
{%- if messages[0].role == 'system' -%}
    {%- set first = messages[0].content + '\\n\\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first = '' -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for m in loop_messages -%}
    {%- set role = 'model' if m.role == 'assistant' else m.role -%}
    {{ '<start_of_turn>' + role + '\\n' + (first if loop.first else '') }}
    {%- if m.content is string -%}{{ m.content | trim }}
    {%- elif m.content is iterable -%}
        {%- for item in m.content -%}{{ item.text | trim }}{%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
"""
PHI_3 = """\
{% for m in messages %}
{% if m['role'] in ['system', 'user'] and m['content'] %}
{{ '<|' + m['role'] + '|>\n' + m['content'] + '<|end|>\n' }}
{% elif m['role'] == 'assistant' %}
{{ '<|assistant|>\n' + m['content'] + '<|end|>\n' }}
{% else %}
{% continue %}
{% endif %}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|assistant|>\n' }}
{% else %}
{{ eos_token }}
{% endif %}
"""
FAMILIES = {
    "llama-3": LLAMA_3,
    "chatml": CHAT_ML,
    "mistral": MISTRAL,
    "gemma": GEMMA,
    "phi-3": PHI_3,
}
HELLO, ANSWER = ChatMessage("user", " Hello <b> é "), ChatMessage("assistant", "Hi.")
SYSTEM = ChatMessage("system", "Be brief.")
# What is rendered of the chats that it refuses.
MISTRAL_TAKES = {
    "system": [ChatMessage("user", f"Be brief.\n\n{HELLO.content}")],
    "twice": [ChatMessage("user", f"{HELLO.content}\n\n{HELLO.content}")],
}
THOUGHT = ChatMessage("assistant", "<think>\nhm\n</think>\n\nWell.")
CHATS = {
    "one turn": [HELLO],
    "system": [SYSTEM, HELLO],
    "turns": [HELLO, ANSWER, ChatMessage("user", "日本?"), ANSWER],
    "thoughts": [HELLO, THOUGHT, HELLO, THOUGHT],
    "empty": [ChatMessage("user", "")],
    "twice": [HELLO, HELLO],
}


def of_transformers(template: Any, chat: list[ChatMessage], **options: Any) -> str:
    tokenizer: Any = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE()), bos_token="<s>", eos_token="</s>"
    )
    tokenizer.chat_template = template
    messages = [{"role": m.role, "content": m.content} for m in chat]
    rendered: str = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    return rendered


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("prompt", [False, True])
def test_as_transformers_renders_it(family: str, chat: str, prompt: bool) -> None:
    source, messages = FAMILIES[family], CHATS[chat]
    ours = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    try:
        expected = of_transformers(source, messages, add_generation_prompt=prompt)
    except Exception as error:
        assert family == "mistral" and "alternate" in str(error)
        expected = of_transformers(source, MISTRAL_TAKES[chat], add_generation_prompt=prompt)
    assert ours.render(messages, prompt) == expected


def test_a_chat_that_cannot_be_changed_is_refused_with_the_templates_reason() -> None:
    with pytest.raises(RequestError, match="roles must alternate"):
        ChatTemplate(MISTRAL).render([ANSWER, HELLO])


@pytest.mark.parametrize("bos", ["<s>", {"__type": "AddedToken", "content": "<s>"}, None])
def test_special_tokens_are_those_of_the_tokenizer(tmp_path: Path, bos: object) -> None:
    """All names work. A BOS id that only config.json has makes no token, as in Qwen2.5."""
    source = "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ unk_token }}|{{ add_bos_token }}"
    tokens = {"bos_token": bos, "eos_token": "<eos>", "pad_token": "<pad>"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": source, **tokens}
    sizes = {"model_type": "llama", "bos_token_id": 0}
    files = save_directory(tmp_path, byte_level_tokenizer(), sizes, config)
    theirs: Any = transformers.AutoTokenizer.from_pretrained(tmp_path)
    expected = theirs.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    ours = ChatTemplate.from_vocab(load_vocab(files))
    assert ours.render([HELLO]) == expected == ("<s>" if bos else "") + "|<eos>|<pad>||"
    assert {"bos_token", "eos_token", "pad_token"} <= ours.server_names


# ---- templates for tools -------------------------------------------------------------------------

DEFAULT = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
TOOL_USE = (
    "{% for t in tools %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.role }}:"
    "{% for c in m.tool_calls %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{{ m.content }}|{% endfor %}"
)
NOW = ToolSpec("now")


def test_a_template_for_tools_is_for_chats_with_tools() -> None:
    ours = ChatTemplate(DEFAULT, tool_source=TOOL_USE)
    theirs = {"default": DEFAULT, "tool_use": TOOL_USE}
    tools = [{"type": "function", "function": {"name": "now"}}]
    assert ours.render([HELLO]) == of_transformers(theirs, [HELLO])
    assert ours.render([HELLO], tools=[NOW]) == of_transformers(theirs, [HELLO], tools=tools)
    alone = ChatTemplate(None, tool_source=TOOL_USE)
    assert alone.render([HELLO], tools=[NOW]) == ours.render([HELLO], tools=[NOW])
    with pytest.raises(RequestError, match="no chat template"):
        alone.render([HELLO])


CODER = """\
{% for t in tools %}{{ t.function.name }};{% endfor %}
{% for m in messages %}<|im_start|>{{ m.role }}
{% for call in m.tool_calls %}<tool_call>
<function={{ call.function.name }}>
{% for name, value in call.function.arguments | items %}<parameter={{ name }}>
{{ value if value is string else value | tojson }}
</parameter>
{% endfor %}</function>
</tool_call>{% endfor %}
{{ m.content }}<|im_end|>
{% endfor %}
"""


def test_past_calls_are_written_as_the_parser_reads_them() -> None:
    """With a template like that of Qwen3-Coder."""
    call = ToolCall("call_1", "now", '{"zone": "UTC", "exact": true}')
    chat = [HELLO, ChatMessage("assistant", "", tool_calls=[call])]
    template = ChatTemplate(CODER)
    text = template.render(chat, tools=[NOW])
    assert template.call_format is QWEN3_CODER
    parser = call_parser(QWEN3_CODER, {"now": ""}, constrained=False)
    events = parser.feed(text, final=True)
    assert [event for event in events if not isinstance(event, Content)] == [
        CallStart(0, "now"),
        CallArguments(0, call.arguments),
    ]


GPT_OSS = """\
{% for t in tools %}{{ t.function.name }};{% endfor %}
{% for m in messages %}
{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>
{%- endif %}
{% for c in m.tool_calls %}<|start|>assistant to=functions.{{ c.function.name }}
{{- "<|channel|>commentary json<|message|>" }}{{ c.function.arguments | tojson }}<|call|>
{%- endfor %}
{% if m.content %}<|start|>{{ m.role }}<|channel|>final<|message|>{{ m.content }}<|end|>{% endif %}
{% endfor %}
"""


def test_past_messages_of_channels_are_read_as_they_are_written() -> None:
    """With a template like that of gpt-oss, which has its own name for reasoning."""
    call = ToolCall("call_1", "now", '{"zone": "UTC"}')
    message = ChatMessage("assistant", "Well.", tool_calls=[call], reasoning="Hm.")
    template = ChatTemplate(GPT_OSS)
    text = template.render([message], tools=[NOW])
    assert template.call_format is HARMONY
    parser = call_parser(HARMONY, {"now": ""}, constrained=False)
    assert parser.feed(text.split("now;")[1], final=True) == [
        Reasoning("Hm."),
        CallStart(0, "now"),
        CallArguments(0, call.arguments),
        Content("Well."),
    ]


@pytest.mark.parametrize("source", [TOOL_USE.replace("<tool_call>", "<CALL>"), "{% for %}"])
def test_one_of_another_format_or_a_broken_one_is_not_used(source: str) -> None:
    ours = ChatTemplate(DEFAULT, tool_source=source)
    assert ours.render([HELLO], tools=[NOW]) == ChatTemplate(DEFAULT).render([HELLO], tools=[NOW])
