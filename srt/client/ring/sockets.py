"""The sockets of one identity of a client."""

import contextlib
import os
from typing import NamedTuple

import zmq

from srt.ring.places import Ring, connect, open_socket
from srt.ring.socket import RingContext, RingSocket


class Sockets(NamedTuple):
    """Under the random `identity` the ring's parts know the client."""

    identity: bytes
    events: RingSocket
    front: RingSocket
    back: RingSocket

    def close(self) -> None:
        for socket in self[1:]:
            socket.close()


def open_sockets(context: RingContext, places: Ring) -> Sockets:
    """Those of a fresh identity. Raises ZMQError, with none open, if that fails, as where too many
    files are open."""
    identity = os.urandom(16)
    with contextlib.ExitStack() as opened:
        events = connect(context, zmq.SUB, places.events)
        opened.callback(events.close)
        front = open_dealer(context, places.front, identity)
        opened.callback(front.close)
        back = open_dealer(context, places.back, identity)
        opened.pop_all()
    return Sockets(identity, events, front, back)


def open_dealer(context: RingContext, address: str, identity: bytes) -> RingSocket:
    """A socket to one of the ring's parts. Raises ZMQError."""
    socket = open_socket(context, zmq.DEALER)
    try:
        socket.set(zmq.IDENTITY, identity)
        socket.connect(address)
    except BaseException:
        socket.close()
        raise
    return socket
