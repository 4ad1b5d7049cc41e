"""Prompts that end inside the last message, by templates that do all kinds of things to it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srt.files.model_files import resolve_model
from srt.files.tokenizer import load_tokenizer
from srt.files.vocab import load_vocab
from srt.wire.errors import RequestError
from srt.wire.messages import ChatMessage, ChatOptions, GenerateReq, ToolCall
from srt.wire.sampling import SamplingParams
from tokenizer_proc.prompt.chat_template import ChatTemplate
from tokenizer_proc.prompt.continuation import render_open
from tokenizer_proc.prompt.prompt import PromptReader

USER = ChatMessage("user", "Say it.")
LOOP = "{%% for m in messages %%}<%%s>{{ %s }}</%%s>{%% endfor %%}".replace("%%s", "{{ m.role }}")


def opened(content: str, source: str = LOOP % "m.content") -> str:
    template = ChatTemplate(source)
    return render_open(
        lambda messages: template.render(messages, False), [USER, ChatMessage("a", content)]
    )


@pytest.mark.parametrize(
    "content", ["", "It", "It ", " It\n\n", "</a>", "Say it.", "</a><user>Say it.</user><a>"]
)
def test_the_text_as_it_is(content: str) -> None:
    """Even if the same text is elsewhere in the prompt, or ends in blanks."""
    assert opened(content) == "<user>Say it.</user><a>" + content


def test_a_template_that_trims() -> None:
    """Only blanks before the text are removed: the output follows those after it."""
    assert opened("  It ", LOOP % "m.content | trim") == "<user>Say it.</user><a>It "


@pytest.mark.parametrize(
    "expression",
    [
        "m.content | upper",
        "m.content | lower",
        "m.content | tojson",
        "m.content ~ m.content",
        "m.content[:3]",
        "'gone'",
        "m.content.split('/')[-1]",
    ],
)
def test_templates_that_change_the_text(expression: str) -> None:
    with pytest.raises(RequestError, match="does not write the text") as caught:
        opened('He said "it" / he', LOOP % expression)
    assert caught.value.info.param == "chat.continue_final"


def test_calls_cannot_be_continued() -> None:
    message = ChatMessage("assistant", "Well.", [ToolCall("c", "f", "{}")])
    with pytest.raises(RequestError, match="tool calls"):
        render_open(lambda messages: "", [USER, message])


def test_a_template_that_fails_says_why() -> None:
    with pytest.raises(RequestError, match="no more") as caught:
        opened("It", "{{ raise_exception('no more') }}")
    assert caught.value.info.param == "messages"


@given(st.text(alphabet="ab <>|\n/", max_size=12))
def test_smollm2_goes_on_where_the_message_ends(content: str) -> None:
    """The prompt and a text after it are the prompt of the message that has both."""
    head = _READER.read(_request(content)).ids
    whole = _TEMPLATE.render([USER, ChatMessage("assistant", content + "!")], False)
    assert whole.startswith(_VOCAB.decode(head, skip_special_tokens=False) + "!<|im_end|>")


_FILES = resolve_model("smollm2")
_VOCAB = load_vocab(_FILES)
_TEMPLATE = ChatTemplate.from_vocab(_VOCAB)
_READER = PromptReader(load_tokenizer(_FILES), _TEMPLATE, _VOCAB.vocab_size, 4096)


def _request(content: str) -> GenerateReq:
    messages = [USER, ChatMessage("assistant", content)]
    chat = ChatOptions(continue_final=True)
    return GenerateReq("r", 1, sampling=SamplingParams(), messages=messages, chat=chat)
