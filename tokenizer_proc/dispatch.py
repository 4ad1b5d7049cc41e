"""Everything between the front's decisions and the scheduler: the places of requests in flight, how
long a new one would wait, and the relay. The front owns one; the actor sends what `take` returns.
"""

from collections import OrderedDict

from srt.wire.errors import UNAVAILABLE, ErrorInfo
from srt.wire.messages import Refused
from srt.wire.ring_messages import (
    ClientGone,
    Control,
    Credit,
    Pace,
    SchedulerLost,
    SchedulerMessage,
    TextStopped,
)
from tokenizer_proc.admission import Admission
from tokenizer_proc.places import Places
from tokenizer_proc.queue_wait import QueueWait
from tokenizer_proc.relay import Name, Relay

MAX_CONTROLS = 256  # that are remembered, to be refused if the scheduler is lost
_LOST = ErrorInfo(UNAVAILABLE, "the scheduler was lost", retryable=True)

Refusal = tuple[bytes, Refused]  # with the client that gets it


class Dispatch:
    """Messages of other epochs, or of other incarnations of the scheduler, change nothing."""

    def __init__(self, epoch: int, places: Places, wait: QueueWait, relay: Relay) -> None:
        self.epoch = epoch
        self.places, self.wait, self.relay = places, wait, relay
        self._controls: OrderedDict[Name, None] = OrderedDict()

    def reset(self, epoch: int, incarnation: int) -> None:
        """Start a new epoch: everything that was in flight has failed."""
        self.epoch = epoch
        self.places.clear()
        self.wait.reset()
        self.relay.reset(incarnation)
        self._controls.clear()

    def take(self) -> list[SchedulerMessage]:
        """What is to be sent to the scheduler now."""
        return self.relay.take()

    # ---- for the scheduler ---------------------------------------------------------------------

    def hand_on(self, admission: Admission, now: float) -> None:
        """Send a request to the scheduler; later ones wait for it."""
        self.wait.enter(admission.parts)
        self.relay.send(admission.parts, now)
        self._free_ended()

    def control(self, control: Control) -> None:
        """Send an operation to the scheduler."""
        self.relay.tell(control)
        self._controls[control.client, control.rid] = None
        if len(self._controls) > MAX_CONTROLS:
            self._controls.popitem(last=False)

    # ---- from the ring -------------------------------------------------------------------------

    def credit(self, credit: Credit) -> None:
        """Free the place of an ended request. Unknown ones are ignored."""
        if credit.epoch == self.epoch:
            self.places.free(credit.client, [credit.rid])
            self.relay.credit((credit.client, credit.rid))

    def pace(self, pace: Pace) -> None:
        """Take the scheduler's current pace."""
        if pace.incarnation == self.relay.incarnation:
            self.wait.update(pace)

    def text_stopped(self, message: TextStopped) -> None:
        """The detokenizer has found the end of a request: the scheduler is to end it too."""
        if message.epoch == self.epoch:
            self.relay.abort(message.client, message.rid)

    def client_gone(self, message: ClientGone) -> None:
        """A client has gone: its requests end, and those that still come."""
        if message.epoch == self.epoch:
            self.relay.drop_client(message.client)
            self._free_ended()

    def scheduler_lost(self, incarnation: int) -> list[Refusal]:
        """The scheduler before `incarnation` is lost. Requests wait for the next one; all else that
        it was asked for is refused."""
        if not self.relay.lose(incarnation):
            return []
        controls, self._controls = self._controls, OrderedDict()
        return [(client, Refused(rid, self.epoch, _LOST)) for client, rid in controls]

    def settle(self, message: SchedulerLost) -> list[Refusal]:
        """Take what the detokenizer says of a lost scheduler."""
        refusals = self.scheduler_lost(message.incarnation)
        self._resumed(self.relay.settle(message))
        return refusals

    def hear(self, incarnation: int, is_ready: bool) -> None:
        """Take what the ring says of its scheduler."""
        self._resumed(self.relay.hear(incarnation, is_ready))

    def _resumed(self, is_open: bool) -> None:
        """Requests have gone to a scheduler that had none."""
        if is_open:
            self.wait.reset()
            self.wait.enter(self.relay.requests)
            self._free_ended()

    def _free_ended(self) -> None:
        """Free the places of requests that have ended without the scheduler."""
        for client, rid in self.relay.take_ended():
            self.places.free(client, [rid])
