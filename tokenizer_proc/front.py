"""Admission: checks each request, turns it into tokens, and keeps the bounds on what is in flight.

The tokenizer actor calls `Front` with decoded messages and sends what it returns. No I/O, no
clock. Invariant: an admitted request holds its place (one request, its prompt tokens) until its
Credit comes or the epoch changes, a parked one until it is refused; a refused one holds nothing.
A score is as many requests as it has continuations, admitted together or not at all.
"""

import math
from typing import Any

from msgspec.structs import replace

from srt.constraint import CONSTRAINT_KINDS, Constraint, free_key
from srt.errors import (
    BAD_REQUEST,
    CONFLICT,
    OVERLOADED,
    UNAVAILABLE,
    ErrorInfo,
    RequestError,
)
from srt.messages import (
    Abort,
    AbortReq,
    Admitted,
    CompileReply,
    CompileReq,
    Control,
    ControlReq,
    Credit,
    GenerateReq,
    Refused,
    ScoreReq,
    TokenizedReq,
    pack_ids,
    score_rid,
)
from srt.model.tokenizer import Tokenizer
from srt.model.vocab import Vocab
from srt.sampling_params import SamplingParams
from tokenizer_proc.chat_template import ChatTemplate
from tokenizer_proc.healing import PromptHealer
from tokenizer_proc.parking import Admission, Parked, Parking
from tokenizer_proc.prompt import Prompt, PromptReader, too_long
from tokenizer_proc.scoring import ScoreAdmission, ScoreReader

MAX_RID_CHARS = 256
MAX_SALT_CHARS = 256
CONTROL_OPS = ("flush_cache", "stats")

Answer = tuple[bytes, Admission | Refused]  # with the client that gets it


class Front:
    """The admission core of one ring.

    Bounds: `max_requests` in flight, and `max_tokens` prompt tokens in flight (what a request may
    still generate does not count: it is unknown and mostly far below its limit). A prompt above
    `max_tokens` is taken when nothing else is in flight, so that no valid request is refused
    forever. `max_total_tokens` is the scheduler's pool: no request may need more. A request with a
    constraint is parked until its grammar is compiled, for up to `max_compile_wait_s` seconds.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        vocab: Vocab,
        *,
        epoch: int,
        max_requests: int,
        max_tokens: int,
        max_total_tokens: int,
        max_compile_wait_s: float,
    ) -> None:
        self._vocab = vocab
        self._limit = min(vocab.context_len, max_total_tokens)
        self._reader = PromptReader(tokenizer, template, vocab.vocab_size, self._limit)
        self._scores = ScoreReader(self._reader, self._limit, max_tokens, max_requests)
        self._healer = PromptHealer(vocab)
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._epoch = epoch
        self._draining = False
        self._places: dict[tuple[bytes, str], int] = {}  # (client, rid) -> prompt tokens
        self._tokens = 0
        self._parking = Parking(max_compile_wait_s)

    @property
    def in_flight(self) -> int:
        """Admitted and parked requests that have not ended."""
        return len(self._places)

    @property
    def tokens_in_flight(self) -> int:
        """Prompt tokens of the requests in flight."""
        return self._tokens

    def generate(self, client: bytes, req: GenerateReq, now: float) -> Admission | Parked | Refused:
        """Admit, park or refuse a request."""
        try:
            admission, constraint = self._admit(client, req)
        except RequestError as error:
            return Refused(req.rid, req.epoch, error.info)
        prompt_tokens = admission.admitted.prompt_tokens
        self._places[client, req.rid] = prompt_tokens
        self._tokens += prompt_tokens
        return admission if constraint is None else self._parking.park(admission, constraint, now)

    def score(self, client: bytes, req: ScoreReq) -> ScoreAdmission | Refused:
        """Admit all parts of a score, or refuse it."""
        try:
            admission = self._admit_score(client, req)
        except RequestError as error:
            return Refused(req.rid, req.epoch, error.info)
        for part in admission.parts:
            self._places[client, part.rid] = len(part.input_ids) // 4
            self._tokens += len(part.input_ids) // 4
        return admission

    def credit(self, credit: Credit) -> None:
        """Free the places of an ended request. Unknown ones and other epochs' are ignored."""
        if credit.epoch == self._epoch:
            self._tokens -= self._places.pop((credit.client, credit.rid), 0)

    def abort(self, client: bytes, req: AbortReq) -> Abort | Refused | None:
        """What to tell the scheduler, if the request is in flight: its credit comes later. A
        parked request is refused."""
        if req.epoch != self._epoch or (client, req.rid) not in self._places:
            return None
        parked = self._parking.take(client, req.rid)
        if parked is None:
            return Abort(client, req.rid, self._epoch)
        return self._refuse_parked(
            parked, ErrorInfo(CONFLICT, "the request was aborted before it began")
        )[1]

    def control(self, client: bytes, req: ControlReq) -> Control | Refused:
        """Check an operation for the scheduler. A draining server still takes it."""
        try:
            self._check_epoch(req.epoch)
            _check_rid(req.rid)
            if req.op not in CONTROL_OPS:
                raise RequestError(f"op must be one of {', '.join(CONTROL_OPS)}", param="op")
            if not (math.isfinite(req.timeout_s) and req.timeout_s >= 0):
                raise RequestError("timeout_s must be 0 or more", param="timeout_s")
        except RequestError as error:
            return Refused(req.rid, req.epoch, error.info)
        return Control(client, req.rid, self._epoch, req.op, req.timeout_s)

    # ---- grammars ------------------------------------------------------------------------------

    def compiled(self, reply: CompileReply) -> list[Answer]:
        """Admit or refuse those that waited for this reply."""
        if reply.epoch != self._epoch:
            return []
        return [
            self._refuse_parked(admission, _worded(reply.error, constraint))
            if reply.error is not None
            else _admit_parked(admission, reply.key)
            for admission, constraint in self._parking.take_compiled(reply.id)
        ]

    def unanswered(self) -> list[CompileReq]:
        """What a compiler that has just started must be asked again."""
        return self._parking.questions(self._epoch)

    def expire(self, now: float) -> list[Answer]:
        """Refuse those that have been parked for too long."""
        error = ErrorInfo(UNAVAILABLE, "the grammar compiler does not answer", retryable=True)
        return [self._refuse_parked(parked, error) for parked in self._parking.take_expired(now)]

    def _refuse_parked(self, parked: Admission, error: ErrorInfo) -> tuple[bytes, Refused]:
        """Give its place back."""
        client, rid = parked.tokenized.client, parked.tokenized.rid
        self._tokens -= self._places.pop((client, rid))
        return client, Refused(rid, self._epoch, error)

    # ---- the ring ------------------------------------------------------------------------------

    def drain(self) -> None:
        """Refuse every later request; those in flight go on."""
        self._draining = True

    def reset(self, epoch: int) -> None:
        """Start a new epoch: everything that was in flight has failed."""
        self._epoch = epoch
        self._places.clear()
        self._tokens = 0
        self._parking.clear()

    # ---- the checks, cheap ones first --------------------------------------------------------

    def _admit(self, client: bytes, req: GenerateReq) -> tuple[Admission, Constraint | None]:
        """With the constraint that has yet to be compiled."""
        self._check_epoch(req.epoch)
        self._check_not_draining()
        _check_rid(req.rid)
        self._check_not_in_flight(client, req.rid)
        _check_salt(req.cache_salt)
        req.sampling.check(self._vocab.vocab_size)
        self._check_room_for_requests(1)
        prompt = self._reader.read(req)
        prompt_tokens = len(prompt.ids)
        sampling = self._resolve_lengths(req.sampling, prompt)
        _check_logprob_start(req, prompt_tokens)
        self._check_room_for(prompt_tokens)
        healing = self._healer.heal(prompt.ids, sampling)
        kept = prompt_tokens - healing.num_tokens
        constraint = sampling.constraint
        tokenized = TokenizedReq(
            client=client,
            rid=req.rid,
            epoch=self._epoch,
            input_ids=pack_ids(prompt.ids[:kept]),
            sampling=_unconstrained(sampling),
            eos_ids=[] if sampling.ignore_eos else list(self._vocab.eos_ids),
            stream=req.stream,
            return_logprob=req.return_logprob,
            logprob_start_len=min(req.logprob_start_len, kept),
            cache_salt=req.cache_salt,
            grammar=free_key(healing.text) if healing.text and constraint is None else "",
            healed_ids=pack_ids(prompt.ids[kept:]),
            healed_bytes=len(healing.text.encode()),
        )
        admitted = Admitted(
            req.rid,
            self._epoch,
            prompt_tokens,
            prompt.opens_reasoning,
            healed_tokens=healing.num_tokens,
        )
        if constraint is not None:
            constraint = replace(constraint, before=healing.text)
        return Admission(admitted, tokenized), constraint

    def _admit_score(self, client: bytes, req: ScoreReq) -> ScoreAdmission:
        self._check_epoch(req.epoch)
        self._check_not_draining()
        _check_rid(req.rid)
        _check_salt(req.cache_salt)
        self._scores.check(req)
        for i in range(len(req.continuations)):
            self._check_not_in_flight(client, score_rid(req.rid, i))
        self._check_room_for_requests(len(req.continuations))
        prompts = self._scores.read(req)
        self._check_room_for(prompts.num_tokens)
        return prompts.admission(client, req)

    def _check_not_draining(self) -> None:
        if self._draining:
            raise RequestError("the server is draining", code=UNAVAILABLE, retryable=True)

    def _check_epoch(self, epoch: int) -> None:
        if epoch != self._epoch:
            reason = "the server restarted in between: send the request again"
            raise RequestError(reason, code=UNAVAILABLE, retryable=True)

    def _check_not_in_flight(self, client: bytes, rid: str) -> None:
        if (client, rid) in self._places:
            raise RequestError("rid is already in use by a request in flight", param="rid")

    def _check_room_for_requests(self, count: int) -> None:
        if self.in_flight + count > self._max_requests:
            raise _overloaded(f"{self.in_flight} requests are in flight")

    def _check_room_for(self, prompt_tokens: int) -> None:
        if self._tokens and self._tokens + prompt_tokens > self._max_tokens:
            raise _overloaded(f"{self._tokens} prompt tokens are in flight")

    def _resolve_lengths(self, sampling: SamplingParams, prompt: Prompt) -> SamplingParams:
        """`sampling` with a `max_new_tokens` that fits behind the prompt."""
        wanted = sampling.max_new_tokens
        room = self._limit - len(prompt.ids)
        if room < (1 if wanted is None else 0):
            raise too_long(self._limit, prompt)
        if wanted is not None and wanted > room:
            raise too_long(self._limit, prompt, wanted)
        resolved = room if wanted is None else wanted
        if sampling.min_new_tokens > resolved:
            raise RequestError(
                f"min_new_tokens must not exceed the {resolved} tokens left for the completion",
                param="min_new_tokens",
            )
        return replace(sampling, max_new_tokens=resolved)


def _admit_parked(parked: Admission, key: str) -> Answer:
    tokenized = replace(parked.tokenized, grammar=key)
    return tokenized.client, Admission(parked.admitted, tokenized)


def _worded(error: ErrorInfo, constraint: Constraint) -> ErrorInfo:
    """The compiler's error as its client reads it: what is wrong with which field."""
    if error.code != BAD_REQUEST:
        return error
    return replace(error, message=f"{constraint.kind}: {error.message}", param=constraint.kind)


def _unconstrained(sampling: SamplingParams) -> SamplingParams:
    """`sampling` without the constraint's texts, which the scheduler needs not."""
    if sampling.constraint is None:
        return sampling
    texts: dict[str, Any] = dict.fromkeys(CONSTRAINT_KINDS)
    return replace(sampling, **texts, json_whitespace="compact", constraint_after="")


def _check_rid(rid: str) -> None:
    if not 0 < len(rid) <= MAX_RID_CHARS:
        raise RequestError(f"rid must have 1 to {MAX_RID_CHARS} characters", param="rid")


def _check_salt(salt: str) -> None:
    if len(salt) > MAX_SALT_CHARS:
        limit = f"cache_salt must have at most {MAX_SALT_CHARS} characters"
        raise RequestError(limit, param="cache_salt")


def _check_logprob_start(req: GenerateReq, prompt_tokens: int) -> None:
    if req.return_logprob and not -1 <= req.logprob_start_len <= prompt_tokens:
        raise RequestError(
            f"logprob_start_len must be between -1 and the prompt's {prompt_tokens} tokens",
            param="logprob_start_len",
        )


def _overloaded(reason: str) -> RequestError:
    return RequestError(f"the server is at its limit: {reason}", code=OVERLOADED, retryable=True)
