"""The routes of the gateway, besides those that describe them."""

from litestar.handlers import HTTPRouteHandler

from srt.gateway import (
    embeddings,
    health,
    native,
    openai,
    operations,
    parsing,
    pause,
    profile,
    responses,
    score,
    tokens,
)

HANDLERS: list[HTTPRouteHandler] = [
    *native.ROUTES,
    *score.ROUTES,
    *openai.ROUTES,
    *responses.ROUTES,
    *embeddings.ROUTES,
    *tokens.ROUTES,
    *parsing.ROUTES,
    *operations.ROUTES,
    *pause.ROUTES,
    *profile.ROUTES,
    *health.ROUTES,
]
