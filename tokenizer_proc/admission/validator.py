"""The checks of a request that do not need its text, cheap ones first. Called by the front.

Each check raises RequestError, which names the field that is wrong.
"""

import math
from collections.abc import Sequence

from srt.callers.names import caller_of
from srt.ring.socket import Blob
from srt.wire.errors import UNAVAILABLE, RequestError
from srt.wire.hints import check_priority
from srt.wire.messages import CaptureReq, ControlReq, GenerateReq, ScoreReq
from srt.wire.pause import PAUSE_MODES
from srt.wire.sampling import Scoring
from tokenizer_proc.admission.giving_way import GivingWay
from tokenizer_proc.dispatch.dispatch import Dispatch
from tokenizer_proc.media.desk import MediaDesk
from tokenizer_proc.queueing.callers import Callers
from tokenizer_proc.queueing.turns import Piece, Question, TextReq, Turns, rids_of
from tokenizer_proc.tokenizing.reading import TextReader, has_text, num_chars

MAX_RID_CHARS = 256
MAX_NAME_CHARS = 256
MAX_TIMEOUT_MS = 24 * 3600 * 1000
MAX_TOP_LOGPROBS = 64
MAX_LOGPROB_TOKEN_IDS = 256
CONTROL_OPS = ("flush_cache", "stats", "look", "edge", "pause", "continue")


class Validator:
    """Lets requests in, until `is_closed`. Each check raises RequestError."""

    def __init__(
        self,
        dispatch: Dispatch,
        turns: Turns,
        media: MediaDesk,
        text: TextReader,
        giving_way: GivingWay,
        callers: Callers,
    ) -> None:
        self._dispatch, self._turns, self._media = dispatch, turns, media
        self._giving_way, self._callers = giving_way, callers
        self._prompts, self._scores = text.prompts, text.scores
        self.is_closed = False

    def checked(self, client: bytes, req: TextReq, now: float, blobs: Sequence[Blob] = ()) -> Piece:
        """The request to be read; `blobs` are the files of its media."""
        self._check_epoch(req.epoch)
        _check_names(req)
        places, caller = self._dispatch.places, caller_of(client, req.tenant)
        if not isinstance(req, Question):
            if self.is_closed:
                raise RequestError("the server is draining", code=UNAVAILABLE, retryable=True)
            self._callers.check(caller, req, len(rids_of(req)), places.holdings.of(caller))
            self._callers.rates.check_request(caller, now)
            perf = self._dispatch.perf_of(req, caller)
            unread = self._turns.before(caller, perf)
            self.check_wait(req, unread, len(places), caller, len(rids_of(req)))
        if isinstance(req, CaptureReq):
            self._prompts.check_chars(len(req.text), "text")
        elif isinstance(req, ScoreReq):
            self._scores.check(req)
        else:
            if isinstance(req, GenerateReq):
                _check_generate(req, self._prompts.vocab_size, places.max_requests)
                _check_replica(req, len(self._dispatch.replicas.incarnations))
            self._prompts.check_size(req)
        piece = Piece(client, req, num_chars(req), rids_of(req))
        if any((client, rid) in places or self._turns.named(client, rid) for rid in piece.rids):
            raise RequestError(" is already in use by a request in flight", at="rid")
        if not isinstance(req, Question):
            self._media.check(caller, req.media, blobs)
            self._giving_way.check_room(caller, len(piece.rids), now, is_ahead=piece.is_ahead)
        if has_text(req):
            self._turns.check_room(piece.caller, piece.num_chars)
        return piece

    def check_wait(
        self,
        req: GenerateReq | ScoreReq,
        unread: int,
        in_flight: int,
        caller: str = "",
        more: int = 0,
    ) -> None:
        """Whether a request would get its first token soon enough: the first of `more` requests of
        a caller, beside those that are in flight."""
        waits, part = self._dispatch.waits, self._dispatch.places.holdings.part_before(caller, more)
        if not isinstance(req, GenerateReq):
            waits.check(unread, in_flight, part=part)
        elif not req.joined:
            perf = self._dispatch.perf_of(req, caller)
            waits.check(unread, in_flight, req.routed_replica, part, perf)

    def check_control(self, req: ControlReq) -> None:
        """Check an operation on the scheduler."""
        self._check_epoch(req.epoch)
        _check_rid(req.rid)
        if req.op not in CONTROL_OPS:
            raise RequestError(f" must be one of {', '.join(CONTROL_OPS)}", at="op")
        if req.op == "pause" and req.mode not in PAUSE_MODES:
            raise RequestError(f" must be one of {', '.join(PAUSE_MODES)}", at="mode")
        if not (math.isfinite(req.timeout_s) and req.timeout_s >= 0):
            raise RequestError(" must be 0 or more", at="timeout_s")

    def _check_epoch(self, epoch: int) -> None:
        """Whether a message is of the present epoch."""
        if epoch != self._dispatch.epoch:
            reason = "the server restarted in between: send the request again"
            raise RequestError(reason, code=UNAVAILABLE, retryable=True)


def _check_names(req: TextReq) -> None:
    """Check the rid, the namespace in the cache, and the tenant."""
    _check_rid(req.rid)
    if not isinstance(req, Question):
        _check_name(req.cache_salt, "cache_salt")
    _check_name(req.tenant, "tenant")


def _check_generate(req: GenerateReq, vocab_size: int, max_requests: int) -> None:
    """Check the sampling and the time-out, for a ring that holds `max_requests`."""
    req.sampling.check(vocab_size)
    _check_details(req, vocab_size)
    check_priority(req.service_tier, req.priority)
    if req.hints is not None:
        req.hints.check()
        if req.hints.is_ahead and req.sampling.max_new_tokens != 0:
            raise RequestError(" must be 0 of a request ahead of time", at="max_new_tokens")
        if req.hints.is_ahead and (constraint := req.sampling.constraint) is not None:
            raise RequestError(" has no use for a request ahead of time", at=constraint.kind)
        if req.hints.is_ahead and req.media:  # it does not wait for what is to be encoded
            raise RequestError(" must be empty of a request ahead of time", at="media")
    if not 0 <= req.timeout_ms <= MAX_TIMEOUT_MS:
        limit = f" must be between 0 (none) and {MAX_TIMEOUT_MS}"
        raise RequestError(limit, at="timeout_ms")
    if req.sampling.n > max_requests:
        limit = f" must be at most {max_requests}, the requests that may be in flight"
        raise RequestError(limit, at="n")


def _check_rid(rid: str) -> None:
    if not 0 < len(rid) <= MAX_RID_CHARS:
        raise RequestError(f" must have 1 to {MAX_RID_CHARS} characters", at="rid")


def _check_name(name: str, param: str) -> None:
    if len(name) > MAX_NAME_CHARS:
        raise RequestError(f" must have at most {MAX_NAME_CHARS} characters", at=param)


def _check_details(req: GenerateReq, vocab_size: int) -> None:
    """Check what is asked for besides the chosen tokens' log-probabilities."""
    scoring = req.scoring or Scoring()
    if not 0 <= scoring.top <= MAX_TOP_LOGPROBS:
        limit = f" must be between 0 and {MAX_TOP_LOGPROBS}"
        raise RequestError(limit, at="top_logprobs")
    ids = scoring.ids
    if len(ids) > MAX_LOGPROB_TOKEN_IDS or not all(0 <= i < vocab_size for i in ids):
        limit = f" takes up to {MAX_LOGPROB_TOKEN_IDS} ids in [0, {vocab_size})"
        raise RequestError(limit, at="logprob_token_ids")


def _check_replica(req: GenerateReq, replicas: int) -> None:
    """Raise RequestError for a replica that there is not."""
    replica = req.routed_replica
    if replica is not None and not 0 <= replica < replicas:
        raise RequestError(
            f" must be below {replicas}, the number of replicas", at="routed_replica"
        )
