"""Tools, calls and results as plain messages, for chat templates that do not handle them."""

from collections.abc import Sequence

from msgspec.structs import replace

from srt.answers.tool_format import ToolFormat
from srt.wire.messages import ChatMessage, ToolSpec
from tokenizer_proc.prompt.chat_contents import joined, text_of


def with_tools_as_text(
    messages: Sequence[ChatMessage], tools: Sequence[ToolSpec], form: ToolFormat
) -> list[ChatMessage]:
    """`messages` with everything about tools written into their contents.

    The description of `tools` ends the first system message, or is a system message of its own.
    Calls are text of the assistant; consecutive results are one message of the user, since
    templates may require turns to alternate and know no role "tool". Media of a message follow its
    text.
    """
    plain: list[ChatMessage] = []
    after_result = False
    for message in messages:
        if message.role == "tool":
            result = with_text(ChatMessage("user", ""), form.result_text(text_of(message)), message)
            plain.append(joined(plain.pop(), result, "\n") if after_result else result)
        elif message.tool_calls:
            text = form.calls_text(text_of(message), message.tool_calls)
            plain.append(with_text(replace(message, tool_calls=[]), text, message))
        else:
            plain.append(message)
        after_result = message.role == "tool"
    return with_instructions(plain, form.instructions(tools)) if tools else plain


def with_instructions(messages: list[ChatMessage], text: str) -> list[ChatMessage]:
    """`messages` with this text at the end of the first system message, or in one of its own."""
    if messages and messages[0].role == "system":
        first = messages[0]
        if first.parts:
            first = replace(first, parts=[*first.parts, f"\n\n{text}"])
        else:
            first = replace(first, content=f"{first.content}\n\n{text}".lstrip())
        return [first, *messages[1:]]
    return [ChatMessage("system", text), *messages]


def with_text(message: ChatMessage, text: str, source: ChatMessage) -> ChatMessage:
    """`message` with this text, and the media of `source` behind it."""
    media = [part for part in source.parts if isinstance(part, int)]
    if not media:
        return replace(message, content=text, parts=[])
    return replace(message, content="", parts=[text, *media])
