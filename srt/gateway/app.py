"""Builds the gateway: every route over one `Client`, as an ASGI application.

`srt.gateway.server` runs it. The application holds no state of requests beyond their lifetime.
"""

from litestar import Litestar
from litestar.datastructures import State
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import SwaggerRenderPlugin

from srt.gateway import health, native, openai, operations, score
from srt.gateway.auth import require_key
from srt.gateway.body import MAX_BODY_BYTES
from srt.gateway.context import Gateway, GatewayInfo
from srt.gateway.errors import EXCEPTION_HANDLERS
from srt.gateway.metrics import GatewayMetrics
from srt.generation import Client


def create_app(client: Client, info: GatewayInfo) -> Litestar:
    """The gateway's application. `client` must be open, and is not closed here."""
    gateway = Gateway(client, info, GatewayMetrics())
    return Litestar(
        route_handlers=[
            *native.ROUTES,
            *score.ROUTES,
            *openai.ROUTES,
            *operations.ROUTES,
            *health.ROUTES,
        ],
        state=State({"gateway": gateway}),
        before_request=require_key,
        exception_handlers=EXCEPTION_HANDLERS,
        request_max_body_size=MAX_BODY_BYTES,
        openapi_config=OpenAPIConfig(
            title="srt", version=info.version, path="/docs", render_plugins=[SwaggerRenderPlugin()]
        ),
        logging_config=None,
    )
