"""What becomes of requests with a constraint: their grammar is ready, or they wait for it.

A request whose grammar is in the ring's directory does not need the compiler; another one is
parked until the compiler answers. Grammars may be removed from the directory at any time: the
scheduler, which reads them, reports it, and then the compiler is asked for the same constraint
again.
"""

import os
from collections.abc import Callable

from cachetools import LRUCache
from msgspec.structs import replace

from srt.ring.places import Ring
from srt.wire.constraint import Constraint, artefact_key
from srt.wire.errors import BAD_REQUEST, TIMED_OUT_EARLY, UNAVAILABLE, ErrorInfo
from srt.wire.messages import Refused
from srt.wire.ring_messages import CompileReply, CompileReq, GrammarLost, GrammarMade
from tokenizer_proc.admission.parking import Parked, Parking, Recall
from tokenizer_proc.dispatch.admission import Admission, Answer, without
from tokenizer_proc.dispatch.dispatch import Dispatch
from tokenizer_proc.queueing.turns import Piece

MAX_KNOWN_CHARS = 16 * 2**20
ENTRY_CHARS = 1024  # what each counts besides its source, about as much as it takes


class Grammars:
    """The grammars that requests of one front need. A request goes on at once if `find` has the key
    of its grammar."""

    def __init__(
        self, dispatch: Dispatch, parking: Parking, find: Callable[[Constraint], str]
    ) -> None:
        self.parking = parking
        self.compile_counts: dict[str, float] = {}  # the compiler's latest totals
        self._dispatch, self._find = dispatch, find
        self._known = known_grammars()
        self._num_found = 0

    def counts(self) -> dict[str, float]:
        """For statistics, by their names."""
        hits = "num_grammar_cache_hit_total"
        counts = {"num_grammar_queue_reqs": len(self.parking), **self.compile_counts}
        return {**counts, hits: counts.get(hits, 0) + self._num_found}

    def enter(
        self, admission: Admission, constraint: Constraint, piece: Piece, now: float
    ) -> Admission | Parked:
        """Send a request on if its grammar is ready, else park it."""
        key = self._find(constraint)
        if key:
            self._num_found += 1
            made = self._with_grammar(admission, constraint, key)
            return self._dispatch.hand_on(without(made, piece.aborted), now)
        asker, epoch = piece.client + b"/" + piece.req.tenant.encode(), self._dispatch.epoch
        parked = self.parking.park(admission, constraint, asker=asker, epoch=epoch, now=now)
        for number in piece.aborted:  # not all of them: then it would be gone
            self.parking.abort(piece.client, piece.rids[number])
        return parked

    def compiled(self, reply: CompileReply, now: float) -> list[Answer]:
        """Admit or refuse those that waited for this reply."""
        if reply.epoch != self._dispatch.epoch:
            return []
        return [
            answer
            for party, constraint in self.parking.take_compiled(reply.id)
            for answer in (
                self.refuse(party, compile_error(reply.error, constraint))
                if reply.error is not None
                else self._go_on(party, constraint, reply.key, now)
            )
        ]

    def lost(self, message: GrammarLost, now: float) -> CompileReq | None:
        """A grammar is missing at the scheduler: what to ask the compiler, unless it is asked
        already, or the constraint is not known any more."""
        if message.incarnation not in self._dispatch.replicas.incarnations:
            return None
        constraint = self._known.get(message.key)
        recall = Recall(message.key, message.incarnation)
        if constraint is None:
            error = ErrorInfo(UNAVAILABLE, "the compiled grammar was removed", retryable=True)
            self.refuse(recall, error)
            return None
        epoch = self._dispatch.epoch
        return self.parking.park(recall, constraint, asker=b"", epoch=epoch, now=now).question

    def expire(self, now: float) -> list[Answer]:
        """Refuse those that have timed out, or have been parked for too long."""
        served_s = self._dispatch.replicas.pause.served_s(now)
        late, expired = self.parking.take_late(served_s), self.parking.take_expired(now)
        error = ErrorInfo(UNAVAILABLE, "the grammar compiler does not answer", retryable=True)
        return [
            *(answer for party in late for answer in self.refuse(party, TIMED_OUT_EARLY)),
            *(answer for party in expired for answer in self.refuse(party, error)),
        ]

    def _go_on(
        self, party: Admission | Recall, constraint: Constraint, key: str, now: float
    ) -> list[Answer]:
        """Admit those whose grammar is ready. A recalled grammar keeps its key, which running
        requests have."""
        if isinstance(party, Recall):
            error = None
            if key != party.key:  # by a compiler with other code
                error = ErrorInfo(UNAVAILABLE, "the compiled grammar was replaced", retryable=True)
            self._dispatch.replicas.send(GrammarMade(party.key, party.incarnation, error))
            return []
        admission = self._dispatch.hand_on(self._with_grammar(party, constraint, key), now)
        return [(admission.parts[0].client, admission)]

    def _with_grammar(self, admission: Admission, constraint: Constraint, key: str) -> Admission:
        self._known[key] = constraint
        parts = [replace(part, grammar=key) for part in admission.parts]
        return admission._replace(parts=parts)

    def refuse(self, party: Admission | Recall, error: ErrorInfo) -> list[Answer]:
        """Refuse a parked request, or the grammar that a scheduler waits for."""
        if isinstance(party, Recall):
            self._dispatch.replicas.send(GrammarMade(party.key, party.incarnation, error))
            return []
        client = party.parts[0].client
        self._dispatch.places.free(client, [part.rid for part in party.parts])
        return [(client, Refused(party.admitted.rid, self._dispatch.epoch, error))]


class GrammarFinder:
    """Finds the grammars of constraints in a ring's directory."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._naming = ring.read_naming()

    def refresh(self) -> None:
        """The compiler has started, perhaps with another naming."""
        self._naming = self._ring.read_naming()

    def __call__(self, constraint: Constraint) -> str:
        """The key of a constraint's grammar if that is ready, which then counts as used now; else
        ""."""
        if not self._naming:
            self.refresh()
        key = artefact_key(constraint, self._naming)
        try:
            os.utime(self._ring.grammars / key)
        except OSError:
            return ""
        return key


def known_grammars() -> LRUCache[str, Constraint]:
    """A store for the constraints of grammars, by key, that forgets the least recently used."""
    return LRUCache(MAX_KNOWN_CHARS, getsizeof=_num_chars)


def _num_chars(constraint: Constraint) -> int:
    return min(len(constraint.source) + ENTRY_CHARS, MAX_KNOWN_CHARS)


def compile_error(error: ErrorInfo, constraint: Constraint) -> ErrorInfo:
    """The compiler's error, naming the field, or the path in it, if it is the constraint that is
    wrong."""
    if error.code != BAD_REQUEST:
        return error
    param = constraint.kind if error.param is None else f"{constraint.kind}.{error.param}"
    return replace(error, reason=f": {error.reason}", param=param, follows_param=True)
