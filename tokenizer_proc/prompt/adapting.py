"""Chats changed for templates that refuse, or leave out, what clients may send.

What a template leaves out is found once, by rendering short chats, and changed in every chat
(`with_all_read`). Otherwise it gets each chat as it is first, and only if it refuses this, with as
few changes as it takes (`first_taken`). So the same history always gives the same prompt.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from srt.answers.tool_format import arguments_of
from srt.wire.errors import RequestError
from srt.wire.messages import ChatMessage, ToolCall
from tokenizer_proc.prompt.chat_contents import joined

_PARAGRAPHS = "\n\n"
_TEXT = {"type": "object", "properties": {"text": {"type": "string", "description": ""}}}
PROBE_TOOLS = [
    {
        "type": "function",
        "function": {"name": "probe", "description": "", "parameters": _TEXT},
    }
]
Messages = Sequence[ChatMessage]
Habit = Callable[[Callable[[Messages], str]], bool]


class View(NamedTuple):
    """What a template is given: messages, and tools as OpenAI's JSON."""

    messages: Messages
    tools: Sequence[dict[str, Any]] | None


_USER, _ANSWER = ChatMessage("user", "probe"), ChatMessage("assistant", "probe")
_SYSTEM = ChatMessage("system", "probe")


def loses_systems(render: Callable[[Messages], str]) -> bool:
    """Whether a template leaves out a system message at the head."""
    return _reads(render, lambda mark: [ChatMessage("system", mark), _USER]) is False


def loses_systems_before_answers(render: Callable[[Messages], str]) -> bool:
    """Whether a template leaves out a system message at the head if a user's is not the last."""
    return _reads(render, lambda mark: [ChatMessage("system", mark), _USER, _ANSWER]) is False


def loses_second_system(render: Callable[[Messages], str]) -> bool:
    """Whether a template leaves out one of two system messages at the head."""
    return _loses_one(render, lambda one, other: [one, other, _USER])


def loses_later_systems(render: Callable[[Messages], str]) -> bool:
    """Whether a template leaves out one of two system messages with others between them."""
    return _loses_one(render, lambda one, other: [one, _USER, _ANSWER, other, _USER])


def _loses_one(
    render: Callable[[Messages], str], chat: Callable[[ChatMessage, ChatMessage], Messages]
) -> bool:
    first = _reads(render, lambda mark: chat(ChatMessage("system", mark), _SYSTEM))
    second = _reads(render, lambda mark: chat(_SYSTEM, ChatMessage("system", mark)))
    return first is False or second is False


def has_one_call(render: Callable[[Messages], str]) -> bool:
    """Whether a template writes, of several calls in one message, the first only, or refuses
    them."""
    one = _reads(render, lambda mark: _turn("", mark))
    return bool(one) and not _reads(render, lambda mark: _turn("", "a", mark))


def loses_beside_calls(render: Callable[[Messages], str]) -> bool:
    """Whether a template leaves out the content or the call of a message that has both, and
    writes both if they are two messages."""

    def read(change: Callable[[Messages], Messages]) -> list[bool | None]:
        texts = _reads(render, lambda mark: change(_turn(mark, "a")))
        return [texts, _reads(render, lambda mark: change(_turn("a", mark)))]

    return False in read(list) and all(read(_with_texts_before_calls))


def _reads(render: Callable[[Messages], str], chat: Callable[[str], Messages]) -> bool | None:
    """Whether what is rendered depends on a text of a chat; None if the template refuses it."""
    try:
        return render(chat("qXj7a")) != render(chat("qXj7b"))
    except Exception:  # a template may raise anything
        return None


def _turn(content: str, *texts: str) -> Messages:
    """A chat with calls in one message, one for each of `texts`."""
    calls = [
        ToolCall(f"probe{i:04}", "probe", json.dumps({"text": text}))
        for i, text in enumerate(texts)
    ]
    results = [ChatMessage("tool", "ok", tool_call_id=call.id, name="probe") for call in calls]
    turn = ChatMessage("assistant", content, tool_calls=calls)
    return [_USER, turn, *results, _ANSWER, _USER]


def with_all_read(messages: Messages, has: Callable[[Habit], bool]) -> Messages:
    """`messages` with what the template, which `has` habits, would leave out at another place."""
    if any(len(message.tool_calls) > 1 for message in messages) and has(has_one_call):
        messages = one_call_each(messages)
    if any(m.tool_calls and _has_text(m) for m in messages) and has(loses_beside_calls):
        messages = _with_texts_before_calls(messages)
    head = _count_head(messages)
    is_later = any(message.role == "system" for message in messages[head:])
    if (head or is_later) and has(loses_systems):
        return _without_systems(messages)
    if head and messages[-1].role != "user" and has(loses_systems_before_answers):
        return _without_systems(messages)
    if (head > 1 and has(loses_second_system)) or (is_later and has(loses_later_systems)):
        return _first_system(messages)
    return messages


def first_taken(written: Callable[[View], str], chat: View) -> str:
    """The text of `chat`, or if the template refuses it, with those of `_CHANGES` of which none
    can be left out: all are tried, and then those without which it is refused are kept. Raises
    RequestError with what the template has against the chat as it is."""
    try:
        return written(chat)
    except RequestError:
        raise
    except Exception as error:
        refused = error

    def text_of(view: View) -> str | None:
        try:
            return written(view)
        except RequestError:
            raise
        except Exception:
            return None

    for changes in (_CHANGES, [*_CHANGES, _texts_before_calls]):
        view = _changed(chat, changes)
        text = None if view == chat else text_of(view)
        if text is None:
            continue
        for change in reversed(changes):
            fewer = [each for each in changes if each is not change]
            smaller = _changed(chat, fewer)
            shorter = text if smaller == view else text_of(smaller)
            if shorter is not None:
                changes, view, text = fewer, smaller, shorter
        return text
    reason = str(refused) or type(refused).__name__
    raise RequestError(f"the chat template failed: {reason}", param="messages") from refused


def _changed(view: View, changes: Sequence[Callable[[View], View]]) -> View:
    for change in changes:
        view = change(view)
    return view


def _of_messages(change: Callable[[Messages], Messages]) -> Callable[[View], View]:
    return lambda view: view._replace(messages=change(view.messages))


def one_call_each(messages: Messages) -> list[ChatMessage]:
    """The same chat where no message has several calls: those of one become messages of one call
    each, each with its own result behind it."""
    made: list[ChatMessage] = []
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        if len(message.tool_calls) < 2:
            made.append(message)
            continue
        results: list[ChatMessage] = []
        while at < len(messages) and messages[at].role == "tool":
            results.append(messages[at])
            at += 1
        for j, call in enumerate(message.tool_calls):
            text = {} if j == 0 else {"content": "", "parts": [], "reasoning": ""}
            made.append(replace(message, tool_calls=[call], **text))
            own = next((k for k, m in enumerate(results) if m.tool_call_id == call.id), None)
            if own is not None:
                made.append(results.pop(own))
        made += results  # of no call, or further ones of the same
    return made


def _has_text(message: ChatMessage) -> bool:
    return bool(message.content or message.parts)


def _with_texts_before_calls(messages: Messages) -> list[ChatMessage]:
    """Content beside calls is a message of its own before them."""
    made: list[ChatMessage] = []
    for message in messages:
        if message.tool_calls and _has_text(message):
            made.append(replace(message, tool_calls=[], reasoning=""))
            message = replace(message, content="", parts=[])
        made.append(message)
    return made


def _tools_filled(view: View) -> View:
    return view._replace(tools=[_filled(tool) for tool in view.tools or ()] or view.tools)


def _tools_listed(view: View) -> View:
    """A list of no tools, for templates that read it in every chat."""
    return view._replace(tools=view.tools or [])


def _filled(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool with the fields that OpenAI's API lets out."""
    function = tool["function"]
    parameters = {"type": "object", "properties": {}} | function.get("parameters", {})
    filled = {"description": ""} | function | {"parameters": parameters}
    return tool | {"function": filled}


def _wrapped(messages: Messages) -> list[ChatMessage]:
    def of_object(call: ToolCall) -> ToolCall:
        if isinstance(arguments_of(call), dict):
            return call
        return replace(call, arguments=json.dumps({"raw": call.arguments}, ensure_ascii=False))

    return [replace(m, tool_calls=[of_object(call) for call in m.tool_calls]) for m in messages]


def _count_head(messages: Messages) -> int:
    """The number of system messages before any other."""
    return next((i for i, m in enumerate(messages) if m.role != "system"), len(messages))


def _first_system(messages: Messages) -> list[ChatMessage]:
    """The system messages at the head as one, and no others."""
    count = _count_head(messages)
    return [*_in_turns(messages[:count], ("system",)), *_without_systems(messages[count:])]


def _without_systems(messages: Messages) -> list[ChatMessage]:
    """Each system message begins the user's message behind it; without one, it is one itself."""
    made: list[ChatMessage] = []
    begins = False  # whether the last of `made` has texts of system messages only
    for message in messages:
        is_system = message.role == "system"
        own = replace(message, role="user") if is_system else message
        if begins and own.role == "user":
            made[-1] = joined(replace(made[-1], name=own.name), own, _PARAGRAPHS)
        else:
            made.append(own)
        begins = is_system
    return made


def _answered(messages: Messages) -> list[ChatMessage]:
    made: list[ChatMessage] = []
    for message in messages:
        if message.role == "user" and made and made[-1].role == "tool":
            made.append(ChatMessage("assistant", ""))
        made.append(message)
    return made


def _blanked(messages: Messages) -> list[ChatMessage]:
    """A blank for each message of the assistant with neither a text nor a call."""
    return [
        m if m.role != "assistant" or m.tool_calls or _has_text(m) else replace(m, content=" ")
        for m in messages
    ]


def _in_turns(
    messages: Messages, roles: Sequence[str] = ("user", "assistant")
) -> list[ChatMessage]:
    """Messages of one role in a row as one, with a blank line between their texts."""
    made: list[ChatMessage] = []
    for message in messages:
        last = made[-1] if made else None
        if last and last.role == message.role in roles and not last.tool_calls:
            whole = joined(last, message, _PARAGRAPHS)
            reasoning = joined(
                ChatMessage("", last.reasoning), ChatMessage("", message.reasoning), _PARAGRAPHS
            ).content
            made[-1] = replace(whole, tool_calls=message.tool_calls, reasoning=reasoning)
        else:
            made.append(message)
    return made


# In the order in which they are made; those at the end are the first to be left out.
_CHANGES: Sequence[Callable[[View], View]] = (
    _tools_filled,
    _tools_listed,
    _of_messages(_wrapped),
    _of_messages(_first_system),
    _of_messages(_without_systems),
    _of_messages(_in_turns),
    _of_messages(_answered),
    _of_messages(_blanked),
)
_texts_before_calls = _of_messages(_with_texts_before_calls)
