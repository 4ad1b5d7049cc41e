"""The process `programs`: sessions of programs, whose calls it makes as a client of the ring.

It is not one of the ring's parts: its death costs its sessions and nothing else.
"""

import asyncio
import time
from collections.abc import Sequence
from itertools import islice
from typing import Any

import zmq

from srt.client.ring.client import RingClient
from srt.files.vocab import Vocab, served_vocab
from srt.programs.ahead import Ahead
from srt.programs.answers import ChatAnswers
from srt.programs.core import Core
from srt.programs.runner import Runner
from srt.ring.actor import Actor
from srt.ring.places import send_now
from srt.wire.errors import RequestError
from srt.wire.messages import RingMessage
from srt.wire.program_messages import ProgramsQuestion, ProgramsRefused
from srt.wire.programs import Truncate

TICK_S = 0.1
PIECE_S = 0.005  # for what has followed from events, before others get a turn
MAX_STARTS = 16  # of calls, before that: each makes its prompt, some ms if it is long
# Of the requests that the ring takes, so many may be those of programs, and of one caller's.
RUNNING_SHARE, CALLER_RUNNING_SHARE = 0.5, 0.25


class ProgramsActor(Actor):
    """Takes clients' questions to the core, and does what the core asks for."""

    name = "programs"
    niceness = 5  # as the tokenizer: the model's threads come first

    async def start(self) -> None:
        most = self.args.max_queued_requests
        running, of_caller = (
            max(1, int(most * share)) for share in (RUNNING_SHARE, CALLER_RUNNING_SHARE)
        )
        self._core = Core(running, of_caller)
        url = f"ipc://{self.ring.directory}"
        self._client = RingClient(url, self.dropped, self._on_failure)
        await self._client.start()
        ahead = None
        if self.args.programs_ahead == "on" and not self.args.disable_radix_cache:
            hints = self._core.graph.objectives.hints
            places = self.args.dp + self.args.remote_replicas
            ahead = Ahead(self._client, hints, self._core.totals, places)
        parts = self._client, self._answers, self._cut, self._changed
        self._runner = Runner(self._core, *parts, ahead)
        self._vocab: asyncio.Task[Vocab] | None = None
        self._is_due = False
        self._is_used = asyncio.Event()
        self._socket = self.bind(zmq.ROUTER, self.ring.programs)
        self.receive_from_clients(self._socket, ProgramsQuestion, self._on_question)
        self.background(self._tick())

    async def stop(self) -> None:
        await self._runner.close()
        await self._client.close()

    def new_epoch(self) -> None:
        pass  # the client has received it too

    def drain(self) -> None:
        self._core.is_draining = True

    def _on_question(self, client: bytes, question: Any) -> None:
        self._core.handle(client, question, time.monotonic())
        self._is_used.set()
        self._changed()

    async def _tick(self) -> None:
        while True:
            await self._is_used.wait()  # without sessions there is nothing to wake up for
            await asyncio.sleep(TICK_S)
            self._core.tick(time.monotonic())
            self._changed()
            if not self._core.has_sessions:
                self._is_used.clear()

    # ---- what the core asks for ----------------------------------------------------------------

    def _changed(self) -> None:
        """Soon do what the core asks for, once for all events until then."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        self._is_due = False
        now = time.monotonic()
        while self._core.graph.has_work and time.monotonic() < now + PIECE_S:
            self._core.graph.step()
        while self._core.stops:
            self._runner.stop(self._core.stops.popleft())
        self._runner.settle()
        starts = list(islice(iter(self._core.next_start, None), MAX_STARTS))
        for work in starts:
            self._runner.start(work)
        self._core.gets.tell(now)
        while self._core.answers:
            self._send(*self._core.answers.popleft())
        if self._core.graph.has_work or len(starts) == MAX_STARTS:
            self._changed()

    def _send(self, client: bytes, answer: Any) -> None:
        try:
            is_sent = self._try(client, answer)
        except RequestError as error:  # the message is too long
            is_sent = self._try(client, ProgramsRefused(answer.rid, error.info))
        if not is_sent:
            self._core.gets.end_of(client)

    def _try(self, client: bytes, answer: RingMessage) -> bool:
        return send_now(self._socket, answer, client)

    # ---- the model's vocabulary, which most programs do not need -------------------------------

    async def _answers(self) -> ChatAnswers:
        vocab = await self._loaded()
        return ChatAnswers(self.args.reasoning_parser, vocab.chat_template)

    async def _cut(self, op: Truncate, ids: list[int]) -> str:
        return cut_text(op, ids, await self._loaded())

    async def _loaded(self) -> Vocab:
        if self._vocab is None:
            args = self.args
            self._vocab = self.tasks.start(asyncio.to_thread(served_vocab, args))
        return await asyncio.shield(self._vocab)


def cut_text(op: Truncate, ids: Sequence[int], vocab: Vocab) -> str:
    """The text of the tokens that `op` leaves of `ids`, which are those of a whole text, without
    characters that are cut in two."""
    most = op.tokens or 0
    kept = ids[:most] if op.keep == "start" else ids[max(0, len(ids) - most) :]
    text = b"".join(vocab.token_bytes[i] for i in kept).decode("utf-8", errors="ignore")
    has_start = op.keep == "start" or len(kept) == len(ids)
    return text.removeprefix(" ") if vocab.space_prefix and has_start else text
