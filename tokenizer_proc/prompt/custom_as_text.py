"""Custom tools, their calls and results as plain messages: templates know functions only.

Called before a chat is rendered, whatever its template does with functions. The same history always
gives the same prompt.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from srt.answers.custom_tools import call_text, instructions, result_text
from srt.wire.messages import ChatMessage, ToolSpec
from tokenizer_proc.prompt.chat_contents import joined, text_of
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
    names: dict[str, str] = {}  # of the tools, by the calls' ids
    waiting: list[ChatMessage] = []  # the results of a turn, as one message
    for message in messages:
        if message.role == "tool" and message.tool_call_id in names:
            text = result_text(names[message.tool_call_id], text_of(message))
            result = with_text(ChatMessage("user", ""), text, message)
            if result.parts:  # media keep their order
                plain += [*waiting, result]
                waiting = []
            else:
                waiting = [joined(waiting[0], result, "\n") if waiting else result]
            continue
        if message.role != "tool":
            plain += waiting
            waiting = []
        blocks = [call for call in message.tool_calls if call.is_raw]
        names |= {call.id: call.name for call in blocks}
        plain.append(_with_blocks(message) if blocks else message)
    plain += waiting
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
