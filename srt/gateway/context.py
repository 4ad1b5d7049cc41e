"""What the route handlers share: the client of the ring, the server's facts, the metrics.

`create_app` puts one `Gateway` into the application's state; handlers fetch it with `gateway_of`.
"""

import time
from typing import Any

from litestar import Request
from litestar.datastructures import State
from msgspec import Struct, field

from srt.gateway.metrics import GatewayMetrics
from srt.generation import Client, Generation, ScoreRequest

HttpRequest = Request[Any, Any, State]


class GatewayInfo(Struct, frozen=True):
    """Facts about the served model and the server, fixed at start-up.

    `context_len` and `max_total_tokens` are in tokens. `server_args` is shown by /server_info
    and must hold no secrets. `api_key` None leaves every route open. `reasoning` says that the
    model's answers begin with its reasoning, which chats keep apart.
    """

    model_name: str
    model_path: str
    context_len: int
    max_total_tokens: int
    version: str
    api_key: str | None = None
    reasoning: bool = False
    server_args: dict[str, Any] = {}


class Gateway(Struct, eq=False):
    """The state of one gateway process. `live` holds, by rid, what can be aborted: the admitted
    requests, and scores."""

    client: Client
    info: GatewayInfo
    metrics: GatewayMetrics
    live: dict[str, Generation | ScoreRequest] = {}
    created: int = field(default_factory=lambda: int(time.time()))


def gateway_of(request: HttpRequest) -> Gateway:
    """The gateway that `request` came to."""
    gateway: Gateway = request.app.state.gateway
    return gateway
