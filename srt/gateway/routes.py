"""The routes of the gateway, except those that describe the others."""

from srt.gateway import models
from srt.gateway.anthropic import routes as anthropic
from srt.gateway.http.routing import routes_of
from srt.gateway.native import routes as native
from srt.gateway.openai import routes as openai
from srt.gateway.ops import health, operations
from srt.gateway.parrot import routes as parrot
from srt.gateway.programs import routes as programs
from srt.gateway.responses import routes as responses
from srt.gateway.text import parsing, score, tokens

HANDLERS = routes_of(
    *(native, score, openai, models, responses, anthropic, programs, parrot, tokens, parsing),
    *(operations, health),
)
