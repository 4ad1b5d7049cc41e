"""Chats whose prompt ends inside the last message, which the output then continues.

Called by the prompt reader. What a template writes after a message is not known, so a mark is put
at the end of the message's text, and the prompt is the text that the template writes before it.
"""

import secrets
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from srt.wire.errors import RequestError
from srt.wire.messages import ChatMessage

Render = Callable[[Sequence[ChatMessage]], str]
PARAM = "chat.continue_final"


def render_open(render: Render, messages: Sequence[ChatMessage]) -> str:
    """The chat up to the last character of its last message.

    Raises RequestError if there is no such prompt: calls follow the text, or the template changes
    the text (apart from blanks before it) or does not write it exactly once.
    """
    last = messages[-1]
    if last.tool_calls:
        raise RequestError(": the last message must not have tool calls", at=PARAM)
    # In upper and lower case, so that a filter which changes case is detected.
    mark = f"<mArK-{secrets.token_hex(8)}>"
    if last.parts:
        ending = last.parts[-1]
        if not isinstance(ending, str):
            raise RequestError(": the last message must end with text", at=PARAM)
        marked = replace(last, parts=[*last.parts[:-1], ending + mark])
    else:
        ending, marked = last.content, replace(last, content=last.content + mark)
    text = render([*messages[:-1], marked])
    before, *behind = text.split(mark)
    if len(behind) != 1 or not before.endswith(ending.lstrip()):
        reason = "the chat template does not write the text of the last message unchanged"
        raise RequestError(f": {reason}", at=PARAM)
    return before
