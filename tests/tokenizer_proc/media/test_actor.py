"""The tokenizer process with real sockets and children: files come in, spans and pixels go out."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

import tokenizer_proc.actor
import tokenizer_proc.media.worker
from srt.args import ServerArgs
from srt.ring.places import Ring, bind, connect, send_now
from srt.ring.socket import RingSocket
from srt.wire.errors import BAD_REQUEST, UNAVAILABLE
from srt.wire.messages import AbortReq, Admitted, FrontReply, GenerateReq, Refused, decoder
from srt.wire.pause import Pause
from srt.wire.ring_messages import (
    Credit,
    MediaSent,
    MediaWanted,
    PauseSet,
    SchedulerMessage,
    TokenizedReq,
)
from srt.wire.ring_state import TokenizerFacts
from tests.srt.gateway.holds import watched_loop
from tests.tokenizer_proc.forking import kill
from tests.tokenizer_proc.media.fake_processor import (
    SEEING,
    FakeProcessor,
    picture,
    seeing_tokenizer,
)
from tests.tokenizer_proc.media.test_front_media import request as of_epoch
from tests.waiting import SOON_S
from tokenizer_proc.actor import TokenizerActor
from tokenizer_proc.process import construction
from tokenizer_proc.process.pause_file import note_pause

EPOCH = 1
SMALL = picture(16, 8, 1)
_reply = decoder(FrontReply).decode
_message = decoder(SchedulerMessage).decode


def request(rid: str, **fields: Any) -> GenerateReq:
    return of_epoch(rid, **{"epoch": EPOCH, **fields})


class Bench:
    """A tokenizer, and the sockets of two clients, a scheduler and what gives credits."""

    def __init__(self, actor: TokenizerActor) -> None:
        self.actor = actor
        context, ring = actor.context, actor.ring
        self.credits = connect(context, zmq.PUSH, ring.credits)
        self.scheduler = bind(context, zmq.PULL, ring.scheduler(0))
        self.clients = [self._client(name) for name in (b"a", b"b")]

    def _client(self, name: bytes) -> RingSocket:
        client = self.actor.context.socket(zmq.DEALER)
        client.set(zmq.IDENTITY, name)
        client.connect(self.actor.ring.front)
        return client

    def ask(self, req: GenerateReq | AbortReq, *files: bytes, client: int = 0) -> None:
        assert send_now(self.clients[client], req, blobs=files)

    async def answer(self, client: int = 0) -> Admitted | Refused:
        (data,) = await asyncio.wait_for(self.clients[client].receive(), SOON_S)
        reply = _reply(data)
        assert isinstance(reply, Admitted | Refused)
        return reply

    async def sent(self) -> tuple[SchedulerMessage, list[bytes]]:
        data, *blobs = await asyncio.wait_for(self.scheduler.receive(), SOON_S)
        return _message(data), blobs

    def tell(self, news: Credit | MediaWanted) -> None:
        assert send_now(self.credits, news)


@asynccontextmanager
async def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    processor = FakeProcessor()
    module = tokenizer_proc.actor
    monkeypatch.setattr(module, "resolve_model", lambda *_: None)
    monkeypatch.setattr(module, "served_vocab", lambda _: SEEING)
    monkeypatch.setattr(module, "load_processor", lambda files: processor)
    monkeypatch.setattr(construction, "load_tokenizer", lambda *_: seeing_tokenizer(processor))
    monkeypatch.setattr(TokenizerActor, "niceness", 0)
    monkeypatch.setattr(tokenizer_proc.media.worker, "NICENESS", 0)  # on a busy machine too
    monkeypatch.setattr(asyncio.get_running_loop(), "add_signal_handler", lambda *_: None)
    ring = Ring(tmp_path)
    ring.write_args(ServerArgs())
    actor = TokenizerActor(ring, EPOCH, [1])
    bench = Bench(actor)
    serving = asyncio.ensure_future(actor.run())
    async with asyncio.timeout(SOON_S):
        while not hasattr(actor, "_outbound"):
            await asyncio.sleep(0.01)
    actor._front.dispatch.hear([1], [0])
    try:
        yield bench
    finally:
        actor.request_stop()
        await serving


async def test_a_picture_reaches_the_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch) as bench:
        facts = bench.actor.facts
        assert isinstance(facts, TokenizerFacts)
        assert list(facts.media_placeholders) == ["image", "video"]
        bench.ask(request("r"), SMALL)
        req, blobs = await bench.sent()
        assert isinstance(req, TokenizedReq) and blobs == []
        (span,) = req.media
        assert (span.start, span.item.length) == (2, 2)
        answer = await bench.answer()
        assert isinstance(answer, Admitted) and answer.meta.media_tokens == 2
        bench.tell(MediaWanted(1, [span.item.digest]))
        sent, blobs = await bench.sent()
        assert sent == MediaSent(span.item, 1)
        assert bytes(blobs[0]) == b"\1" * 16 * 8 * 3
        bench.tell(Credit(b"a", "r", EPOCH))
        bench.tell(MediaWanted(1, [span.item.digest]))
        sent, blobs = await bench.sent()
        assert isinstance(sent, MediaSent) and sent.error is not None and blobs == []
        assert bench.actor._front.media.store.num_bytes == 0


async def test_a_tokenizer_goes_on_with_the_pause_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note_pause(tmp_path, Pause("retract", 1.0))
    async with running(tmp_path, monkeypatch) as bench:
        bench.ask(request("r", text="a", media=[]))
        paused, _ = await bench.sent()
        assert isinstance(paused, PauseSet) and paused.pause.mode == "retract"
        req, _ = await bench.sent()
        assert isinstance(req, TokenizedReq)


@pytest.mark.full
async def test_hostile_files_beside_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gets its own error, and requests of another client go on."""
    monkeypatch.setattr(tokenizer_proc.media.worker, "CPU_S", 1.0)
    async with running(tmp_path, monkeypatch) as bench:
        files = {"crash": UNAVAILABLE, "loop": BAD_REQUEST, "eat": BAD_REQUEST, "x": BAD_REQUEST}
        for rid in files:
            bench.ask(request(rid), rid.encode())
        bench.ask(request("many", media=[of_epoch().media[0]] * 10_000), *[SMALL] * 10_000)
        bench.ask(request("text", text="a", media=[]), client=1)
        bench.ask(request("picture"), SMALL, client=1)
        answers = [await bench.answer(1) for _ in range(2)]
        assert all(isinstance(answer, Admitted) for answer in answers)
        errors = {}
        for _ in range(5):
            answer = await bench.answer()
            assert isinstance(answer, Refused)
            errors[answer.rid] = answer.error
        assert {rid: errors[rid].code for rid in files} == files
        assert [rid for rid, error in errors.items() if error.retryable] == ["crash"]
        assert errors["many"].param == "media"
        assert {error.param for rid, error in errors.items() if rid != "many"} == {"media[0]"}
        bench.ask(request("after"), SMALL)
        assert isinstance(await bench.answer(), Admitted)


async def test_an_abort_while_a_file_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_proc.media.worker, "CPU_S", 1.0)
    async with running(tmp_path, monkeypatch) as bench:
        bench.ask(request("loop"), b"loop")
        bench.ask(AbortReq("loop", EPOCH))
        answer = await bench.answer()
        assert isinstance(answer, Admitted) and answer.aborted == [0]
        bench.ask(request("after"), SMALL)
        assert isinstance(await bench.answer(), Admitted)


async def test_the_loop_goes_on_while_large_files_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No callback takes 20 ms of CPU time for files of 20 MB, known or new."""
    large = [picture(2000, 16, i) for i in range(3)]
    files = [file + b" " * (20_000_000 - len(file)) for file in large]
    async with running(tmp_path, monkeypatch) as bench:
        bench.ask(request("first"), SMALL)
        await bench.answer()
        async with watched_loop() as holds:
            for number, file in enumerate([*files, *files]):
                bench.ask(request(str(number)), file)
                assert isinstance(await bench.answer(), Refused)  # 500 tokens do not fit
        assert 0 < holds.longest_s < 0.02, holds.what


async def test_without_what_forks_children_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one would have what it holds by now."""
    with pytest.raises(RuntimeError, match="forks the tokenizer's children"):
        async with running(tmp_path, monkeypatch) as bench:
            bench.ask(request("first"), SMALL)
            await bench.answer()
            kill(bench.actor._workers.forker.pid)
            await asyncio.wait_for(bench.actor._stopping.wait(), SOON_S)
