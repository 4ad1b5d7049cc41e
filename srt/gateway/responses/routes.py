"""POST /v1/responses: OpenAI's newer route for text, over the same ring request as a chat's.

The body becomes a `ChatRequest`, so that formats, tools and reasoning mean what they mean there.
If the server has room to store responses, they can be fetched, deleted and continued.
"""

from contextlib import aclosing

from msgspec import UNSET
from msgspec.structs import replace
from starlette.responses import Response
from starlette.types import ASGIApp

from srt.gateway.batch import Batch, submit_all
from srt.gateway.constraint.wire import (
    JsonObjectFormat,
    JsonSchemaFormat,
    NamedSchema,
    ResponseFormat,
)
from srt.gateway.context import (
    Gateway,
    HttpRequest,
    call_format,
    gateway_of,
    media_rules,
    model_of,
)
from srt.gateway.http.body import read_body
from srt.gateway.http.disconnect import while_connected
from srt.gateway.http.routing import delete, get, json_reply, name_of, post
from srt.gateway.http.sse import EventStream, named_events
from srt.gateway.limits.tenant import tenant
from srt.gateway.media.given import Frames, MediaList
from srt.gateway.openai.chat import Chat, chat_of
from srt.gateway.responses.answers import ResponseWriter, response_events
from srt.gateway.responses.input import input_items, input_messages, media_texts, without_files
from srt.gateway.stored_responses import NO_ITEMS, StoredItems
from srt.gateway.wire.fields import RESPONSES
from srt.gateway.wire.native import shared_fields
from srt.gateway.wire.openai import ChatRequest
from srt.gateway.wire.responses import (
    FunctionChoice,
    FunctionTool,
    InputItem,
    ResponseDeleted,
    ResponseEvent,
    ResponseObject,
    ResponsesRequest,
    TextFormatIn,
)
from srt.gateway.wire.tools import FunctionIn, FunctionName, NamedToolChoice, ToolChoiceIn, ToolIn
from srt.wire.errors import Names, RequestError, missing, renaming
from srt.wire.filled_params import SamplingDefaults

_NAMES: Names = {
    "text": "input",
    "messages": "input",
    "media": "input",
    "max_new_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "tool_choice.function.name": "tool_choice.name",
}


@post("/v1/responses", ResponsesRequest, ResponseObject, kind=RESPONSES, events=ResponseEvent)
async def responses(request: HttpRequest) -> ASGIApp:
    """Answer a text or a list of items with a list of items."""
    body = await read_body(request, ResponsesRequest, RESPONSES, media_texts, takes_others=True)
    gateway = gateway_of(request)
    model = model_of(request, body.model)
    owner, stored = tenant(), gateway.stored
    before = body.previous_response_id
    earlier = NO_ITEMS if before is None else stored.items(owner, before)
    items = [*earlier.items, *input_items(body.input)]
    chat = _chat(body, items, earlier, gateway)
    items, body = without_files(items), _echoed(body, gateway.info.sampling.defaults)
    frames: list[Frames] = []

    def keep(writer: ResponseWriter) -> None:
        if writer.stored is not None:
            stored.keep(owner, writer.stored, items, frames)

    async def admitted() -> tuple[Batch, ResponseWriter]:
        with renaming(_names(body)):
            batch = await submit_all(
                gateway, [chat.request], names=lambda _: chat.names, media=[chat.media]
            )
        files = [file.frames for file in chat.media.files]
        is_stored = body.store and stored.takes(files)
        frames.extend(files if is_stored else ())
        chat.media.files.clear()
        if not is_stored:
            batch.held.close()
        (generation,) = batch.generations
        vocab = gateway.vocab
        return batch, ResponseWriter(body, model, chat.reading, vocab, generation, is_stored)

    if body.stream:
        batch, writer = await while_connected(request.receive, admitted())
        return EventStream(response_events(batch, writer, keep), batch, frames=named_events)

    async def answer() -> ResponseObject:
        batch, writer = await admitted()
        async with aclosing(batch):
            (output,) = await batch.results()
            response = await writer.whole(output)
            keep(writer)
            return response

    return json_reply(await while_connected(request.receive, answer()))


@get("/v1/responses/{name}", answer=ResponseObject)
async def stored_response(request: HttpRequest) -> ASGIApp:
    """A stored response of the caller's."""
    found = gateway_of(request).stored.response(tenant(), name_of(request))
    return Response(found, media_type="application/json")


@delete("/v1/responses/{name}", answer=ResponseDeleted)
async def delete_response(request: HttpRequest) -> ASGIApp:
    """Forget a stored response of the caller's."""
    name = name_of(request)
    gateway_of(request).stored.delete(tenant(), name)
    return json_reply(ResponseDeleted(id=name))


def _chat(
    body: ResponsesRequest,
    items: list[InputItem],
    earlier: StoredItems,
    gateway: Gateway,
) -> Chat:
    """The body as a chat of `items`, the first of which are those of a stored response.
    RequestErrors, and the pictures, name the body's own fields."""
    is_text = isinstance(body.input, str)
    messages, places, kept = input_messages(
        items, body.instructions, len(earlier.items), is_text, earlier.files
    )
    is_kept = body.store and gateway.stored.is_on
    media = MediaList(media_rules(gateway), keeps=is_kept, known=kept)
    asked = ChatRequest(
        messages=messages,
        max_completion_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        seed=body.seed,
        stream=body.stream,
        response_format=_format(body.text.format),
        reasoning_effort=body.reasoning.effort,
        verbosity=None if body.text.verbosity is UNSET else body.text.verbosity,
        tools=[_tool(tool) for tool in body.tools],
        tool_choice=_choice(body),
        parallel_tool_calls=body.parallel_tool_calls,
        prediction=body.prediction,
        **shared_fields(body),
    )
    names = _names(body) | places
    with renaming(names):
        chat = chat_of(
            *(asked, gateway.info.reasoning, gateway.vocab, call_format(gateway), media),
            media_roles=("user", "tool"),
        )
    media.rename(names)
    return chat


def _echoed(body: ResponsesRequest, defaults: SamplingDefaults) -> ResponsesRequest:
    """The body as the answer shows it: with the parameters that the front fills in."""
    temperature = defaults.temperature if body.temperature is None else body.temperature
    top_p = defaults.top_p if body.top_p is None else body.top_p
    return replace(body, input="", prediction=None, temperature=temperature, top_p=top_p)


def _names(body: ResponsesRequest) -> dict[str | None, str]:
    """The body's fields by those of the chat, and by ring fields that the chat does not have."""
    return {**_NAMES, **{f"tools[{i}].function": f"tools[{i}]" for i in range(len(body.tools))}}


def _format(form: TextFormatIn) -> ResponseFormat | None:
    if form.type != "json_schema":
        given = (form.schema, form.name, form.description, form.strict)
        if any(value is not UNSET for value in given):
            raise RequestError(f" of type {form.type!r} takes no other fields", at="text.format")
        return JsonObjectFormat() if form.type == "json_object" else None
    if form.schema is UNSET:
        raise missing("text.format.schema")
    return JsonSchemaFormat(NamedSchema(schema=form.schema, strict=form.strict is True))


def _tool(tool: FunctionTool) -> ToolIn:
    function = FunctionIn(**{name: getattr(tool, name) for name in FunctionIn.__struct_fields__})
    return ToolIn(type="function", function=function)


def _choice(body: ResponsesRequest) -> ToolChoiceIn:
    choice = body.tool_choice
    if isinstance(choice, FunctionChoice):
        return NamedToolChoice("function", FunctionName(choice.name))
    return choice
