"""Turns the pictures and videos of requests into files: base64 is decoded, and URLs are fetched."""

import asyncio
from collections.abc import Sequence
from itertools import chain, pairwise

from srt.client.media import MediaFile
from srt.gateway.limits.large_bodies import LargeBodies, Room
from srt.gateway.media.fetch import Fetcher
from srt.gateway.media.given import Frames, GivenMedia, MediaList
from srt.gateway.media.urls import MAX_FILE_BYTES, base64_start, decoded, is_web, web_address
from srt.tasks import all_of
from srt.wire.errors import RequestError, renaming
from srt.wire.media import MAX_FRAMES

# Of all requests: the texts of their files until all are loaded, and what these become until the
# ring has it.
MAX_HELD_BYTES = 256 * 1024 * 1024
MAX_CALLER_BYTES = 128 * 1024 * 1024


class MediaLoader:
    """Loads the media of all requests of a gateway, and bounds what they take together."""

    def __init__(self, fetcher: Fetcher | None = None) -> None:
        self._fetcher = fetcher or Fetcher()
        self._held = LargeBodies(MAX_HELD_BYTES, MAX_CALLER_BYTES, "pictures and videos")

    def room(self, caller: str) -> Room:
        """The room for what a request of `caller` shows, in a `with` block, which lasts for as long
        as the files are in this process."""
        return self._held.room(caller)

    async def load(
        self, lists: Sequence[MediaList], domains: tuple[str, ...], caller: str, room: Room
    ) -> list[list[MediaFile]]:
        """The files of each list, which take their `room`. A source that several name is loaded
        once. Raises RequestError naming the body's field."""
        sources: dict[tuple[str, int | str], GivenMedia] = {}
        for media in chain.from_iterable(each.given for each in lists):
            sources.setdefault(_key(media), media)
        work = (self._frames(media, domains, caller, room) for media in sources.values())
        frames = dict(zip(sources, await all_of(work), strict=True))
        files = [
            [MediaFile(m.kind, frames[_key(m)], m.detail, m.num_frames) for m in each.given]
            for each in lists
        ]
        for each, its_files in zip(lists, files, strict=True):
            each.on_loaded(its_files)
        room.give_back(sum(len(m.source) for m in sources.values() if _is_base64(m.source)))
        return files

    async def _frames(
        self, media: GivenMedia, domains: tuple[str, ...], caller: str, room: Room
    ) -> Frames:
        source = media.source
        with renaming({"": media.path}):
            if not isinstance(source, str):
                return source
            if is_web(source):
                address = web_address(source, domains)
                return (await self._fetcher.fetch(address, caller, room),)
            return await self._decoded(source, media.kind == "video", room)

    async def _decoded(self, url: str, is_video: bool, room: Room) -> Frames:
        """The file in base64; the pictures of a video may be separated by commas."""
        room.take(len(url))
        ends = [start := base64_start(url, bare=True) - 1]
        while is_video and (start := url.find(",", start + 1)) >= 0:
            ends.append(start)
            if len(ends) > MAX_FRAMES:
                raise RequestError(f" has more than {MAX_FRAMES} pictures", at="")
        ends.append(len(url))
        return tuple([await self._file(url, start + 1, end, room) for start, end in pairwise(ends)])

    async def _file(self, url: str, start: int, end: int, room: Room) -> bytes:
        pieces = []
        for piece in decoded(url, start, end):
            room.take(len(piece))
            pieces.append(piece)
            async with self._held.turn:
                await asyncio.sleep(0)
        file = b"".join(pieces)
        if not 0 < len(file) <= MAX_FILE_BYTES:
            most = f"must have 1 to {MAX_FILE_BYTES} bytes"
            raise RequestError(f" {most}", at="")
        return file


def _is_base64(source: str | Frames) -> bool:
    return isinstance(source, str) and not is_web(source)


def _key(media: GivenMedia) -> tuple[str, int | str]:
    """The same for those that are one file. Whether two long texts are equal takes long to say."""
    source = media.source
    return media.kind, source if isinstance(source, str) and is_web(source) else id(source)
