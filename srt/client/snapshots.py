"""A completion in flight, as its reader sees it, whatever transport feeds it.

Outputs are accumulated, so a slow reader costs no memory: it sees fewer, larger snapshots. A
completion ends once: with its finish, or with an error.
"""

import asyncio
from collections.abc import AsyncIterator

from srt.client.generation import GenerateOutput
from srt.wire.answer_meta import NO_META
from srt.wire.errors import RequestError
from srt.wire.messages import Finish


class Snapshots:
    """The readers' side of a `Generation`. A transport stores what it has received, and then calls
    `wake` or `fail`."""

    opens_reasoning = False
    closes_reasoning = False

    def __init__(self, rid: str) -> None:
        self.rid = rid
        self.meta = NO_META
        self.text = ""
        self.finish: Finish | None = None
        self.changed = asyncio.Event()
        self.error: RequestError | None = None
        self._final: GenerateOutput | None = None
        self._read_chars = 0

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return self.meta.prompt_tokens

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come."""
        return self.finish is not None or self.error is not None

    def fail(self, error: RequestError) -> None:
        """No more will come."""
        if not self.has_ended:
            self.error = error
            self.wake()

    async def __aiter__(self) -> AsyncIterator[GenerateOutput]:
        try:
            while not self.has_ended:
                await self.until_changed()
                if not self.has_ended:
                    yield self._snapshot()
            yield await self._last()
        finally:
            await self.aclose()

    async def result(self) -> GenerateOutput:
        """The final snapshot."""
        try:
            while not self.has_ended:
                await self.until_changed()
            return await self._last()
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Abort it unless it has ended."""
        if not self.has_ended:
            self.fail(RequestError("the request was closed by its reader"))
            await self.leave()

    def _snapshot(self) -> GenerateOutput:
        delta, self._read_chars = self.text[self._read_chars :], len(self.text)
        return self.known(delta)

    async def _last(self) -> GenerateOutput:
        if self.error is not None:
            raise self.error.copy()
        if self._final is None:
            await self.complete()
            self._final = self._snapshot()
        return self._final

    # ---- for transports ------------------------------------------------------------------------

    def known(self, delta: str) -> GenerateOutput:
        """A snapshot of all that has arrived so far."""
        raise NotImplementedError

    def wake(self) -> None:
        """There is news, or the end has come."""
        self.changed.set()

    async def until_changed(self) -> None:
        """Wait for news, or for the end."""
        await self.changed.wait()
        self.changed.clear()

    async def complete(self) -> None:
        """Wait for what only the last snapshot has; the output itself has ended."""

    async def leave(self) -> None:
        """The reader has gone before the end."""
        raise NotImplementedError
