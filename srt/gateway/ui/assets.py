"""The page's files, read once. They are open to everybody and show nothing of the server."""

import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
_ROOT = Path(__file__).parent / "static"


class Asset(NamedTuple):
    """A file, with the quoted tag by which a browser knows that its copy is the same."""

    body: bytes
    media_type: str
    tag: str


@cache
def assets() -> dict[str, Asset]:
    """All files by their path below `static`."""
    found = {}
    for path in sorted(_ROOT.rglob("*")):
        if path.suffix in _TYPES:
            body = path.read_bytes()
            tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            found[path.relative_to(_ROOT).as_posix()] = Asset(body, _TYPES[path.suffix], tag)
    return found
