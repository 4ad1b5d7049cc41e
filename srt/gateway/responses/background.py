"""Responses that are made in the background: their clients fetch them later, or cancel them."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing

from srt.gateway.batch import Batch
from srt.gateway.http.turns import in_turns
from srt.gateway.responses.answers import ResponseWriter
from srt.gateway.stored_responses import StoredResponses
from srt.gateway.wire.responses import ResponsesRequest
from srt.wire.errors import RequestError


def check_background(body: ResponsesRequest, stored: StoredResponses) -> None:
    """Raise RequestError if a response cannot be made in the background."""
    if not stored.is_on:
        reason = " needs a server that stores responses (--response-store-mib)"
        raise RequestError(reason, at="background")
    if not body.store:
        raise RequestError(" needs store: true, to be fetched later", at="background")
    if body.stream:
        raise RequestError(" cannot be combined with stream", at="background")


async def make_in_background(
    batch: Batch, writer: ResponseWriter, keep: Callable[[ResponseWriter], None]
) -> None:
    """Make a response whose request has been admitted, and pass it to `keep`. Cancelled, it is
    kept with what there is of it."""
    try:
        async with aclosing(batch), aclosing(batch.snapshots()) as snapshots:
            async for _, output in snapshots:
                await in_turns(writer.feed(output))
    except asyncio.CancelledError:
        writer.cancel()
    except Exception as error:
        writer.failed(error)
    keep(writer)
