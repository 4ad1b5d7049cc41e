"""The replicas' schedulers as the front knows them, and the messages that they are to get.

The relay owns them. A replica is open, so that messages go to it, if its scheduler is ready and the
detokenizer has said what the lost one before it has reported.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from srt.wire.pause import NO_PAUSE, Pause
from srt.wire.ring_messages import Control, PauseSet, SchedulerMessage
from srt.wire.ring_state import replica_of

Addressed = tuple[int, SchedulerMessage]  # with the replica


@dataclass(slots=True)
class _Replica:
    """The present incarnation, that of the last loss that the detokenizer has reported, and whether
    the scheduler is ready."""

    incarnation: int
    settled: int
    is_ready: bool = False

    @property
    def is_settled(self) -> bool:
        return self.settled >= self.incarnation

    @property
    def is_open(self) -> bool:
        return self.is_ready and self.is_settled


class Replicas:
    """Those whose schedulers have these `incarnations`. `present` are those that exist, all at
    first; the others are places without a machine, which get nothing."""

    def __init__(self, incarnations: Sequence[int]) -> None:
        self.pause = NO_PAUSE
        self.present: frozenset[int] = frozenset()
        self._replicas: list[_Replica] = []
        self.reset(incarnations)

    def reset(self, incarnations: Sequence[int]) -> None:
        """A new epoch: forget everything but the pause, and who is present of as many replicas."""
        if len(incarnations) != len(self.incarnations):
            self.present = frozenset(range(len(incarnations)))
        self._replicas = [_Replica(number, number) for number in incarnations]
        self._outbox: list[Addressed] = []
        self._controls: list[Control] = []  # that no scheduler has got

    @property
    def incarnations(self) -> list[int]:
        """The present ones, by replica."""
        return [replica.incarnation for replica in self._replicas]

    @property
    def open(self) -> list[int]:
        """The numbers of those to which messages go at once."""
        return [number for number in sorted(self.present) if self._replicas[number].is_open]

    def number_of(self, incarnation: int) -> int:
        """The replica whose scheduler has, had or will have this incarnation."""
        return replica_of(incarnation, len(self._replicas))

    def is_settled(self, number: int) -> bool:
        """Whether the detokenizer has reported all losses of this replica."""
        return self._replicas[number].is_settled

    # ---- messages ------------------------------------------------------------------------------

    def take(self) -> list[Addressed]:
        """The messages that are to be sent now."""
        outbox, self._outbox = self._outbox, []
        return outbox

    def send(self, message: SchedulerMessage) -> None:
        """Have a message sent to the scheduler with its incarnation, if that is still there."""
        number = self.number_of(message.incarnation)
        if self._replicas[number].incarnation == message.incarnation:
            self._outbox.append((number, message))

    def control(self, control: Control, pause: Pause | None = None) -> None:
        """Ask every scheduler that there is, or the first one that comes. With a `pause`, that is
        set before in all, and in those that come."""
        if pause is not None:
            self.pause = pause
            for replica in self._replicas:
                if replica.is_ready:
                    self.send(PauseSet(replica.incarnation, pause))
        self._controls.append(control)
        self.ask()

    def ask(self) -> None:
        """Send the operations that no scheduler has got, if one is open."""
        asked = self.open
        if asked:
            controls, self._controls = self._controls, []
            for control in controls:
                for place, number in enumerate(asked):
                    # The front's own numbers count once.
                    counts = control.counts if place == 0 else {}
                    incarnation = self._replicas[number].incarnation
                    self.send(
                        replace(control, incarnation=incarnation, counts=counts, asked=len(asked))
                    )

    # ---- what becomes of schedulers ------------------------------------------------------------

    def lose(self, incarnation: int) -> None:
        """The replica's scheduler before this one is lost, with all messages to it."""
        number = self.number_of(incarnation)
        replica = self._replicas[number]
        replica.incarnation, replica.is_ready = incarnation, False
        self._outbox = [(to, message) for to, message in self._outbox if to != number]
        self._controls.clear()

    def settle(self, incarnation: int) -> None:
        """The detokenizer has reported the loss of the scheduler before this one."""
        replica = self._replicas[self.number_of(incarnation)]
        replica.settled = max(replica.settled, incarnation)

    def hear(self, incarnations: Sequence[int], ready: Sequence[int]) -> list[int]:
        """What the ring says of its schedulers; returns the replicas that have become ready."""
        fresh = []
        for number, replica in enumerate(self._replicas):
            is_ready = number in ready
            if incarnations[number] >= replica.incarnation and is_ready != replica.is_ready:
                replica.is_ready = is_ready
                fresh += [number] if is_ready else []
                if is_ready and self.pause != NO_PAUSE:
                    self.send(PauseSet(replica.incarnation, self.pause))
        return fresh
