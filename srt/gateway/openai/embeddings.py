"""POST /v1/embeddings: refused, with the reason."""

from starlette.types import ASGIApp

from srt.gateway.context import HttpRequest
from srt.gateway.http.routing import post
from srt.wire.errors import RequestError


@post("/v1/embeddings")
async def embeddings(request: HttpRequest) -> ASGIApp:
    """Refused: the models that this server runs generate text."""
    raise RequestError("embeddings are not supported: this server's models generate text")


ROUTES = [embeddings]
