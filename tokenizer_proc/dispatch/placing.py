"""Which replica gets a request: the router's choice, or the client's wish."""

from collections.abc import Iterable, Sequence

from srt.block_hash import hashes_of, seed_of
from srt.wire.packing import num_packed
from srt.wire.ring_messages import CacheSnapshotReq, SchedulerMessage, TokenizedReq
from tokenizer_proc.routing.part_of import part_of
from tokenizer_proc.routing.router import Router


class Placing:
    """Places groups of requests, those that belong together: the samples of one request, the parts
    of a score. `model` is the fingerprint of what their prompts are computed with. With one replica
    there is nothing to choose, and no router."""

    def __init__(self, model: str, router: Router | None = None) -> None:
        self._model, self._router = model, router
        self._wishes: dict[int, int] = {}

    def clear(self) -> None:
        """A new epoch: no request is left."""
        self._wishes.clear()
        if self._router is not None:
            self._router.clear()

    def wish(self, group: int, replica: int) -> None:
        """The client has chosen; the group goes elsewhere only if that replica is not to be had."""
        self._wishes[group] = replica

    def place(
        self, group: int, parts: Sequence[TokenizedReq], among: Sequence[int], arrival_s: float
    ) -> int:
        """One of the replicas `among` for requests which came at `arrival_s`."""
        if self._router is None:
            return among[0]
        wish = self._wishes.get(group)
        if wish is not None and wish in among:
            among = [wish]
        longest = max(parts, key=lambda part: len(part.input_ids))
        hashes = hashes_of(
            longest.input_ids,
            seed_of(self._model, longest.cache_salt),
            shown=[(span.start, span.item.digest) for span in longest.media],
        )
        length = num_packed(longest.input_ids)
        part = part_of(longest, arrival_s)
        return self._router.place(group, hashes, length, among, len(parts), part)

    def keep(self, present: Iterable[int]) -> None:
        """Only these replicas exist."""
        if self._router is not None:
            self._router.keep(present)

    def ended(self, group: int) -> None:
        """All requests of the group have ended, or go elsewhere."""
        if self._router is not None:
            self._router.ended(group)

    def forget(self, group: int) -> None:
        """All requests of the group have ended."""
        self._wishes.pop(group, None)
        self.ended(group)

    def lost(self, replica: int) -> None:
        """Its scheduler is lost."""
        if self._router is not None:
            self._router.lost(replica)

    def started(self, replica: int, incarnation: int) -> list[SchedulerMessage]:
        """It has a scheduler that is ready: what to ask that."""
        if self._router is None:
            return []
        self._router.started(replica, incarnation)
        return [CacheSnapshotReq(incarnation)] if self._router.needs_blocks else []
