"""Builds the gateway: every route over one `ServerClient`, as an ASGI application.

`srt.gateway.http.server` runs it. The application keeps no state of requests after their end.
"""

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from srt.client.generation import ServerClient
from srt.client.programs import Programs
from srt.files.vocab import Vocab
from srt.gateway.context import Gateway, GatewayInfo
from srt.gateway.docs import routes as docs
from srt.gateway.errors import RETRY_AFTER
from srt.gateway.http.ignored import IGNORED_HEADER
from srt.gateway.http.routing import Application, routes_of
from srt.gateway.introspection.feed import Facts, Feed
from srt.gateway.limits.keys import Keys
from srt.gateway.limits.tenant import Tenants
from srt.gateway.metrics import GatewayMetrics
from srt.gateway.native.routes import PROMPT_TOKENS_HEADER
from srt.gateway.routes import HANDLERS
from srt.gateway.stored_responses import StoredResponses
from srt.gateway.ui import routes as page


def gateway_over(
    client: ServerClient, info: GatewayInfo, vocab: Vocab, programs: Programs | None = None
) -> Gateway:
    """What the routes work with, for the model of `vocab`. `client` must be open, and is not closed
    here; `programs` is its way to the part that runs programs."""
    shares = info.share_cache_between_keys
    keys = Keys(info.api_keys, info.admin_keys, shares, page_key=info.page_key)
    tenants, metrics = Tenants(client), GatewayMetrics()
    facts = Facts(info.model_name, info.version, info.context_len, info.max_total_tokens)
    feed = Feed(tenants, facts, metrics.latencies)
    gateway = Gateway(tenants, info, vocab, metrics, keys, feed)
    gateway.programs = programs
    gateway.stored = StoredResponses(info.response_store_bytes)
    return gateway


def app_of(gateway: Gateway) -> ASGIApp:
    """The routes over `gateway`. Pages of its `cors_origins` may do all that programs may do, and
    their preflights need no API key. Those of other origins are refused by the routes' rules."""
    pages = routes_of(page) if gateway.info.has_page else []
    app = Application(gateway, [*HANDLERS, *routes_of(docs), *pages])
    if not gateway.info.cors_origins:
        return app
    cors = CORSMiddleware(
        app,
        allow_origins=gateway.info.cors_origins,
        allow_methods=["*"],
        allow_headers=["*"],
        # Origins that the owner has named may be of other networks.
        allow_private_network="*" not in gateway.info.cors_origins,
        expose_headers=[PROMPT_TOKENS_HEADER, IGNORED_HEADER, *RETRY_AFTER],
    )

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        origin = Headers(scope=scope).get("origin")
        is_known = origin is None or cors.is_allowed_origin(origin) or not gateway.keys.is_open
        await (cors if is_known else app)(scope, receive, send)

    return wrapped
