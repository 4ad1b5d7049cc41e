"""What the page is told of a run: its calls, each when it begins and when it ends.

Where SGL_TRACE is not set, all of this is one look at a variable of the module.
"""

import logging
import os
import secrets
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from lang.errors import LangError
from lang.logs.reports.waits import Waits
from lang.logs.trace import Call

if TYPE_CHECKING:
    from lang.logs.reports.sender import Head, Sender

log = logging.getLogger(__name__)

VARIABLE = "SGL_TRACE"
MAX_TEXT_CHARS = 2000
MAX_NAME_CHARS = 200


class Run(Protocol):
    """A program's run: `outermost` is the one that it is inside of, or itself."""

    name: str

    @property
    def outermost(self) -> "Run": ...


_is_on = bool(os.environ.get(VARIABLE))
if _is_on:  # now: imported by the first call, it would hold up that one
    import lang.logs.reports.sender  # noqa: F401
_lock = threading.Lock()
_sender: "Sender | None" = None
_heads: "WeakKeyDictionary[Run, Head]" = WeakKeyDictionary()


def begun(program: Run, call: Call, waits: Waits) -> Callable[[], None]:
    """A call of the program has begun, after all that `waits` has. What this returns is called when
    it has ended."""
    if not _is_on:
        return _nothing
    made = waits.begin(call.address)
    _tell(program, call, made.after, has_ended=False)

    def ended() -> None:
        made.ended_s = call.began_s + call.latency_s
        _tell(program, call, made.after, has_ended=True)

    return ended


def _nothing() -> None:
    pass


def _tell(program: Run, call: Call, after: list[str], *, has_ended: bool) -> None:
    sender = _started()
    if sender is None:
        return
    head = _head_of(program, call.began_s)
    began_s = max(0.0, call.began_s - head.started)
    step: dict[str, Any] = {
        "id": call.address,
        "kind": call.kind,
        "name": _shown(call.name)[:MAX_NAME_CHARS],
        "t0": began_s,
        "t1": began_s + call.latency_s if has_ended else None,
        "after": after,
        "prompt_tokens": call.prompt_tokens,
        "cached_tokens": call.cached_tokens,
        "completion_tokens": call.completion_tokens,
        "prompt": _shown(call.prompt_tail),
        "text": _shown(call.text),
        "error": None if call.error is None else _shown(call.error),
        "from_log": call.from_log,
        "is_shared": call.is_shared,
    }
    sender.add(head, step)


def ended(program: Run) -> None:
    """Nothing of the program is at work any more."""
    if _is_on and _sender is not None and program in _heads:
        _sender.end(_heads[program])


def _started() -> "Sender | None":
    """The sender of this process; None after a wrong address."""
    global _is_on, _sender
    from lang.logs.reports.sender import Sender

    with _lock:
        if _sender is None and _is_on:
            try:
                _sender = Sender(os.environ[VARIABLE])
            except LangError as error:
                _is_on = False
                log.warning("%s", error)
        return _sender


def _head_of(program: Run, began_s: float) -> "Head":
    """Of the outermost run, which all runs inside it belong to; it begins with its first call."""
    from lang.logs.reports.sender import Head

    outermost = program.outermost
    with _lock:
        found = _heads.get(outermost)
        if found is None:
            name = _shown(outermost.name)[:MAX_NAME_CHARS] or "a program"
            found = _heads[outermost] = Head(secrets.token_hex(16), name, began_s)
        return found


def _shown(text: str) -> str:
    """As much of a text as a page shows; halves of characters, which JSON cannot have, as `?`."""
    return text[:MAX_TEXT_CHARS].encode(errors="replace").decode()


def _forget() -> None:
    """In a fork of the process, whose threads are not there."""
    global _lock, _sender
    _lock, _sender = threading.Lock(), None
    _heads.clear()


os.register_at_fork(after_in_child=_forget)
