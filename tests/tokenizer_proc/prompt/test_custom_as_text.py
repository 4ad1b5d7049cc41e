"""Custom tools in prompts: their description, their calls and their results."""

from srt.answers.custom_tools import call_text, instructions, result_text
from srt.wire.messages import ChatMessage, InputFormat, ToolCall, ToolSpec
from tests.tokenizer_proc.prompt.test_prompt import read
from tokenizer_proc.prompt.custom_as_text import with_custom_as_text

SHELL = ToolSpec("shell")
EDIT = ToolSpec("edit", "Edits.", input=InputFormat("lark", 'start: "a"'))
USER, SYSTEM = ChatMessage("user", "Go."), ChatMessage("system", "Be brief.")
RAW = ToolCall("c", "edit", '*** "x"\n', is_raw=True)
CALL = ToolCall("d", "shell", "{}")
RAW_RESULT = ChatMessage("tool", "Done.", tool_call_id="c", name="edit")
RESULT = ChatMessage("tool", "fine", tool_call_id="d", name="shell")


def test_a_chat_without_custom_tools_is_as_it_was() -> None:
    chat = [SYSTEM, USER, ChatMessage("assistant", "", tool_calls=[CALL]), RESULT]
    assert with_custom_as_text(chat, [SHELL]) == (chat, [SHELL])


def test_the_description_ends_the_system_message() -> None:
    text = instructions([EDIT])
    messages, tools = with_custom_as_text([SYSTEM, USER], [SHELL, EDIT])
    assert messages == [ChatMessage("system", f"Be brief.\n\n{text}"), USER] and tools == [SHELL]
    assert with_custom_as_text([USER], [EDIT])[0][0] == ChatMessage("system", text)


def test_calls_and_results() -> None:
    """A block is text of its message; its result stands behind those of functions."""
    turn = ChatMessage("assistant", "So:", tool_calls=[RAW, CALL], reasoning="hm")
    other = ChatMessage("assistant", "", tool_calls=[RAW])
    chat = [USER, turn, RAW_RESULT, RESULT, other, RAW_RESULT, RAW_RESULT, USER]
    result = result_text("edit", "Done.")
    assert with_custom_as_text(chat, [])[0] == [
        USER,
        ChatMessage("assistant", f"So:\n{call_text(RAW)}", tool_calls=[CALL], reasoning="hm"),
        RESULT,
        ChatMessage("user", result),
        ChatMessage("assistant", call_text(RAW)),
        ChatMessage("user", f"{result}\n{result}"),
        USER,
    ]


def test_an_id_may_name_one_call_after_another() -> None:
    """Some clients count the calls of each turn."""
    again = ChatMessage("assistant", "", tool_calls=[ToolCall("c", "shell", "{}")])
    result = ChatMessage("tool", "fine", tool_call_id="c", name="shell")
    chat = [USER, ChatMessage("assistant", "", tool_calls=[RAW]), RAW_RESULT, again, result]
    assert with_custom_as_text(chat, [])[0][-2:] == [again, result]


def test_results_with_pictures_keep_their_order() -> None:
    turn = ChatMessage("assistant", "", tool_calls=[RAW, CALL])
    seen = ChatMessage("tool", "", tool_call_id="c", name="edit", parts=["a", 0])
    messages, _ = with_custom_as_text([USER, turn, seen, RESULT], [])
    assert messages[2] == ChatMessage("user", "", parts=[result_text("edit", "a"), 0])
    assert messages[3] == RESULT


def test_a_prompt_is_what_the_model_wrote() -> None:
    """A turn of the history begins with the prompt and the output of the turn before."""
    turn = ChatMessage("assistant", call_text(RAW))
    history = [USER, ChatMessage("assistant", "", tool_calls=[RAW]), RAW_RESULT]
    first = read(messages=[USER], tools=[EDIT], limit=4000)
    again = read(messages=history, tools=[EDIT], limit=4000)
    whole = bytes(again.ids.tolist()).decode()
    assert whole.startswith(bytes(first.ids.tolist()).decode() + turn.content)
