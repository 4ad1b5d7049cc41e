"""The tokenizer process, the ring's front: makes the `Front` core, and gives it what arrives."""

import asyncio
import gc
import logging
import time
from collections.abc import Sequence

import zmq

from srt.args import places_of
from srt.files.model_files import ModelFiles, resolve_model
from srt.files.vocab import served_vocab
from srt.ring.actor import Actor
from srt.ring.crash_file import forget_before, left_by
from srt.ring.inbox import Doubt
from srt.ring.socket import Blob
from srt.wire.messages import AbortReq, ControlReq, FrontMessage
from srt.wire.ring_messages import (
    CacheEvents,
    CacheSnapshotReq,
    ClientGone,
    CompileCounts,
    CompileReply,
    CompilerMessage,
    Credit,
    FrontNews,
    GrammarLost,
    MediaWanted,
    Pace,
    ReplicaLoad,
    SchedulerLost,
    Stays,
    TextStopped,
)
from srt.wire.ring_state import RingEvent, TokenizerFacts, replica_of
from tokenizer_proc.admission.front import Front
from tokenizer_proc.admission.grammars import GrammarFinder
from tokenizer_proc.dispatch.dispatch import Dispatch
from tokenizer_proc.dispatch.placing import Placing
from tokenizer_proc.dispatch.verdict import spelled
from tokenizer_proc.media.base import MediaProcessor
from tokenizer_proc.media.load import load_processor
from tokenizer_proc.process.construction import make_front
from tokenizer_proc.process.key_limits import KeyLimits
from tokenizer_proc.process.outbound import Outbound
from tokenizer_proc.process.pause_file import note_pause, noted_pause
from tokenizer_proc.process.workers import Workers
from tokenizer_proc.routing.router import Router

log = logging.getLogger(__name__)

EXPIRY_INTERVAL_S = 0.5


class TokenizerActor(Actor):
    """Answers each GenerateReq and ScoreReq with Admitted or Refused and passes the admitted on.
    One with media waits until they are decoded, one with text for its turn to be read, one with a
    constraint for the compiler. A question (TokenizeReq, CaptureReq) ends here."""

    name = "tokenizer"
    niceness = 5  # the model's threads come first

    async def start(self) -> None:
        files = resolve_model(self.args.model, self.args.tokenizer)
        processor = load_processor(files)
        self._find = GrammarFinder(self.ring)
        self._heard_ready: set[int] = set()
        self._doubt = Doubt()
        self._front = self._make_front(files, processor)
        gc.collect()
        gc.freeze()  # so that a child's collector does not copy inherited pages
        self._workers = Workers(self._front, processor)
        replicas = range(places_of(self.args))
        schedulers = [self.connect(zmq.PUSH, self.ring.scheduler(i)) for i in replicas]
        compiler = self.connect(zmq.PUSH, self.ring.compiler)
        news = self.bind(zmq.PULL, self.ring.credits)
        compiled = self.bind(zmq.PULL, self.ring.compiled)
        clients = self.bind(zmq.ROUTER, self.ring.front)
        self._outbound = Outbound(self._front, clients, compiler, schedulers, self.send)
        self.receive(news, FrontNews, self._on_news)
        self.receive(compiled, CompilerMessage, self._on_compiler)
        self.receive_from_clients(clients, FrontMessage, self._on_client)
        for task in (*self._workers.tasks(self._outbound), self._expire()):
            self.background(task)

    def _make_front(self, files: ModelFiles, processor: MediaProcessor | None) -> Front:
        """The front of a model, and what the ring is to know of this."""
        args, vocab = self.args, served_vocab(self.args)
        for problem in vocab.sampling.problems:
            log.warning("%s", problem)
        placeholders: dict[str, str] = {}
        if processor is not None and args.limit_media:
            placeholders = {kind: processor.placeholder(kind) for kind in sorted(processor.kinds)}
        dispatch = Dispatch(
            self.epoch,
            self.incarnations,
            self._placing(),
            max_requests=args.max_queued_requests,
            max_tokens=args.max_queued_tokens,
            max_queue_wait_s=args.max_queue_wait,
            random_seed=args.random_seed,
            max_running=args.max_running_requests * places_of(args),
            has_classes=args.schedule_policy == "app",
        )
        dispatch.replicas.pause = pause = noted_pause(self.ring.directory, time.monotonic())
        if pause.is_on:
            log.warning("generation is still paused (%s)", pause.mode)
        self._key_limits = KeyLimits(args, self.ring.directory)
        callers = self._key_limits.callers(time.monotonic())
        front, call_format = make_front(
            args, files, vocab, processor, dispatch, self._find, callers
        )
        self.facts = TokenizerFacts(vocab.context_len, placeholders, call_format)
        return front

    async def stop(self) -> None:
        await self._workers.close()

    def _placing(self) -> Placing:
        args, places = self.args, places_of(self.args)
        if places == 1:
            return Placing(args.fingerprint)
        rows = args.max_running_requests
        self._router = Router(places, args.router_policy, args.random_seed, rows)
        return Placing(args.fingerprint, self._router)

    def new_epoch(self) -> None:
        self._front.reset(self.epoch, self.incarnations)

    def scheduler_lost(self, incarnation: int) -> None:
        dispatch, directory = self._front.dispatch, self.ring.directory
        before = dispatch.replicas.incarnations[replica_of(incarnation, places_of(self.args))]
        if incarnation <= before:
            return  # the detokenizer was faster
        answers, guilty = dispatch.scheduler_lost(incarnation, left_by(directory, before))
        for name in guilty:
            log.error("request %s is ended: a scheduler died when it ran only this", spelled(name))
        for answer in answers:
            self._outbound.answer(answer)

    def hear(self, event: RingEvent) -> None:
        ready = event.ready_schedulers
        for replica in set(ready) - self._heard_ready:
            forget_before(self.ring.directory, event.incarnations[replica], places_of(self.args))
        self._heard_ready = set(ready)
        self._doubt.hear(self._front.dispatch.replicas.incarnations, event.incarnations)
        self._front.dispatch.keep(event.present_schedulers)
        self._front.dispatch.hear(event.incarnations, ready, event.silent_schedulers)
        self._outbound.send_on()

    def drain(self) -> None:
        self._front.validator.is_closed = True

    @property
    def in_flight(self) -> int:
        return len(self._front.dispatch.places)

    def _on_client(self, client: bytes, message: FrontMessage, blobs: Sequence[Blob] = ()) -> None:
        if isinstance(message, AbortReq):
            self._abort(client, message)
        elif isinstance(message, ControlReq):
            self._control(client, message)
        else:
            word = self._front.submit(client, message, time.monotonic(), blobs)
            if word is None:
                self._workers.has_text.set()
                self._workers.has_files.set()
            else:
                self._outbound.say(client, word)
        self._outbound.send_on()

    def _on_news(self, message: FrontNews) -> None:
        match message:
            case Credit():
                self._front.credit(message, time.monotonic())
            case Stays():
                self._front.giving_way.stay(message, time.monotonic())
            case Pace():
                self._front.dispatch.pace(message)
            case TextStopped():
                self._front.dispatch.text_stopped(message)
            case ClientGone():
                self._front.dispatch.client_gone(message)
            case SchedulerLost():
                self.scheduler_lost(message.incarnation)
                self._front.dispatch.settle(message)
            case ReplicaLoad():
                self._router.load(message)
            case CacheEvents():
                self._take_events(message)
            case MediaWanted():
                incarnations = self._front.dispatch.replicas.incarnations
                self._front.media.want(message, incarnations)
                self._workers.has_media.set()
            case GrammarLost():
                question = self._front.grammars.lost(message, time.monotonic())
                if question is not None:
                    self._outbound.ask(question)
        self._outbound.send_on()

    def _take_events(self, message: CacheEvents) -> None:
        """Over a gap a snapshot of the replica's cache is asked for."""
        if not self._router.events(message):
            replica = replica_of(message.incarnation, places_of(self.args))
            self._outbound.to_scheduler(replica, CacheSnapshotReq(message.incarnation))

    def _control(self, client: bytes, req: ControlReq) -> None:
        replicas = self._front.dispatch.replicas
        before = replicas.pause.mode
        answers = self._front.control(client, req, time.monotonic())
        if req.op in ("pause", "continue"):
            note_pause(self.ring.directory, replicas.pause)
        if replicas.pause.mode != before:
            mode = replicas.pause.mode
            log.info("generation %s", "goes on" if mode is None else f"is paused ({mode})")
        for answer in answers:
            self._outbound.answer(answer)
        self._outbound.cancel()

    def _abort(self, client: bytes, req: AbortReq) -> None:
        answer = self._front.abort(client, req)
        if answer is not None:
            self._outbound.answer((client, answer))
        self._outbound.cancel()

    def _on_compiler(self, message: CompilerMessage) -> None:
        grammars = self._front.grammars
        grammars.parking.hear(time.monotonic())
        if isinstance(message, CompileReply):
            for answer in grammars.compiled(message, time.monotonic()):
                self._outbound.answer(answer)
        elif isinstance(message, CompileCounts):
            grammars.compile_counts = message.counts
        else:
            self._find.refresh()
            for question in grammars.parking.questions(self.epoch):
                self._outbound.ask(question)
        self._outbound.send_on()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_INTERVAL_S)
            self._key_limits.keep(self._front.callers, time.monotonic())
            for answer in self._front.expire(time.monotonic()):
                self._outbound.answer(answer)
            self._outbound.cancel()
            self._outbound.send_on()
