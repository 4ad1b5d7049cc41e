"""Sends steps of runs to a page, from a thread of its own: no program waits for it, or fails.

It holds at most MAX_STEPS, and drops what comes beyond; a page that cannot be reached is tried
again for some seconds, and then left alone. What becomes of this is told once, in the log.
"""

import atexit
import logging
import threading
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import msgspec

from lang.errors import LangError

log = logging.getLogger(__name__)

INTERVAL_S = 0.25
MAX_STEPS = 4000  # that wait to be sent
MAX_STEPS_AT_ONCE = 200  # of a run, in a post
TIMEOUT_S = 2.0  # of a post
LAST_CHANCE_S = 1.0  # of what is left when the process ends
PATIENCE_S = 10.0  # with a page that does not answer

Step = dict[str, Any]


class Head(msgspec.Struct, frozen=True):
    """What all posts of a run begin with. It began at `started` (since 1970)."""

    run: str
    name: str
    started: float


def address_of(text: str) -> tuple[str, str]:
    """The server and the key in the address of a page, `http://host:port/#key=K`. LangError for
    anything else."""
    parts = urlsplit(text)
    keys = parse_qs(parts.fragment).get("key", [])
    if parts.scheme not in ("http", "https") or not parts.netloc or len(keys) != 1:
        raise LangError("SGL_TRACE must be the address of a server's page, with its #key=")
    return f"{parts.scheme}://{parts.netloc}", keys[0]


class Sender:
    """Of this process, to the page at `address`. LangError if that is none."""

    def __init__(self, address: str) -> None:
        self._url, key = address_of(address)
        self._headers = {"authorization": f"Bearer {key}"}
        self._lock = threading.Lock()
        self._waiting: dict[Head, dict[str, Step]] = {}
        self._ended: dict[Head, float] = {}
        self._count = self._dropped = 0
        self._is_off = False
        self._failing_since = 0.0
        self._has_work = threading.Event()
        self._is_idle = threading.Event()
        self._is_idle.set()
        threading.Thread(target=self._run, name="lang-reports", daemon=True).start()
        atexit.register(self.flush, LAST_CHANCE_S)

    def add(self, head: Head, step: Step) -> None:
        """A step that has begun, or one again that has ended. Never waits."""
        with self._lock:
            if self._is_off:
                return
            steps = self._waiting.setdefault(head, {})
            if step["id"] not in steps:
                if self._count >= MAX_STEPS:
                    self._dropped += 1
                    return
                self._count += 1
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
        self._is_idle.wait(timeout_s)
        dropped, self._dropped = self._dropped, 0
        if dropped:
            log.warning("SGL_TRACE: %d steps were dropped: there were too many", dropped)

    def _run(self) -> None:
        with httpx.Client(base_url=self._url, headers=self._headers, timeout=TIMEOUT_S) as http:
            while not self._is_off:
                self._has_work.wait()
                self._has_work.clear()
                for post in self._take():
                    self._post(http, post)
                with self._lock:
                    if not self._waiting and not self._ended:
                        self._is_idle.set()
                time.sleep(INTERVAL_S)

    def _take(self) -> list[dict[str, Any]]:
        """The posts of what waits. What does not fit into them is left for the next time."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
            ended, self._ended = self._ended, {}
            posts = []
            for head in dict.fromkeys([*waiting, *ended]):
                steps = list(waiting.get(head, {}).values())
                for first in range(0, max(1, len(steps)), MAX_STEPS_AT_ONCE):
                    part = steps[first : first + MAX_STEPS_AT_ONCE]
                    is_last = first + MAX_STEPS_AT_ONCE >= len(steps)
                    over = ended.get(head) if is_last else None
                    posts.append(msgspec.structs.asdict(head) | {"ended": over, "steps": part})
            self._count = 0
        return posts

    def _post(self, http: httpx.Client, post: dict[str, Any]) -> None:
        while not self._is_off:
            try:
                answer = http.post("/ui/runs", json=post)
            except httpx.HTTPError as error:
                self._failing_since = self._failing_since or time.monotonic()
                if time.monotonic() - self._failing_since > PATIENCE_S:
                    self._stop(f"{self._url} cannot be reached: {error}")
                time.sleep(INTERVAL_S)
                continue
            self._failing_since = 0.0
            if answer.status_code in (401, 403, 404):
                self._stop(f"{self._url} answers {answer.status_code}: {_reason(answer)}")
            elif answer.status_code >= 400:
                log.warning("SGL_TRACE: steps were refused: %s", _reason(answer))
            return

    def _stop(self, why: str) -> None:
        log.warning("SGL_TRACE: runs are not reported any more: %s", why)
        with self._lock:
            self._is_off = True
            self._waiting.clear()
            self._ended.clear()
        self._is_idle.set()


def _reason(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:200]
