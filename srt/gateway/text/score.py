"""POST /score_choices: how likely each continuation is after one prefix; and /v1/score, SGLang's
way to ask how likely certain tokens are after each of several prompts."""

import math
import time
import uuid
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from msgspec.structs import replace
from starlette.types import ASGIApp

from srt.client.generation import GenerateOutput, Request, ScoreOutput, ScoreRequest, softmax
from srt.gateway.batch import load_media, submit_all
from srt.gateway.context import (
    Gateway,
    HttpRequest,
    gateway_of,
    media_rules,
    model_of,
)
from srt.gateway.http.body import read_body
from srt.gateway.http.disconnect import while_connected
from srt.gateway.http.routing import json_reply, post
from srt.gateway.limits.tenant import tenant
from srt.gateway.media.given import MediaList
from srt.gateway.native.shown import media_of, media_texts
from srt.gateway.wire.native import shared_fields
from srt.gateway.wire.openai import PromptTokensDetails, Usage
from srt.gateway.wire.score import (
    LABEL_KIND,
    LabelBody,
    LabelScores,
    ScoreBody,
    ScoreResponse,
    score_response,
)
from srt.wire.errors import CONFLICT, Names, RequestError, renaming
from srt.wire.sampling import SamplingParams, Scoring

MAX_ITEMS = 1024
MAX_JOINED_CHARS = 2**24  # of the query, which is repeated for each item
MAX_JOINED_IDS = 2**21
# One token, whichever it is: the probabilities are those at its position.
_NEXT_TOKEN = SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True)


@post("/score_choices", ScoreBody, ScoreResponse)
async def score_choices(request: HttpRequest) -> ASGIApp:
    """Log-probabilities of several continuations of one prefix, which is computed once."""
    started = time.monotonic()
    body = await read_body(request, ScoreBody, media_texts=media_texts)
    gateway = gateway_of(request)
    (media,) = media_of(body, 1, False, media_rules(gateway))
    body = replace(body, image_data=None, video_data=None)  # they may be large
    output = await while_connected(request.receive, _score(gateway, body, media))
    gateway.metrics.track(started).on_result()
    return json_reply(score_response(output, time.monotonic() - started))


async def _score(gateway: Gateway, body: ScoreBody, media: MediaList) -> ScoreOutput:
    """The client's answer; meanwhile /abort_request can find the score by its rid."""
    count, limit = len(body.continuations), gateway.info.max_requests
    if count > limit:
        raise RequestError(f" must be 1 to {limit}, not {count}", at="continuations")
    rid = body.rid or uuid.uuid4().hex
    score = ScoreRequest(
        continuations=body.continuations,
        text=body.text,
        input_ids=body.input_ids,
        literal_spans=tuple(body.literal_spans),
        **{**shared_fields(body), "rid": rid},
    )
    mine = (tenant(), rid)
    gateway.live.setdefault(mine, score)
    try:
        names = {"media": "image_data", **media.names}
        with renaming(names), gateway.media.room(tenant()) as room:
            (files,) = await load_media(gateway, [media], [rid], room)
            return await gateway.client.score(replace(score, media=tuple(files)))
    finally:
        if gateway.live.get(mine) is score:
            del gateway.live[mine]


@post("/v1/score", LabelBody, LabelScores, kind=LABEL_KIND)
async def score_labels(request: HttpRequest) -> ASGIApp:
    """How likely each label is as the next token after query and item, for every item."""
    body = await read_body(request, LabelBody, LABEL_KIND)
    gateway = gateway_of(request)
    model = model_of(request, body.model)
    if not body.label_token_ids:
        raise RequestError(" must not be empty", at="label_token_ids")
    prompts = _label_prompts(body)
    outputs = await while_connected(request.receive, _last_positions(gateway, body, prompts))
    return json_reply(
        LabelScores(
            id=body.rid or outputs[0].rid,
            scores=[_probabilities(output, body.apply_softmax) for output in outputs],
            model=model,
            usage=_usage(outputs),
        )
    )


def _label_prompts(body: LabelBody) -> list[Any]:
    """The query joined with each item: texts, or lists of ids."""
    items = [body.items] if isinstance(body.items, str) else body.items
    if not 0 < len(items) <= MAX_ITEMS:
        raise RequestError(f" must have 1 to {MAX_ITEMS} entries", at="items")
    query: Any = body.query
    most = MAX_JOINED_CHARS if isinstance(query, str) else MAX_JOINED_IDS
    if len(query) * len(items) > most:
        asked = f"query has a length of {len(query)} and {len(items)} items"
        raise RequestError(f"{asked}: at most {most} together", param="query")
    for index, item in enumerate(items):
        if isinstance(item, str) != isinstance(query, str):
            raise RequestError(" must be of the query's kind: text or ids", at=f"items[{index}]")
    return [item + query if body.item_first else query + item for item in items]


async def _last_positions(
    gateway: Gateway, body: LabelBody, prompts: Sequence[Any]
) -> list[GenerateOutput]:
    """For each prompt, an output of one token, with the labels' log-probabilities."""
    is_text = isinstance(body.query, str)
    requests = [
        Request(
            text=prompt if is_text else None,
            input_ids=None if is_text else prompt,
            sampling=_NEXT_TOKEN,
            scoring=Scoring(ids=body.label_token_ids),
            **shared_fields(body, index),
        )
        for index, prompt in enumerate(prompts)
    ]
    batch = await submit_all(gateway, requests, names=_label_names, name=body.rid)
    async with aclosing(batch):
        outputs = await batch.results()
    for output in outputs:
        if not output.output_id_logprobs:
            raise RequestError("the request was aborted", code=CONFLICT)
    return outputs


def _label_names(index: int) -> Names:
    item = f"items[{index}]"
    return {"text": item, "input_ids": item, None: item, "logprob_token_ids": "label_token_ids"}


def _probabilities(output: GenerateOutput, among_labels: bool) -> list[float]:
    logprobs = (output.output_id_logprobs or [[]])[0]
    return softmax(logprobs) if among_labels else [math.exp(logprob) for logprob in logprobs]


def _usage(outputs: Sequence[GenerateOutput]) -> Usage:
    """The usage: no generated token is returned."""
    prompt_tokens = sum(output.prompt_tokens for output in outputs)
    cached = sum(output.cached_tokens for output in outputs)
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=0,
        total_tokens=prompt_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
    )
