"""The routes of the gateway, except those that describe the others."""

from srt.gateway.http.routing import Route
from srt.gateway.native import routes as native
from srt.gateway.openai import embeddings
from srt.gateway.openai import routes as openai
from srt.gateway.ops import health, operations, pause, profile
from srt.gateway.programs import parrot
from srt.gateway.programs import routes as programs
from srt.gateway.responses import routes as responses
from srt.gateway.text import parsing, score, tokens

HANDLERS: list[Route] = [
    *native.ROUTES,
    *score.ROUTES,
    *openai.ROUTES,
    *responses.ROUTES,
    *programs.ROUTES,
    *parrot.ROUTES,
    *embeddings.ROUTES,
    *tokens.ROUTES,
    *parsing.ROUTES,
    *operations.ROUTES,
    *pause.ROUTES,
    *profile.ROUTES,
    *health.ROUTES,
]
