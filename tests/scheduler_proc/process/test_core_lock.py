"""What is owed to the core is done before anybody else uses it."""

import threading

import pytest

from scheduler_proc.process.core_lock import CoreLock
from tests.waiting import SOON_S


def test_the_next_one_does_what_is_owed_once() -> None:
    lock, done = CoreLock(), list[str]()
    with lock:
        lock.owe(lambda: done.append("owed"))
        assert not done
    with lock:
        done.append("next")
        with lock:
            done.append("inner")
    assert done == ["owed", "next", "inner"]


def test_others_wait_while_it_is_done() -> None:
    lock, order, begun = CoreLock(), list[str](), threading.Event()

    def enter() -> None:
        with lock:
            order.append("other")

    other = threading.Thread(target=enter)

    def owed() -> None:
        other.start()
        begun.set()
        order.append("owed")

    with lock:
        lock.owe(owed)
    with lock:
        assert begun.is_set()
        order.append("next")
    other.join(SOON_S)
    assert order == ["owed", "next", "other"]


def test_what_fails_is_raised_and_holds_nothing() -> None:
    lock = CoreLock()

    def fail() -> None:
        raise ValueError("made to fail")

    with lock:
        lock.owe(fail)
    with pytest.raises(ValueError, match="made to fail"), lock:
        raise AssertionError("it was entered")
    entered = threading.Event()

    def enter() -> None:
        with lock:
            entered.set()

    other = threading.Thread(target=enter)
    other.start()
    assert entered.wait(SOON_S)
    other.join(SOON_S)
