"""Chats with tools as prompts: what is checked, and whether the prompt opens reasoning."""

from dataclasses import replace
from typing import Any

import pytest

from srt.wire.errors import RequestError
from srt.wire.messages import ChatMessage, ChatOptions, GenerateReq, ToolCall, ToolSpec
from srt.wire.sampling import SamplingParams
from tests.tokenizer_proc.admission.test_front import EPOCH, VOCAB, byte_tokenizer, make_front
from tokenizer_proc.admission.parking import Parked
from tokenizer_proc.dispatch.admission import Admission
from tokenizer_proc.prompt.chat_template import ChatTemplate
from tokenizer_proc.prompt.prompt import Prompt, PromptReader

USER = ChatMessage("user", "hi")
PLAIN = "{% for m in messages %}{{ m.content }};{% endfor %}"


def read(source: str = PLAIN, limit: int = 100, **fields: Any) -> Prompt:
    reader = PromptReader(byte_tokenizer(), ChatTemplate(source), 258, limit)
    return reader.read(GenerateReq(rid="r", epoch=1, sampling=SamplingParams(), **fields))


def refused(**fields: Any) -> str | None:
    with pytest.raises(RequestError) as caught:
        read(**fields)
    return caught.value.info.param


def test_opened_reasoning() -> None:
    opening = PLAIN + "{% if add_generation_prompt %}<think>\n{% endif %}"
    assert read(opening, messages=[USER]).opens_reasoning
    assert not read(opening + "</think>", messages=[USER]).opens_reasoning
    assert not read(messages=[USER]).opens_reasoning
    assert not read(text="<think>").opens_reasoning


def test_closed_reasoning() -> None:
    """As templates write it for models that are asked not to think."""
    closing = PLAIN + "{% if add_generation_prompt %}<think>\n\n</think>\n\n{% endif %}"
    assert read(closing, messages=[USER]).closes_reasoning
    assert not read(messages=[USER]).closes_reasoning
    assert not read(messages=[ChatMessage("user", "a</think>b")]).closes_reasoning
    assert not read(text="</think>").closes_reasoning


@pytest.mark.parametrize("switch", ["enable_thinking", "thinking"])
def test_reasoning_that_is_switched_off_is_over_at_once(switch: str) -> None:
    """Also where the template begins it all the same."""
    opening = PLAIN + "{% if add_generation_prompt %}A:<think>\n{% endif %}"
    for value, text in (("false", "hi;A:<think>\n\n</think>\n\n"), ("true", "hi;A:<think>\n")):
        args = f'{{"{switch}": {value}}}'
        prompt = read(opening, messages=[USER], chat=ChatOptions(args))
        assert bytes(prompt.ids.tolist()).decode() == text
        assert prompt.closes_reasoning != prompt.opens_reasoning == (value == "true")
    with pytest.raises(RequestError, match=f"'{switch}' must be true or false"):
        read(opening, messages=[USER], chat=ChatOptions(f'{{"{switch}": "false"}}'))
    off = f'{{"{switch}": false}}'
    user = [ChatMessage("user", "<think>")]
    said = read(
        "{{ messages[0].content }}",
        messages=user,
        chat=ChatOptions(off, add_generation_prompt=False),
    )
    assert not said.closes_reasoning


@pytest.mark.parametrize(
    ("content", "opens", "closes"),
    [
        ("Sure", False, False),
        ("<think>Hm.</think>", False, True),
        ("<think>Hm.</think>Sure", False, False),
        ("<think>Hm.", True, False),
        (" ", False, False),
    ],
)
def test_the_reasoning_of_a_message_that_goes_on(content: str, opens: bool, closes: bool) -> None:
    messages = [USER, ChatMessage("assistant", content)]
    prompt = read("{{ messages[-1].content }}", messages=messages, chat=ChatOptions("", True))
    assert (prompt.opens_reasoning, prompt.closes_reasoning) == (opens, closes)


@pytest.mark.parametrize(
    ("template", "after", "has_token", "kept"),
    [
        (PLAIN, "</think>", True, ("</think>", "<think>")),
        (PLAIN, "</think>", False, ("", "")),
        (PLAIN + "<think>\n", "</think>", False, ("</think>", "")),
        (PLAIN + "<think></think>", "</think>", True, ("", "")),
        (PLAIN + "<think></think>", "x", False, ("x", "<think>")),
    ],
)
def test_a_constraint_waits_for_reasoning_as_the_prompt_ends(
    template: str, after: str, has_token: bool, kept: tuple[str, str]
) -> None:
    """With neither tag, only where the vocabulary has a token for the opening one."""
    vocab = replace(VOCAB, chat_template=template)
    if has_token:
        vocab = replace(vocab, token_bytes=[*VOCAB.token_bytes, b"<think>"])
    front = make_front(vocab=vocab)
    sampling = SamplingParams(
        max_new_tokens=1, regex="a", constraint_after=after, constraint_opener="<think>"
    )
    req = GenerateReq(rid="r", epoch=EPOCH, sampling=sampling, messages=[USER])
    parked = front.generate(b"client", req, 0.0)
    assert isinstance(parked, Parked) and parked.question is not None
    constraint = parked.question.constraint
    assert (constraint.after, constraint.opener) == kept
    answer = make_front(vocab=vocab, find=lambda constraint: "found").generate(b"client", req, 0.0)
    assert isinstance(answer, Admission)
    assert answer.admitted.lead == (None if kept == (after, "<think>") else kept)


def test_the_front_tells_of_it() -> None:
    cases = (
        (PLAIN + "<think>", (True, False)),
        (PLAIN + "</think>", (False, True)),
        (PLAIN, (False, False)),
    )
    for template, expected in cases:
        front = make_front(vocab=replace(VOCAB, chat_template=template))
        sampling = SamplingParams(max_new_tokens=1)
        req = GenerateReq(rid="r", epoch=EPOCH, sampling=sampling, messages=[USER])
        answer = front.generate(b"client", req, 0.0)
        assert isinstance(answer, Admission)
        admitted = answer.admitted
        assert (admitted.opens_reasoning, admitted.closes_reasoning) == expected


def test_what_templates_get_is_checked_first() -> None:
    tools = [ToolSpec("f"), ToolSpec("g", parameters="{")]
    assert refused(messages=[USER], tools=tools) == "tools[1].parameters"
    deep = ToolSpec("f", parameters='{"a":' * 5000)
    assert refused(messages=[USER], tools=[deep], limit=5000) == "tools[0].parameters"


def test_sizes_are_bounded() -> None:
    assert refused(messages=[USER], tools=[ToolSpec("f", "x" * 2000)]) == "tools"
    call = ToolCall("c", "f", '{"a": "%s"}' % ("x" * 2000))
    assert refused(messages=[ChatMessage("assistant", "", [call])]) == "messages"


def test_texts_that_templates_leave_out_are_bounded_too() -> None:
    """They are searched for control tokens."""
    long = "x" * 2000
    for message in (
        ChatMessage("user", "hi", name=long),
        ChatMessage("tool", "hi", tool_call_id=long),
        ChatMessage("assistant", "hi", reasoning=long),
        ChatMessage("assistant", "hi", [ToolCall(long, "f", "{}")]),
        ChatMessage("assistant", "hi", [ToolCall("c", long, "{}")]),
    ):
        assert refused(messages=[message]) == "messages"
    assert refused(messages=[USER], tools=[ToolSpec(long)]) == "tools"


OPTIONS = "{% if add_generation_prompt %}A:{% endif %}{{ mood }}{{ (documents or [0])[0] }}"


def test_template_arguments() -> None:
    def text(**chat: Any) -> str:
        prompt = read(PLAIN + OPTIONS, messages=[USER], chat=ChatOptions(**chat))
        return bytes(prompt.ids.astype("uint8")).decode()

    assert text() == "hi;A:0"
    assert text(add_generation_prompt=False) == "hi;0"
    assert text(template_args='{"mood": "glad", "documents": ["d"]}') == "hi;A:gladd"
    assert text(template_args='{"unknown": {"a": [1]}}') == "hi;A:0"


@pytest.mark.parametrize(
    "args",
    [
        "[]",
        "{",
        '{"a":' * 5000,
        '{"messages": []}',
        '{"tools": null}',
        '{"bos_token": "x"}',
        '{"eos_token": "x"}',
        '{"add_generation_prompt": true}',
        '{"raise_exception": 1}',
    ],
)
def test_bad_template_arguments(args: str) -> None:
    chat = ChatOptions(template_args=args)
    assert refused(messages=[USER], chat=chat, limit=5000) == "chat.template_args"


def test_chat_options_need_messages() -> None:
    assert refused(text="a", chat=ChatOptions(template_args="{}")) == "chat"
    long = ChatOptions(template_args='{"a": "%s"}' % ("x" * 2000))
    assert refused(messages=[USER], chat=long) == "chat.template_args"


def test_tools_need_messages() -> None:
    assert refused(text="a", tools=[ToolSpec("f")]) == "tools"
