"""What pages watch: one stream of events that all of them share.

While a page watches, the feed asks the schedulers every INTERVAL_S for their tree, queue and
statistics, and encodes what has changed once for all pages. Nobody watching, nothing is asked. A
page that comes gets everything at first, and again if it reads so slowly that it has missed some.
"""

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from srt.client.generation import ServerClient
from srt.gateway.introspection.runs import Event, Runs
from srt.wire.errors import UNAVAILABLE, RequestError
from srt.wire.ring_state import RingEvent

log = logging.getLogger(__name__)

INTERVAL_S = 0.5
MAX_BYTES_PER_S = 150_000  # to each page, but for what a new one gets at first
MAX_RUN_BYTES = 60_000  # of news of programs, with each look
MAX_PAGES = 64
MAX_BEHIND = 8  # looks that a page may still have to read
ANSWER_TIMEOUT_S = 2.0  # of the schedulers
KEEP_ALIVE_S = 10.0
Latencies = Callable[[], dict[str, list[float] | None]]
_UNUSED = 5  # its place in a node, as /tree has it
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")

_encode = msgspec.json.Encoder().encode


class Facts(NamedTuple):
    """What does not change while the server runs."""

    model: str
    version: str
    context_len: int
    pool_tokens: int  # as it was asked for


class Page:
    """One reader of the feed. `events` may be read once."""

    def __init__(self, feed: "Feed") -> None:
        self._feed = feed
        self._waiting: list[list[bytes]] = []
        self._is_behind = True  # it gets everything next
        self._has_news = asyncio.Event()
        self._is_closed = False

    def add(self, frames: list[bytes]) -> None:
        """More for it to read."""
        if not self._is_behind:
            self._waiting.append(frames)
            if len(self._waiting) > MAX_BEHIND:
                self._waiting, self._is_behind = [], True
        self._has_news.set()

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events, until the server ends."""
        while not self._is_closed:
            try:
                async with asyncio.timeout(KEEP_ALIVE_S):
                    await self._has_news.wait()
            except TimeoutError:
                yield b":\n\n"
                continue
            self._has_news.clear()
            looks, self._waiting = self._waiting, []
            if self._is_behind and (whole := self._feed.whole()):
                looks, self._is_behind = [whole], False
            for frames in looks:
                yield b"".join(frames)

    def end(self) -> None:
        """The stream ends, after what there is to read."""
        self._is_closed = True
        self._has_news.set()

    async def aclose(self) -> None:
        """Nobody reads it any more."""
        self.end()
        self._feed.leave(self)


class Feed:
    """Of the server that `client` reaches; `latencies` are those that the gateway sees."""

    def __init__(self, client: ServerClient, facts: Facts, latencies: Latencies) -> None:
        self._client, self._facts, self._latencies = client, facts, latencies
        self._pages: set[Page] = set()
        self._task: asyncio.Task[None] | None = None
        self._told: list[bytes] = []  # everything, if a page has asked since the last look
        self.runs = Runs()
        self._forget()

    def open(self) -> Page:
        """A new page. RequestError (503) if there are too many."""
        if len(self._pages) >= MAX_PAGES:
            reason = f"{MAX_PAGES} pages watch this server already"
            raise RequestError(reason, code=UNAVAILABLE, retryable=True)
        page = Page(self)
        self._pages.add(page)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        elif self._has_looked:
            page.add([])
        return page

    def leave(self, page: Page) -> None:
        """The page is not read any more; with the last one the feed stands still."""
        self._pages.discard(page)
        if not self._pages and self._task is not None:
            self._task.cancel()
            self._task = None
            self._forget()

    def end_pages(self) -> None:
        """The streams of all pages end: who may still watch opens another."""
        for page in list(self._pages):
            page.end()
            self.leave(page)

    def whole(self) -> list[bytes]:
        """Frames that tell everything as it was last told; none before the first look."""
        if not self._has_looked:
            return []
        if not self._told:
            trees = [each.whole() for each in self._trees.values()]
            queues = [each.whole() for each in self._queues.values()]
            # Of what a page has from before, it may have missed that some are gone.
            hello = self._hello | {"whole": True}
            events = [hello, self._pulse, *trees, *queues, *self.runs.whole()]
            self._told = [_frame(event | {"t": self._at}) for event in events]
        return self._told

    def _forget(self) -> None:
        self._has_looked = False
        self._at = 0.0  # Unix time of the last look
        self._hello: Event = {}
        self._pulse: Event = {}
        self._told = []
        self._trees: dict[int, TreeChanges] = {}
        self._queues: dict[int, QueueChanges] = {}
        self._parts = Parts()
        self.runs.told()

    async def _run(self) -> None:
        while True:
            began = time.monotonic()
            try:
                frames = [_frame(event) for event in await self._look()]
            except Exception:  # a defect here is no reason to leave pages without an end
                log.exception("the page's feed has failed")
                self._end_all()
                return
            for page in self._pages:
                page.add(frames)
            ring = self._client.ring
            if ring is not None and ring.draining:
                self._end_all()
                return
            took, num_bytes = time.monotonic() - began, sum(map(len, frames))
            await asyncio.sleep(max(INTERVAL_S - took, num_bytes / MAX_BYTES_PER_S, 0.05))

    def _end_all(self) -> None:
        self._task = None  # it ends by itself
        self.end_pages()
        self._forget()

    async def _look(self) -> list[Event]:
        """What there is to tell, the newest look of it."""
        looks, stats = await asyncio.gather(
            self._answer(self._client.look()), self._answer(self._client.stats())
        )
        self._at, ring = round(time.time(), 3), self._client.ring
        events = []
        if (hello := self._greeting(ring)) != self._hello:
            self._hello = hello
            self._trees, self._queues = {}, {}
            events.append(hello)
        self._pulse = self._pulse_of(ring, stats)
        events.append(self._pulse)
        for look in looks or []:
            events += self._news(look)
        events += self.runs.news(MAX_RUN_BYTES)
        self._told, self._has_looked = [], True
        return [event | {"t": self._at} for event in events]

    async def _answer(self, question: Any) -> Any:
        """What the schedulers say; None if they do not, as while one starts."""
        with suppress(RequestError, TimeoutError):
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await question
        return None

    def _greeting(self, ring: RingEvent | None) -> Event:
        facts = self._facts
        incarnations = [] if ring is None else ring.incarnations
        return {
            "type": "hello",
            "model": facts.model,
            "version": facts.version,
            "context_len": facts.context_len,
            "pool_tokens": (0 if ring is None else ring.pool_tokens) or facts.pool_tokens,
            "replicas": len(incarnations),
            "epoch": 0 if ring is None else ring.epoch,
            "incarnations": incarnations,
            "launcher": 0 if ring is None else ring.pids.get("launcher", 0),
        }

    def _pulse_of(self, ring: RingEvent | None, stats: Any) -> Event:
        stats = stats or {}
        of_each = stats.get("replicas", [{"replica": 0} | stats] if stats else [])
        parts = [] if ring is None else self._parts.look(ring)
        latency = self._latencies()
        return {"type": "pulse", "replicas": of_each, "latency": latency, "parts": parts}

    def _news(self, look: dict[str, Any]) -> Iterable[Event]:
        replica: int = look["replica"]
        tree = self._trees.setdefault(replica, TreeChanges(replica))
        queue = self._queues.setdefault(replica, QueueChanges(replica))
        return [event for event in (tree.take(look), queue.take(look)) if event is not None]


def _frame(event: Event) -> bytes:
    return b"data: " + _encode(event) + b"\n\n"


# ---- a replica's tree and queue: whole at first, then what has changed ------------------------


class TreeChanges:
    """The tree of one replica, as it was last told."""

    def __init__(self, replica: int) -> None:
        self._replica = replica
        self._nodes: dict[int, list[int]] = {}
        self._facts: Event = {}

    def take(self, look: Mapping[str, Any]) -> Event | None:
        """The event that tells what `look` shows that is new; None for nothing."""
        nodes = {node[0]: _placed(node, look["matches"]) for node in look["nodes"]}
        changed = [node for uid, node in nodes.items() if self._nodes.get(uid) != node]
        removed = [uid for uid in self._nodes if uid not in nodes]
        facts = {
            "is_whole": look["nodes_are_all"],
            "cached_tokens": look["cached_tokens"],
            "evicted_tokens_total": look["evicted_tokens_total"],
            "matches": look["matches"],
        }
        is_first, is_same = not self._facts, facts == self._facts and not changed and not removed
        self._nodes, self._facts = nodes, facts
        return None if is_same else self._event(is_first, changed, removed)

    def whole(self) -> Event:
        """The event that tells all."""
        return self._event(True, [*self._nodes.values()], [])

    def _event(self, full: bool, nodes: list[list[int]], removed: list[int]) -> Event:
        about = {"type": "tree", "replica": self._replica, "full": full}
        return about | {"nodes": nodes, "removed": removed} | self._facts


def _placed(node: Sequence[int], matches: int) -> list[int]:
    """A node with the number of its last match: how many there have been since changes always."""
    unused = node[_UNUSED]
    last = matches - unused if unused >= 0 else -1
    return [*node[:_UNUSED], last, *node[_UNUSED + 1 :]]


class QueueChanges:
    """The requests of one replica, as they were last told."""

    def __init__(self, replica: int) -> None:
        self._about = {"type": "queue", "replica": replica}
        self._last: Event = {}

    def take(self, look: Mapping[str, Any]) -> Event | None:
        """The event that tells all of them, if anything has changed."""
        names = ("running", "waiting", "num_running", "num_waiting")
        found = {name: look[name] for name in names}
        is_same = found == self._last
        self._last = found
        return None if is_same else self._about | found

    def whole(self) -> Event:
        return self._about | self._last


class Parts:
    """What the server's processes use of the machine, as Linux shows it, between one call and the
    next."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._last: dict[int, tuple[float, float]] = {}  # by process: when, and its CPU time

    def look(self, ring: RingEvent) -> list[dict[str, Any]]:
        """For each part its name and state, the cores that it used since the last call, its memory
        in bytes (both null where they are not known), and how often it was lost."""
        losses: dict[str, int] = {}
        for part, _, count in ring.losses:
            losses[part] = losses.get(part, 0) + count
        last, self._last = self._last, {}
        found = []
        for name, state in ({"launcher": "ready"} | ring.parts).items():
            pid = ring.pids.get(name, 0)
            row = {"name": name, "state": state, "losses": losses.get(name, 0)}
            found.append(row | self._use(pid, last.get(pid)))
        return found

    def _use(self, pid: int, last: tuple[float, float] | None) -> dict[str, Any]:
        try:
            # The name, which stands in brackets, may hold spaces.
            fields = (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            return {"cpu": None, "rss": None}
        now, used_s = time.monotonic(), (int(fields[11]) + int(fields[12])) / _TICKS
        self._last[pid] = now, used_s
        cpu = None
        if last is not None and now > last[0]:
            cpu = round(max(0.0, used_s - last[1]) / (now - last[0]), 3)
        return {"cpu": cpu, "rss": int(fields[21]) * _PAGE}
