"""The public client: `AsyncClient`, over the ring's sockets or over HTTP.

The gateway, `Engine` and user programs all go through a transport that implements
`srt.client.generation.Client`; this is its interface for people.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from typing import Any, Unpack, cast

from srt.client.arguments import GenerateArgs, ScoreArgs, StreamArgs, SubmitArgs, TokenizeArgs
from srt.client.generation import Client, GenerateOutput, Generation, ScoreOutput
from srt.client.message_parts import with_media, without_media
from srt.client.programs import IDLE_S, ProgramSession
from srt.client.request_fields import checked_request, checked_score, checked_tokenize
from srt.client.ring.client import RingClient
from srt.tasks import all_of
from srt.wire.errors import ConfigError, renaming
from srt.wire.ring_state import RingEvent


class AsyncClient:
    """The asynchronous client: `async with AsyncClient(url) as client: ...`.

    `url` is `http://host:port` of a server, or `ipc://DIRECTORY` of a ring on this machine. Both
    have the same interface; `submit` gives control over one request, `generate` and `stream` are
    shortcuts.
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
    def transport(self) -> Client:
        """The transport, for programs that build `Request`s themselves."""
        transport: Client = self._transport
        return transport

    @property
    def ring(self) -> RingEvent | None:
        """The last known state of the ring; None over HTTP."""
        ring: RingEvent | None = self._transport.ring
        return ring

    async def submit(self, **request: Unpack[SubmitArgs]) -> Generation:
        """Submit a request for one completion; returns once it is admitted.

        The arguments are the fields of `srt.client.generation.Request`, with the arguments of
        `scoring_of` in place of `scoring`; `sampling`, `chat` and messages may be given as dicts.
        `media` are paths, bytes, `data:` URLs, pictures of Pillow's, `srt.Picture`s and
        `srt.Video`s; a message's content may be a list of parts that show some.
        """
        shown = await with_media(request)
        with renaming(shown.names):
            asked = checked_request(shown.request)
            generation: Generation = await self._transport.submit(asked)
        return generation

    async def submit_samples(self, **request: Unpack[SubmitArgs]) -> list[Generation]:
        """Submit a request for `sampling.n` completions: one Generation each, in order.

        Takes the arguments of `submit`. All are admitted or refused together. Aborting the
        request's rid ends all of them; aborting or closing one ends only that one.
        """
        shown = await with_media(request)
        with renaming(shown.names):
            return list(await self._transport.submit_samples(checked_request(shown.request)))

    async def generate(
        self, text: str | None = None, **request: Unpack[GenerateArgs]
    ) -> GenerateOutput:
        """One completion, whole; with `sampling.n` above 1, which has no type of its own, the list
        of all.

        Takes the arguments of `submit`. The first sample that fails ends the others.
        """
        # Over HTTP, reading a stream costs more than reading an answer.
        if not isinstance(self._transport, RingClient):
            shown = await with_media({"text": text, **request})
            with renaming(shown.names):
                outputs = await self._transport.complete(checked_request(shown.request))
            return outputs[0] if len(outputs) == 1 else cast("GenerateOutput", outputs)
        generations = await self.submit_samples(text=text, **request)
        if len(generations) == 1:
            return await generations[0].result()
        async with AsyncExitStack() as stack:
            for generation in generations:
                stack.push_async_callback(generation.aclose)
            outputs = await all_of(generation.result() for generation in generations)
            return cast("GenerateOutput", outputs)

    async def stream(
        self, text: str | None = None, **request: Unpack[StreamArgs]
    ) -> AsyncGenerator[GenerateOutput, None]:
        """One completion as it grows; n must be 1. Leaving the loop early aborts the request."""
        generation = await self.submit(text=text, stream=True, **request)
        try:
            async for output in generation:
                yield output
        finally:
            await generation.aclose()

    async def tokenize(self, text: str | None = None, **request: Unpack[TokenizeArgs]) -> list[int]:
        """The token ids of `text`, or of the prompt that the chat template makes of `messages`.

        The arguments are the fields of `srt.client.generation.TokenizeRequest`.
        """
        messages = without_media(request.get("messages"))
        checked = checked_tokenize({"text": text, **request, "messages": messages})
        ids: list[int] = await self._transport.tokenize(checked)
        return ids

    async def score(
        self,
        text: str | None = None,
        continuations: Sequence[str | Sequence[int]] = (),
        **request: Unpack[ScoreArgs],
    ) -> ScoreOutput:
        """The log-probabilities of each continuation after `text` (or `input_ids`).

        The other arguments are the fields of `srt.client.generation.ScoreRequest`. One round trip,
        in which the prefix is computed once. Cancelling the call ends its work on the server.
        """
        shown = await with_media({"text": text, "continuations": continuations, **request})
        output: ScoreOutput = await self._transport.score(checked_score(shown.request))
        return output

    async def session(self, idle_s: float = IDLE_S, cache_salt: str = "") -> ProgramSession:
        """Open a session for programs; `async with` closes it.

        It ends by itself when nobody has used it for `idle_s` seconds. Its calls share cached
        prefixes under the same `cache_salt` only.
        """
        info = await self._transport.programs.open_session(idle_s, cache_salt)
        return ProgramSession(self._transport.programs, info)

    async def abort(self, rid: str, tenant: str = "") -> None:
        """End the request `rid` that this client made for `tenant`, or one of its samples; the
        output ends with finish "abort"."""
        await self._transport.abort(rid, tenant)

    async def flush_cache(self, timeout_s: float = 0.0) -> None:
        """Empty the prefix cache. RequestError (conflict) while requests run."""
        await self._transport.flush_cache(timeout_s)

    async def stats(self) -> dict[str, Any]:
        """The scheduler's counters and gauges."""
        stats: dict[str, Any] = await self._transport.stats()
        return stats

    async def look(self) -> list[dict[str, Any]]:
        """What the radix tree and the queue look like, of each replica: the fields of `GET /tree`.
        Over HTTP it takes an admin's key, or the page's where there is none."""
        replicas: list[dict[str, Any]] = await self._transport.look()
        return replicas


def _transport(url: str, api_key: str | None) -> Any:
    if url.startswith(("http://", "https://")):
        from srt.client.http.client import HttpClient

        return HttpClient(url, api_key=api_key)
    if url.startswith(("ipc://", "tcp://")):
        return RingClient(url)
    raise ConfigError(f"url {url!r}: expected http://, https:// or ipc://")
