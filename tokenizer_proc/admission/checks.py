"""Checks the fields of a request besides its prompt: names, sampling, time-out, log-probabilities.

Called by the front; raises RequestError naming the field.
"""

import math

from srt.wire.errors import RequestError
from srt.wire.messages import ControlReq, GenerateReq
from srt.wire.sampling import Scoring
from tokenizer_proc.queueing.turns import Question, TextReq

MAX_RID_CHARS = 256
MAX_NAME_CHARS = 256
MAX_TIMEOUT_MS = 24 * 3600 * 1000
MAX_TOP_LOGPROBS = 64
MAX_LOGPROB_TOKEN_IDS = 256
CONTROL_OPS = ("flush_cache", "stats", "look", "edge")


def check_names(req: TextReq) -> None:
    """Check the rid, the namespace in the cache, and the tenant."""
    _check_rid(req.rid)
    if not isinstance(req, Question):
        _check_name(req.cache_salt, "cache_salt")
    _check_name(req.tenant, "tenant")


def check_control(req: ControlReq) -> None:
    """Check an operation on the scheduler."""
    _check_rid(req.rid)
    if req.op not in CONTROL_OPS:
        raise RequestError(f" must be one of {', '.join(CONTROL_OPS)}", at="op")
    if not (math.isfinite(req.timeout_s) and req.timeout_s >= 0):
        raise RequestError(" must be 0 or more", at="timeout_s")


def check_generate(req: GenerateReq, vocab_size: int, max_requests: int) -> None:
    """Check the sampling and the time-out, for a ring that holds `max_requests`."""
    req.sampling.check(vocab_size)
    _check_details(req, vocab_size)
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


def check_replica(req: GenerateReq, replicas: int) -> None:
    """Raise RequestError for a replica that there is not."""
    replica = req.routed_replica
    if replica is not None and not 0 <= replica < replicas:
        raise RequestError(
            f" must be below {replicas}, the number of replicas", at="routed_replica"
        )
