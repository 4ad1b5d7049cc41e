"""The pictures and videos that a request names, in their order, and what may be refused of them
before any is looked at."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import NamedTuple

from msgspec import Struct

from srt.client.media import MediaFile
from srt.gateway.media.urls import base64_start, is_web, web_address
from srt.wire.errors import Names, RequestError, RingError, renamed

Frames = tuple[bytes, ...]  # the bytes of a file, or of the pictures of a video
MAX_PLACES = 1024  # of a placeholder that are looked at
_ROOT = re.compile(r"[.\[]")  # ends the first name of a path
NOUNS = {"image": "pictures", "video": "videos"}


class MediaRules(Struct, frozen=True):
    """What may be shown: the `kinds` that the model takes, of "image" and "video" (None: it is not
    known yet), at most `limit` of them in one request, fetched from `domains` only. In a text,
    `placeholders` stand for them, by their kinds."""

    kinds: frozenset[str] | None = frozenset()
    limit: int = 32
    domains: tuple[str, ...] = ()
    placeholders: dict[str, str] = {}


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
    `files` are kept once they have been loaded. Their sources are not: they are large. Those in
    the fields `known` have been loaded before."""

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
        self._rules, self._bare, self._keeps, self._known = rules, bare, keeps, known

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
        try:
            if is_web(url):
                web_address(url, self._rules.domains)
            else:
                base64_start(url, bare=self._bare)
        except RequestError as error:
            raise error.renamed({"": path}) from None

    def sort(self, text: str, literal_spans: Sequence[tuple[int, int]]) -> None:
        """Put pictures and videos into the order of their placeholders in a text; if these are not
        as many, or cannot be told apart, the ring will say so. In `literal_spans` are none."""
        by_kind = {kind: [m for m in self.given if m.kind == kind] for kind in NOUNS}
        names = self._rules.placeholders
        if not all(by_kind.values()) or any(
            names[a] in names[b] for a in names for b in names if a != b
        ):
            return
        places = [(at, kind) for kind, name in names.items() for at in _places(text, name)]
        literal = sorted(literal_spans)
        order = [kind for at, kind in sorted(places) if not _is_in(literal, at)]
        if all(order.count(kind) == len(given) for kind, given in by_kind.items()):
            rest = {kind: iter(given) for kind, given in by_kind.items()}
            self.given = [next(rest[kind]) for kind in order]

    def on_loaded(self, files: list[MediaFile]) -> None:
        """They have been loaded, in their order."""
        self.given = [media._replace(source=()) for media in self.given]
        if self._keeps:
            self.files = files

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


def _places(text: str, name: str) -> Iterator[int]:
    """Where the first few of a placeholder are."""
    at = -1
    for _ in range(MAX_PLACES):
        at = text.find(name, at + 1)
        if at < 0:
            return
        yield at


def _is_in(spans: Sequence[tuple[int, int]], at: int) -> bool:
    """Whether a place is in one of these spans, which are in ascending order."""
    before = bisect_right(spans, at, key=itemgetter(0))
    return before > 0 and at < spans[before - 1][1]
