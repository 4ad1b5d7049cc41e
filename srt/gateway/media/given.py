"""The pictures and videos that a request names, in their order, and what may be refused of them
before any is looked at."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from msgspec import Struct

from srt.client.media import MediaFile
from srt.gateway.media.urls import base64_start, is_web, web_address
from srt.wire.errors import Names, RequestError, RingError, renamed, renaming

Frames = tuple[bytes, ...]  # the bytes of a file, or of the pictures of a video
_ROOT = re.compile(r"[.\[]")  # ends the first name of a path
NOUNS = {"image": "pictures", "video": "videos"}


class MediaRules(Struct, frozen=True):
    """What may be shown: the `kinds` that the model takes, of "image" and "video" (None: it is not
    known yet), at most `limit` of them in one request, fetched from `domains` only."""

    kinds: frozenset[str] | None = frozenset()
    limit: int = 32
    domains: tuple[str, ...] = ()


NO_MEDIA = MediaRules()


class GivenMedia(NamedTuple):
    """A picture or video: its `data:` URL, base64 or http(s) URL; or its bytes, if a stored
    response has them. `path` is the body's field."""

    kind: str
    source: str | Frames
    path: str
    detail: str = "auto"
    num_frames: int = 0


class MediaList:
    """Those of one request. With `bare`, base64 needs no `data:` in front; with `keeps`, their
    `files` are kept once they have been loaded, until they are `forgotten`. Their sources are not:
    they are large. Those in the fields `known` have been loaded before."""

    def __init__(
        self,
        rules: MediaRules,
        *,
        bare: bool = False,
        keeps: bool = False,
        known: Mapping[str, Frames] = MappingProxyType({}),
    ) -> None:
        self.given: list[GivenMedia] = []
        self.files: list[MediaFile] = []
        self.keeps = keeps
        self.forgotten = False
        self._rules, self._bare, self._known = rules, bare, known

    def add(self, media: GivenMedia) -> int:
        """Its number in the request. Raises RequestError, naming its field, if it may not be
        shown."""
        rules, nouns = self._rules, NOUNS[media.kind]
        media = media._replace(source=self._known.get(media.path, media.source))
        if rules.kinds is None:
            raise RingError("the server is starting")
        if media.kind not in rules.kinds:
            takes = "text only" if not rules.kinds else f"no {nouns}"
            raise RequestError(f": this model takes {takes}", at=media.path)
        if len(self.given) >= rules.limit:
            reason = f": a request shows at most {rules.limit} pictures and videos (--limit-media)"
            raise RequestError(reason, at=media.path)
        if isinstance(media.source, str):
            self._check_url(media.source, media.path)
        self.given.append(media)
        return len(self.given) - 1

    def _check_url(self, url: str, path: str) -> None:
        with renaming({"": path}):
            if is_web(url):
                web_address(url, self._rules.domains)
            else:
                base64_start(url, bare=self._bare)

    def on_loaded(self, files: list[MediaFile]) -> None:
        """They have been loaded, in their order."""
        self.given = [media._replace(source=()) for media in self.given]
        if self.keeps:
            self.files = files

    def forget(self) -> None:
        """Their files are not to be kept any more."""
        self.files, self.forgotten = [], True

    def rename(self, names: Names) -> None:
        """Take the caller's names for the fields."""
        self.given = [
            media._replace(path=renamed(media.path, names) or media.path) for media in self.given
        ]

    @property
    def names(self) -> Names:
        """The body's fields by those of the ring's request."""
        fields: dict[str | None, str] = {
            f"media[{i}]": media.path for i, media in enumerate(self.given)
        }
        if self.given:
            fields["media"] = _ROOT.split(self.given[0].path)[0]
        return fields
