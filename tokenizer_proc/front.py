"""Admission: checks each request, turns it into tokens, and keeps the bounds on what is in flight.

The tokenizer actor calls `Front` with decoded messages and sends what it returns. No I/O, no
clock. Invariant: an admitted request holds its place (one request, its prompt tokens) until its
Credit comes or the epoch changes, a parked one until it is refused or aborted; a refused one holds
nothing. A score is as many requests as it has continuations, and a request for n samples is n of
them: admitted together or not at all.
"""

import math
from typing import Any

from msgspec.structs import replace

from srt.constraint import CONSTRAINT_KINDS, Constraint, GrammarError, free_key
from srt.errors import BAD_REQUEST, OVERLOADED, UNAVAILABLE, ErrorInfo, RequestError
from srt.messages import (
    Abort,
    AbortReq,
    Admitted,
    CompileCancel,
    CompileCounts,
    CompileReply,
    CompileReq,
    Control,
    ControlReq,
    Credit,
    GenerateReq,
    Refused,
    ScoreReq,
    Tokenized,
    TokenizedReq,
    TokenizeReq,
    pack_ids,
    sample_rid,
    score_rid,
)
from srt.model.tokenizer import Tokenizer
from srt.model.vocab import Vocab
from srt.reasoning import END_THINK
from srt.regex.stops import build_stops
from srt.sampling_params import SamplingParams
from tokenizer_proc.admission import Admission, samples_of
from tokenizer_proc.bad_words import bad_ids
from tokenizer_proc.chat_template import ChatTemplate
from tokenizer_proc.healing import PromptHealer
from tokenizer_proc.parking import Parked, Parking
from tokenizer_proc.prompt import Prompt, PromptReader, too_long
from tokenizer_proc.scoring import ScoreReader

MAX_RID_CHARS = 256
MAX_SALT_CHARS = 256
MAX_TOP_LOGPROBS = 64
MAX_LOGPROB_TOKEN_IDS = 256
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
        self._tokenizer = tokenizer
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
        self._compile_counts: dict[str, float] = {}

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
        self._take_places(admission)
        return admission if constraint is None else self._parking.park(admission, constraint, now)

    def score(self, client: bytes, req: ScoreReq) -> Admission | Refused:
        """Admit all parts of a score, or refuse it."""
        try:
            admission = self._admit_score(client, req)
        except RequestError as error:
            return Refused(req.rid, req.epoch, error.info)
        self._take_places(admission)
        return admission

    def tokenize(self, req: TokenizeReq) -> Tokenized | Refused:
        """The ids of a text or chat. It takes no place, and a draining server still does it."""
        try:
            self._check_epoch(req.epoch)
            _check_rid(req.rid)
            ids = self._reader.tokenize(req)
        except RequestError as error:
            return Refused(req.rid, req.epoch, error.info)
        return Tokenized(req.rid, self._epoch, pack_ids(ids))

    def _take_places(self, admission: Admission) -> None:
        for part in admission.parts:
            num_tokens = (len(part.input_ids) + len(part.healed_ids)) // 4
            self._places[part.client, part.rid] = num_tokens
            self._tokens += num_tokens

    def credit(self, credit: Credit) -> None:
        """Free the places of an ended request. Unknown ones and other epochs' are ignored."""
        if credit.epoch == self._epoch:
            self._tokens -= self._places.pop((credit.client, credit.rid), 0)

    def abort(self, client: bytes, req: AbortReq) -> Abort | Admission | None:
        """What to tell the scheduler, if the request is in flight: its credit comes later. A
        parked one has ended; with its last sample it is admitted, so that its client hears of it.
        """
        name = (client, req.rid)
        if req.epoch != self._epoch or name not in self._places:
            return None
        if not self._parking.holds(*name):
            return Abort(client, req.rid, self._epoch)
        self._tokens -= self._places.pop(name)
        return self._parking.abort(*name)

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
        counts = self._counts() if req.op == "stats" else {}
        return Control(client, req.rid, self._epoch, req.op, req.timeout_s, counts)

    def _counts(self) -> dict[str, float]:
        return {"num_grammar_queue_reqs": len(self._parking), **self._compile_counts}

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

    def count(self, message: CompileCounts) -> None:
        """Keep the compiler's totals for the next statistics."""
        self._compile_counts = message.counts

    def unanswered(self) -> list[CompileReq]:
        """What a compiler that has just started must be asked again."""
        return self._parking.questions(self._epoch)

    def cancelled(self) -> list[CompileCancel]:
        """What the compiler was asked and need not answer, since the last call."""
        return self._parking.take_cancelled(self._epoch)

    def expire(self, now: float) -> list[Answer]:
        """Refuse those that have been parked for too long."""
        error = ErrorInfo(UNAVAILABLE, "the grammar compiler does not answer", retryable=True)
        return [self._refuse_parked(parked, error) for parked in self._parking.take_expired(now)]

    def _refuse_parked(self, parked: Admission, error: ErrorInfo) -> tuple[bytes, Refused]:
        """Give its places back."""
        for part in parked.parts:
            self._tokens -= self._places.pop((part.client, part.rid))
        return parked.parts[0].client, Refused(parked.admitted.rid, self._epoch, error)

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
        _check_salt(req.cache_salt)
        req.sampling.check(self._vocab.vocab_size)
        self._check_details(req)
        self._check_samples(client, req)
        _check_stop_patterns(req.sampling.stop_regex)
        prompt = self._reader.read(req)
        prompt_tokens = len(prompt.ids)
        sampling = self._resolve_lengths(req.sampling, prompt)
        _check_logprob_start(req, prompt_tokens)
        self._check_room_for(prompt_tokens * sampling.n)
        healing = self._healer.heal(prompt.ids, sampling)
        kept = prompt_tokens - healing.num_tokens
        constraint = _constraint(sampling, prompt)
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
            top_logprobs=req.top_logprobs,
            logprob_token_ids=req.logprob_token_ids,
            bad_ids=bad_ids(sampling.bad_words, self._tokenizer),
        )
        admitted = Admitted(
            req.rid,
            self._epoch,
            prompt_tokens,
            prompt.opens_reasoning,
            healed_tokens=healing.num_tokens,
            closes_reasoning=prompt.closes_reasoning,
        )
        if constraint is not None:
            constraint = replace(constraint, before=healing.text)
        return Admission(admitted, samples_of(tokenized)), constraint

    def _check_samples(self, client: bytes, req: GenerateReq) -> None:
        count = req.sampling.n
        if count > self._max_requests:
            limit = f"n must be at most {self._max_requests}, the requests that may be in flight"
            raise RequestError(limit, param="n")
        rids = [sample_rid(req.rid, i) for i in range(count)] if count > 1 else [req.rid]
        for rid in rids:
            self._check_not_in_flight(client, rid)
        self._check_room_for_requests(count)

    def _check_details(self, req: GenerateReq) -> None:
        """What is asked for beside the chosen tokens' log-probabilities."""
        if not 0 <= req.top_logprobs <= MAX_TOP_LOGPROBS:
            limit = f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS}"
            raise RequestError(limit, param="top_logprobs")
        ids, vocab_size = req.logprob_token_ids, self._vocab.vocab_size
        if len(ids) > MAX_LOGPROB_TOKEN_IDS or not all(0 <= i < vocab_size for i in ids):
            limit = (
                f"logprob_token_ids takes up to {MAX_LOGPROB_TOKEN_IDS} ids in [0, {vocab_size})"
            )
            raise RequestError(limit, param="logprob_token_ids")
        for name in ("top_logprobs", "logprob_token_ids"):
            if getattr(req, name) and not req.return_logprob:
                raise RequestError(f"{name} needs return_logprob", param=name)

    def _admit_score(self, client: bytes, req: ScoreReq) -> Admission:
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
    parts = [replace(part, grammar=key) for part in parked.parts]
    return parts[0].client, Admission(parked.admitted, parts)


def _worded(error: ErrorInfo, constraint: Constraint) -> ErrorInfo:
    """The compiler's error as its client reads it: what is wrong with which field."""
    if error.code != BAD_REQUEST:
        return error
    return replace(error, message=f"{constraint.kind}: {error.message}", param=constraint.kind)


def _constraint(sampling: SamplingParams, prompt: Prompt) -> Constraint | None:
    """The constraint; one that waits for the reasoning to end does not wait behind its end."""
    if prompt.closes_reasoning and sampling.constraint_after == END_THINK:
        sampling = replace(sampling, constraint_after="")
    return sampling.constraint


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


def _check_stop_patterns(patterns: list[str]) -> None:
    try:
        build_stops(patterns)
    except GrammarError as error:
        raise RequestError(f"stop_regex {error}", param="stop_regex") from None


def _check_logprob_start(req: GenerateReq, prompt_tokens: int) -> None:
    if req.return_logprob and not -1 <= req.logprob_start_len <= prompt_tokens:
        raise RequestError(
            f"logprob_start_len must be between -1 and the prompt's {prompt_tokens} tokens",
            param="logprob_start_len",
        )


def _overloaded(reason: str) -> RequestError:
    return RequestError(f"the server is at its limit: {reason}", code=OVERLOADED, retryable=True)
