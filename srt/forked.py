"""What a child of a fork makes anew, because its copy of the parent's cannot be used.

A child has only the thread that forked: a lock that another thread held stays locked for ever, and
nobody runs the parent's loops and pools. Sockets and epoll descriptors are shared: to close one as
usual would end the parent's connection (a shutdown, TLS's last message), or take the parent's
sockets out of its loop. So a child `leave`s such objects as they are, and makes others.
"""

import contextlib
import importlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
_renewals: "dict[int, tuple[weakref.ref[Any], Callable[[Any], None]]]" = {}  # by the things' ids
# What a first request imports. Not all modules: one that a thread imports may wait for the fork.
_IMPORTED_LATE = {
    *("lang", "srt", "httpx2", "httpcore2", "anyio", "h11", "idna"),
    *("sniffio", "truststore", "llguidance", "jsonschema", "jsonschema_specifications"),
    *("anthropic", "google", "litellm", "pydantic", "aiohttp", "tenacity"),
    *("referencing", "rpds", "attr", "attrs", "ssl", "encodings", "stringprep"),
}
_MAX_IMPORTS = 1000
_import_locks: dict[str, Any] = getattr(sys.modules["_frozen_importlib"], "_module_locks", {})
_left: list[object] = []
_undivided = threading.RLock()


def renew_in_children(thing: T, renew: Callable[[T], None]) -> None:
    """Have `renew(thing)` called in every child of a fork, before anything else uses `thing`, for
    as long as that lives. It must not wait."""
    key = id(thing)
    _renewals[key] = weakref.ref(thing, lambda _: _renewals.pop(key, None)), renew


def leave(*things: object) -> None:
    """Keep the parent's objects for ever: their finalizers would act on what the parent uses."""
    _left.extend(things)


@contextlib.contextmanager
def undivided() -> Iterator[None]:
    """A context during which no other thread forks: for calls into libraries that hold locks of
    their own meanwhile, as OpenSSL does when its first TLS context is made."""
    with _undivided:
        yield


def unlock(future: "Future[Any]") -> None:
    """Give a future another lock: a thread of the parent may hold its own."""
    future._condition = threading.Condition()


def _begin() -> None:
    _undivided.acquire()  # first: the one who has it may import something
    _finish_imports()


def _renew_all() -> None:
    _undivided.release()
    for reference, renew in list(_renewals.values()):
        if (thing := reference()) is not None:
            renew(thing)


def _finish_imports() -> None:
    """Wait for what other threads are importing: in the child nobody would end that."""
    for _ in range(_MAX_IMPORTS):
        name = next(filter(_is_begun, list(_import_locks)), None)
        if name is None:
            return
        with contextlib.suppress(Exception):  # who imports it is told
            importlib.import_module(name)


def _is_begun(name: str) -> bool:
    """Whether another thread imports a module; it holds its lock, by which it is found before the
    module is there."""
    if name.partition(".")[0] not in _IMPORTED_LATE:
        return False
    found = _import_locks.get(name)
    lock = None if found is None else found()
    return lock is not None and lock.owner not in (None, threading.get_ident())


os.register_at_fork(before=_begin, after_in_parent=_undivided.release, after_in_child=_renew_all)
