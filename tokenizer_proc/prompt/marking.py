"""Keeps control tokens that users write in chats from becoming tokens: they stay text.

Called by the prompt reader before a chat is rendered. A chat in which a user's text holds a control
token, or begins or ends with a part of one, is rendered with a private-use character in each of
them (`ControlTokens.marked`); then the tokenizer can separate the template's from the user's, and
removes the marks. All other chats are rendered and encoded unchanged.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from srt.answers.tool_format import arguments_of
from srt.files.control_tokens import ControlTokens
from srt.wire.errors import RequestError
from srt.wire.messages import ChatMessage, ToolCall, ToolSpec

# Templates make control tokens of these roles, as Phi's `<|user|>`; of no other role.
_ROLES = ("system", "developer", "user", "assistant", "tool")
_PRIVATE_USE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
_ANY_MARK = chr(_PRIVATE_USE[0].start)


class Chat(NamedTuple):
    """What a template renders. `args` are its further variables; `mark` is the character that
    marks control tokens, "" if there is nothing to mark."""

    messages: Sequence[ChatMessage]
    tools: Sequence[ToolSpec]
    args: Mapping[str, Any]
    mark: str = ""


def marked_chat(chat: Chat, control: ControlTokens) -> Chat:
    """`chat` with the control tokens in its texts marked.

    Raises RequestError if the texts hold every private-use character, or are nested too deeply.
    """
    try:
        return _marked(chat, control)
    except RecursionError:
        reason = "messages, tools and chat.template_args must not be nested so deeply"
        raise RequestError(reason, param="messages") from None


def _marked(chat: Chat, control: ControlTokens) -> Chat:
    texts: list[str] = []

    def keep(text: str) -> str:
        texts.append(text)
        return text

    _mapped(chat, keep)
    roles = {m.role for m in chat.messages if m.role not in _ROLES and control.hold(m.role)}
    if not roles and all(control.marked(text, _ANY_MARK) == text for text in texts):
        return chat
    mark = unused_mark(texts, "messages")
    marked = _mapped(chat, lambda text: control.marked(text, mark))
    messages = [
        replace(message, role=mark + message.role) if message.role in roles else message
        for message in marked.messages
    ]
    return marked._replace(messages=messages, mark=mark)


def marked_text(
    text: str, spans: Sequence[tuple[int, int]], control: ControlTokens
) -> tuple[str, str]:
    """`text` with the control tokens in its parts `spans` marked, and the mark; "" for none.

    Raises RequestError for spans that do not follow one another in the text.
    """
    parts, done = [], 0
    for i, (start, stop) in enumerate(spans):
        if not done <= start <= stop <= len(text):
            where = f"literal_spans[{i}]"
            reason = f" must come after the one before, within {len(text)} characters"
            raise RequestError(reason, at=where)
        parts += [text[done:start], text[start:stop]]
        done = stop
    literal = parts[1::2]
    if all(control.marked(part, _ANY_MARK) == part for part in literal):
        return text, ""
    mark = unused_mark([text], "text")
    parts[1::2] = [control.marked(part, mark) for part in literal]
    return "".join(parts) + text[done:], mark


def unused_mark(texts: Iterable[str], param: str) -> str:
    """A private-use character that none of `texts` holds."""
    used: set[str] = set().union(*texts)
    for code in (code for codes in _PRIVATE_USE for code in codes):
        if chr(code) not in used:
            return chr(code)
    raise RequestError(" must not use every private-use character", at=param)


def _mapped(chat: Chat, change: Callable[[str], str]) -> Chat:
    """`chat` with each text that a user writes changed; names of variables are not such texts."""
    return Chat(
        [_message(message, change) for message in chat.messages],
        [
            ToolSpec(change(tool.name), change(tool.description), _json(tool.parameters, change))
            for tool in chat.tools
        ],
        {name: _value(value, change) for name, value in chat.args.items()},
    )


def _message(message: ChatMessage, change: Callable[[str], str]) -> ChatMessage:
    calls = [
        ToolCall(change(call.id), change(call.name), _arguments(call, change))
        for call in message.tool_calls
    ]
    return replace(
        message,
        role=change(message.role),
        content=change(message.content),
        tool_calls=calls,
        tool_call_id=change(message.tool_call_id),
        name=change(message.name),
        reasoning=change(message.reasoning),
        parts=[change(part) if isinstance(part, str) else part for part in message.parts],
    )


def _arguments(call: ToolCall, change: Callable[[str], str]) -> str:
    if isinstance(arguments_of(call), str):
        return change(call.arguments)
    return _json(call.arguments, change)


def _json(text: str, change: Callable[[str], str]) -> str:
    """The text of a JSON value with its strings changed; unchanged if none of them is. Of a name
    that comes twice, templates may still write the hidden value: so the text is checked too."""
    value = json.loads(text or "null")
    changed = _value(value, change)
    is_same = changed == value and change(text) == text
    return text if is_same else json.dumps(changed, ensure_ascii=False)


def _value(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_value(item, change) for item in value]
    if isinstance(value, dict):
        return {change(name): _value(item, change) for name, item in value.items()}
    return value
