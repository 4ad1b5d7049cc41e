"""Finds out in which format a chat template writes calls: it renders one, which is read back.

Called when a template is loaded. Templates are not trusted, so all of this happens in a child
process with limits.
"""

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from srt.answers.tool_calls import call_parser
from srt.answers.tool_events import CallArguments, CallStart
from srt.answers.tool_format import FORMATS, ToolFormat, message_object, name_of, tool_object
from srt.ring.forked import result_in_time
from srt.wire.messages import ChatMessage, ToolCall, ToolSpec

log = logging.getLogger(__name__)

RENDER_CPU_S, RENDER_BYTES = 2.0, 2**28
_SLICE_CHARS = 4096  # between which the parser's time grows with the square
_MAX_REASON_CHARS = 300
_INSTEAD = "tools are described as text"
_SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "place": {"type": "string", "description": "A place."},
            "days": {"type": "integer", "description": "A number."},
        },
        "required": ["place", "days"],
    }
)
_ARGUMENTS = {"place": "Rome, Italy", "days": 3}
_TOOL = ToolSpec("look_ahead", "Looks ahead.", _SCHEMA)
_CALL = ToolCall("probe0001", _TOOL.name, json.dumps(_ARGUMENTS))
_USER = ChatMessage("user", "Well?")
_CALLS = ChatMessage("assistant", "", tool_calls=[_CALL])
_OTHER = ChatMessage("assistant", "Quite.")
# Of messages and tools, as templates know them. It may raise anything.
Render = Callable[[list[dict[str, Any]], list[dict[str, Any]]], str]


class _Found(Struct):
    """The name of a format, or why a call could not be rendered."""

    name: str = ""
    reason: str = ""


def call_form_of(render: Render) -> ToolFormat | None:
    """The format of the calls that `render` writes. None if it is not known, or if there are none:
    then a line of the log says so."""
    result = result_in_time(lambda: msgspec.json.encode(_found(render)), RENDER_CPU_S, RENDER_BYTES)
    found = _Found(reason="it takes too long")
    if result is not None:
        found = msgspec.json.decode(result, type=_Found)
    if found.name:
        return FORMATS[found.name]
    if found.reason:
        log.warning("the chat template cannot write a call: %s; %s", found.reason, _INSTEAD)
    else:
        log.info("the chat template writes calls in a format that is not known; %s", _INSTEAD)
    return None


def _found(render: Render) -> _Found:
    try:
        text, other = (
            render(
                [message_object(each, arguments_as_text=False) for each in (_USER, answer)],
                [tool_object(_TOOL)],
            )
            for answer in (_CALLS, _OTHER)
        )
    except Exception as error:  # a template may raise anything
        reason = str(error).strip() or type(error).__name__
        return _Found(reason=reason.splitlines()[0][:_MAX_REASON_CHARS])
    pairs = enumerate(zip(text, other, strict=False))
    answer = text[next((i for i, (a, b) in pairs if a != b), len(text)) :]
    reads = [form for form in _distinct() if _reads(form, answer if _is_first(form) else text)]
    # Of two that read it, the one that would write it so.
    reads.sort(key=lambda form: form.call_text(_CALL) not in text)
    return _Found(name_of(reads[0]) if reads else "")


def _distinct() -> Iterator[ToolFormat]:
    seen: list[ToolFormat] = []
    for form in FORMATS.values():
        if not any(form is each for each in seen):
            seen.append(form)
            yield form


def _is_first(form: ToolFormat) -> bool:
    """Whether calls of this format are known by where they are: at the beginning of an answer."""
    return form.reading is not None and form.reading.is_first


def _reads(form: ToolFormat, text: str) -> bool:
    """Whether the call, and no other, is read from `text`."""
    if form.reading is not None:  # what begins without an opener may have another one
        form = replace(form, reading=form.reading._replace(bare_opener=""))
    parser = call_parser(form, {_TOOL.name: _SCHEMA}, constrained=False)
    starts = range(0, len(text), _SLICE_CHARS)
    events = [event for at in starts for event in parser.feed(text[at : at + _SLICE_CHARS])]
    events += parser.feed("", final=True)
    names = [event.name for event in events if isinstance(event, CallStart)]
    if names != [_TOOL.name]:
        return False
    arguments = "".join(event.text for event in events if isinstance(event, CallArguments))
    return bool(msgspec.json.decode(arguments) == _ARGUMENTS)
