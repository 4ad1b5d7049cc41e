"""The scheduler core: requests in, plans out, results in, tokens out. No I/O, clock or thread.

One step, as the actor drives it:   plan = prepare(now) → step = seal(plan) →
step.finalize(previous result) → executor.run(step.batch) → commit(step, result). If `run` raises,
the same with the parts that split(step) gives, or fail(step). There is no prefill and no decode
phase: a req has tokens it knows and tokens whose KV is planned, and a step moves the second towards
the first, by one for a decoding req and by a chunk for a new one, all in one ragged batch.

`prepare` needs no token values. With lag 1 the actor prepares the next step while one runs, and
reads results a step late: a req that turned out to be finished has then one row too many in
flight, whose result is dropped. Memory that a finished or retracted req gives back may be planned
for the next step at once, because steps run one after the other.

A req with a grammar or bad words of several tokens has lag 0: what it may sample depends on its
newest token. (Penalties count that token when the step is finalized.) While it is still being
sampled the req's row is deferred, and all others are laid out: seal_ahead(plan). When the running
step ends, commit_deferred(plan, step, result) takes over what the deferred rows need, and with
these the plan is sealed; the rest of the running step is committed while the next one runs.

Memory follows one path: match → lock → allocate (evict if short) → run → insert. Prompts are
inserted chunk by chunk as soon as they are computed, so that siblings hit at once, and a waiting
req whose next uncached token is being computed by a running req waits for it instead of computing
it again. When decoding runs out of memory, the req with fewest outputs is retracted: its tokens
stay in the tree as long as there is room, and it waits in the queue at its old place.
"""

import math
import random
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from scheduler_proc.admission import NewTokenRatio, is_being_computed, prefix_need
from scheduler_proc.batch import StepResult
from scheduler_proc.decodes import DecodePlanner, retraction_key
from scheduler_proc.details import StepDetails
from scheduler_proc.grammar.base import Grammar, GrammarError
from scheduler_proc.grammar.retokenise import WINDOW_TOKENS, Jump, Retokeniser
from scheduler_proc.limits import NO_LIMITS, Limits, NoTokenLeft
from scheduler_proc.memory import ReqToTokenPool, TokenPool
from scheduler_proc.outputs import OutputBuffer
from scheduler_proc.parts import part_of
from scheduler_proc.plan import Plan
from scheduler_proc.prefix_cache import NoCache, PrefixCache
from scheduler_proc.queue import WaitingQueue
from scheduler_proc.radix_cache import RadixCache
from scheduler_proc.req import Req
from scheduler_proc.req_memory import ReqMemory
from scheduler_proc.step import Row, Step
from scheduler_proc.step_target import StepCosts, tokens_beside
from srt.wire.errors import BAD_REQUEST, INTERNAL, TIMED_OUT_EARLY, ErrorInfo
from srt.wire.messages import Abort, Finish, LogprobDetail, TokenBatch, TokenizedReq

MAX_GONE_CLIENTS = 4096
ADMISSION_RETRY_STEPS = 8  # look again at a queue that memory has stopped


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits and policies. `chunked_prefill_size` is the token budget of one step, `step_target_s`
    how long one may last while others decode (0: see `step_target`)."""

    max_total_tokens: int
    context_len: int
    vocab_size: int
    max_running_requests: int = 64
    chunked_prefill_size: int = 512
    step_target_s: float = 0.0
    schedule_policy: str = "lpm"
    max_wait_s: float = 30.0
    disable_radix_cache: bool = False
    random_seed: int = 0


@dataclass(slots=True)
class Counters:
    """Totals since the start, in requests, tokens and steps."""

    requests: int = 0
    admitted: int = 0  # into the batch, for the first time
    ended: int = 0  # of those, and the outputs that they had
    ended_outputs: int = 0
    aborted: int = 0
    retracted: int = 0
    prompt_tokens: int = 0  # of admitted reqs
    cached_tokens: int = 0  # of those, found in the tree
    computed_prompt_tokens: int = 0  # run through the model, retracted reqs' again
    generation_tokens: int = 0
    jump_forward_tokens: int = 0  # of those, forced by a grammar
    forward_steps: int = 0


class Scheduler:
    """Owns the queue, the tree, the pools and the reqs of one executor."""

    def __init__(self, config: SchedulerConfig, epoch: int = 0) -> None:
        self.config = config
        self.epoch = epoch
        self.pool = TokenPool(config.max_total_tokens)
        self.table = ReqToTokenPool(config.max_running_requests, config.context_len)
        self.cache: PrefixCache = NoCache() if config.disable_radix_cache else RadixCache(self.pool)
        self.costs: StepCosts | None = None  # as measured; None: not known yet
        self.retokeniser: Retokeniser | None = None  # without one there are no jumps
        self._rng = random.Random(config.random_seed)
        self.waiting = WaitingQueue(
            config.schedule_policy, config.max_wait_s, self._rng, self.cache
        )
        self.running: dict[int, Req] = {}  # by handle, in order of admission
        self.memory = ReqMemory(self.pool, self.table, self.cache, self.running)
        self._decodes = DecodePlanner(
            self.running, self.memory, config.chunked_prefill_size, self._retract, self._limits
        )
        self.counters = Counters()
        self.new_token_ratio = NewTokenRatio()
        self._reqs: dict[tuple[bytes, str], Req] = {}
        self._timed: dict[int, Req] = {}  # by handle: those of them that have a deadline
        self._gone: OrderedDict[bytes, None] = OrderedDict()
        self._outputs = OutputBuffer()
        self._next_handle = 0
        self._admission_refused_at: int | None = None  # the forward step at which memory was short
        self._places_in_memory = 0  # reqs that ran then; 0 once all that waited were admitted

    # ---- requests in ---------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return bool(self.running) or len(self.waiting) > 0

    @property
    def places(self) -> int:
        """Reqs that can run at once: as many as did when memory last stopped the next one."""
        if self._places_in_memory == 0:
            return self.config.max_running_requests
        return max(self._places_in_memory, len(self.running))

    def add(self, wire: TokenizedReq, now: float, grammar: Grammar | None = None) -> None:
        """Queue a request, with the grammar that its output must follow. One whose client is gone
        already is ended at once."""
        seed = wire.sampling.seed
        seed = self._rng.getrandbits(63) if seed is None else seed
        req = Req(self._next_handle, wire, seed, now, self.config.vocab_size, grammar)
        self._next_handle += 1
        self.counters.requests += 1
        if req.key in self._reqs:
            self._outputs.end(req, Finish("abort", error=ErrorInfo(INTERNAL, "duplicate rid")))
            return
        self._reqs[req.key] = req
        if req.deadline_s:
            self._timed[req.handle] = req
        self.waiting.add(req)
        self._admission_refused_at = None
        if req.client in self._gone:
            self._finish(req, Finish("abort"))
        elif req.remaining > 0:
            self._jump_forward(req)

    def abort(self, message: Abort, error: ErrorInfo | None = None) -> None:
        """End a request, as failed if there is an error; one that has ended already is ignored."""
        req = self._reqs.get((message.client, message.rid))
        if req is not None:
            self._finish(req, Finish("abort", error=error))

    def drop_client(self, client: bytes) -> None:
        """End everything of a client that is gone, and whatever of it still arrives."""
        self._gone[client] = None
        if len(self._gone) > MAX_GONE_CLIENTS:
            self._gone.popitem(last=False)
        for req in [req for req in self._reqs.values() if req.client == client]:
            self._finish(req, Finish("abort"))

    def reset(self, epoch: int) -> None:
        """A new epoch: forget every request and untold output; cached prefixes stay."""
        for req in list(self._reqs.values()):
            self._finish(req, Finish("abort"))
        self._outputs.clear()
        self._gone.clear()
        self.epoch = epoch

    def flush_cache(self) -> bool:
        """Empty the tree if nothing is running or waiting; whether it did."""
        if self.has_work:
            return False
        self.cache.evict(self.cache.evictable_size)
        return True

    def take_output(self) -> TokenBatch | None:
        """What there is to tell the detokenizer since the last call."""
        return self._outputs.take(self.epoch)

    # ---- a step --------------------------------------------------------------------------------

    def prepare(self, now: float) -> Plan | None:
        """Plan a step, or None if nothing can run now. Takes memory; reads no token values."""
        self._expire(now)
        plan = Plan(self.table, self.memory.sampling)
        self._decodes.plan(plan)
        prefill_budget = self._prefill_budget(plan)
        prefill_budget -= self._plan_prefills(plan, prefill_budget)
        if len(self.waiting) == 0:
            self._places_in_memory = 0
            self.cache.want(())
        elif prefill_budget > 0 and self._may_admit():
            self._admit(plan, prefill_budget)
        if plan.rows or plan.deferred or self._unblock(plan, prefill_budget):
            return plan
        return None

    def seal_ahead(self, plan: Plan, running: Step) -> None:
        """Lay out what of the plan needs no result of the step that runs, while it runs. What is
        laid out takes part in the step even if its req ends meanwhile."""
        plan.drop_ended()
        plan.seal_ahead(running)

    def seal(self, plan: Plan) -> Step | None:
        """The plan's step; None if it turns out that nothing is left to run.

        A plan with deferred reqs needs these reqs' rows of the step that ran when it was prepared
        to be committed.
        """
        plan.drop_ended()
        self._decodes.plan_deferred(plan)
        if not plan.rows and plan.ahead is None:
            return None
        self.counters.forward_steps += 1
        self.new_token_ratio.decay()
        return plan.seal()

    def commit_deferred(self, plan: Plan, step: Step, result: StepResult) -> None:
        """Commit those rows of a step that the plan waits for."""
        self._commit(plan.awaited, step, result)
        for row in plan.awaited:
            row.is_committed = True

    def commit(self, step: Step, result: StepResult) -> None:
        """Take over a step's result: advance the reqs, insert prompts, finish what is done."""
        self._commit([row for row in step.rows if not row.is_committed], step, result)

    def _commit(self, rows: list[Row], step: Step, result: StepResult) -> None:
        """These rows of a step."""
        details = StepDetails(step.batch, result)
        next_ids, logprobs = result.next_ids.tolist(), result.logprobs.tolist()
        for row in rows:
            req = row.req
            if req.finish is not None:
                continue
            if row.residency == req.residency:
                req.computed_len = row.start + row.extend_len
            if row.num_logprobs > 0:
                stop = row.logprobs_at + row.num_logprobs
                self._tell_logprobs(row, result.prompt_logprobs[row.logprobs_at : stop], details)
            if row.samples:
                req.pending -= 1
                detail = details.read(row.sample_detail, 1) if req.wants_details else None
                self._accept(req, next_ids[row.sample], logprobs[row.sample], detail)
            elif req.max_new_tokens == 0 and req.computed_len == req.prompt_len:
                self._finish(req, Finish("length"))
            elif req.ending is not None and row.logprob_stop == req.logprob_stop:
                self._finish(req, req.ending)
            if not row.is_decode:
                self._commit_prefill(row)

    def cancel(self, step: Step) -> None:
        """A sealed step that will not be run: its reqs go back to the queue as they were."""
        for row in step.rows:
            if row.req.finish is None:
                row.req.pending -= row.samples
                if row.num_logprobs > 0:
                    row.req.next_logprob = row.logprob_start
            if row.is_current:
                self._retract(row.req)

    def cancel_ahead(self, plan: Plan) -> None:
        """The same of what is laid out of a plan that will not be sealed."""
        if plan.ahead is not None:
            self.cancel(plan.ahead)

    def split(self, step: Step) -> list[Step]:
        """Two halves of a step that could not be computed, to be run one after the other in its
        place, before any other. Rows whose reqs have ended are in none."""
        live = [number for number, row in enumerate(step.rows) if row.req.finish is None]
        half = (len(live) + 1) // 2
        return [part_of(step, numbers) for numbers in (live[:half], live[half:]) if numbers]

    def fail(self, step: Step, message: str) -> None:
        """The step could not be computed: its reqs end with an error, the others go on."""
        error = ErrorInfo(INTERNAL, message)
        for row in step.rows:
            if row.samples:
                row.req.pending = 0
            if row.req.finish is None:
                self._finish(row.req, Finish("abort", error=error))

    def _commit_prefill(self, row: Row) -> None:
        """What a chunk has computed can be shared now."""
        self.counters.computed_prompt_tokens += row.extend_len
        if row.is_current and row.req.finish is None:
            self.memory.insert_computed(row.req)

    def _tell_logprobs(self, row: Row, logprobs: np.ndarray, details: StepDetails) -> None:
        """Log-probabilities of the known tokens that the row scores: of the prompt, and of a
        jump, which is told together with them."""
        req, start, first = row.req, row.logprob_start, row.known_detail
        in_prompt = min(max(0, req.prompt_len - start), len(logprobs))
        if in_prompt > 0:
            detail = details.read(first, in_prompt)
            self._outputs.prompt_logprobs(req, start, logprobs[:in_prompt], detail)
            first += in_prompt if detail is not None else 0
        if len(logprobs) > in_prompt:
            tokens = req.tokens[start + in_prompt : row.logprob_stop].tolist()
            detail = details.read(first, len(tokens))
            known = logprobs[in_prompt:].tolist()
            self._outputs.jump(req, *req.unsent_jump, tokens, known, detail)
            req.unsent_jump = (0, 0)

    def _accept(
        self, req: Req, token: int, logprob: float, detail: LogprobDetail | None = None
    ) -> None:
        """Append a sampled token and see whether it ends the req."""
        if req.grammar is not None:
            try:
                req.grammar.accept([token])
            except GrammarError as error:
                self._fail_grammar(req, error)
                return
            req.drop_free_grammar()
        req.append(token)
        self.counters.generation_tokens += 1
        self._outputs.token(req, token, logprob, detail)
        if token in req.stop_ids and self._is_stop(req, token, req.num_tokens):
            self._finish(req, Finish("stop", matched=token))
        elif req.grammar is not None and req.grammar.is_terminated():
            # Without an EOS it is text that has ended the output, and not to be hidden.
            is_text = req.grammar.is_accepting()
            self._finish(req, Finish("stop", matched=None if is_text else token))
        elif req.num_tokens - req.prompt_len >= req.max_new_tokens:
            self._finish(req, Finish("length"))
        elif req.grammar is not None:
            self._jump_forward(req)

    def _is_stop(self, req: Req, token: int, num_tokens: int) -> bool:
        """Whether `token`, as the last of `num_tokens`, is a stop id that counts."""
        num_outputs = num_tokens - req.prompt_len
        return token in req.stop_ids and num_outputs > req.sampling.min_new_tokens

    # ---- jumps ---------------------------------------------------------------------------------

    def _jump_forward(self, req: Req) -> None:
        """Append what the grammar forces, and end the req if it forces the end."""
        if req.grammar is None or not req.jumps or self.retokeniser is None:
            return
        try:
            tail = req.output_tail(WINDOW_TOKENS)
            is_whole = len(tail) == req.num_outputs
            jump = self.retokeniser.jump(tail, is_whole, req.grammar, req.remaining)
            if jump is not None:
                self._take_jump(req, jump)
                req.drop_free_grammar()
            if req.finish is None and req.ending is None:
                self._end_if_forced(req, self.retokeniser)
        except GrammarError as error:
            self._fail_grammar(req, error)

    def _take_jump(self, req: Req, jump: Jump) -> None:
        first = req.num_tokens - jump.drop
        tokens, finish = jump.tokens, None
        for i, token in enumerate(jump.tokens):
            # Text that has been told before cannot end the req: it would be taken back.
            if i >= jump.num_old and self._is_stop(req, token, first + i + 1):
                tokens, finish = jump.tokens[: i + 1], Finish("stop", matched=token)
                break
        req.replace_tail(jump.drop, tokens)
        gained = max(0, len(tokens) - jump.drop)  # totals never shrink
        self.counters.generation_tokens += gained
        self.counters.jump_forward_tokens += gained
        assert req.grammar is not None
        if finish is None and req.grammar.is_terminated():
            finish = Finish("stop")
        if finish is None and req.remaining == 0:
            finish = Finish("length")
        if req.scoring is not None:  # told when their log-probabilities are known
            req.unsent_jump = (jump.drop, jump.skip)
            req.next_logprob = first if not req.wants_logprobs else req.next_logprob
            req.logprob_stop, req.ending = req.num_tokens, finish
            self.memory.truncate(req, first - 1)
            return
        self.memory.truncate(req, first)
        self._outputs.jump(req, jump.drop, jump.skip, tokens, [math.nan] * len(tokens))
        if finish is not None:
            self._finish(req, finish)

    def _end_if_forced(self, req: Req, retokeniser: Retokeniser) -> None:
        """Where only EOS may follow, no step is needed to sample it; unless it is to be scored."""
        eos = retokeniser.eos_id
        if eos is None or req.grammar is None or req.scoring is not None:
            return
        if not retokeniser.only_eos(req.grammar):
            return
        req.append(eos)
        self.counters.generation_tokens += 1
        self.counters.jump_forward_tokens += 1
        self._outputs.jump(req, 0, 0, [eos], [math.nan])
        self._finish(req, Finish("stop", matched=eos))

    def _fail_grammar(self, req: Req, error: GrammarError) -> None:
        """A grammar that cannot go on ends its own req, and nothing else."""
        info = ErrorInfo(INTERNAL, f"the constraint cannot be followed any further: {error}")
        self._finish(req, Finish("abort", error=info))

    def _expire(self, now: float) -> None:
        """End the reqs whose time is over: with what they have, or as failed if that is nothing."""
        for req in [req for req in self._timed.values() if req.deadline_s <= now]:
            has_output = req.num_tokens > req.prompt_len
            error = None if has_output else TIMED_OUT_EARLY
            self._finish(req, Finish("timeout" if has_output else "abort", error=error))

    # ---- planning ------------------------------------------------------------------------------

    def _prefill_budget(self, plan: Plan) -> int:
        """Prompt tokens that the step has room for. Decodes never starve prefills altogether."""
        budget = whole = self.config.chunked_prefill_size
        num_decodes = plan.num_tokens + len(plan.deferred)
        if num_decodes > 0 and self.costs is not None:
            budget = tokens_beside(self.costs, num_decodes, whole, self.config.step_target_s)
        return min(budget, max(whole - num_decodes, whole // 8, 1))

    def _plan_prefills(self, plan: Plan, budget: int) -> int:
        """The next chunks of reqs that are partly prefilled; returns the tokens planned."""
        planned = 0
        for req in [req for req in self.running.values() if req.kv_len < req.prefill_len]:
            if planned < budget and req.is_resident:
                planned += self._extend(plan, req, budget - planned)
        return planned

    def _extend(self, plan: Plan, req: Req, budget: int) -> int:
        """Plan up to `budget` of the req's tokens, fewer if memory is short; how many it were."""
        length = min(req.extend_left, budget, self.memory.room)
        if length == 0:
            return 0
        limits = self._limits(req, length)
        if limits is None:
            return 0
        slots = self.memory.alloc(length)
        assert slots is not None
        self.table.slots[req.row, req.kv_len : req.kv_len + length] = slots
        plan.add(req, length, is_decode=False, limits=limits)
        return length

    def _limits(self, req: Req, length: int) -> Limits | None:
        """What the req may sample if `length` more of its tokens are extended. None if there is
        nothing, which has ended it."""
        if length < req.extend_left or req.remaining == 0:
            return NO_LIMITS
        try:
            return req.limits()
        except GrammarError as error:
            self._fail_grammar(req, error)
        except NoTokenLeft as error:
            self._finish(req, Finish("abort", error=ErrorInfo(BAD_REQUEST, str(error))))
        return None

    def _may_admit(self) -> bool:
        """Whether it is worth looking at the queue: sorting it for nothing, step after step, is
        what a long queue behind a full pool would cost."""
        if self.table.num_free_rows == 0:
            return False
        since = self._admission_refused_at
        recently = since is not None and self.counters.forward_steps < since + ADMISSION_RETRY_STEPS
        return not recently or not self.running

    def _admit(self, plan: Plan, budget: int) -> None:
        """Move waiting reqs into the batch, in the policy's order, while memory lasts.

        `available` shrinks by everything a taken req will need: tokens to compute, expected
        output, and the part of its prefix that its lock makes unevictable.
        """
        available = self._available()
        prefilling = [req for req in self.running.values() if req.is_prefilling]
        latest = math.inf  # the arrival after which nobody may overtake those that stand aside
        for req in self.waiting.ordered():
            if budget <= 0 or self.table.num_free_rows == 0 or req.arrival_s > latest:
                return
            if req.pending > 0:
                return  # retracted just now: nobody takes its place before its last token is known
            if is_being_computed(req, prefilling, self.cache):
                latest = min(latest, req.arrival_s + self.config.max_wait_s)
                continue  # soon: when the prefix that it needs is in the tree
            need = prefix_need(req, self.cache) + self.new_token_ratio.expected_outputs(req)
            if need > available and self.running:
                self._admission_refused_at = self.counters.forward_steps
                self._places_in_memory = len(self.running)
                return
            available -= need
            self._start_running(req)
            budget -= self._extend(plan, req, budget)
            prefilling.append(req)
        self._places_in_memory = 0

    def _start_running(self, req: Req) -> None:
        """Lock the cached prefix and give the req a table row that begins with it."""
        prefix_len = self.memory.enter(req)
        if req.cached_tokens < 0:
            req.cached_tokens = min(prefix_len, req.prompt_len)
            self.counters.admitted += 1
            self.counters.prompt_tokens += req.prompt_len
            self.counters.cached_tokens += req.cached_tokens
            self._outputs.admitted(req)
        self.waiting.remove(req)
        self.running[req.handle] = req

    def _unblock(self, plan: Plan, budget: int) -> bool:
        """Nothing could be planned. If that is because partly prefilled reqs hold all memory,
        retract until one of them can go on. False if there is simply nothing to do now."""
        while True:
            stuck = [r for r in self.running.values() if r.kv_len < r.prefill_len]
            in_flight = any(r.computed_len < r.kv_len for r in self.running.values())
            if len(stuck) == 0 or in_flight:
                return False
            if self._plan_prefills(plan, max(budget, 1)) > 0:
                return True
            if len(self.running) < 2:
                return False
            self._retract(min(self.running.values(), key=retraction_key))

    # ---- memory --------------------------------------------------------------------------------

    def _available(self) -> int:
        """Slots that a new req could count on, the running reqs' future needs set aside."""
        reserved = sum(
            max(0, req.extend_left) + self.new_token_ratio.expected_outputs(req)
            for req in self.running.values()
        )
        return self.memory.room - reserved

    def _release(self, req: Req) -> None:
        self.memory.release(req)
        self._admission_refused_at = None

    def _retract(self, req: Req) -> None:
        """Send a running req back to the queue; it will be extended again from what is cached."""
        self._release(req)
        req.retractions += 1
        self.counters.retracted += 1
        self.new_token_ratio.raise_after_retraction(self.running.values())
        self.waiting.add(req)

    def _finish(self, req: Req, finish: Finish) -> None:
        """End a req, wherever it is, and tell."""
        req.finish = finish
        if req.is_resident:
            self._release(req)
        else:
            self.waiting.remove(req)
        del self._reqs[req.key]
        self._timed.pop(req.handle, None)
        self.counters.aborted += finish.type == "abort"
        if req.cached_tokens >= 0:
            self.counters.ended += 1
            self.counters.ended_outputs += req.num_tokens - req.prompt_len
        self._outputs.end(req, finish)
