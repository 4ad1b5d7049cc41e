"""POST /v1/responses: OpenAI's newer route for text, over the same ring request as a chat's.

The body becomes a `ChatRequest`, so that formats, tools and reasoning mean what they mean there.
If the server has room to store responses, they can be fetched, deleted and continued.
"""

from contextlib import aclosing

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace
from starlette.responses import Response
from starlette.types import ASGIApp

from srt.gateway.batch import Batch, check_load, prompt_ids_of, submit_all
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
    ignored_in,
    media_rules,
    model_of,
)
from srt.gateway.errors import NOT_IMPLEMENTED, TOO_LARGE
from srt.gateway.http.body import read_body
from srt.gateway.http.disconnect import while_connected
from srt.gateway.http.routing import delete, get, json_reply, name_of, post
from srt.gateway.http.sse import EventStream, named_events
from srt.gateway.limits.tenant import tenant
from srt.gateway.media.given import MediaList
from srt.gateway.openai.chat import Chat, chat_of
from srt.gateway.responses.answers import ResponseWriter, response_events
from srt.gateway.responses.background import check_background, make_in_background
from srt.gateway.responses.hosted import without_hosted
from srt.gateway.responses.input import input_items, input_messages, media_texts, without_files
from srt.gateway.responses.tools import FlatTools, flat_tools, naming_tools
from srt.gateway.stored_responses import NO_ITEMS, StoredItems
from srt.gateway.wire.fields import RESPONSES
from srt.gateway.wire.native import shared_fields
from srt.gateway.wire.openai import ChatRequest
from srt.gateway.wire.responses import (
    InputItem,
    ResponseDeleted,
    ResponseEvent,
    ResponseObject,
    ResponsesRequest,
    ResponseTokens,
    TextFormatIn,
)
from srt.wire.errors import NOT_FOUND, OVERLOADED, RequestError, missing, quoted, renaming
from srt.wire.filled_params import SamplingDefaults

_NAMES: dict[str | None, str] = {
    "text": "input",
    "messages": "input",
    "media": "input",
    "max_new_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "tool_choice.function.name": "tool_choice.name",
    "chat": "input",
}


@post("/v1/responses", ResponsesRequest, ResponseObject, kind=RESPONSES, events=ResponseEvent)
async def responses(request: HttpRequest) -> ASGIApp:
    """Answer a text or a list of items with a list of items."""
    check_load(gateway_of(request))
    asked = await _read(request)
    body = asked.body
    if body.background:
        check_background(body, gateway_of(request).stored)
    if body.stream:
        batch, writer = await while_connected(request.receive, asked.admitted())
        payloads = response_events(batch, writer, asked.keep)
        return EventStream(payloads, batch, frames=named_events)

    async def answer() -> ResponseObject:
        batch, writer = await asked.admitted()
        if body.background:
            return await asked.begin(batch, writer)
        async with aclosing(batch):
            (output,) = await batch.results()
            response = await writer.whole(output)
            asked.keep(writer)
            return response

    return json_reply(await while_connected(request.receive, answer()))


@post("/v1/responses/input_tokens", ResponsesRequest, ResponseTokens, kind=RESPONSES)
async def input_tokens(request: HttpRequest) -> ASGIApp:
    """The number of tokens of the prompt that a body would make, pictures excepted."""
    asked = await _read(request)
    if asked.chat.media.given:
        place = asked.chat.media.given[0].path
        raise RequestError(": the tokens of pictures are counted by an answer only", at=place)

    async def counted() -> ResponseTokens:
        with renaming(asked.names):
            ids = await prompt_ids_of(gateway_of(request), asked.chat.request)
        return ResponseTokens(input_tokens=len(ids))

    return json_reply(await while_connected(request.receive, counted()))


@post("/v1/responses/compact")
async def compact(request: HttpRequest) -> ASGIApp:
    """Not supported: a conversation is shortened by its client."""
    reason = "/v1/responses/compact is not supported: send a shorter input"
    raise RequestError(reason, code=NOT_IMPLEMENTED)


@get("/v1/responses/{name}", answer=ResponseObject)
async def stored_response(request: HttpRequest) -> ASGIApp:
    """A stored response of the caller's, or the state of one in the background."""
    gateway, name = gateway_of(request), name_of(request)
    if (running := gateway.stored.running.state(tenant(), name)) is not None:
        return json_reply(running)
    found = gateway.stored.response(tenant(), name)
    return Response(found, media_type="application/json")


@post("/v1/responses/{name}", answer=ResponseObject)
async def cancel_response(request: HttpRequest) -> ASGIApp:
    """Cancel a response in the background, at `/v1/responses/{id}/cancel`; one that has ended is
    given as it is."""
    gateway, name = gateway_of(request), name_of(request)
    response_id, _, verb = name.rpartition("/")
    if verb != "cancel" or not response_id:
        raise RequestError("Not Found", code=NOT_FOUND)
    await gateway.stored.running.cancel(tenant(), response_id)
    found = gateway.stored.response(tenant(), response_id)
    if not msgspec.json.decode(found, type=_State).background:
        reason = f"the response {quoted(response_id)} is not one in the background"
        raise RequestError(reason)
    return Response(found, media_type="application/json")


@delete("/v1/responses/{name}", answer=ResponseDeleted)
async def delete_response(request: HttpRequest) -> ASGIApp:
    """Forget a stored response of the caller's; one in the background is cancelled first."""
    gateway, name = gateway_of(request), name_of(request)
    await gateway.stored.running.cancel(tenant(), name)
    gateway.stored.delete(tenant(), name)
    return json_reply(ResponseDeleted(id=name))


class _State(Struct):
    """What is read of a stored response."""

    background: bool = False


class _Asked:
    """One request for a response: its body, and the chat that was made of it."""

    def __init__(self, gateway: Gateway, body: ResponsesRequest, model: str) -> None:
        self._owner, self._stored = tenant(), gateway.stored
        self._gateway, self._model = gateway, model
        before = body.previous_response_id
        earlier = NO_ITEMS if before is None else self._stored.items(self._owner, before)
        self._tools = flat_tools(body)
        self.names = _NAMES | self._tools.places
        items = [*earlier.items, *input_items(body)]
        self.chat = _chat(body, items, earlier, self._tools, gateway)
        self._items = without_files(items)
        self.body = _echoed(body, gateway.info.sampling.defaults)

    def keep(self, writer: ResponseWriter) -> None:
        """Store the response if it has ended and is to be kept."""
        response = writer.stored
        if response is None:
            return
        media = self.chat.media
        frames = [file.frames for file in media.files]
        is_kept = not media.forgotten and self._stored.keep(
            self._owner, response, self._items, frames
        )
        if response.background and not is_kept:  # whoever fetches it is told why there is none
            writer.failed(_lost(media.forgotten))
            self._stored.keep(self._owner, replace(writer.state, output=[]), [])

    async def begin(self, batch: Batch, writer: ResponseWriter) -> ResponseObject:
        """Make the response in the background; what it is at first. Raises RequestError if it would
        not be kept."""
        state = writer.state
        if not state.store:
            await batch.aclose()
            reason = " cannot keep pictures of this size (--response-store-mib)"
            raise RequestError(reason, at="background")
        work = make_in_background(batch, writer, self.keep)
        await self._stored.running.start(self._owner, state.id, work, lambda: writer.state)
        return state

    async def admitted(self) -> tuple[Batch, ResponseWriter]:
        """Submit the chat."""
        body, chat, gateway = self.body, self.chat, self._gateway
        with naming_tools(self._tools), renaming(self.names):
            batch = await submit_all(
                gateway, [chat.request], names=lambda _: chat.names, media=[chat.media]
            )
        files = [file.frames for file in chat.media.files]
        is_stored = body.store and self._stored.takes(files)
        if not is_stored:
            chat.media.files = []
            batch.held.close()
        (generation,) = batch.generations
        writer = ResponseWriter(
            *(body, self._model, chat.reading, gateway.vocab, generation, is_stored),
            origins=self._tools.origins,
        )
        return batch, writer


def _lost(made_room: bool) -> RequestError:
    """Why a response in the background is not kept."""
    if made_room:
        reason = "the response's pictures made room for another caller's, and it was not kept"
        return RequestError(reason, code=OVERLOADED, retryable=True)
    return RequestError("the response is too large to be kept", code=TOO_LARGE)


async def _read(request: HttpRequest) -> _Asked:
    body = await read_body(
        *(request, ResponsesRequest, RESPONSES, media_texts),
        takes_others=True,
        prepare=without_hosted,
    )
    _note_includes(request, body)
    return _Asked(gateway_of(request), body, model_of(request, body.model))


def _note_includes(request: HttpRequest, body: ResponsesRequest) -> None:
    """Name what an answer does not include: parts of tools that are not there."""
    for i, name in enumerate(body.include):
        if name == "message.output_text.logprobs":
            reason = f" {name!r} is not supported: use /v1/chat/completions"
            raise RequestError(reason, at=f"include[{i}]")
        if name != "reasoning.encrypted_content":
            ignored_in(request)[f"include[].{name}"] = None


def _chat(
    body: ResponsesRequest,
    items: list[InputItem],
    earlier: StoredItems,
    tools: FlatTools,
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
        tools=tools.functions,
        tool_choice=tools.choice,
        parallel_tool_calls=body.parallel_tool_calls,
        prediction=body.prediction,
        priority=body.priority,
        service_tier=body.service_tier,
        **shared_fields(body),
    )
    names = _NAMES | tools.places | places
    with renaming(names):
        chat = chat_of(
            *(asked, gateway.info.reasoning, gateway.vocab, call_format(gateway), media),
            media_roles=("user", "tool"),
            custom=tools.custom,
        )
    media.rename(names)
    return chat


def _echoed(body: ResponsesRequest, defaults: SamplingDefaults) -> ResponsesRequest:
    """The body as the answer shows it: with the parameters that the front fills in."""
    temperature = defaults.temperature if body.temperature is None else body.temperature
    top_p = defaults.top_p if body.top_p is None else body.top_p
    return replace(body, input="", prediction=None, temperature=temperature, top_p=top_p)


def _format(form: TextFormatIn) -> ResponseFormat | None:
    if form.type != "json_schema":
        given = (form.schema, form.name, form.description, form.strict)
        if any(value is not UNSET for value in given):
            raise RequestError(f" of type {form.type!r} takes no other fields", at="text.format")
        return JsonObjectFormat() if form.type == "json_object" else None
    if form.schema is UNSET:
        raise missing("text.format.schema")
    return JsonSchemaFormat(NamedSchema(schema=form.schema, strict=form.strict is True))
