"""The lock on the core: held by handlers and by the compute thread, which may leave work to others.

A step can start before the core has taken over the results that it was made from. What is owed to
the core then is done by whoever uses it next, so nobody sees it half a step behind.
"""

import threading
from collections.abc import Callable


class CoreLock:
    """A context manager; a thread that holds it may enter it again."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._owed: Callable[[], object] | None = None

    def owe(self, call: Callable[[], object]) -> None:
        """Leave `call` to the next one who enters. The caller holds the lock, and owes nothing."""
        assert self._owed is None
        self._owed = call

    def __enter__(self) -> None:
        """Raises what the call that was owed raises, and is not held then."""
        self._lock.acquire()
        owed, self._owed = self._owed, None
        if owed is not None:
            try:
                owed()
            except BaseException:
                self._lock.release()
                raise

    def __exit__(self, *_: object) -> None:
        self._lock.release()
