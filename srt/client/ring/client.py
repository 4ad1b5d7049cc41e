"""`Client` over a ring's sockets: which requests are in flight, and which ones an abort ends."""

import logging
import secrets
from collections.abc import Callable, Sequence

from srt.client.generation import (
    Request,
    ScoreOutput,
    ScoreRequest,
    TokenizeRequest,
    require_single,
)
from srt.client.media import frames_of
from srt.client.ring.generation import RingGeneration, RingSamples
from srt.client.ring.link import START_TIMEOUT_S, RingLink
from srt.client.ring.operations import RingOperations
from srt.client.ring.programs import RingPrograms
from srt.client.ring.score import RingScore, ScorePart
from srt.ring.inbox import Dropped
from srt.wire.constraint import Capture, Constraint
from srt.wire.errors import RequestError, RingError
from srt.wire.messages import (
    Admitted,
    Captured,
    CaptureReq,
    Output,
    Tokenized,
    TokenizeReq,
    id_list,
)
from srt.wire.ring_state import RingEvent

log = logging.getLogger(__name__)

MAX_RID_CHARS = 256


class RingClient(RingOperations):
    """A client of the ring in `url` (ipc://DIRECTORY). Use within one event loop."""

    def __init__(
        self,
        url: str,
        dropped: Dropped | None = None,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        """A part of the ring gives its `dropped` and an `on_failure`, as `RingLink` has them."""
        link = RingLink(url, self._on_outputs, self._on_lost, dropped, on_failure)
        super().__init__(link, self._rid_of)
        self.programs = RingPrograms(self._link)
        # On the wire each submission has an id of its own, so that late outputs of an old
        # request can never reach a new one with the same rid.
        self._live: dict[str, RingGeneration | ScorePart] = {}  # by wire id
        # What an abort by this tenant and rid ends. Each of several samples also has its own rid.
        self._by_rid: dict[tuple[str, str], RingSamples | RingGeneration | RingScore] = {}

    @property
    def ring(self) -> RingEvent | None:
        return self._link.ring

    async def start(self) -> None:
        """Connect, without waiting for the ring to be ready (see `wait_ready`)."""
        await self._link.start()

    async def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until requests can be sent. Raises RingError when that takes too long."""
        await self._link.wait_ready(timeout_s)

    async def close(self) -> None:
        """Say goodbye, which ends all of this client's requests on the server."""
        await self._link.close()

    async def submit(self, request: Request) -> RingGeneration:
        require_single(request)
        return (await self.submit_samples(request))[0]

    async def submit_samples(self, request: Request) -> list[RingGeneration]:
        request.sampling.check_count()
        media, blobs = await frames_of(request.media)
        rid, tenant = await self._free_rid(request)
        samples = RingSamples(rid, self._next_wire_id(), request, self._forget, self._captures)
        for part in samples.generations:
            self._check_unused(part.rid, tenant)
        req = samples.message(self._link.epoch, media)
        self._by_rid.update(((tenant, part.rid), part) for part in samples.generations)
        self._by_rid[tenant, rid] = samples
        self._live.update((part.wire_id, part) for part in samples.generations)
        try:
            admitted: Admitted = await self._link.ask(req, samples.wire_ids, blobs)
        except BaseException:
            for part in samples.generations:
                self._drop(part)
            raise
        samples.admit(admitted)
        for index in admitted.aborted:
            self._drop(samples.generations[index])
        return samples.generations

    async def _captures(
        self, constraint: Constraint, text: str, tenant: str
    ) -> list[Capture] | None:
        """The captures of an answer. None also if they cannot be found: the answer still counts."""
        rid = self._next_wire_id()
        req = CaptureReq(rid, self._link.epoch, constraint, text, tenant)
        try:
            answer: Captured = await self._link.ask(req, [rid])
        except RequestError as error:
            log.info("the captures of an answer could not be found: %s", error)
            return None
        return answer.captures

    async def tokenize(self, request: TokenizeRequest) -> list[int]:
        await self._link.until_usable()
        rid = self._next_wire_id()
        req = TokenizeReq(
            rid=rid,
            epoch=self._link.epoch,
            text=request.text,
            messages=request.messages,
            tools=list(request.tools),
            chat=request.chat,
            add_special_tokens=request.add_special_tokens,
            tenant=request.tenant,
        )
        answer: Tokenized = await self._link.ask(req, [rid])
        return id_list(answer.ids)

    async def score(self, request: ScoreRequest) -> ScoreOutput:
        media, blobs = await frames_of(request.media)
        rid, tenant = await self._free_rid(request)
        score = RingScore(rid, self._next_wire_id(), len(request.continuations), tenant)
        req = score.message(request, self._link.epoch, media)
        self._by_rid[tenant, rid] = score
        self._live.update((part.wire_id, part) for part in score.parts)
        try:
            return await score.result(await self._link.ask(req, score.wire_ids, blobs))
        finally:
            self._free(score)
            left = [i for i in score.wire_ids if self._live.pop(i, None) is not None]
            if score.is_admitted:
                self._link.abort(left)

    async def abort(self, rid: str, tenant: str = "") -> None:
        """End this client's request `rid` of `tenant`, all samples of it, or the one that has this
        rid: their last snapshots come soon, with finish "abort". An unknown rid is ignored.
        """
        request = self._by_rid.get((tenant, rid))
        if request is not None:
            self._link.abort(request.wire_ids)

    # ---- requests in flight --------------------------------------------------------------------

    def _on_outputs(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            part = self._live.get(output.rid)
            if part is not None:
                part.take(output)
                if output.finish is not None:
                    self._drop(part)

    def _on_lost(self, error: RingError) -> None:
        for part in self._live.values():
            part.fail(error)
        self._live.clear()
        self._by_rid.clear()

    def _forget(self, generation: RingGeneration) -> None:
        """Nobody reads this any more: end it, and drop its later outputs."""
        if self._drop(generation):
            self._link.abort([generation.wire_id])

    def _drop(self, part: RingGeneration | ScorePart) -> bool:
        """Free its rid, and with the last part the request's; returns whether it was live."""
        was_live = self._live.pop(part.wire_id, None) is not None
        self._free(part)
        if not any(wire_id in self._live for wire_id in part.group.wire_ids):
            self._free(part.group)
        return was_live

    def _free(self, holder: RingGeneration | ScorePart | RingSamples | RingScore) -> None:
        if self._by_rid.get((holder.tenant, holder.rid)) is holder:
            del self._by_rid[holder.tenant, holder.rid]

    def _rid_of(self, wire_id: str) -> str | None:
        part = self._live.get(wire_id)
        return None if part is None else part.rid

    async def _free_rid(self, request: Request | ScoreRequest) -> tuple[str, str]:
        """The request's rid, its own or a new one, and its tenant, once requests can be sent."""
        rid = secrets.token_hex(16) if request.rid is None else request.rid
        if not 0 < len(rid) <= MAX_RID_CHARS:
            raise RequestError(f" must have 1 to {MAX_RID_CHARS} characters", at="rid")
        self._check_unused(rid, request.tenant)
        await self._link.until_usable()
        self._check_unused(rid, request.tenant)
        return rid, request.tenant

    def _check_unused(self, rid: str, tenant: str) -> None:
        if (tenant, rid) in self._by_rid:
            raise RequestError(f" {rid!r} is already in use", at="rid")
