"""What the tests of pictures share: a model that sees, and files that only look like pictures."""

import base64
from typing import Any

from msgspec.structs import replace

from srt.gateway.media.given import MediaRules
from tests.fakes import READY, FakeClient

CAT, DOG, FILM = b"a cat", b"some dog", b"the film"
RULES = MediaRules(limit=3, domains=("pictures.test",))
USER = "messages[0].content"


class SeeingClient(FakeClient):
    """A ring whose model takes pictures and videos; each is 7 tokens."""

    def __init__(self, *args: Any, kinds: tuple[str, ...] = ("image", "video")) -> None:
        super().__init__(*args)
        self.ring = replace(READY, media_kinds=[*kinds])


def base64_of(*frames: bytes) -> str:
    return ",".join(base64.b64encode(frame).decode() for frame in frames)


def data_url(*frames: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64_of(*frames)}"


def picture(data: bytes = CAT, **options: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(data), **options}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": [*parts]}
