"""Everything between the front's decisions and the schedulers: the places of requests in flight,
how long a new one would wait, and the relay. The front owns one; the actor sends the messages that
`replicas` has.
"""

from collections.abc import Iterable, Sequence

from cachetools import FIFOCache

from srt.ring.crash_file import Left, Name
from srt.wire.errors import UNAVAILABLE, ErrorInfo
from srt.wire.hints import PerfClass
from srt.wire.messages import GenerateReq, Refused, ScoreReq
from srt.wire.pause import Pause
from srt.wire.ring_messages import (
    ClientGone,
    Control,
    Credit,
    Pace,
    SchedulerLost,
    TextStopped,
)
from tokenizer_proc.dispatch.admission import Admission
from tokenizer_proc.dispatch.hint_shares import HintShares
from tokenizer_proc.dispatch.leaving import Leaving
from tokenizer_proc.dispatch.placing import Placing
from tokenizer_proc.dispatch.relay import Kept, Relay
from tokenizer_proc.queueing.capacity import Places, QueueWaits

MAX_CONTROLS = 256  # that are remembered, to be refused if a scheduler is lost
_LOST = ErrorInfo(UNAVAILABLE, "the scheduler was lost", retryable=True)

Refusal = tuple[bytes, Refused]  # with the client that gets it


class Dispatch:
    """Messages of other epochs, or of other incarnations of the schedulers, change nothing.

    `max_requests` and `max_tokens` bound what is in flight: see `Places`. A request that would wait
    for its first token for more than `max_queue_wait_s` (0: no limit) is refused before anything is
    spent on it. For `random_seed` see `Relay`, for `max_running` `HintShares`, for `has_classes`
    `QueueWaits`.
    """

    def __init__(
        self,
        epoch: int,
        incarnations: Sequence[int],
        placing: Placing,
        *,
        max_requests: int,
        max_tokens: int,
        max_queue_wait_s: float = 0.0,
        random_seed: int = -1,
        max_running: int = 1,
        has_classes: bool = False,
    ) -> None:
        self.epoch = epoch
        self.places = Places(max_requests, max_tokens)
        self.waits = QueueWaits(max_queue_wait_s, len(incarnations), has_classes=has_classes)
        self.hints = HintShares(max_running)
        self.relay = Relay(incarnations, placing, random_seed)
        self.replicas = self.relay.replicas
        self.leaving = Leaving(self.relay)
        self._controls: FIFOCache[Name, None] = FIFOCache(MAX_CONTROLS)

    def reset(self, epoch: int, incarnations: Sequence[int]) -> None:
        """Start a new epoch: everything that was in flight has failed."""
        self.epoch = epoch
        self.places.clear()
        self.waits.reset()
        self.leaving.clear()
        self.hints.reset()
        self.relay.reset(incarnations)
        self._controls.clear()

    def perf_of(self, req: GenerateReq | ScoreReq, caller: str) -> PerfClass:
        """The class that a request of a caller would have, if it came to the scheduler now."""
        if not isinstance(req, GenerateReq):
            return ""
        return self.hints.perf_of(req.hints, caller, req.sampling.n)

    # ---- for the schedulers --------------------------------------------------------------------

    def hand_on(self, admission: Admission, now: float) -> Admission:
        """Send a request to a scheduler, and return it; later ones wait for it."""
        admission = self.hints.applied(admission, now)
        self._gone_on(self.relay.send(admission, now))
        return admission

    def control(self, control: Control, pause: Pause | None = None) -> None:
        """Send an operation to the schedulers, after the `pause` that it begins or ends."""
        self.replicas.control(control, pause)
        self._controls[control.client, control.rid] = None

    # ---- from the ring -------------------------------------------------------------------------

    def credit(self, credit: Credit) -> None:
        """Free the place of an ended request. Unknown ones are ignored."""
        if credit.epoch == self.epoch:
            self._free(credit.client, credit.rid)
            self.relay.credit((credit.client, credit.rid))

    def pace(self, pace: Pace) -> None:
        """Take a scheduler's current pace."""
        replica = self.replicas.number_of(pace.incarnation)
        if pace.incarnation == self.replicas.incarnations[replica]:
            self.waits.update(replica, pace)

    def text_stopped(self, message: TextStopped) -> None:
        """The detokenizer has found the end of a request: the scheduler is to end it too."""
        if message.epoch == self.epoch:
            self.relay.abort(message.client, message.rid)

    def client_gone(self, message: ClientGone) -> None:
        """A client has gone: its requests end, and those that still come."""
        if message.epoch == self.epoch:
            self.relay.drop_client(message.client)
            self._free_ended()

    def scheduler_lost(self, incarnation: int, left: Left) -> tuple[list[Refusal], list[Name]]:
        """The replica's scheduler before this one is lost, and has `left` this. Requests go on at
        others, or wait for the next one; all else that schedulers were asked for is refused. Also
        returns the requests that are to blame."""
        self.leaving.lost(self.replicas.number_of(incarnation))
        guilty = self.relay.lose(incarnation, left)
        self.waits.lose(self.replicas.number_of(incarnation))
        self.waits.open = self.replicas.open
        controls = [*self._controls]
        self._controls.clear()
        return [(client, Refused(rid, self.epoch, _LOST)) for client, rid in controls], guilty

    def settle(self, message: SchedulerLost) -> None:
        """Take what the detokenizer says of a lost scheduler."""
        self._gone_on(self.relay.settle(message))

    def keep(self, present: Iterable[int]) -> None:
        """Only these replicas exist: no request goes to the others, and they count for nothing."""
        present = frozenset(present)
        if present != self.replicas.present:
            self.hints.keep(len(present), len(self.replicas.incarnations))
            self._gone_on(self.relay.keep(present))

    def hear(
        self, incarnations: Sequence[int], ready: Sequence[int], silent: Sequence[int] = ()
    ) -> None:
        """Take what the ring says of its schedulers: the replicas that are `ready`, and which of
        these are `silent`."""
        self._gone_on(self.relay.hear(incarnations, ready, silent))

    def _gone_on(self, requests: Iterable[Kept]) -> None:
        """These have gone to schedulers."""
        self.waits.open = self.replicas.open
        for kept in requests:
            self.waits.enter(kept.replica, kept.req)
            self.leaving.sent(kept)
        self._free_ended()

    def _free_ended(self) -> None:
        """Free the places of requests that have ended without a scheduler."""
        for client, rid in self.relay.take_ended():
            self._free(client, rid)

    def _free(self, client: bytes, rid: str) -> None:
        self.places.free(client, [rid])
        self.hints.free(client, rid)
        self.leaving.ended((client, rid))
