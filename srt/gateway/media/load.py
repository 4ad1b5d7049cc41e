"""Turns the pictures and videos of requests into files: base64 is decoded, and URLs are fetched."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise

from srt.client.media import MediaFile
from srt.gateway.large_bodies import LargeBodies, Room
from srt.gateway.media.fetch import Fetcher
from srt.gateway.media.given import Frames, GivenMedia, MediaList
from srt.gateway.media.urls import MAX_FILE_BYTES, base64_start, decoded, is_web, web_address
from srt.tasks import all_of
from srt.wire.errors import RequestError

# Of all requests whose files the ring does not have yet: their texts and what these become.
MAX_HELD_BYTES = 256 * 1024 * 1024
MAX_TENANT_BYTES = 128 * 1024 * 1024
MAX_FRAMES = 1024  # of a video that is given as pictures


class MediaLoader:
    """Loads the media of all requests of a gateway, and bounds what they take together."""

    def __init__(self, fetcher: Fetcher | None = None) -> None:
        self._fetcher = fetcher or Fetcher()
        self._held = LargeBodies(MAX_HELD_BYTES, MAX_TENANT_BYTES, "pictures and videos")

    @asynccontextmanager
    async def loaded(
        self, lists: Sequence[MediaList], domains: tuple[str, ...], tenant: str
    ) -> AsyncIterator[list[list[MediaFile]]]:
        """The files of each list, which there is room for until the end of the block. A source that
        several name is loaded once. Raises RequestError naming the body's field."""
        sources = {_key(media): media for each in lists for media in each.given}
        with self._held.room(tenant) as room:
            work = (self._frames(media, domains, tenant, room) for media in sources.values())
            frames = dict(zip(sources, await all_of(work), strict=True))
            del sources, work
            files = [
                [MediaFile(m.kind, frames[_key(m)], m.detail, m.num_frames) for m in each.given]
                for each in lists
            ]
            for each, its_files in zip(lists, files, strict=True):
                each.on_loaded(its_files)
            yield files

    async def _frames(
        self, media: GivenMedia, domains: tuple[str, ...], tenant: str, room: Room
    ) -> Frames:
        source = media.source
        try:
            if not isinstance(source, str):
                return source
            if is_web(source):
                address = web_address(source, domains)
                return (await self._fetcher.fetch(address, tenant, room),)
            return await self._decoded(source, media.kind == "video", room)
        except RequestError as error:
            raise error.renamed({"": media.path}) from None

    async def _decoded(self, url: str, is_video: bool, room: Room) -> Frames:
        """The file in base64; the pictures of a video may be separated by commas."""
        room.take(len(url))
        ends = [start := base64_start(url, bare=True) - 1]
        while is_video and (start := url.find(",", start + 1)) >= 0:
            ends.append(start)
            if len(ends) > MAX_FRAMES:
                raise RequestError(f" has more than {MAX_FRAMES} pictures", at="")
        ends.append(len(url))
        frames = [await self._file(url, start + 1, end, room) for start, end in pairwise(ends)]
        room.give_back(len(url))
        return tuple(frames)

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


def _key(media: GivenMedia) -> tuple[str, int]:
    """The same for those that are one file. Whether two texts are equal takes long to say."""
    return media.kind, id(media.source)
