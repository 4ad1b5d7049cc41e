"""JSON responses of the routes."""

from typing import Any

import msgspec
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp

_encode = msgspec.json.Encoder().encode


def json_reply(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> ASGIApp:
    """`value` as a JSON response."""
    return ASGIResponse(
        body=_encode(value), status_code=status, media_type="application/json", headers=headers
    )
