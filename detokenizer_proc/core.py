"""The detokenizer without its sockets: schedulers' batches in; outputs, ended texts, credits out.

Called by the detokenizer actor once per TokenBatch. A stop found here is final:
text, ids, logprobs, counts and finish are those of the completing token, and what the scheduler
still sends for the request only ends it. When its scheduler is lost, an open request waits for
another one's ReqStart. Invariant: each request that has started gets one Credit, at its ReqEnd or
at the loss of its scheduler after its finish, and if its client is there, one finish.
"""

from collections.abc import Sequence
from typing import NamedTuple

from detokenizer_proc.request import (
    CLOSING,
    FORCED,
    GUESSED,
    OF_MODEL,
    SAMPLED,
    Jump,
    Origin,
    Request,
    with_prefix,
)
from srt.files.vocab import Vocab
from srt.patterns.classes import load_tables
from srt.wire.messages import Output
from srt.wire.packing import id_list, packed_slice
from srt.wire.ring_messages import Credit, Progress, TextStopped, TokenBatch
from srt.wire.ring_state import replica_of


class DetokenizerStep(NamedTuple):
    """The result of a batch: outputs by client, and for the front credits and the requests whose
    text has stopped before the scheduler has ended them."""

    outputs: dict[bytes, list[Output]]
    stopped: list[TextStopped]
    credits: list[Credit]


class Loss(NamedTuple):
    """What the front needs when a scheduler is lost: the credits of its requests that had ended,
    and what was reported of the others."""

    credits: list[Credit]
    progress: list[Progress]


class Detokenizer:
    """All requests between their ReqStart and their ReqEnd, by replica and its scheduler's handle,
    and those that wait for a scheduler."""

    def __init__(self, vocab: Vocab, epoch: int, incarnations: Sequence[int]) -> None:
        self._visible = vocab.pieces(skip_special_tokens=True)
        self._all = vocab.pieces(skip_special_tokens=False)
        load_tables()  # otherwise all streams would wait for them later
        self._waiting: dict[tuple[bytes, str], Request] = {}  # by client, rid
        self.reset(epoch, incarnations)

    @property
    def in_flight(self) -> int:
        """Requests that no scheduler has ended."""
        return sum(map(len, self._requests)) + len(self._waiting)

    def reset(self, epoch: int, incarnations: Sequence[int]) -> None:
        """Start a new epoch: forget every request."""
        self._epoch, self._incarnations = epoch, list(incarnations)
        self._requests: list[dict[int, Request]] = [{} for _ in incarnations]
        self._waiting.clear()

    @property
    def incarnations(self) -> list[int]:
        """The schedulers' latest, as far as is known here."""
        return self._incarnations

    def is_new(self, incarnation: int) -> bool:
        """Whether a scheduler with this incarnation shows that the one before it is lost."""
        return incarnation > self._incarnations[self._replica(incarnation)]

    def is_present(self, incarnation: int) -> bool:
        """Whether its scheduler is not lost, and of this epoch."""
        return incarnation == self._incarnations[self._replica(incarnation)]

    def _replica(self, incarnation: int) -> int:
        return replica_of(incarnation, len(self._incarnations))

    def drop_client(self, client: bytes) -> None:
        """A client is gone: no more outputs for its requests. The credits of those that a scheduler
        has still come; the front ends the others."""
        for requests in self._requests:
            for request in requests.values():
                if request.name[0] == client:
                    request.close()
        for name in [name for name in self._waiting if name[0] == client]:
            del self._waiting[name]

    def scheduler_lost(self, incarnation: int) -> Loss:
        """The replica's schedulers before this incarnation report nothing any more."""
        replica = self._replica(incarnation)
        self._incarnations[replica] = incarnation
        requests, self._requests[replica] = self._requests[replica], {}
        loss = Loss([], [])
        for request in requests.values():
            if request.is_open:
                self._waiting[request.name] = request
                progress = Progress(*request.name, request.reported)
                loss.progress.append(progress)
            else:
                loss.credits.append(self._credit(request))
        return loss

    def step(self, batch: TokenBatch) -> DetokenizerStep:
        """Process one scheduler step. A batch of another incarnation is ignored."""
        if not self.is_present(batch.incarnation):
            return DetokenizerStep({}, [], [])
        replica = self._replica(batch.incarnation)
        requests = self._requests[replica]
        for start in batch.starts:
            pieces = self._visible if start.skip_special_tokens else self._all
            request = self._waiting.pop((start.client, start.rid), None)
            requests[start.handle] = request = request or Request(
                with_prefix(start, self._all), pieces
            )
            request.replica = replica
        for chunk in batch.prompt_logprobs:
            if found := requests.get(chunk.handle):
                found.add_prompt_logprobs(chunk)
        for handle in batch.firsts:
            if found := requests.get(handle):
                found.note_first(batch.time_s)
        for handle, counted in batch.facts.items():
            if found := requests.get(handle):
                found.note_counts(counted)
        touched = self._add_tokens(batch, requests)
        stopped = self._stopped(touched, batch)
        credits = self._end(batch, requests, touched)
        return DetokenizerStep(_outputs(touched, batch.time_s), stopped, credits)

    def _add_tokens(self, batch: TokenBatch, requests: dict[int, Request]) -> dict[int, Request]:
        """Give each request its tokens; returns the requests that took some.

        A request that a stop token ended has that token last, in the batch of its ReqEnd.
        """
        stop_ids = {end.handle: end.finish.matched for end in batch.ends}
        last = {handle: i for i, handle in enumerate(batch.handles)} if stop_ids else {}
        ids, origins, touched, stop = id_list(batch.ids), _origins(batch), {}, 0
        for i, (handle, count) in enumerate(zip(batch.handles, batch.counts, strict=True)):
            start, stop = stop, stop + count
            request = requests.get(handle)
            if request and request.takes_tokens and count:
                stop_id = stop_ids.get(handle) if last.get(handle) == i else None
                raw = packed_slice(start, stop)
                origin = origins.get(i, OF_MODEL)
                packed, logprobs = batch.ids[raw], batch.logprobs[raw]
                request.add_tokens(ids[start:stop], packed, logprobs, origin, stop_id)
                touched[handle] = request
        return touched

    def _stopped(self, touched: dict[int, Request], batch: TokenBatch) -> list[TextStopped]:
        """The requests whose text has just stopped before the scheduler ended it."""
        ended = {end.handle for end in batch.ends}
        return [
            TextStopped(*request.name, self._epoch)
            for handle, request in touched.items()
            if request.finish and handle not in ended
        ]

    def _end(
        self, batch: TokenBatch, requests: dict[int, Request], touched: dict[int, Request]
    ) -> list[Credit]:
        """Close what the scheduler has ended; adds the requests that now have a finish to send."""
        credits = []
        for end in batch.ends:
            request = requests.pop(end.handle, None)
            if request is None:
                continue
            if request.is_open:
                request.end(end.finish)
                touched[end.handle] = request
            credits.append(self._credit(request))
        return credits

    def _credit(self, request: Request) -> Credit:
        return Credit(*request.name, self._epoch, request.num_tokens)


def _origins(batch: TokenBatch) -> dict[int, Origin]:
    """Where tokens are from, by the columns of those that are not just the model's."""
    jumps = {column: Jump(drop, skip) for column, drop, skip in batch.jumps}
    letters = dict.fromkeys(jumps, FORCED) | dict.fromkeys(batch.guessed, GUESSED)
    letters |= dict.fromkeys(batch.closing, CLOSING)
    return {
        i: Origin(jumps.get(i), batch.details.get(i), letters.get(i, SAMPLED))
        for i in letters.keys() | batch.details.keys()
    }


def _outputs(requests: dict[int, Request], now: float) -> dict[bytes, list[Output]]:
    """What to send now, by client; closes the requests that sent their finish."""
    outputs: dict[bytes, list[Output]] = {}
    for request in requests.values():
        if output := request.take_output(now):
            outputs.setdefault(request.name[0], []).append(output)
    return outputs
