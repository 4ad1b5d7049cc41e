"""ZeroMQ sockets in an event loop, for messages that arrive one at a time, hundreds a second.

pyzmq's asyncio sockets serve every use: they make a future for each send and ask the socket for
its events several times per message, which costs more than the rest of the work on a message.
Here a send is a plain call that never waits, and a receiver waits for the descriptor only when
no message is there. `srt.ring` opens them.
"""

import asyncio
import weakref
from typing import cast

import zmq

_MORE = zmq.NOBLOCK | zmq.SNDMORE
_POLLIN = int(zmq.POLLIN)

_COPIED_BYTES = 2**16  # what is shorter is copied: that takes less than to share it
Blob = bytes | memoryview  # a frame


class RingContext:
    """Makes sockets and closes them. For one event loop."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._sockets: set[RingSocket] = set()
        # If nobody calls `destroy`: pyzmq's context, collected together with its sockets, no
        # longer knows them and would wait for ever for somebody to close them.
        self._destroy = weakref.finalize(self, _destroy, self._context, self._sockets)
        self._destroy.atexit = False  # another thread's loop may still be using them

    def socket(self, kind: int) -> "RingSocket":
        """A socket without options, neither bound nor connected."""
        socket = RingSocket(self._context.socket(kind))
        self._sockets -= {s for s in self._sockets if s.closed}
        self._sockets.add(socket)
        return socket

    def destroy(self) -> None:
        """Close all sockets; what they have not sent is dropped. Idempotent."""
        self._destroy()


def _destroy(context: "zmq.Context[zmq.Socket[bytes]]", sockets: "set[RingSocket]") -> None:
    for socket in sockets:
        socket.close()
    context.destroy(linger=0)


def _user_of(frame: zmq.Frame) -> str:
    try:
        user = frame.get("User-Id")
    except zmq.ZMQError:  # there is no such property
        return ""
    return user if isinstance(user, str) else ""


class RingSocket:
    """One socket. At most one task receives."""

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self._socket = socket
        # The frames of a message; those that follow them may be large, and are not copied.
        self._num_small = 2 if socket.getsockopt(zmq.TYPE) == zmq.ROUTER else 1
        self._waiter: asyncio.Future[None] | None = None  # the task that receives
        self._loop: asyncio.AbstractEventLoop | None = None  # that watches the descriptor

    @property
    def closed(self) -> bool:
        return self._socket.closed

    @property
    def endpoint(self) -> str:
        """The address that it was bound to last."""
        return self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def set(self, option: int, value: int | bytes) -> None:
        self._socket.setsockopt(option, value)

    def bind(self, address: str) -> None:
        self._socket.bind(address)

    def connect(self, address: str) -> None:
        self._socket.connect(address)

    def close(self) -> None:
        """Close it; what it has not sent is dropped. Idempotent."""
        self._unwatch()
        self._socket.close(linger=0)

    def send(self, *frames: Blob) -> bool:
        """Send one message without waiting. False if the peer cannot be reached, or its queue is
        full. Large frames are not copied: they must not change any more."""
        try:
            for frame in frames[:-1]:
                self._socket.send(frame, _MORE, copy=len(frame) < _COPIED_BYTES)
            self._socket.send(frames[-1], zmq.NOBLOCK, copy=len(frames[-1]) < _COPIED_BYTES)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                return False
            raise
        finally:
            self._look_again()
        return True

    async def receive(self) -> list[bytes]:
        """The frames of the next message. If one is there already, it is returned without letting
        other tasks run. Those that follow a message are memoryviews."""
        while not self._has_message():  # to try would raise an exception, which takes longer
            await self._readable()
        return self._take()[0]

    async def receive_from(self) -> tuple[list[bytes], str]:
        """The same, and who has sent it: what its handshake's authenticator has said; "" if there
        was none."""
        while not self._has_message():
            await self._readable()
        frames, last = self._take()
        return frames, _user_of(last)

    def _take(self) -> tuple[list[bytes], zmq.Frame]:
        """The frames of a message that is there, and the last of them as it came."""
        frames: list[bytes] = []
        while True:
            frame = self._socket.recv(zmq.NOBLOCK, copy=False)
            is_small = len(frames) < self._num_small
            frames.append(frame.bytes if is_small else cast(bytes, frame.buffer))
            if not frame.more:
                return frames, frame

    def _has_message(self) -> bool:
        events = self._socket.getsockopt(zmq.EVENTS)
        assert isinstance(events, int)
        return events & _POLLIN != 0

    async def _readable(self) -> None:
        """Wait until there may be something to receive; called when there was nothing."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            loop.add_reader(self._socket.FD, self._on_signal)
        self._waiter = loop.create_future()
        try:
            await self._waiter
        except BaseException:
            self._unwatch()
            raise
        finally:
            self._waiter = None

    def _on_signal(self) -> None:
        """The descriptor stays readable until somebody uses the socket."""
        if self._waiter is None:
            self._unwatch()
        elif not self._waiter.done():
            self._waiter.set_result(None)

    def _look_again(self) -> None:
        """Called after a send, which clears the descriptor's signal even if a message caused it."""
        waiter = self._waiter
        if waiter is not None and not waiter.done() and self._has_message():
            waiter.set_result(None)

    def _unwatch(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._socket.FD)
            self._loop = None
