"""Anthropic's routes: messages, and the counts of their tokens; batches are refused.

A body becomes a `ChatRequest`, so that the same conversation is the same prompt on both routes.
"""

from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from urllib.parse import quote

from starlette.types import ASGIApp

from srt.gateway.anthropic.answers import MessageWriter, message_events
from srt.gateway.anthropic.chat import in_their_words, messages_chat
from srt.gateway.anthropic.input import image_texts
from srt.gateway.batch import Batch, check_load, prompt_ids_of, submit_all
from srt.gateway.context import HttpRequest, gateway_of, ignored_in, model_of
from srt.gateway.errors import (
    ANTHROPICS_PATH,
    NOT_IMPLEMENTED,
    AnthropicsError,
)
from srt.gateway.http.body import read_body
from srt.gateway.http.disconnect import while_connected
from srt.gateway.http.routing import json_reply, post, route
from srt.gateway.http.sse import EventStream, named_events
from srt.gateway.openai.chat import Chat
from srt.gateway.wire.anthropic import (
    CountRequest,
    MessageEvent,
    MessageOut,
    MessagesRequest,
    TokensCount,
)
from srt.gateway.wire.fields import COUNT, MESSAGES
from srt.wire.errors import CONTEXT_LENGTH, Names, RequestError, renaming

_BETA = "anthropic-beta"
_ID = "request-id"  # the header by which Anthropic's clients name a request
_BATCHES = f"{ANTHROPICS_PATH}/batches"


@post(
    ANTHROPICS_PATH,
    MessagesRequest,
    MessageOut,
    kind=MESSAGES,
    events=MessageEvent,
    error=AnthropicsError,
)
async def messages(request: HttpRequest) -> ASGIApp:
    """Answer a conversation in Anthropic's form."""
    with _in_their_words():
        check_load(gateway_of(request))
    body = await read_body(request, MessagesRequest, MESSAGES, image_texts, takes_others=True)
    model = model_of(request, body.model)
    _note_beta(request)
    if body.stream:
        batch, writer = await while_connected(request.receive, _admitted(request, body, model))
        events = message_events(batch, writer)
        return EventStream(events, batch, _named(writer.id), frames=named_events)

    async def answer() -> MessageOut:
        batch, writer = await _admitted(request, body, model)
        async with aclosing(batch):
            with _in_their_words():
                (output,) = await batch.results()
            return await writer.whole(output)

    message = await while_connected(request.receive, answer())
    return json_reply(message, headers=_named(message.id))


@post(
    f"{ANTHROPICS_PATH}/count_tokens",
    CountRequest,
    TokensCount,
    kind=COUNT,
    error=AnthropicsError,
)
async def count_tokens(request: HttpRequest) -> ASGIApp:
    """Count the tokens of a conversation as /v1/messages would read it."""
    body = await read_body(request, CountRequest, COUNT, image_texts, takes_others=True)
    gateway = gateway_of(request)
    model_of(request, body.model)
    _note_beta(request)
    chat, names = messages_chat(request, body, None)

    async def count() -> int:
        if not chat.media.given:
            with _in_their_words(), renaming(names):
                return len(await prompt_ids_of(gateway, chat.request))
        # How many ids pictures are, only the ring knows: it says so before it computes any.
        async with aclosing(await _submitted(request, chat, names)) as batch:
            return batch.prompt_tokens

    return json_reply(TokensCount(input_tokens=await while_connected(request.receive, count())))


@route([_BATCHES, _BATCHES + "/{name}"], methods=("GET", "POST", "DELETE"), error=AnthropicsError)
async def batches(request: HttpRequest) -> ASGIApp:
    """Refused: there are no batches of messages."""
    reason = f"batches of messages are not supported: send each to {ANTHROPICS_PATH}"
    raise RequestError(reason, code=NOT_IMPLEMENTED)


async def _admitted(
    request: HttpRequest, body: MessagesRequest, model: str
) -> tuple[Batch, MessageWriter]:
    """The request for a message. Clients want the longest answers that their models give, so one
    that the context has no room for may be as long as there is room."""
    context_len = gateway_of(request).info.context_len
    if body.max_tokens < context_len:
        try:
            return await _begun(request, body, model, body.max_tokens)
        except RequestError as error:
            is_limit = error.info.param == "max_tokens"
            if error.info.code != CONTEXT_LENGTH or not is_limit:
                raise
    return await _begun(request, body, model, None)


async def _begun(
    request: HttpRequest, body: MessagesRequest, model: str, max_tokens: int | None
) -> tuple[Batch, MessageWriter]:
    """The admitted request, whose answer has at most `max_tokens`, or all the room."""
    chat, names = messages_chat(request, body, max_tokens)
    batch = await _submitted(request, chat, names)
    (generation,) = batch.generations
    is_bounded = max_tokens is None
    return batch, MessageWriter(model, chat.reading, generation, body.rid, is_bounded)


async def _submitted(request: HttpRequest, chat: Chat, names: Names) -> Batch:
    gateway = gateway_of(request)
    with _in_their_words():
        return await submit_all(gateway, [chat.request], names=lambda _: names, media=[chat.media])


@contextmanager
def _in_their_words() -> Iterator[None]:
    """A block whose refusals become those by which Anthropic's clients know what to do."""
    try:
        yield
    except RequestError as error:
        raise in_their_words(error) from error


def _named(name: str) -> dict[str, str]:
    """The header with the message's id, which may be any text of the client's, and a line break is
    not one that a header can have."""
    return {_ID: quote(name)}


def _note_beta(request: HttpRequest) -> None:
    if _BETA in request.headers:
        ignored_in(request)[_BETA] = None
