"""What a request may ask for beside its prompt and its sampling: names, and log-probabilities.

Called by the front; raises RequestError naming the field.
"""

from srt.wire.errors import RequestError
from srt.wire.messages import GenerateReq
from tokenizer_proc.turns import Question, TextReq

MAX_NAME_CHARS = 256
MAX_TIMEOUT_MS = 24 * 3600 * 1000
MAX_TOP_LOGPROBS = 64
MAX_LOGPROB_TOKEN_IDS = 256


def check_names(req: TextReq) -> None:
    """The namespace in the cache, and the tenant."""
    if not isinstance(req, Question):
        _check_name(req.cache_salt, "cache_salt")
    _check_name(req.tenant, "tenant")


def check_timeout(req: GenerateReq) -> None:
    """The milliseconds that a request has."""
    if not 0 <= req.timeout_ms <= MAX_TIMEOUT_MS:
        limit = f"timeout_ms must be between 0 (none) and {MAX_TIMEOUT_MS}"
        raise RequestError(limit, param="timeout_ms")


def _check_name(name: str, param: str) -> None:
    if len(name) > MAX_NAME_CHARS:
        raise RequestError(f"{param} must have at most {MAX_NAME_CHARS} characters", param=param)


def check_details(req: GenerateReq, vocab_size: int) -> None:
    """What is asked for beside the chosen tokens' log-probabilities."""
    if not 0 <= req.top_logprobs <= MAX_TOP_LOGPROBS:
        limit = f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS}"
        raise RequestError(limit, param="top_logprobs")
    ids = req.logprob_token_ids
    if len(ids) > MAX_LOGPROB_TOKEN_IDS or not all(0 <= i < vocab_size for i in ids):
        limit = f"logprob_token_ids takes up to {MAX_LOGPROB_TOKEN_IDS} ids in [0, {vocab_size})"
        raise RequestError(limit, param="logprob_token_ids")
    for name in ("top_logprobs", "logprob_token_ids"):
        if getattr(req, name) and not req.return_logprob:
            raise RequestError(f"{name} needs return_logprob", param=name)
