"""POST /score_choices: how likely each continuation is behind one prefix."""

import time
import uuid

from litestar import post
from litestar.types import ASGIApp

from srt.gateway.body import read_body
from srt.gateway.context import Gateway, HttpRequest, gateway_of
from srt.gateway.disconnect import while_connected
from srt.gateway.reply import json_reply
from srt.gateway.wire_score import SCORE_KIND, ScoreBody, score_response
from srt.generation import ScoreOutput, ScoreRequest


@post("/score_choices", status_code=200)
async def score_choices(request: HttpRequest) -> ASGIApp:
    """Log-probabilities of several continuations of one prefix, which is computed once."""
    started = time.monotonic()
    body = await read_body(request, ScoreBody, SCORE_KIND)
    gateway = gateway_of(request)
    output = await while_connected(request.receive, _score(gateway, body))
    gateway.metrics.track(started).on_result()
    return json_reply(score_response(output, time.monotonic() - started))


async def _score(gateway: Gateway, body: ScoreBody) -> ScoreOutput:
    """The client's answer; /abort_request finds the score by its rid in the meantime."""
    rid = body.rid or uuid.uuid4().hex
    score = ScoreRequest(
        continuations=body.continuations,
        text=body.text,
        input_ids=body.input_ids,
        cache_salt=body.cache_salt,
        rid=rid,
    )
    is_new = gateway.live.setdefault(rid, score) is score
    try:
        return await gateway.client.score(score)
    finally:
        if is_new:
            del gateway.live[rid]


ROUTES = [score_choices]
