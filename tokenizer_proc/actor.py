"""The tokenizer process, the ring's front: sockets around the `Front` core, and the children that
read texts and decode media for it."""

import asyncio
import gc
import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import zmq

from srt.files.model_files import ModelFiles, resolve_model
from srt.files.tokenizer import load_tokenizer
from srt.files.vocab import Vocab, load_vocab
from srt.ring.actor import Actor
from srt.ring.blame_file import forget_before, left_by
from srt.ring.places import send_now
from srt.ring.socket import Blob
from srt.wire.constraint import COMPILE_WAIT_FACTOR
from srt.wire.errors import RequestError
from srt.wire.messages import (
    AbortReq,
    Captured,
    ControlReq,
    FrontMessage,
    FrontReply,
    Refused,
    Tokenized,
)
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
    TextStopped,
)
from srt.wire.ring_state import RingEvent, replica_of
from tokenizer_proc.admission.builder import Builder
from tokenizer_proc.admission.front import Front, Word
from tokenizer_proc.admission.grammars import GrammarFinder, Grammars
from tokenizer_proc.admission.parking import Parked, Parking
from tokenizer_proc.children.forker import Forker
from tokenizer_proc.dispatch.admission import Answer
from tokenizer_proc.dispatch.dispatch import Dispatch
from tokenizer_proc.dispatch.placing import Placing
from tokenizer_proc.dispatch.verdict import spelled
from tokenizer_proc.media.base import MediaProcessor
from tokenizer_proc.media.desk import MediaDesk
from tokenizer_proc.media.load import load_processor
from tokenizer_proc.media.showing import Showing, controls_of
from tokenizer_proc.media.store import key_of
from tokenizer_proc.media.worker import MediaWorker
from tokenizer_proc.prompt.chat_template import load_template
from tokenizer_proc.prompt.prompt import PromptReader
from tokenizer_proc.prompt.scoring import ScoreReader
from tokenizer_proc.routing.router import Router
from tokenizer_proc.tokenizing.readers import Reader
from tokenizer_proc.tokenizing.reading import TextReader

log = logging.getLogger(__name__)

COMPILE_GRACE_S = 5.0  # for messages to the compiler and back
# A compiler with work reports every second; but on a busy machine it takes ten seconds to start.
MAX_SILENCE_S = 30.0
EXPIRY_INTERVAL_S = 0.5
# Of each: one caller, who uses at most one of them, cannot hold up all others.
NUM_READERS, NUM_DECODERS = 2, 2


class TokenizerActor(Actor):
    """Answers each GenerateReq and ScoreReq with Admitted or Refused and passes the admitted on.
    One with media waits until they are decoded, one with text for its turn to be read, one with a
    constraint for the compiler. A question (TokenizeReq, CaptureReq) ends here."""

    name = "tokenizer"
    niceness = 5  # the model's threads come first

    async def start(self) -> None:
        files = resolve_model(self.args.model)
        processor = load_processor(files)
        self._find = GrammarFinder(self.ring)
        self._heard_ready: set[int] = set()
        self._front = self._make_front(files, processor)
        gc.collect()
        gc.freeze()  # so that a child's collector does not copy inherited pages
        self._start_children(processor)
        replicas = range(self.args.dp)
        self._schedulers = [self.connect(zmq.PUSH, self.ring.scheduler(i)) for i in replicas]
        self._compiler = self.connect(zmq.PUSH, self.ring.compiler)
        self._credits = self.bind(zmq.PULL, self.ring.credits)
        self._compiled = self.bind(zmq.PULL, self.ring.compiled)
        self._clients = self.bind(zmq.ROUTER, self.ring.front)
        self.receive(self._credits, FrontNews, self._on_news)
        self.receive(self._compiled, CompilerMessage, self._on_compiler)
        self.receive_from_clients(self._clients, FrontMessage, self._on_client)
        self.background(self._expire())

    def _make_front(self, files: ModelFiles, processor: MediaProcessor | None) -> Front:
        """The front of a model, and what the ring is to know of this."""
        vocab = load_vocab(files)
        placeholders: dict[str, str] = {}
        if processor is not None and self.args.limit_media:
            placeholders = {kind: processor.placeholder(kind) for kind in sorted(processor.kinds)}
        self.info = {
            "context_len": vocab.context_len,
            "vocab_size": vocab.vocab_size,
            "media_kinds": [*placeholders],
            "media_placeholders": placeholders,
        }
        dispatch = Dispatch(
            self.epoch,
            self.incarnations,
            self._placing(),
            max_requests=self.args.max_queued_requests,
            max_tokens=self.args.max_queued_tokens,
            max_queue_wait_s=self.args.max_queue_wait,
            random_seed=self.args.random_seed,
        )
        limit = min(vocab.context_len, self.args.pool_tokens or vocab.context_len)
        compile_s = self.args.grammar_compile_timeout * COMPILE_WAIT_FACTOR + COMPILE_GRACE_S
        return Front(
            dispatch,
            self._text_reader(files, processor, vocab, limit),
            Builder(vocab, limit, self.args.close_constrained),
            MediaDesk(
                processor.kinds if processor else (),
                self.args.limit_media,
                self.args.media_queue_mb * 2**20,
            ),
            Grammars(dispatch, Parking(compile_s, MAX_SILENCE_S), self._find),
        )

    def _text_reader(
        self, files: ModelFiles, processor: MediaProcessor | None, vocab: Vocab, limit: int
    ) -> TextReader:
        """The reader of requests that hold at most `limit` tokens."""
        tokenizer = load_tokenizer(files, controls_of(processor))
        prompts = PromptReader(
            tokenizer,
            load_template(vocab),
            vocab.vocab_size,
            limit,
            self.args.allow_special_tokens_in_content,
            processor and Showing(processor),
        )
        max_requests, max_tokens = self.args.max_queued_requests, self.args.max_queued_tokens
        return TextReader(tokenizer, prompts, ScoreReader(prompts, limit, max_tokens, max_requests))

    def _start_children(self, processor: MediaProcessor | None) -> None:
        """Fork those that read texts and decode media, and give them work."""
        self._forker = Forker()
        self._readers = [Reader(self._forker, self._front.text.read) for _ in range(NUM_READERS)]
        decoders = range(NUM_DECODERS)
        self._decoders = [MediaWorker(self._forker, processor) for _ in decoders if processor]
        self._forker.start()  # while nothing is held
        self.background(self._forker.watch())
        self._has_text = asyncio.Event()
        for reader in self._readers:
            self.background(self._read_texts(reader))
        self._has_files, self._has_media = asyncio.Event(), asyncio.Event()
        if self._decoders:
            self._hasher = ThreadPoolExecutor(1, "hash")
            self.background(self._hash_media())
        for decoder in self._decoders:
            self.background(self._decode_media(decoder))

    async def stop(self) -> None:
        for reader in self._readers:
            reader.close()
        for decoder in self._decoders:
            decoder.close()
        await self._forker.close()

    def _placing(self) -> Placing:
        if self.args.dp == 1:
            return Placing(self.args.model)
        self._router = Router(self.args.dp, self.args.router_policy, self.args.random_seed)
        return Placing(self.args.model, self._router)

    def new_epoch(self) -> None:
        self._front.reset(self.epoch, self.incarnations)

    def scheduler_lost(self, incarnation: int) -> None:
        dispatch, directory = self._front.dispatch, self.ring.directory
        if not dispatch.replicas.is_news(incarnation):
            return  # the detokenizer was faster
        before = dispatch.replicas.incarnations[replica_of(incarnation, self.args.dp)]
        answers, guilty = dispatch.scheduler_lost(incarnation, left_by(directory, before))
        for name in guilty:
            log.error("request %s is ended: a scheduler died when it ran only this", spelled(name))
        for answer in answers:
            self._answer(answer)

    def hear(self, event: RingEvent) -> None:
        ready = event.ready_schedulers
        for replica in set(ready) - self._heard_ready:
            forget_before(self.ring.directory, event.incarnations[replica], self.args.dp)
        self._heard_ready = set(ready)
        self._front.dispatch.hear(event.incarnations, ready)
        self._send_on()

    def drain(self) -> None:
        self._front.validator.is_closed = True

    @property
    def in_flight(self) -> int:
        return len(self._front.dispatch.places)

    def _on_client(self, client: bytes, message: FrontMessage, blobs: Sequence[Blob] = ()) -> None:
        if isinstance(message, AbortReq):
            self._abort(client, message)
        elif isinstance(message, ControlReq):
            refused = self._front.control(client, message)
            if refused is not None:
                self._reply(client, refused)
        else:
            word = self._front.submit(client, message, time.monotonic(), blobs)
            if word is None:
                self._has_text.set()
                self._has_files.set()
            else:
                self._say(client, word)
        self._send_on()

    def _on_news(self, message: FrontNews) -> None:
        match message:
            case Credit():
                self._front.dispatch.credit(message)
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
                self._has_media.set()
            case GrammarLost():
                question = self._front.grammars.lost(message, time.monotonic())
                if question is not None:
                    send_now(self._compiler, question)
        self._send_on()

    def _take_events(self, message: CacheEvents) -> None:
        """Over a gap a snapshot of the replica's cache is asked for."""
        if not self._router.events(message):
            replica = replica_of(message.incarnation, self.args.dp)
            self.send(self._schedulers[replica], CacheSnapshotReq(message.incarnation))

    def _send_on(self) -> None:
        """Send what the front has for the schedulers."""
        for replica, message in self._front.dispatch.replicas.take():
            self.send(self._schedulers[replica], message)
        incarnations = self._front.dispatch.replicas.incarnations
        for replica, sent, blobs in self._front.media.take_sent(incarnations):
            self.send(self._schedulers[replica], sent, blobs)

    async def _hash_media(self) -> None:
        """Has files hashed, one at a time: in a thread, since the loop would stand still."""
        loop = asyncio.get_running_loop()
        while True:
            taken = self._front.media.take_file()
            if taken is None:
                self._has_files.clear()
                await self._has_files.wait()
                continue
            caller, file = taken
            key = await loop.run_in_executor(self._hasher, key_of, file.ref, file.frames)
            self._front.media.hashed(caller, file, key)
            self._go_on()

    async def _decode_media(self, decoder: MediaWorker) -> None:
        """One of the tasks that have files decoded, one at a time."""
        while True:
            taken = self._front.media.take_decode()
            if taken is None:
                self._has_media.clear()
                await self._has_media.wait()
                continue
            caller, decode = taken
            made = await decoder.process(decode.ref, decode.frames)
            self._front.media.decoded(caller, decode, made)
            self._go_on()

    def _go_on(self) -> None:
        """Media are hashed or decoded: requests and schedulers may have waited for that."""
        for answer in self._front.take_known():
            self._answer(answer)
        self._has_text.set()
        self._has_media.set()  # the caller may now have another turn
        self._send_on()

    async def _read_texts(self, reader: Reader) -> None:
        """One of the tasks that have texts read, one piece at a time."""
        while True:
            piece = self._front.turns.take()
            if piece is None:
                self._has_text.clear()
                await self._has_text.wait()
                continue
            reading = await reader.read(piece)
            word = self._front.has_read(piece, reading, time.monotonic())
            self._has_text.set()  # its caller may now have another turn
            if word is not None:
                self._say(piece.client, word)

    def _say(self, client: bytes, word: Word) -> None:
        """Send what becomes of a request."""
        if isinstance(word, Tokenized | Captured):
            self._reply(client, word)
        elif not isinstance(word, Parked):
            self._answer((client, word))
        elif word.question is not None:
            # If the compiler cannot be reached, it will ask for this when it has started.
            send_now(self._compiler, word.question)

    def _abort(self, client: bytes, req: AbortReq) -> None:
        answer = self._front.abort(client, req)
        if answer is not None:
            self._answer((client, answer))
        self._cancel()

    def _on_compiler(self, message: CompilerMessage) -> None:
        grammars = self._front.grammars
        grammars.parking.hear(time.monotonic())
        if isinstance(message, CompileReply):
            for answer in grammars.compiled(message, time.monotonic()):
                self._answer(answer)
        elif isinstance(message, CompileCounts):
            grammars.compile_counts = message.counts
        else:
            self._find.refresh()
            for question in grammars.parking.questions(self.epoch):
                send_now(self._compiler, question)
        self._send_on()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_INTERVAL_S)
            for answer in self._front.expire(time.monotonic()):
                self._answer(answer)
            self._cancel()
            self._send_on()

    def _cancel(self) -> None:
        """Tell the compiler what nobody waits for any more; if it cannot be reached, it has
        nothing left to cancel."""
        for cancel in self._front.grammars.parking.take_cancelled(self.epoch):
            send_now(self._compiler, cancel)

    def _answer(self, answer: Answer) -> None:
        client, word = answer
        if isinstance(word, Refused):
            self._reply(client, word)
        else:
            self._send_on()
            self._reply(client, word.admitted)

    def _reply(self, client: bytes, message: FrontReply) -> None:
        # A client that does not read its answers, or has left, is found by its lease.
        try:
            send_now(self._clients, message, to=client)
        except RequestError as error:  # more ids than a message holds
            send_now(self._clients, Refused(message.rid, self.epoch, error.info), to=client)
