"""Templates that refuse, or leave out, what clients may send: one small template of each kind."""

import json

import pytest
from msgspec.structs import replace

from srt.wire.messages import ChatMessage, ToolCall, ToolSpec
from tokenizer_proc.prompt.chat_template import ChatTemplate

USER, OTHER = ChatMessage("user", "Hi"), ChatMessage("user", "There?")
ANSWER = ChatMessage("assistant", "Yes.")
SYSTEM, LATER = ChatMessage("system", "Brief."), ChatMessage("system", "Now long.")
ROME, PARIS = (ToolCall(i, "look", f'{{"city": "{i}"}}') for i in ("Rome", "Paris"))
THOUGHT = ChatMessage("assistant", "", reasoning="Hm.")
CALLS = ChatMessage("assistant", "", tool_calls=[ROME, PARIS])
RESULTS = [ChatMessage("tool", f"in {i}", tool_call_id=i, name="look") for i in ("Paris", "Rome")]
TOOL = ToolSpec("look", "Look.", '{"type": "object", "properties": {"city": {"type": "string"}}}')

PLAIN = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 is even) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}[{{ m.role }}:{{ m.content }}]"
    "{% endfor %}"
)
FIRST_ONLY = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('the system message comes first') }}{% endif %}"
    "[{{ m.role }}:{{ m.content }}]{% endfor %}"
)
# Leaves out what the one before refuses.
FIRST_WRITTEN = FIRST_ONLY.replace("{{ raise_exception('the system message comes first') }}", "")
FIRST_WRITTEN = FIRST_WRITTEN.replace("{% endif %}[", "{% else %}[").replace(
    "]{%", "]{% endif %}{%"
)
LAST_WRITTEN = (
    "{% set n = namespace(s='') %}{% for m in messages if m.role == 'system' %}"
    "{% set n.s = m.content %}{% endfor %}[{{ n.s }}]"
    "{% for m in messages if m.role != 'system' %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
)
BESIDE_LAST_USER = (
    "{% for m in messages if m.role != 'system' %}[{{ m.role }}:"
    "{{ messages[0].content ~ '/' if loop.last and m.role == 'user' else '' }}{{ m.content }}]"
    "{% endfor %}"
)
NO_EMPTY = NO_SYSTEM.replace(
    "{% for",
    "{% for m in messages if not m.content %}{{ raise_exception('empty') }}{% endfor %}{% for",
    1,
)
NO_SYSTEM_WRITTEN = (
    "{% for m in messages if m.role != 'system' %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
)


@pytest.mark.parametrize(
    ("source", "chat", "text"),
    [
        (PLAIN, [SYSTEM, USER, OTHER], "[system:Brief.][user:Hi][user:There?]"),
        (NO_SYSTEM, [SYSTEM, USER], "[user:Brief.\n\nHi]"),
        (NO_SYSTEM, [SYSTEM, LATER, USER, OTHER], "[user:Brief.\n\nNow long.\n\nHi\n\nThere?]"),
        (NO_SYSTEM, [USER, ANSWER, ANSWER], "[user:Hi][assistant:Yes.\n\nYes.]"),
        (FIRST_ONLY, [SYSTEM, LATER, USER], "[system:Brief.\n\nNow long.][user:Hi]"),
        (FIRST_ONLY, [USER, ANSWER, LATER], "[user:Hi][assistant:Yes.][user:Now long.]"),
        (
            FIRST_WRITTEN,
            [SYSTEM, USER, ANSWER, LATER, OTHER],
            "[system:Brief.][user:Hi][assistant:Yes.][user:Now long.\n\nThere?]",
        ),
        (
            NO_SYSTEM,
            [USER, SYSTEM, ANSWER, OTHER],
            "[user:Hi\n\nBrief.][assistant:Yes.][user:There?]",
        ),
        (
            FIRST_ONLY,
            [USER, LATER, ANSWER, OTHER],
            "[user:Hi][user:Now long.][assistant:Yes.][user:There?]",
        ),
        (LAST_WRITTEN, [SYSTEM, LATER, USER], "[Brief.\n\nNow long.][user:Hi]"),
        (BESIDE_LAST_USER, [SYSTEM, USER], "[user:Brief./Hi]"),
        (BESIDE_LAST_USER, [SYSTEM, USER, ANSWER], "[user:Brief.\n\nHi][assistant:Yes.]"),
        (NO_EMPTY, [USER, THOUGHT, OTHER], "[user:Hi][assistant: ][user:There?]"),
        (NO_SYSTEM_WRITTEN, [SYSTEM, USER, OTHER], "[user:Brief.\n\nHi][user:There?]"),
    ],
)
def test_system_messages_and_turns(source: str, chat: list[ChatMessage], text: str) -> None:
    template = ChatTemplate(source)
    assert template.render(chat) == template.render(chat) == text


def test_a_template_that_refuses_our_probes_gets_the_chat_as_it_is() -> None:
    text = "[system:Brief.][user:Hi][system:Now long.]"
    chat = [SYSTEM, USER, LATER]
    assert ChatTemplate(PLAIN.replace("m.content", "m.content | upper")).render(chat) == (
        "[system:BRIEF.][user:HI][system:NOW LONG.]"
    )
    needs = "{% if not VARIABLE %}{{ raise_exception('none') }}{% endif %}" + PLAIN
    template = ChatTemplate(needs.replace("VARIABLE", "level"))
    assert template.render(chat, template_args={"level": 1}) == text
    only_with_tools = ChatTemplate(
        "{% if tools is none %}{{ raise_exception('none') }}{% endif %}"
        + LLAMA.replace("TOOL", "").replace("CALLS", EVERY_CALL)
    )
    assert only_with_tools.render(chat, tools=[TOOL]) == text
    assert only_with_tools.render(chat) == text  # with an empty list of tools


@pytest.mark.parametrize("source", [NO_SYSTEM, FIRST_ONLY, NO_SYSTEM_WRITTEN])
def test_our_description_of_tools_is_in_every_prompt(source: str) -> None:
    text = ChatTemplate(source).render([USER], tools=[TOOL])
    assert text.count('"name": "look"') == 1 and text.endswith("Hi]")


# The form of Llama's calls, with what Jinja writes of each in place of WRITTEN.
LLAMA = (
    '{# <|python_tag|> "parameters": #}{% for t in tools or [] %}TOOL{% endfor %}'
    "{% for m in messages %}{% if m.tool_calls %}CALLS{% else %}[{{ m.role }}:{{ m.content }}]"
    "{% endif %}{% endfor %}"
)
CALL = '{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}'
CALL_TEXT = '{"name": "look", "parameters": {"city": "%s"}}'
EVERY_CALL = "{% for c in m.tool_calls %}" + CALL + "{% endfor %}"
FIRST_CALL = "{% set c = m.tool_calls[0] %}" + CALL
ONE_CALL = "{% if m.tool_calls | length != 1 %}{{ raise_exception('one call') }}{% endif %}"
ONE_CALL += FIRST_CALL


@pytest.mark.parametrize("calls", [FIRST_CALL, ONE_CALL])
def test_a_template_of_one_call_gets_a_turn_for_each(calls: str) -> None:
    rome, paris = (CALL_TEXT % i for i in ("Rome", "Paris"))
    several = ChatTemplate(LLAMA.replace("TOOL", "").replace("CALLS", EVERY_CALL))
    chat = [USER, CALLS, *RESULTS, OTHER]
    results = "[tool:in Paris][tool:in Rome]"
    assert several.render(chat, tools=[TOOL]) == f"[user:Hi]{rome}{paris}{results}[user:There?]"
    template = ChatTemplate(LLAMA.replace("TOOL", "").replace("CALLS", calls))
    turns = f"[user:Hi]{rome}[tool:in Rome]{paris}[tool:in Paris]"
    assert template.render(chat, tools=[TOOL]) == f"{turns}[user:There?]"
    assert template.render(chat[:-1], tools=[TOOL]) == turns
    assert template.render([USER, CALLS, RESULTS[0]], tools=[TOOL]).endswith("[tool:in Paris]")


def test_results_of_one_call_each() -> None:
    """By id, in their order; those of no call come after all."""
    template = ChatTemplate(LLAMA.replace("TOOL", "").replace("CALLS", FIRST_CALL))
    same = [replace(call, id="x") for call in CALLS.tool_calls]
    results = [ChatMessage("tool", text, tool_call_id=i) for text, i in ("1x", "oy", "2x")]
    text = template.render([USER, replace(CALLS, tool_calls=same), *results], tools=[TOOL])
    rome, paris = (CALL_TEXT % i for i in ("Rome", "Paris"))
    assert text == f"[user:Hi]{rome}[tool:1]{paris}[tool:2][tool:o]"


REFUSES_BOTH = (
    "{% if m.content and m.reasoning_content %}{{ raise_exception('both') }}{% endif %}"
    "{{ m.reasoning_content }}{{ m.content }}" + EVERY_CALL
)
DROPS_CALL = "{% if m.content %}[assistant:{{ m.content }}]{% else %}" + EVERY_CALL + "{% endif %}"


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        (EVERY_CALL, "[assistant:Look!]CALLS"),
        (DROPS_CALL, "[assistant:Look!]CALLS"),
        (REFUSES_BOTH, "[assistant:Look!]Hm.CALLS"),
        ("{{ m.content }}" + EVERY_CALL, "Look!CALLS"),
    ],
)
def test_content_beside_calls(calls: str, text: str) -> None:
    template = ChatTemplate(LLAMA.replace("TOOL", "").replace("CALLS", calls))
    turn = replace(CALLS, content="Look!", reasoning="Hm.")
    both = "".join(CALL_TEXT % i for i in ("Rome", "Paris"))
    expected = "[user:Hi]" + text.replace("CALLS", both) + "[tool:in Paris][tool:in Rome]"
    assert template.render([USER, turn, *RESULTS], tools=[TOOL]) == expected


CUT = [ToolCall("c", "look", text) for text in ('{"city": "Ro', "{", "null", "[]", "[1", "NaN")]


@pytest.mark.parametrize("call", CUT)
def test_arguments_that_are_no_object(call: ToolCall) -> None:
    """They are the text where the template takes one, and otherwise within an object."""
    message = ChatMessage("assistant", "", tool_calls=[call])
    json_form = f"<tool_call>{CALL.replace('parameters', 'arguments')}</tool_call>"
    calls = f"{{% for c in m.tool_calls %}}{json_form}{{% endfor %}}"
    template = ChatTemplate(LLAMA.replace("TOOL", "").replace("CALLS", calls))
    text = json.dumps(call.arguments)
    assert f'"arguments": {text}}}' in template.render([USER, message], tools=[TOOL])
    pairs = "{% for name, value in c.function.arguments.items() %}"
    pairs += "<arg_key>{{ name }}</arg_key>\n<arg_value>{{ value }}</arg_value>\n{% endfor %}"
    glm = "<tool_call>{{ c.function.name }}\n" + pairs + "</tool_call>"
    calls = f"{{% for c in m.tool_calls %}}{glm}{{% endfor %}}"
    template = ChatTemplate(LLAMA.replace("TOOL", "").replace("CALLS", calls))
    raw = f"<arg_key>raw</arg_key>\n<arg_value>{call.arguments}</arg_value>"
    assert raw in template.render([USER, message], tools=[TOOL])


FIELDS = "{{ t.function.name + t.function.description }}"
PARAMETERS = "{% for name, p in t.function.parameters.properties.items() %}{{ name }}{% endfor %}"


@pytest.mark.parametrize("written", [FIELDS, PARAMETERS])
@pytest.mark.parametrize("tool", [ToolSpec("now"), ToolSpec("now", parameters='{"type":"object"}')])
def test_optional_fields_of_tools_are_filled_in_where_they_are_needed(
    written: str, tool: ToolSpec
) -> None:
    source = LLAMA.replace("CALLS", EVERY_CALL)
    given = ChatTemplate(source.replace("TOOL", "{{ t | tojson }}")).render([USER], tools=[tool])
    assert "description" not in given and "properties" not in given
    text = ChatTemplate(source.replace("TOOL", written)).render([USER], tools=[tool])
    assert text == ("now" if written == FIELDS else "") + "[user:Hi]"


def test_json_of_what_filters_give() -> None:
    source = "{{ messages | map(attribute='role') | tojson }}{{ messages[0].keys() | tojson }}"
    assert ChatTemplate(source).render([USER, ANSWER]) == '["user", "assistant"]["role", "content"]'
