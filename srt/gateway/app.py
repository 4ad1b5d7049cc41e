"""Builds the gateway: every route over one `ServerClient`, as an ASGI application.

`srt.gateway.http.server` runs it. The application keeps no state of requests after their end.
"""

from litestar import Litestar
from litestar.config.cors import CORSConfig
from litestar.datastructures import State

from srt.client.generation import ServerClient
from srt.client.programs import Programs
from srt.files.vocab import Vocab
from srt.gateway.callers.keys import Keys
from srt.gateway.callers.tenant import Tenants
from srt.gateway.context import Gateway, GatewayInfo
from srt.gateway.docs import routes as docs
from srt.gateway.errors import EXCEPTION_HANDLERS, RETRY_AFTER
from srt.gateway.http.auth import require_key
from srt.gateway.http.body import MAX_BODY_BYTES
from srt.gateway.metrics import GatewayMetrics
from srt.gateway.native.routes import PROMPT_TOKENS_HEADER
from srt.gateway.routes import HANDLERS
from srt.gateway.stored_responses import StoredResponses
from srt.gateway.ui import routes as page
from srt.gateway.watch.feed import Facts, Feed


def create_app(
    client: ServerClient, info: GatewayInfo, vocab: Vocab, programs: Programs | None = None
) -> Litestar:
    """The gateway's application for the model of `vocab`. `client` must be open, and is not closed
    here; `programs` is its way to the part that runs programs."""
    return app_of(gateway_over(client, info, vocab, programs))


def gateway_over(
    client: ServerClient, info: GatewayInfo, vocab: Vocab, programs: Programs | None = None
) -> Gateway:
    """What the routes work with; the arguments are those of `create_app`."""
    shares = info.share_cache_between_keys
    keys = Keys(info.api_keys, info.admin_keys, shares, page_key=info.page_key)
    tenants, metrics = Tenants(client), GatewayMetrics()
    feed = Feed(tenants, _facts(info), metrics.latencies)
    gateway = Gateway(tenants, info, vocab, metrics, keys, feed)
    gateway.programs = programs
    gateway.stored = StoredResponses(info.response_store_bytes)
    return gateway


def _facts(info: GatewayInfo) -> Facts:
    return Facts(info.model_name, info.version, info.context_len, info.max_total_tokens)


def app_of(gateway: Gateway) -> Litestar:
    """The routes over the gateway that they find as the application's `state.gateway`."""
    return Litestar(
        route_handlers=[*HANDLERS, *docs.ROUTES, *(page.ROUTES if gateway.info.has_page else ())],
        state=State({"gateway": gateway}),
        before_request=require_key,
        exception_handlers=EXCEPTION_HANDLERS,
        request_max_body_size=MAX_BODY_BYTES,
        cors_config=_cors(gateway.info.cors_origins),
        openapi_config=None,
        logging_config=None,
    )


def _cors(origins: tuple[str, ...]) -> CORSConfig | None:
    """Lets pages of `origins` do all that programs may do. Preflights need no API key."""
    if not origins:
        return None
    return CORSConfig(allow_origins=[*origins], expose_headers=[PROMPT_TOKENS_HEADER, *RETRY_AFTER])
