"""Tools, calls and results as plain messages, for chat templates that do not handle them."""

from collections.abc import Sequence

from msgspec.structs import replace

from srt.answers.tool_format import ToolFormat
from srt.wire.messages import ChatMessage, ToolSpec


def with_tools_as_text(
    messages: Sequence[ChatMessage], tools: Sequence[ToolSpec], form: ToolFormat
) -> list[ChatMessage]:
    """`messages` with everything about tools written into their contents.

    The description of `tools` ends the first system message, or is a system message of its own.
    Calls are text of the assistant; consecutive results are one message of the user, since
    templates may require turns to alternate and know no role "tool".
    """
    plain: list[ChatMessage] = []
    after_result = False
    for message in messages:
        if message.role == "tool":
            text = form.result_text(message.content)
            if after_result:
                plain[-1] = ChatMessage("user", f"{plain[-1].content}\n{text}")
            else:
                plain.append(ChatMessage("user", text))
        elif message.tool_calls:
            text = form.calls_text(message.content, message.tool_calls)
            plain.append(replace(message, content=text, tool_calls=[]))
        else:
            plain.append(message)
        after_result = message.role == "tool"
    return _with_instructions(plain, form.instructions(tools)) if tools else plain


def _with_instructions(messages: list[ChatMessage], text: str) -> list[ChatMessage]:
    if messages and messages[0].role == "system":
        first = replace(messages[0], content=f"{messages[0].content}\n\n{text}".lstrip())
        return [first, *messages[1:]]
    return [ChatMessage("system", text), *messages]
