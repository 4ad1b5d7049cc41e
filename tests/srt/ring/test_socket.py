"""The ring's sockets in an event loop: nothing is lost, nothing waits, nothing spins."""

import asyncio
import random
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from srt.ring.socket import RingContext, RingSocket
from tests.waiting import SOON_S


@pytest.fixture
def context() -> Iterator[RingContext]:
    context = RingContext()
    yield context
    context.destroy()


def pair(context: RingContext, directory: Path, first: int, second: int) -> list[RingSocket]:
    """Two connected sockets of these kinds; the second one's identity is "peer"."""
    sockets = [context.socket(first), context.socket(second)]
    sockets[1].set(zmq.IDENTITY, b"peer")
    sockets[0].bind(f"ipc://{directory / 'socket'}")
    sockets[1].connect(f"ipc://{directory / 'socket'}")
    return sockets


def signalled(socket: RingSocket) -> bool:
    """Whether the socket's descriptor becomes readable, while nothing else runs."""
    return bool(select.select([socket._socket.FD], [], [], 5)[0])


async def test_messages_come_in_order_with_their_frames(
    context: RingContext, tmp_path: Path
) -> None:
    pull, push = pair(context, tmp_path, zmq.PULL, zmq.PUSH)
    receiving = asyncio.ensure_future(pull.receive())
    await asyncio.sleep(0)
    assert push.send(b"1", b"one") and push.send(b"2")
    async with asyncio.timeout(SOON_S):
        assert [await receiving, await pull.receive()] == [[b"1", b"one"], [b"2"]]


async def test_peers_that_talk_at_once_miss_nothing(context: RingContext, tmp_path: Path) -> None:
    router, dealer = pair(context, tmp_path, zmq.ROUTER, zmq.DEALER)
    rng = random.Random(0)
    numbers = [b"%d" % i for i in range(3000)]

    async def listen(socket: RingSocket) -> list[bytes]:
        return [(await socket.receive())[-1] for _ in numbers]

    async def talk(socket: RingSocket, *to: bytes) -> None:
        for number in numbers:
            assert socket.send(*to, number)
            if rng.random() < 0.3:
                await asyncio.sleep(rng.choice([0, 0, 0.0005]))

    async with asyncio.timeout(SOON_S):
        assert dealer.send(b"hello")
        assert await router.receive() == [b"peer", b"hello"]  # from now on it knows its peer
        talks = talk(router, b"peer"), talk(dealer)
        heard = await asyncio.gather(listen(router), listen(dealer), *talks)
    assert list(heard[:2]) == [numbers, numbers]


async def test_a_send_takes_no_message_along(context: RingContext, tmp_path: Path) -> None:
    """Sending consumes the signal of a message that has come; the descriptor is then silent."""
    router, dealer = pair(context, tmp_path, zmq.ROUTER, zmq.DEALER)
    async with asyncio.timeout(SOON_S):
        dealer.send(b"hello")
        await router.receive()
        receiving = asyncio.ensure_future(router.receive())
        await asyncio.sleep(0.05)
        dealer.send(b"news")
        assert signalled(router)
        assert router.send(b"peer", b"x")
        assert router._socket.getsockopt(zmq.EVENTS)  # this surely consumes the signal
        assert await receiving == [b"peer", b"news"]


async def test_a_send_never_waits(context: RingContext, tmp_path: Path) -> None:
    router, _ = pair(context, tmp_path, zmq.ROUTER, zmq.DEALER)
    router.set(zmq.ROUTER_MANDATORY, 1)
    assert not router.send(b"stranger", b"x")
    push = context.socket(zmq.PUSH)
    push.set(zmq.SNDHWM, 5)
    push.connect(f"ipc://{tmp_path / 'nobody'}")
    sent = [push.send(b"x") for _ in range(10)]
    assert sent == [True] * 5 + [False] * 5
    push.close()
    with pytest.raises(zmq.ZMQError):  # an error that does not come from the peer
        push.send(b"x")


async def test_a_receiver_may_be_cancelled(context: RingContext, tmp_path: Path) -> None:
    pull, push = pair(context, tmp_path, zmq.PULL, zmq.PUSH)
    for i in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await pull.receive()
        push.send(b"%d" % i)
        async with asyncio.timeout(SOON_S):
            assert await pull.receive() == [b"%d" % i]


async def test_what_nobody_receives_costs_nothing(context: RingContext, tmp_path: Path) -> None:
    """The descriptor stays readable: if watched, an event loop would call its reader for ever."""
    pull, push = pair(context, tmp_path, zmq.PULL, zmq.PUSH)
    calls, on_signal = 0, pull._on_signal

    def counted() -> None:
        nonlocal calls
        calls += 1
        on_signal()

    pull._on_signal = counted  # type: ignore[method-assign]
    receiving = asyncio.ensure_future(pull.receive())
    await asyncio.sleep(0)
    push.send(b"1")
    async with asyncio.timeout(SOON_S):
        await receiving
        calls = int(pull._socket.getsockopt(zmq.EVENTS))  # 0; the next message is signalled
        push.send(b"2")
        assert signalled(pull)
        for _ in range(20):
            await asyncio.sleep(0)
        assert calls <= 1
        assert await pull.receive() == [b"2"]


async def test_closed_sockets_are_not_watched(context: RingContext, tmp_path: Path) -> None:
    pull, _ = pair(context, tmp_path, zmq.PULL, zmq.PUSH)
    receiving = asyncio.ensure_future(pull.receive())
    await asyncio.sleep(0)
    descriptor = pull._socket.FD
    context.destroy()
    context.destroy()
    assert pull.closed
    assert not asyncio.get_running_loop().remove_reader(descriptor)
    receiving.cancel()
    await asyncio.gather(receiving, return_exceptions=True)


FORGOTTEN = """
import asyncio, gc, sys, zmq
from srt.ring.socket import RingContext

async def receive():
    context = RingContext()
    for name in "ab":
        socket = context.socket(zmq.PULL)
        socket.bind(f"ipc://{sys.argv[1]}/{name}")
    context.itself = context
    try:
        async with asyncio.timeout(0.01):
            await socket.receive()
    except TimeoutError:
        pass

for _ in range(3):
    asyncio.run(receive())
    gc.collect()
print("went on")
"""


def test_a_forgotten_context_blocks_nobody(tmp_path: Path) -> None:
    """Python's collector ends it; with pyzmq, that would wait for sockets that nobody closes."""
    command = [sys.executable, "-W", "ignore", "-c", FORGOTTEN, str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=60, check=True)
    assert done.stdout == b"went on\n"
