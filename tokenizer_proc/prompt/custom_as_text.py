"""Custom tools, their calls and results as plain messages: templates know functions only.

Called before a chat is rendered, whatever its template does with functions. The same history always
gives the same prompt.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from srt.answers.custom_tools import call_text, instructions, result_text
from srt.wire.messages import ChatMessage, ToolSpec
from tokenizer_proc.prompt.chat_contents import text_of
from tokenizer_proc.prompt.tools_as_text import with_instructions, with_text


def with_custom_as_text(
    messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]
) -> tuple[list[ChatMessage], list[ToolSpec]]:
    """`messages` with everything about custom tools written into their contents, and the tools that
    are functions.

    The description of the tools ends the first system message, or is a system message of its own.
    Calls are text of the assistant, before its calls of functions. Results of one turn are one
    message of the user, behind those of functions: templates want these right after their calls.
    """
    custom = [tool for tool in tools if tool.input is not None]
    plain: list[ChatMessage] = []
    names: dict[str, str] = {}  # of the tools, by the ids of the latest calls with these
    waiting: list[str] = []  # the results of a turn

    def end_results() -> None:
        if waiting:
            plain.append(ChatMessage("user", "\n".join(waiting)))
            waiting.clear()

    for message in messages:
        if message.role == "tool" and message.tool_call_id in names:
            text = result_text(names[message.tool_call_id], text_of(message))
            result = with_text(ChatMessage("user", ""), text, message)
            if result.parts:  # media keep their order
                end_results()
                plain.append(result)
            else:
                waiting.append(text)
            continue
        if message.role != "tool":
            end_results()
        for call in message.tool_calls:
            if call.is_raw:
                names[call.id] = call.name
            else:
                names.pop(call.id, None)
        has_blocks = any(call.is_raw for call in message.tool_calls)
        plain.append(_with_blocks(message) if has_blocks else message)
    end_results()
    if custom:
        plain = with_instructions(plain, instructions(custom))
    return plain, [tool for tool in tools if tool.input is None]


def _with_blocks(message: ChatMessage) -> ChatMessage:
    """An assistant's message whose calls of custom tools are text."""
    text = text_of(message)
    blocks = [call_text(call) for call in message.tool_calls if call.is_raw]
    others = [call for call in message.tool_calls if not call.is_raw]
    whole = "\n".join([text] * bool(text) + blocks)
    return with_text(replace(message, tool_calls=others), whole, message)
