"""POST and PUT /generate, with SGLang's request and response fields."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

import msgspec
from litestar import HttpMethod, route
from litestar.types import ASGIApp

from srt.gateway.batch import Batch, submit_all
from srt.gateway.body import read_body
from srt.gateway.context import HttpRequest, gateway_of
from srt.gateway.disconnect import while_connected
from srt.gateway.native_prompts import prompts_of, rename_param
from srt.gateway.reply import json_reply
from srt.gateway.sse import EventStream
from srt.gateway.wire_native import (
    REQUEST_KIND,
    FinishReason,
    LogprobEntry,
    MetaInfo,
    NativeRequest,
    NativeResponse,
)
from srt.generation import GenerateOutput
from srt.messages import Finish

PROMPT_TOKENS_HEADER = "srt-prompt-tokens"


@route("/generate", http_method=[HttpMethod.POST, HttpMethod.PUT], status_code=200)
async def generate(request: HttpRequest) -> ASGIApp:
    """Complete one prompt or several."""
    body = await read_body(request, NativeRequest, REQUEST_KIND)
    prompts, is_list = prompts_of(body)
    gateway = gateway_of(request)
    rename = partial(rename_param, body, is_list)
    admission = submit_all(gateway, prompts, rename_param=rename)
    if body.stream:
        batch = await while_connected(request.receive, admission)
        total = sum(g.prompt_tokens for g in batch.generations)
        return EventStream(
            _payloads(batch, body, is_list), batch, {PROMPT_TOKENS_HEADER: str(total)}
        )

    async def answer() -> list[NativeResponse]:
        async with aclosing(await admission) as batch:
            return [_response(output, batch, body) for output in await batch.results()]

    responses = await while_connected(request.receive, answer())
    return json_reply(responses if is_list else responses[0])


async def _payloads(
    batch: Batch, body: NativeRequest, is_list: bool
) -> AsyncGenerator[NativeResponse, None]:
    async with aclosing(batch.snapshots()) as snapshots:
        async for index, output in snapshots:
            response = _response(output, batch, body)
            yield msgspec.structs.replace(response, index=index) if is_list else response


def _response(output: GenerateOutput, batch: Batch, body: NativeRequest) -> NativeResponse:
    meta = MetaInfo(
        id=output.rid,
        finish_reason=_finish_reason(output.finish, output.completion_tokens),
        prompt_tokens=output.prompt_tokens,
        completion_tokens=output.completion_tokens,
        cached_tokens=output.cached_tokens,
        e2e_latency=batch.latency_s,
        jump_forward_tokens=output.jump_forward_tokens,
        forward_passes=output.forward_passes,
        healed_tokens=output.healed_tokens,
    )
    if body.return_logprob:
        meta = msgspec.structs.replace(
            meta,
            input_token_logprobs=_entries(output.prompt_logprobs or []),
            output_token_logprobs=_entries(
                list(zip(output.output_logprobs or [], output.output_ids, strict=False))
            ),
        )
    return NativeResponse(text=output.text, output_ids=output.output_ids, meta_info=meta)


def _entries(pairs: list[Any]) -> list[LogprobEntry]:
    return [(logprob, token, None) for logprob, token in pairs]


def _finish_reason(finish: Finish | None, completion_tokens: int) -> FinishReason | None:
    if finish is None:
        return None
    if finish.type == "stop":
        return FinishReason(type="stop", matched=finish.matched)
    if finish.type == "length":
        return FinishReason(type="length", length=completion_tokens)
    return FinishReason(type="abort", message=finish.error.message if finish.error else "aborted")


ROUTES = [generate]
