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
these the plan is sealed; the rest of the running step is committed while the next one runs. Where
the tokens alone decide what these rows may sample, start_early(plan, result) gives the step before.

Memory follows one path: match → lock → allocate (evict if short) → run → insert. Prompts are
inserted chunk by chunk as soon as they are computed, so that siblings hit at once, and a waiting
req whose next uncached token is being computed by a running req waits for it instead of computing
it again. When decoding runs out of memory, the req with fewest outputs is retracted: its tokens
stay in the tree as long as there is room, and it waits in the queue at its old place.

In a pause `prepare` gives no plan; what is prepared already goes on to its end. Time limits stand
still meanwhile, and all else goes on: reqs come, are aborted and report.
"""

from scheduler_proc.batch import StepResult
from scheduler_proc.core.ahead import but_ahead
from scheduler_proc.core.apply_result import Commits
from scheduler_proc.core.jumps import Jumps
from scheduler_proc.core.planner import StepPlanner
from scheduler_proc.core.prompts import is_in_flight
from scheduler_proc.core.requests.request import Req
from scheduler_proc.core.state import SchedulerConfig, SchedulerState
from scheduler_proc.core.steps.plan import Plan
from scheduler_proc.core.steps.split import part_of
from scheduler_proc.core.steps.step import Step
from scheduler_proc.core.steps.step_target import StepCosts
from scheduler_proc.fairness.credits import LEAST_WEIGHT, MOST_WEIGHT
from scheduler_proc.grammar.base import Grammar
from scheduler_proc.grammar.retokenise import Retokeniser
from srt.ring.crash_file import Name
from srt.wire.errors import BAD_REQUEST, INTERNAL, TIMED_OUT_EARLY, ErrorInfo
from srt.wire.media import MediaItem
from srt.wire.messages import Finish
from srt.wire.pause import NO_PAUSE, Pause
from srt.wire.ring_messages import Abort, TokenBatch, TokenizedReq


class Scheduler:
    """Owns the queue, the tree, the pools and the reqs of one executor: its `state`, which others
    only read."""

    def __init__(self, config: SchedulerConfig, incarnation: int = 0) -> None:
        self.config = config
        self.incarnation = incarnation
        self.state = SchedulerState(config)
        self._planner = StepPlanner(config, self.state)
        self._jumps = Jumps(self.state)
        self._commits = Commits(self.state, self._jumps)
        self._next_handle = 0
        self._latest_s = 0.0  # arrival of a new req

    # ---- requests in ---------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        state = self.state
        return bool(state.running or state.live.ahead) or len(state.waiting) > 0

    @property
    def places(self) -> int:
        """Reqs that can run at once: as many as did when memory last stopped the next one."""
        running = but_ahead(self.state.running.values())
        return self.state.admissions.places(len(running), self.config.max_running_requests)

    def add(
        self,
        wire: TokenizedReq,
        now: float,
        grammar: Grammar | None = None,
        retokeniser: Retokeniser | None = None,
    ) -> None:
        """Queue a request, with the grammar that its output must follow, and the retokeniser for
        its jumps (None: there are none). If an earlier scheduler had it, it goes on after what that
        has reported, which the grammar has read."""
        arrival_s = wire.arrival_s or now
        if wire.reported is None:  # the queue takes these in order
            arrival_s = self._latest_s = max(arrival_s, self._latest_s)
        vocab_size = self.config.vocab_size
        handle, facts = self._next_handle, self.config.media
        req = Req.of(handle, wire, arrival_s, vocab_size, grammar, retokeniser, facts)
        self._next_handle += 1
        self.state.counters.requests += 1
        if req.key in self.state.live.by_name:
            self.state.outputs.end(req, Finish("abort", error=ErrorInfo(INTERNAL, "duplicate rid")))
            return
        if (refusal := _refusal_of_weight(req) or self._refusal_of_media(req)) is not None:
            self.state.outputs.end(req, Finish("abort", error=ErrorInfo(BAD_REQUEST, refusal)))
            self.state.trials.forget(req.key)
            return
        self.state.add(req)
        reported = wire.reported
        if reported is not None and reported.aborted:
            self.state.finish(req, Finish("abort"))
        elif reported is not None and req.tokens.num_outputs > 0:
            self._resume(req, reported.forced)
        elif req.remaining > 0:
            self._jumps.take(req)

    def _resume(self, req: Req, was_forced: bool) -> None:
        """Go on after the last of the req's outputs, as `_accept` or a jump would have."""
        req.drop_free_grammar()
        ends = self._commits.ends(req, int(req.tokens.outputs[-1]))
        # A jump was looked for once: looking again could divide its text in another way.
        if not (ends or was_forced) and req.grammar is not None:
            self._jumps.take(req)

    def _refusal_of_media(self, req: Req) -> str | None:
        """Why what it shows can never be computed."""
        if not req.spans:
            return None
        config, longest = self.config, max(span.item.length for span in req.spans.spans)
        if config.media is None:
            return "this model sees no images"
        if not self.state.media.fits(req.spans):
            cache_mb = config.media_cache_bytes / 1e6
            return f"the media's embeddings need more than --media-cache-mb {cache_mb:.0f}"
        if req.spans.are_whole and longest > config.chunked_prefill_size:
            size = config.chunked_prefill_size
            return f"an image of {longest} tokens does not fit --chunked-prefill-size {size}"
        return None

    def suspect(self, names: list[Name]) -> None:
        """These requests may have ended an earlier scheduler: try each alone when it comes."""
        self.state.trials.suspect(names)

    def abort(self, message: Abort, error: ErrorInfo | None = None) -> None:
        """End a request, as failed if there is an error; one that has ended already is ignored."""
        req = self.state.live.by_name.get((message.client, message.rid))
        if req is not None:
            self.state.finish(req, Finish("abort", error=error))

    def reset(self, incarnation: int) -> None:
        """A new incarnation without a new process: forget every request and all unsent output;
        cached prefixes stay."""
        for req in list(self.state.live.by_name.values()):
            self.state.finish(req, Finish("abort"))
        self.state.outputs.clear()
        self.state.trials.clear()
        self.state.media.reset()
        self.state.live.pause = NO_PAUSE
        self.incarnation = incarnation

    def pause(self, pause: Pause) -> None:
        """Plan no step while there is a pause. In the mode "retract" each running req goes back to
        the queue as soon as no step has a row of it."""
        self.state.live.pause = pause

    def flush_cache(self) -> bool:
        """Forget what is kept of texts, the tree above all, if nothing is running, nor waiting
        outside of a pause; whether it did."""
        if self.state.running or (self.has_work and not self.state.live.pause.is_on):
            return False
        cache = self.state.memory.cache
        for req in self.state.waiting:
            self.state.media.release(req.handle)
        cache.evict(cache.evictable_size)
        self.state.speculation.flush()
        self.state.media.clear()
        return True

    # ---- media ---------------------------------------------------------------------------------

    def media_came(self, digest: bytes, num_parts: int) -> bool:
        """The pixels of an item are there; False if they are not needed any more."""
        return self.state.media.came(digest, num_parts)

    def next_media(self) -> tuple[MediaItem, int, float] | None:
        """The part of an item that is to be encoded now, before the step that is planned next, and
        how many seconds of it; one at a time, and none in a pause."""
        part = None if self.state.live.pause.is_on else self.state.media.next_part()
        return None if part is None else (*part, self._planner.take_slice())

    def media_users(self, digest: bytes) -> list[Name]:
        """The requests that need an item."""
        users = self.state.live.with_handles(self.state.media.users_of(digest))
        return [req.key for req in users]

    def media_encoded(self, digest: bytes, is_done: bool = True) -> None:
        """The part that `next_media` has given is encoded, or if it is not done, some of it."""
        if self.state.media.encoded(digest, is_done):
            self.state.admissions.memory_changed()  # a req may be admitted now

    def media_failed(self, digest: bytes, error: ErrorInfo) -> None:
        """An item cannot be had, or encoded: the reqs that need it end."""
        for req in self.state.live.with_handles(set(self.state.media.failed(digest))):
            self.state.finish(req, Finish("abort", error=error))
        self.state.admissions.memory_changed()

    def take_output(self, now: float) -> TokenBatch | None:
        """What has to be sent to the detokenizer since the last call. First tokens and ends count
        as of now."""
        return self.state.outputs.take(self.incarnation, now)

    # ---- a step --------------------------------------------------------------------------------

    @property
    def costs(self) -> StepCosts | None:
        """What steps have cost recently; None: not known yet."""
        return self._planner.costs

    def measure(self, costs: StepCosts) -> None:
        """Set what steps have cost recently; until the first call that is unknown."""
        self._planner.costs = self.state.speculation.costs = costs

    def prepare(self, now: float) -> Plan | None:
        """Plan a step, or None if nothing can run now. Takes memory; reads no token values."""
        self._expire(now)
        if self.state.live.pause.is_on:
            self._rest()
            return None
        return self._planner.plan(now)

    def _rest(self) -> None:
        """In a pause that asks for it, retract what no step that is not committed has a row of."""
        if self.state.live.pause.mode == "retract":
            for req in list(self.state.running.values()):
                if not is_in_flight(req):
                    self.state.retract(req, for_memory=False)

    def seal_ahead(self, plan: Plan, running: Step) -> None:
        """Lay out what of the plan needs no result of the step that runs, while it runs. What is
        laid out takes part in the step even if its req ends meanwhile."""
        plan.drop_ended()
        plan.seal_ahead(running)

    def start_early(self, plan: Plan, result: StepResult) -> Step | None:
        """The step of a plan with deferred reqs, given the result of the step that ran when it was
        prepared, if its tokens alone decide all of it. It may be started at once; nothing is taken
        over yet: `commit_deferred` and `seal`, which returns the same step, come before any other
        call. None: they have to come first."""
        return None if plan.guess is None else plan.guess.started(result)

    def seal(self, plan: Plan) -> Step | None:
        """The plan's step; None if it turns out that nothing is left to run.

        A plan with deferred reqs needs these reqs' rows of the step that ran when it was prepared
        to be committed.
        """
        plan.drop_ended()
        self._planner.plan_deferred(plan)
        if not plan.rows and plan.ahead is None:
            return None
        self.state.counters.forward_steps += 1
        self.state.admissions.ratio.decay()
        step = plan.seal()
        self.state.counters.steps[step.kind] += 1
        return step

    def commit_deferred(self, plan: Plan, step: Step, result: StepResult) -> None:
        """Commit those rows of a step that the plan waits for."""
        self._commits.take(plan.awaited, step, result)
        for row in plan.awaited:
            row.is_committed = True

    def commit(self, step: Step, result: StepResult) -> None:
        """Take over a step's result: advance the reqs, insert prompts, finish what is done."""
        self._commits.take([row for row in step.rows if not row.is_committed], step, result)
        self.state.speculation.ran(step)

    def cancel(self, undone: Step | Plan) -> None:
        """Undo a sealed step that will not be run, or what is laid out of a plan that will not be
        sealed: its reqs go back to the queue as they were."""
        step = undone.ahead if isinstance(undone, Plan) else undone
        for row in [] if step is None else step.rows:
            if row.req.finish is None:
                row.req.tokens.seq_len -= row.num_samples > 0
                if row.req.pending is not None and row.num_logprobs > 0:
                    row.req.pending.start = row.logprob_start
            if row.is_current:
                self.state.retract(row.req)

    def split(self, step: Step) -> list[Step]:
        """Two halves of a step that could not be computed, to be run one after the other in its
        place, before any other step. Rows whose reqs have ended are in neither."""
        live = [number for number, row in enumerate(step.rows) if row.req.finish is None]
        half = (len(live) + 1) // 2
        return [part_of(step, numbers) for numbers in (live[:half], live[half:]) if numbers]

    def fail(self, step: Step, message: str) -> None:
        """The step could not be computed: its reqs end with an error, the others go on."""
        error = ErrorInfo(INTERNAL, message)
        for row in step.rows:
            if row.req.finish is None:
                self.state.finish(row.req, Finish("abort", error=error))

    def _expire(self, now: float) -> None:
        """End the reqs whose time is over: with what they have, or as failed if that is nothing."""
        for req in self.state.live.late(now):
            has_output = req.tokens.known_len > req.tokens.prompt_len
            error = None if has_output else TIMED_OUT_EARLY
            self.state.finish(req, Finish("timeout" if has_output else "abort", error=error))


def _refusal_of_weight(req: Req) -> str | None:
    """Why its caller's weight is none."""
    weight = req.wish.weight
    if LEAST_WEIGHT <= weight <= MOST_WEIGHT:
        return None
    return f"the weight {weight:g} is not from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}"
