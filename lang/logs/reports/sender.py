"""Sends steps of runs to a page, from a thread of its own: no program waits for it, or fails.

What waits is bounded in steps and in characters; what comes beyond is dropped. A page that does not
answer is tried again for some seconds, and then left alone. What was lost is told once, in the log.
"""

import encodings.idna  # noqa: F401  # now: a child of a fork while our thread imports it never could
import logging
import ssl
import threading
import time
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from multiprocessing.util import Finalize
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from lang.errors import LangError
from srt import forked

log = logging.getLogger(__name__)

INTERVAL_S = 0.25  # between posts
MAX_STEPS = 4000  # that wait to be sent
MAX_CHARS = 4 * 1024 * 1024  # of these
MAX_STEPS_AT_ONCE = 200  # in a post
MAX_RUNS_AT_ONCE = 50  # in a post
TIMEOUT_S = 2.0  # of a post
LAST_CHANCE_S = 1.0  # of what is left when the process ends
PATIENCE_S = 10.0  # with a page that does not answer
_BUSY = 429

Step = dict[str, Any]


class Head(msgspec.Struct, frozen=True):
    """What all reports of a run begin with. It began at `started` (since 1970)."""

    run: str
    name: str
    started: float


def address_of(text: str) -> tuple[str, str]:
    """The server and the key in the address of a page, `http://host:port/#key=K`. LangError for
    anything else."""
    try:
        parts = urlsplit(text)
        keys = parse_qs(parts.fragment).get("key", [])
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        is_one = is_one and "@" not in parts.netloc  # a password would stand in warnings
    except ValueError:  # of a wrong host or port
        is_one, keys = False, []
    if not is_one or len(keys) != 1 or not (keys[0].isascii() and keys[0].isprintable()):
        raise LangError("SGL_TRACE must be the address of a server's page, with its #key=")
    return f"{parts.scheme}://{parts.netloc}", keys[0]


class Sender:
    """Of this process, to the page at `address`. LangError if that is none."""

    def __init__(self, address: str) -> None:
        self._url, key = address_of(address)
        self._http = _connection(self._url)
        self._headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        self._lock = threading.Lock()
        self._waiting: dict[Head, dict[str, Step]] = {}
        self._ended: dict[Head, float] = {}
        self._count = self._chars = self._in_hand = self._dropped = 0
        self._is_off = False
        self._failing_since = 0.0
        self._trouble = ""  # why the page did not take the last post
        self._refusals: set[int] = set()
        self._has_work = threading.Event()
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._hurries = threading.Event()
        threading.Thread(target=self._work, name="lang-reports", daemon=True).start()
        # Not atexit: processes of multiprocessing call that at their end, and no fork calls ours.
        Finalize(None, self.close, exitpriority=0)

    def add(self, head: Head, step: Step) -> None:
        """A step that has begun, or one again that has ended. Never waits."""
        with self._lock:
            if self._is_off:
                return
            steps = self._waiting.setdefault(head, {})
            former = steps.get(step["id"])
            chars = _chars(step) - (0 if former is None else _chars(former))
            if self._chars + chars > MAX_CHARS or (former is None and self._count >= MAX_STEPS):
                self._dropped += 1
                return
            self._count += former is None
            self._chars += chars
            steps[step["id"]] = step
            self._is_idle.clear()
        self._has_work.set()

    def end(self, head: Head) -> None:
        """The run is over."""
        with self._lock:
            if self._is_off or len(self._ended) >= MAX_STEPS:
                return
            self._ended[head] = time.time()
            self._is_idle.clear()
        self._has_work.set()

    def flush(self, timeout_s: float) -> None:
        """Wait until everything has been sent, or for so long."""
        self._hurries.set()
        self._is_idle.wait(timeout_s)
        self._hurries.clear()

    def close(self) -> None:
        """The process ends: send what is left while there is time, and tell what was lost."""
        self.flush(LAST_CHANCE_S)
        with self._lock:
            self._dropped += self._count + self._in_hand
            self._waiting.clear()
            self._ended.clear()
            self._count = self._in_hand = 0
            was_off, self._is_off = self._is_off, True
        if self._dropped and not was_off:
            why = self._trouble or "there were too many"
            log.warning("SGL_TRACE: %d steps were not reported: %s", self._dropped, why)

    def _work(self) -> None:
        try:
            while not self._is_off:
                self._has_work.wait()
                self._send_what_waits()
        except Exception as error:  # a defect here must not look like one of the program
            self._stop(f"{type(error).__name__}: {error}")
        finally:
            self._http.close()

    def _send_what_waits(self) -> None:
        self._has_work.clear()
        while reports := self._take():
            self._post(msgspec.json.encode({"runs": reports}))
            with self._lock:
                self._in_hand = 0
            self._hurries.wait(INTERVAL_S)
        with self._lock:
            if not self._waiting and not self._ended:
                self._is_idle.set()

    def _take(self) -> list[dict[str, Any]]:
        """Reports of what waits, at most as many steps and runs as go into one post."""
        with self._lock:
            reports: list[dict[str, Any]] = []
            heads = list(dict.fromkeys([*self._waiting, *self._ended]))
            for head in heads[:MAX_RUNS_AT_ONCE]:
                waiting = self._waiting.get(head, {})
                taken = list(waiting)[: MAX_STEPS_AT_ONCE - self._in_hand]
                steps = [waiting.pop(name) for name in taken]
                self._in_hand += len(steps)
                self._count -= len(steps)
                self._chars -= sum(map(_chars, steps))
                ended = None
                if not waiting:
                    self._waiting.pop(head, None)
                    ended = self._ended.pop(head, None)
                if steps or ended is not None:
                    reports.append(msgspec.structs.asdict(head) | {"ended": ended, "steps": steps})
            return reports

    def _post(self, body: bytes) -> None:
        while not self._is_off:
            try:
                self._http.request("POST", "/ui/runs", body, self._headers)
                answer = self._http.getresponse()
                status, said = answer.status, answer.read()
            except (OSError, HTTPException) as error:
                self._http.close()
                self._trouble = f"{self._url} cannot be reached: {error}"
            else:
                if 200 <= status < 300:
                    self._failing_since, self._trouble = 0.0, ""
                    return
                self._trouble = f"{self._url} answers {status}: {_reason(said) or answer.reason}"
                if status < 500 and status != _BUSY:
                    self._refused(status)
                    return
            self._failing_since = self._failing_since or time.monotonic()
            if time.monotonic() - self._failing_since > PATIENCE_S:
                self._stop(self._trouble)
            time.sleep(INTERVAL_S)

    def _refused(self, status: int) -> None:
        """The page does not want a post: of a wrong address or key it will want none."""
        if status < 400 or status in (401, 403, 404, 405):
            self._stop(self._trouble)
        elif status not in self._refusals:
            self._refusals.add(status)
            log.warning("SGL_TRACE: steps were refused: %s", self._trouble)

    def _stop(self, why: str) -> None:
        with self._lock:
            if not self._is_off:
                log.warning("SGL_TRACE: runs are not reported any more: %s", why)
            self._is_off = True
            self._waiting.clear()
            self._ended.clear()
        self._is_idle.set()


def _chars(step: Step) -> int:
    return sum(len(each) for each in step.values() if isinstance(each, str))


def _reason(said: bytes) -> str:
    try:
        return str(msgspec.json.decode(said)["error"]["message"])
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
        return ""


def _connection(url: str) -> HTTPConnection:
    """Not httpx2, which sets up TLS in any case: in a child of a fork meanwhile that would hang."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    if parts.scheme == "http":
        return HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_S)
    with forked.undivided():
        context = ssl.create_default_context()
    return HTTPSConnection(parts.hostname, parts.port, timeout=TIMEOUT_S, context=context)
