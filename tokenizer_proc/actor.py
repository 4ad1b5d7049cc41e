"""The tokenizer process: the ring's front door. Sockets around the `Front` core, nothing else."""

import asyncio
import time

import zmq

from srt.actor import Actor
from srt.messages import (
    AbortReq,
    CompileCounts,
    CompileReply,
    CompilerMessage,
    ControlReq,
    Credit,
    FrontMessage,
    GenerateReq,
    Message,
    Refused,
    ScoreReq,
    TokenizeReq,
)
from srt.model.files import resolve_model
from srt.model.tokenizer import load_tokenizer
from srt.model.vocab import load_vocab
from srt.ring import send_now
from tokenizer_proc.admission import Admission
from tokenizer_proc.chat_template import ChatTemplate
from tokenizer_proc.front import Answer, Front
from tokenizer_proc.parking import Parked

COMPILE_GRACE_S = 5.0  # for the way to the compiler and back, and for its restart
EXPIRY_INTERVAL_S = 0.5


class TokenizerActor(Actor):
    """Answers each GenerateReq and ScoreReq with Admitted or Refused and passes the admitted on.
    One with a constraint waits in between for the compiler. A TokenizeReq ends here."""

    name = "tokenizer"
    niceness = 5  # the model's threads come first

    async def start(self) -> None:
        files = resolve_model(self.args.model)
        vocab = load_vocab(files)
        self._front = Front(
            load_tokenizer(files),
            ChatTemplate.from_vocab(vocab),
            vocab,
            epoch=self.epoch,
            max_requests=self.args.max_queued_requests,
            max_tokens=self.args.max_queued_tokens,
            max_total_tokens=self.args.max_total_tokens,
            max_compile_wait_s=2 * self.args.grammar_compile_timeout + COMPILE_GRACE_S,
        )
        self.info = {"context_len": vocab.context_len, "vocab_size": vocab.vocab_size}
        self._scheduler = self.connect(zmq.PUSH, self.ring.scheduler)
        self._compiler = self.connect(zmq.PUSH, self.ring.compiler)
        self._credits = self.bind(zmq.PULL, self.ring.credits)
        self._compiled = self.bind(zmq.PULL, self.ring.compiled)
        self._clients = self.bind(zmq.ROUTER, self.ring.front)
        self.receive(self._credits, Credit, self._front.credit)
        self.receive(self._compiled, CompilerMessage, self._on_compiler)
        self.receive_from_clients(self._clients, FrontMessage, self._on_client)
        self.background(self._expire())

    def new_epoch(self, epoch: int) -> None:
        self._front.reset(epoch)

    def drain(self) -> None:
        self._front.drain()

    @property
    def in_flight(self) -> int:
        return self._front.in_flight

    def _on_client(self, client: bytes, message: FrontMessage) -> None:
        if isinstance(message, GenerateReq):
            self._generate(client, message)
        elif isinstance(message, ScoreReq):
            self._answer((client, self._front.score(client, message)))
        elif isinstance(message, TokenizeReq):
            self._reply(client, self._front.tokenize(message))
        elif isinstance(message, AbortReq):
            self._abort(client, message)
        elif isinstance(message, ControlReq):
            control = self._front.control(client, message)
            if isinstance(control, Refused):
                self._reply(client, control)
            else:
                self.send(self._scheduler, control)

    def _generate(self, client: bytes, req: GenerateReq) -> None:
        answer = self._front.generate(client, req, time.monotonic())
        if not isinstance(answer, Parked):
            self._answer((client, answer))
        elif answer.question is not None:
            # If the compiler cannot be reached, it asks for this when it has started.
            send_now(self._compiler, answer.question)

    def _abort(self, client: bytes, req: AbortReq) -> None:
        abort = self._front.abort(client, req)
        if isinstance(abort, Admission):
            self._answer((client, abort))
        elif abort is not None:
            self.send(self._scheduler, abort)
        self._cancel()

    def _on_compiler(self, message: CompilerMessage) -> None:
        if isinstance(message, CompileReply):
            for answer in self._front.compiled(message):
                self._answer(answer)
        elif isinstance(message, CompileCounts):
            self._front.count(message)
        else:
            for question in self._front.unanswered():
                send_now(self._compiler, question)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_INTERVAL_S)
            for answer in self._front.expire(time.monotonic()):
                self._answer(answer)
            self._cancel()

    def _cancel(self) -> None:
        """Tell the compiler what nobody waits for any more; if it cannot be reached, it has
        nothing left to cancel."""
        for cancel in self._front.cancelled():
            send_now(self._compiler, cancel)

    def _answer(self, answer: Answer) -> None:
        client, word = answer
        if isinstance(word, Refused):
            self._reply(client, word)
        else:
            for part in word.parts:
                self.send(self._scheduler, part)
            self._reply(client, word.admitted)

    def _reply(self, client: bytes, message: Message) -> None:
        # A client that does not read its answers, or left, is found by its lease.
        send_now(self._clients, message, to=client)
