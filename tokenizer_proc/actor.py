"""The tokenizer process: the ring's front door. Sockets around the `Front` core, nothing else."""

import zmq

from srt.actor import Actor
from srt.messages import (
    AbortReq,
    ControlReq,
    Credit,
    FrontMessage,
    GenerateReq,
    Message,
    Refused,
)
from srt.model.files import resolve_model
from srt.model.vocab import load_vocab
from srt.ring import send_now
from tokenizer_proc.chat_template import ChatTemplate
from tokenizer_proc.front import Front
from tokenizer_proc.tokenizer import load_tokenizer


class TokenizerActor(Actor):
    """Answers each GenerateReq with Admitted or Refused and passes the admitted on."""

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
        )
        self.info = {"context_len": vocab.context_len, "vocab_size": vocab.vocab_size}
        self._scheduler = self.connect(zmq.PUSH, self.ring.scheduler)
        self._credits = self.bind(zmq.PULL, self.ring.credits)
        self._clients = self.bind(zmq.ROUTER, self.ring.front)
        self.receive(self._credits, Credit, self._front.credit)
        self.receive_from_clients(self._clients, FrontMessage, self._on_client)

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
        elif isinstance(message, AbortReq):
            abort = self._front.abort(client, message)
            if abort is not None:
                self.send(self._scheduler, abort)
        elif isinstance(message, ControlReq):
            control = self._front.control(client, message)
            if isinstance(control, Refused):
                self._reply(client, control)
            else:
                self.send(self._scheduler, control)

    def _generate(self, client: bytes, req: GenerateReq) -> None:
        answer = self._front.generate(client, req)
        if isinstance(answer, Refused):
            self._reply(client, answer)
            return
        admitted, tokenized = answer
        self.send(self._scheduler, tokenized)
        self._reply(client, admitted)

    def _reply(self, client: bytes, message: Message) -> None:
        # A client that does not read its answers, or left, is found by its lease.
        send_now(self._clients, message, to=client)
