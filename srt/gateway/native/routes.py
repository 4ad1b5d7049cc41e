"""POST and PUT /generate, with SGLang's request and response fields."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from msgspec.structs import replace
from starlette.types import ASGIApp

from srt.gateway.batch import Batch, check_load, check_load_of, prompt_ids_of, submit_all
from srt.gateway.context import Gateway, HttpRequest, gateway_of, media_rules
from srt.gateway.http.body import read_body
from srt.gateway.http.disconnect import while_connected
from srt.gateway.http.routing import json_reply, route
from srt.gateway.http.sse import EventStream
from srt.gateway.native.answers import NativeAnswers
from srt.gateway.native.prompts import Prompts, names_of, prompts_of
from srt.gateway.native.shown import media_texts
from srt.gateway.wire.fields import NATIVE
from srt.gateway.wire.native import NativeRequest, NativeResponse
from srt.wire.errors import renaming

PROMPT_TOKENS_HEADER = "srt-prompt-tokens"


@route(
    "/generate",
    NativeRequest,
    NativeResponse | list[NativeResponse],
    methods=("POST", "PUT"),
    kind=NATIVE,
    events=NativeResponse,
)
async def generate(request: HttpRequest) -> ASGIApp:
    """Complete one prompt or several."""
    gateway = gateway_of(request)
    check_load(gateway, is_latency=True)
    check = partial(check_load_of, gateway)
    body = await read_body(request, NativeRequest, NATIVE, media_texts, check=check)
    template = gateway.vocab.chat_template or ""
    prompts = prompts_of(body, gateway.info, media_rules(gateway), template)
    # Files may be large.
    body = replace(body, image_data=None, video_data=None, messages=body.messages and [])
    admission = _admit(gateway, body, prompts)
    if body.stream:
        batch, answers = await while_connected(request.receive, admission)
        head = {PROMPT_TOKENS_HEADER: str(batch.prompt_tokens)}
        return EventStream(_payloads(batch, answers, prompts), batch, head)

    async def answer() -> list[NativeResponse]:
        batch, answers = await admission
        async with aclosing(batch):
            outputs = await batch.results()
            latency_s = batch.latency_s
            return [await answers.whole(i, o, latency_s) for i, o in enumerate(outputs)]

    responses = await while_connected(request.receive, answer())
    return json_reply(responses if prompts.answers_list else responses[0])


async def _admit(
    gateway: Gateway, body: NativeRequest, prompts: Prompts
) -> tuple[Batch, NativeAnswers]:
    """Submit all prompts; returns the batch and the writer of its answers."""
    names = partial(names_of, body, prompts.is_list)
    prompt_ids: list[list[int]] = []
    if body.return_prompt_token_ids:
        for index, prompt in enumerate(prompts.requests):
            with renaming(partial(names, index)):
                prompt_ids.append(await prompt_ids_of(gateway, prompt))
    name = body.rid if prompts.is_list and isinstance(body.rid, str) else None
    batch = await submit_all(gateway, prompts.requests, names=names, name=name, media=prompts.media)
    texts = gateway.vocab if body.return_text_in_logprobs else None
    incremental = body.stream and body.incremental
    answers = NativeAnswers(prompts.requests, prompts.samples, prompt_ids, texts, incremental)
    return batch, answers


async def _payloads(
    batch: Batch, answers: NativeAnswers, prompts: Prompts
) -> AsyncGenerator[NativeResponse, None]:
    intervals = [interval for interval in prompts.intervals for _ in range(prompts.samples)]
    async with aclosing(batch.snapshots(intervals)) as snapshots:
        async for index, output in snapshots:
            response = answers.response(index, output, batch.latency_s)
            if prompts.answers_list:
                response = replace(response, index=index)
            yield response
