"""What the hub and an agent say to each other, over one TCP connection.

A message is a frame, and for some of them others behind it. The agent says Hello until it gets an
Offer, makes its arguments of that, and asks to join; from then on both sides carry the messages of
the ring's sockets to each other, and ping. A hub that does not know the connection a message comes
by answers Unknown, and the agent joins anew.
"""

from enum import IntEnum
from typing import Any

from msgspec import Struct

# Grows with every change of what a node and a head must agree on: this module, what they carry to
# each other, and what a scheduler's arguments mean.
PROTOCOL = 1

PING_INTERVAL_S = 0.5
LOST_S = 3.0  # nothing heard for this long: the other side is gone


class Way(IntEnum):
    """Which of a ring's sockets a message is for."""

    SCHEDULER = 0
    EVENTS = 1
    DETOKENIZER = 2
    CREDITS = 3
    CTL = 4


class NodeMessage(Struct, frozen=True, tag=True, array_like=True, omit_defaults=True, gc=False):
    """Base of all messages. Fields are only ever appended, with defaults."""


# ---- both ways -------------------------------------------------------------------------------


class Carry(NodeMessage, frozen=True):
    """The frames behind this one are a message for, or of, the scheduler at `place`."""

    way: Way
    place: int = 0


class Ping(NodeMessage, frozen=True):
    """Sent every PING_INTERVAL_S, at `sent_s` of the sender's clock. It has received so many bytes
    on this connection."""

    sent_s: float
    received: int


class Pong(NodeMessage, frozen=True):
    """Answers a Ping at once, at `now_s` of the sender's clock."""

    sent_s: float
    now_s: float


class Long(NodeMessage, frozen=True):
    """The frames of a message of these sizes, in bytes, follow in pieces, each behind a Piece."""

    sizes: list[int]


class Piece(NodeMessage, frozen=True):
    """The next bytes of a message that was too long for one frame are in the frame behind this."""


# ---- agent -> hub ----------------------------------------------------------------------------


class Hello(NodeMessage, frozen=True):
    """What may I run? `version` is that of the program."""

    protocol: int
    version: str = ""


class JoinReq(NodeMessage, frozen=True):
    """May I run so many `replicas`? `places` are those that I had before. `fingerprint` names the
    weights, the tokenizer and the options that change values; `name` is for people."""

    fingerprint: str
    replicas: int
    name: str = ""
    places: list[int] = []


class Ended(NodeMessage, frozen=True):
    """The scheduler at `place` has ended with `status`, as a Popen's `wait` gives it. Behind it
    are two frames: the file of its record, compressed, and its last words; empty if it left none.
    """

    place: int
    incarnation: int
    status: int
    was_silent: bool = False


class GrammarReq(NodeMessage, frozen=True):
    """Send me the compiled grammar of this key."""

    key: str


class Leave(NodeMessage, frozen=True):
    """I stop, and so do my schedulers."""


# ---- hub -> agent ----------------------------------------------------------------------------


class Offer(NodeMessage, frozen=True):
    """Answers Hello: the fields of a scheduler's arguments, and which model that is. The ring has
    so many `places`."""

    protocol: int
    options: dict[str, Any]
    fingerprint: str
    places: int
    version: str = ""


class Joined(NodeMessage, frozen=True):
    """The agent has these places. When to start a scheduler a Start says."""

    places: list[int]


class Refused(NodeMessage, frozen=True):
    """No. If it `is_final`, asking again does not help."""

    reason: str
    is_final: bool = False


class Start(NodeMessage, frozen=True):
    """Start the scheduler at `place`, in this epoch and with these incarnations."""

    place: int
    epoch: int
    incarnations: list[int]


class GrammarSent(NodeMessage, frozen=True):
    """Answers GrammarReq: the file is the frame behind this, and its hash is `digest`; or the head
    does not have it."""

    key: str
    is_there: bool = False
    digest: bytes = b""


class Unknown(NodeMessage, frozen=True):
    """This connection has no place, or not any more, for this `reason`: join anew."""

    reason: str = ""


AgentMessage = Carry | Ping | Pong | Long | Piece | Hello | JoinReq | Ended | GrammarReq | Leave
HubMessage = (
    Carry | Ping | Pong | Long | Piece | Offer | Joined | Refused | Start | GrammarSent | Unknown
)
