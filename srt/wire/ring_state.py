"""The state of a ring: its parts, what they tell the supervisor, and what that tells everyone.

A ring of N replicas has N schedulers. Their incarnations are numbers that are never used again, and
tell whose they are (`replica_of`).
"""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct, field

from srt.wire.messages import RingMessage

# The names of a ring's parts. Every request needs those of RING_PARTS and one scheduler.
RING_PARTS = ("tokenizer", "detokenizer")
LAUNCHER = "launcher"
Count = Annotated[int, Meta(ge=0, le=2**53)]  # sums of it can be sent too


def scheduler_part(replica: int, replicas: int) -> str:
    """The name of one of the schedulers."""
    return "scheduler" if replicas == 1 else f"scheduler.{replica}"


def replica_of(incarnation: int, replicas: int) -> int:
    """Which of the schedulers has this incarnation."""
    return incarnation % replicas


def next_incarnation(incarnations: Sequence[int], replica: int) -> int:
    """The first number above all replicas' `incarnations` that is this replica's."""
    above, replicas = max(incarnations) + 1, len(incarnations)
    return above + (replica - above) % replicas


# ---- supervisor -> everyone (PUB "events") ---------------------------------------------------


class RingEvent(RingMessage, frozen=True):
    """The ring's state, published at every change and every EVENT_INTERVAL_S in between.

    A new `epoch` means that everything in flight has failed: the tokenizer or the detokenizer was
    lost. When only a scheduler is lost, its place in `incarnations`, one for each replica, grows
    alone, and its requests go on at another one, or once the next one is ready.
    `parts` gives each part's state: "starting", "ready", "dead", and "absent" for the scheduler of
    a place that no machine has taken. `ready` says that all RING_PARTS and a scheduler are ready:
    without the gateway, the compiler or the programs the ring serves all but their requests.
    `dropped` counts messages that the supervisor, or a running part, could not understand.
    `losses`: how many of each part were lost by each kind ("signal", "exit", "hang"); in `pause_s`
    requests had no scheduler. `pool_tokens` is the size of the smallest KV pool that a scheduler
    has reported; 0: none has. `media_kinds` are what the tokenizer has reported that the model
    takes, of "image" and "video" (None: it has not yet), `media_placeholders` what stands for one
    of each in a text, and `call_format` how it writes calls, by a name of `FORMATS`. `pids` are the
    process numbers of the parts that run, and of the launcher. `silent` names the parts that are
    ready and have reported nothing for QUIET_S; a client adds the launcher if it hears no events.
    `instance` is random for each launcher: another server may have the same directory later.
    `pid_namespace` is that of `pids`, by its inode; 0: it is not known.
    """

    epoch: int
    ready: bool
    draining: bool
    parts: dict[str, str]
    reason: str = ""
    dropped: int = 0
    incarnations: list[int] = field(default_factory=lambda: [0])
    losses: list[tuple[str, str, int]] = []
    pause_s: float = 0.0
    pool_tokens: int = 0
    media_kinds: list[str] | None = None
    media_placeholders: dict[str, str] = {}
    call_format: str = "hermes"
    pids: dict[str, int] = {}
    silent: list[str] = []
    instance: str = ""
    pid_namespace: int = 0

    @property
    def incarnation(self) -> int:
        """The latest: it grows whenever a scheduler is lost."""
        return max(self.incarnations)

    @property
    def ready_schedulers(self) -> list[int]:
        """The replicas that are ready."""
        replicas = len(self.incarnations)
        states = [self.parts.get(scheduler_part(i, replicas)) for i in range(replicas)]
        return [i for i, state in enumerate(states) if state == "ready"]

    @property
    def silent_schedulers(self) -> list[int]:
        """The replicas that are ready, but silent."""
        replicas = len(self.incarnations)
        return [i for i in self.ready_schedulers if scheduler_part(i, replicas) in self.silent]

    @property
    def stands_still(self) -> bool:
        """Whether a request would wait because a part on its way is silent."""
        if any(part in RING_PARTS for part in self.silent):
            return True
        return self.silent_schedulers == self.ready_schedulers != []

    @property
    def is_empty(self) -> bool:
        """Whether all schedulers are other machines', and no machine has any of the places."""
        states = [state for part, state in self.parts.items() if part.startswith("scheduler")]
        return bool(states) and set(states) == {"absent"}

    @property
    def only_lacks_scheduler(self) -> bool:
        """Whether the ring will take requests as soon as a scheduler has been restarted."""
        is_up = all(self.parts.get(part) == "ready" for part in RING_PARTS)
        return is_up and not self.ready_schedulers and not self.draining


# ---- actors -> supervisor (PULL "ctl") -------------------------------------------------------


class SchedulerFacts(Struct, frozen=True, tag=True, array_like=True):
    """What a scheduler says of its executor: the names of that and of its numbers, the bytes of its
    weights and of its KV pool, and the pool's tokens."""

    executor: str
    dtype: str
    weight_bytes: Count
    max_total_tokens: Count
    pool_bytes: Count


class TokenizerFacts(Struct, frozen=True, tag=True, array_like=True):
    """What the tokenizer says of the model: its context in tokens, and what RingEvent tells of
    media and calls."""

    context_len: Count
    media_placeholders: dict[str, str]
    call_format: str


class CompilerFacts(Struct, frozen=True, tag=True, array_like=True):
    """Whether the compiler has loaded what it needs; until then its loop may be held."""

    is_warm: bool


Facts = SchedulerFacts | TokenizerFacts | CompilerFacts


class PlaceNews(RingMessage, frozen=True):
    """What the hub, process `pid`, reports of a place for another machine's scheduler, `part`.

    The one with incarnation `lost` (0: none) has ended with `status`, as a Popen's `wait` gives it,
    or cannot be reached any more; `reason` says why. `is_taken`: an agent has the place.
    """

    part: str
    pid: int
    is_taken: bool
    lost: int = 0
    status: int = 0
    was_silent: bool = False
    reason: str = ""


class Heartbeat(RingMessage, frozen=True):
    """What a part reports of itself, at every change and after BEAT_REPEAT_S. The first one, sent
    when it can serve, is its ready handshake.

    `in_flight` counts the requests the part still holds (the front's count decides a drain).
    `facts` is what some parts say of themselves. `dropped` messages could not be understood.
    `has_progressed`: it has done work that it was started for. `is_draining`: it has heard that the
    server stops, and counts no requests that came after.
    """

    part: str
    pid: int
    epoch: int
    in_flight: Count = 0
    facts: Facts | None = None
    dropped: Count = 0
    has_progressed: bool = False
    is_draining: bool = False


CtlMessage = Heartbeat | PlaceNews
