"""Sends what the front decides: answers to clients, requests to schedulers, questions to the
compiler.

The tokenizer actor and its workers use it. What a request becomes is sent to its scheduler before
its client hears of it.
"""

from collections.abc import Callable, Sequence

from srt.ring.places import send_now
from srt.ring.socket import Blob, RingSocket
from srt.wire.errors import RequestError
from srt.wire.messages import Captured, FrontReply, Refused, RingMessage, Tokenized
from srt.wire.ring_messages import CompileReq, SchedulerMessage
from tokenizer_proc.admission.front import Front, Word
from tokenizer_proc.admission.parking import Parked
from tokenizer_proc.dispatch.admission import Answer


class Outbound:
    """The sockets of clients, the compiler and each replica's scheduler. `send` is the actor's: it
    fails if a scheduler does not read."""

    def __init__(
        self,
        front: Front,
        clients: RingSocket,
        compiler: RingSocket,
        schedulers: Sequence[RingSocket],
        send: Callable[[RingSocket, RingMessage, Sequence[Blob]], None],
    ) -> None:
        self._front = front
        self._clients, self._compiler, self._schedulers = clients, compiler, schedulers
        self._send = send

    def send_on(self) -> None:
        """Send what the front has for the schedulers, and to clients whose requests give way."""
        replicas = self._front.dispatch.replicas
        for replica, message in replicas.take():
            self.to_scheduler(replica, message)
        for replica, sent, blobs in self._front.media.take_sent(replicas.incarnations):
            self.to_scheduler(replica, sent, blobs)
        for client, refused in self._front.giving_way.take_answers():
            assert isinstance(refused, Refused)
            self.reply(client, refused)

    def to_scheduler(
        self, replica: int, message: SchedulerMessage, blobs: Sequence[Blob] = ()
    ) -> None:
        """Send a message to a replica's scheduler, and its further frames."""
        self._send(self._schedulers[replica], message, blobs)

    def say(self, client: bytes, word: Word) -> None:
        """Send what becomes of a request."""
        if isinstance(word, Tokenized | Captured):
            self.reply(client, word)
        elif not isinstance(word, Parked):
            self.answer((client, word))
        elif word.question is not None:
            self.ask(word.question)
        self.send_on()

    def answer(self, answer: Answer) -> None:
        """Send a client its answer."""
        client, word = answer
        if isinstance(word, Refused):
            self.reply(client, word)
        else:
            self.send_on()
            self.reply(client, word.admitted)

    def reply(self, client: bytes, message: FrontReply) -> None:
        """Send a client a message."""
        # A client that does not read its answers, or has left, is found by its lease.
        try:
            send_now(self._clients, message, to=client)
        except RequestError as error:  # more ids than a message holds
            refused = Refused(message.rid, self._front.dispatch.epoch, error.info)
            send_now(self._clients, refused, to=client)

    def ask(self, question: CompileReq) -> None:
        """Ask the compiler. If it cannot be reached, it will ask for this when it has started."""
        send_now(self._compiler, question)

    def cancel(self) -> None:
        """Have the compiler cancel the questions whose answers no request waits for any more. If it
        cannot be reached, it has nothing left to cancel."""
        epoch = self._front.dispatch.epoch
        for cancelled in self._front.grammars.parking.take_cancelled(epoch):
            send_now(self._compiler, cancelled)
