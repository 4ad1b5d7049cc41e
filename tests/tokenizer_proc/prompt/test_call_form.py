"""Which format of calls a chat template has: a rendered call is read back."""

import logging
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from srt.answers.tool_calls import call_parser
from srt.answers.tool_events import CallArguments, CallStart, Content, Reasoning
from srt.answers.tool_format import FORMATS, HERMES, name_of
from srt.wire.errors import RequestError
from srt.wire.messages import ChatMessage, ToolCall, ToolSpec
from tokenizer_proc.prompt.chat_template import ChatTemplate

TEMPLATES = os.environ.get("SRT_TEST_TEMPLATES", "")  # a folder of Jinja files
NOW = ToolSpec("now")
ASKED, ANSWER = ChatMessage("user", "Well?"), ChatMessage("assistant", "")
JSON = "{{ c.arguments | tojson }}"
EACH = "{% for k, v in c.arguments.items() %}"
VALUE = "{{ v if v is string else v | tojson }}"
DEEPSEEK = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>%s<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
CALLS = {
    "hermes": "<tool_call>\n{{ c | tojson }}\n</tool_call>",
    "qwen3_coder": "<tool_call>\n<function={{ c.name }}>\n"
    f"{EACH}<parameter={{{{ k }}}}>\n{VALUE}\n</parameter>\n{{% endfor %}}"
    "</function>\n</tool_call>",
    "glm": "<tool_call>{{ c.name }}\n"
    f"{EACH}<arg_key>{{{{ k }}}}</arg_key>\n<arg_value>{VALUE}</arg_value>\n{{% endfor %}}"
    "</tool_call>",
    "glm47": "<tool_call>{{ c.name }}"
    f"{EACH}<arg_key>{{{{ k }}}}</arg_key><arg_value>{VALUE}</arg_value>{{% endfor %}}"
    "</tool_call>",
    # Llama 3.2's has no <|python_tag|>.
    "llama3": f'{{"name": "{{{{ c.name }}}}", "parameters": {JSON}}}',
    "mistral": f'[TOOL_CALLS] [{{"name": "{{{{ c.name }}}}", "arguments": {JSON}}}]',
    "mistral_args": f"[TOOL_CALLS]{{{{ c.name }}}}[ARGS]{JSON}",
    "deepseekv3": DEEPSEEK % f"function<｜tool▁sep｜>{{{{ c.name }}}}\n```json\n{JSON}\n```",
    "deepseekv31": DEEPSEEK % f"{{{{ c.name }}}}<｜tool▁sep｜>{JSON}",
    "gpt-oss": "<|start|>assistant<|channel|>commentary to=functions.{{ c.name }} "
    f"<|constrain|>json<|message|>{JSON}<|call|>",
}
OF_OTHERS = {
    "another tag": "<seed:tool_call>\n<function={{ c.name }}>\n</function>\n</seed:tool_call>",
    "a list": "<tool_call>[{{ c | tojson }}]</tool_call>",
    "a list in tags": "<tool_calls>[{{ c | tojson }}]</tool_calls>",
    "the name only": "<tool_call>{{ c.name }}</tool_call>",
    "nothing": "",
}


def template_of(call: str) -> str:
    """A template that writes tools, and calls as `call`."""
    return (
        "{% for t in tools or [] %}{{ t.function.name }} <tool_call>{% endfor %}"
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
        f"{{% for t in m.tool_calls or [] %}}{{% set c = t.function %}}{call}{{% endfor %}}"
        "<|end|>\n{% endfor %}"
    )


def test_there_is_a_template_of_each_form() -> None:
    assert {id(FORMATS[name]) for name in CALLS} == {id(form) for form in FORMATS.values()}


@pytest.mark.parametrize("name", CALLS)
def test_a_rendered_call_shows_the_format(name: str) -> None:
    template = ChatTemplate(template_of(CALLS[name]))
    assert name_of(template.call_format) == name
    assert "now" in template.render([ASKED], tools=[NOW])
    assert HERMES.tools_begin not in template.render([ASKED], tools=[NOW])


@pytest.mark.parametrize("name", OF_OTHERS)
def test_calls_of_other_formats_are_described_as_text(name: str) -> None:
    """Whatever words of known formats the template contains."""
    template = ChatTemplate(template_of(OF_OTHERS[name]))
    assert template.call_format is HERMES
    assert HERMES.instructions([NOW]) in template.render([ASKED], tools=[NOW])


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("{{ raise_exception('no calls here') }}", "no calls here"),
        ("{{ raise_exception('\\n' + 'long ' * 100000) }}", "long long"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "long"),
        ("{{ c.arguments + 'x' }}", "unsupported operand"),
    ],
)
def test_a_template_that_cannot_write_a_call_is_told_of(
    call: str, reason: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenizer_proc.prompt.call_form.RENDER_CPU_S", 0.2)
    with caplog.at_level(logging.WARNING):
        template = ChatTemplate(template_of(call))
    (record,) = caplog.records
    message = record.getMessage()
    assert reason in message and "\n" not in message and len(message) < 500
    assert HERMES.instructions([NOW]) in template.render([ASKED], tools=[NOW])


@pytest.mark.slow
@pytest.mark.skipif(not TEMPLATES, reason="SRT_TEST_TEMPLATES names no folder of templates")
@pytest.mark.parametrize("path", sorted(Path(TEMPLATES).glob("*.jinja")), ids=lambda p: p.stem)
def test_templates_of_models(path: Path) -> None:
    """llama.cpp's `models/templates`: a past call is read back, in the template's own format or in
    the one that is described as text."""
    template = ChatTemplate(path.read_text(), bos_token="<s>", eos_token="</s>")
    try:
        template.render([ASKED])
    except RequestError as error:
        pytest.skip(f"it takes no chats without tools: {error}")
    form, schema = template.call_format, '{"type": "object", "properties": {"zone": {}}}'
    call = ToolCall("call00001", "now", '{"zone": "UTC"}')
    spec = ToolSpec("now", "The time.", schema)
    text = template.render([ASKED, replace(ANSWER, tool_calls=[call])], False, tools=[spec])
    if form.reading is not None and form.reading.is_first:
        text = text[text.rindex(form.begin) :]
    events = call_parser(form, {"now": schema}, constrained=False).feed(text, final=True)
    assert [event for event in events if not isinstance(event, Content | Reasoning)] == [
        CallStart(0, "now"),
        CallArguments(0, call.arguments),
    ]
