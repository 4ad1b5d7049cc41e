"""CPU time of other processes, from /proc."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from bench.cpu_time import added, cpu_seconds, descendants, module_of

# The main thread works for 0.1 s, another for 0.3 s; both stay alive.
BUSY = """
import sys, threading, time

def work(seconds):
    while time.thread_time() < seconds:
        pass

def other():
    work(0.3)
    finished.set()
    sys.stdin.read()

finished = threading.Event()
threading.Thread(target=other, daemon=True).start()
work(0.1)
finished.wait()
print("done", flush=True)
finished.clear()
finished.wait()
"""


@contextmanager
def busy() -> Iterator[int]:
    """The process id of a child that has done its work."""
    command = [sys.executable, "-c", BUSY, "-m", "busy"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None and child.stdout.readline() == b"done\n"
        yield child.pid
    finally:
        child.kill()
        child.communicate()


def test_a_childs_time_is_found_under_its_module() -> None:
    before = cpu_seconds(os.getpid())
    with busy() as pid:
        assert pid in list(descendants(os.getpid())) and module_of(pid) == "busy"
        assert added(before, cpu_seconds(os.getpid()))["busy"] >= 0.4
    assert pid not in list(descendants(os.getpid()))


def test_the_models_threads_are_left_out() -> None:
    with busy():
        everything = cpu_seconds(os.getpid())["busy"]
        assert 0.1 <= cpu_seconds(os.getpid(), engine_module="busy")["busy"] <= everything - 0.3


@pytest.mark.full
def test_what_ends_meanwhile_is_left_out() -> None:
    """Threads and processes start and end while they are counted."""
    stop = threading.Event()

    def churn(start: Callable[[], object]) -> None:
        while not stop.is_set():
            start()

    def thread() -> None:
        short = threading.Thread(target=int)
        short.start()
        short.join()

    starts = [thread, lambda: subprocess.run(["true"], check=True)]
    threads = [threading.Thread(target=churn, args=(start,)) for start in starts]
    for one in threads:
        one.start()
    try:
        for _ in range(1000):
            cpu_seconds(os.getpid())
    finally:
        stop.set()
        for one in threads:
            one.join()
