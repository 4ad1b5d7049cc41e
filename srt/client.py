"""The one way in: `AsyncClient`, over the ring's sockets or over HTTP.

The gateway, `Engine` and user programs all go through a transport that implements
`srt.generation.Client`; this is its face for people.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from srt.errors import ConfigError
from srt.generation import GenerateOutput, Generation, ScoreOutput
from srt.messages import RingEvent
from srt.request_fields import checked_request, checked_score
from srt.ring_client import RingClient


class AsyncClient:
    """The asynchronous client: `async with AsyncClient(url) as client: ...`.

    `url` is `http://host:port` of a server, or `ipc://DIRECTORY` of a ring on this machine. Both
    have the same interface; `submit` gives control over one request, `generate` and `stream` are
    the short ways.
    """

    def __init__(self, url: str, *, api_key: str | None = None) -> None:
        self._transport = _transport(url, api_key)

    async def __aenter__(self) -> "AsyncClient":
        await self._transport.start()
        if isinstance(self._transport, RingClient):
            try:
                await self._transport.wait_ready()
            except BaseException:
                await self._transport.close()
                raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._transport.close()

    @property
    def ring(self) -> RingEvent | None:
        """The ring's state as last heard; None over HTTP."""
        ring: RingEvent | None = self._transport.ring
        return ring

    async def submit(self, **request: Any) -> Generation:
        """Hand in one request; returns once it is admitted.

        The arguments are the fields of `srt.generation.Request`; `sampling` and messages may be
        given as dicts.
        """
        generation: Generation = await self._transport.submit(checked_request(request))
        return generation

    async def generate(self, text: str | None = None, **request: Any) -> GenerateOutput:
        """One completion, whole. Takes the arguments of `submit`."""
        return await (await self.submit(text=text, **request)).result()

    async def stream(
        self, text: str | None = None, **request: Any
    ) -> AsyncGenerator[GenerateOutput, None]:
        """One completion as it grows. Leaving the loop early aborts the request."""
        generation = await self.submit(text=text, stream=True, **request)
        try:
            async for output in generation:
                yield output
        finally:
            await generation.aclose()

    async def score(
        self,
        text: str | None = None,
        continuations: Sequence[str | Sequence[int]] = (),
        **request: Any,
    ) -> ScoreOutput:
        """The log-probabilities of each continuation behind `text` (or `input_ids`).

        The other arguments are the fields of `srt.generation.ScoreRequest`. One round trip, in
        which the prefix is computed once. Cancelling the call ends its work on the server.
        """
        checked = checked_score({"text": text, "continuations": continuations, **request})
        output: ScoreOutput = await self._transport.score(checked)
        return output

    async def abort(self, rid: str) -> None:
        """End the request `rid` of this client; its output ends with finish "abort"."""
        await self._transport.abort(rid)

    async def flush_cache(self, timeout_s: float = 0.0) -> None:
        """Empty the prefix cache. RequestError (conflict) while requests run."""
        await self._transport.flush_cache(timeout_s)

    async def stats(self) -> dict[str, Any]:
        """The scheduler's counters and gauges."""
        stats: dict[str, Any] = await self._transport.stats()
        return stats


def _transport(url: str, api_key: str | None) -> Any:
    if url.startswith(("http://", "https://")):
        from srt.http_client import HttpClient

        return HttpClient(url, api_key=api_key)
    if url.startswith(("ipc://", "tcp://")):
        return RingClient(url)
    raise ConfigError(f"url {url!r}: expected http://, https:// or ipc://")
