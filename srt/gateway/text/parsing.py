"""POST /parse_function_call and /separate_reasoning: the chats' parsers for text from elsewhere."""

from starlette.types import ASGIApp

from srt.answers.reasoning import MISTRAL, THINK, ReasoningSplitter
from srt.answers.tool_calls import call_parser
from srt.answers.tool_events import (
    CallArguments,
    CallStart,
    Content,
    EventParser,
    Reasoning,
    ToolEvent,
)
from srt.answers.tool_format import FORMATS, HARMONY
from srt.gateway.context import HttpRequest, call_format, gateway_of
from srt.gateway.http.body import read_body
from srt.gateway.http.routing import json_reply, post
from srt.gateway.http.turns import in_turns, slices
from srt.gateway.openai.tool_plan import tool_plan
from srt.gateway.wire.fields import CHAT, Kind
from srt.gateway.wire.parsing import ParseCallBody, ParsedCall, ParsedCalls, SeparateBody, Separated

_PARSE = Kind({}, {"tools": CHAT.nested["tools"]})


@post("/parse_function_call", ParseCallBody, ParsedCalls, kind=_PARSE)
async def parse_function_call(request: HttpRequest) -> ASGIApp:
    """Take the calls of tools out of a text."""
    body = await read_body(request, ParseCallBody, _PARSE)
    plan, _ = tool_plan(body.tools, None, True)
    form = call_format(gateway_of(request))
    if body.tool_call_parser is not None:
        form = FORMATS[body.tool_call_parser]
    parser = call_parser(form, plan.functions if plan else {}, constrained=False)
    text, names, arguments = "", [], dict[int, str]()
    for event in await _events(parser, body.text):
        if isinstance(event, CallStart):
            names.append(event.name)
        elif isinstance(event, CallArguments):
            arguments[event.call] = arguments.get(event.call, "") + event.text
        elif isinstance(event, Content):
            text += event.text
    calls = [
        ParsedCall(tool_index=i, name=name, parameters=arguments.get(i, ""))
        for i, name in enumerate(names)
    ]
    return json_reply(ParsedCalls(normal_text=text, calls=calls))


async def _events(parser: EventParser, text: str) -> list[ToolEvent]:
    """All events of a text, which is parsed in slices: many calls take long."""
    found = await in_turns(parser.feed(*piece) for piece in slices(text, True))
    return [event for events in found for event in events]


@post("/separate_reasoning", SeparateBody, Separated)
async def separate_reasoning(request: HttpRequest) -> ASGIApp:
    """Take the reasoning out of a text."""
    body = await read_body(request, SeparateBody)
    if body.reasoning_parser == "gpt-oss":
        reader = call_parser(HARMONY, {}, constrained=False)
        found = [
            (e.text, isinstance(e, Reasoning))
            for e in await _events(reader, body.text)
            if isinstance(e, Content | Reasoning)
        ]
    else:
        tags = MISTRAL if body.reasoning_parser == "mistral" else THINK
        splitter = ReasoningSplitter(opened=body.reasoning_parser == "deepseek-r1", tags=tags)
        found = list(splitter.feed(body.text, final=True))
    return json_reply(
        Separated(
            reasoning_text="".join(text for text, is_reasoning in found if is_reasoning),
            text="".join(text for text, is_reasoning in found if not is_reasoning),
        )
    )
