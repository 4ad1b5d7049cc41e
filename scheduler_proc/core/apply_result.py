"""Takes over what a step has computed: the tokens that its rows have sampled, as far as they hold,
their log-probabilities, and the KV of prompts.

Part of the scheduler core. A row with guessed tokens has sampled after each of them: its tokens
count up to the first that differs from the guess, which the model has chosen after right ones.
"""

import numpy as np

from scheduler_proc.batch import StepResult
from scheduler_proc.core.jumps import Jumps, fail_grammar, may_be_closed
from scheduler_proc.core.requests.request import Pending, Req, Residency
from scheduler_proc.core.state import SchedulerState
from scheduler_proc.core.steps.step import Row, Step
from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.sampling.details import StepDetails, joined
from srt.wire.messages import Finish, LogprobDetail


class Commits:
    """Those of one core."""

    def __init__(self, state: SchedulerState, jumps: Jumps) -> None:
        self._state, self._jumps = state, jumps
        self._outputs = state.outputs

    def take(self, rows: list[Row], step: Step, result: StepResult) -> None:
        """Advance the reqs of these rows of a step, insert prompts, finish what is done."""
        details = StepDetails(step.batch, result)
        next_ids, logprobs = result.next_ids.tolist(), result.logprobs.tolist()
        for row in rows:
            req, held = row.req, row.residency
            if req.finish is not None:
                continue
            if held is req.residency:
                held.computed_len = row.start + row.extend_len - len(row.draft)
                if row.draft:
                    self._state.memory.drop_draft(held)
            if row.num_logprobs > 0:
                stop = row.logprobs_at + row.num_logprobs
                self._tell_logprobs(row, result.prompt_logprobs[row.logprobs_at : stop], details)
            if _is_plain(row):
                self.accept(req, next_ids[row.sample], logprobs[row.sample])
            elif row.num_samples > 0:
                self._accept_row(row, next_ids, logprobs, details)
            elif req.tokens.max_len == req.tokens.prompt_len == row.residency.computed_len:
                self._state.finish(req, Finish("length"))
            elif req.pending and req.pending.ending and row.logprob_stop == req.pending.stop:
                self._state.finish(req, req.pending.ending)
            if not row.is_decode:
                self._commit_prefill(row)
        self._state.trials.passed(rows)

    def _accept_row(
        self, row: Row, next_ids: list[int], logprobs: list[float], details: StepDetails
    ) -> None:
        """Append what a row has sampled: up to the first token that differs from what was guessed.
        The later ones were sampled after a wrong token."""
        req, num_right = row.req, 0
        if row.draft:
            req.told.count("verified")
            req.told.count("drafted", len(row.draft))
        for number, guessed in enumerate([*row.draft, None]):
            token, sample = next_ids[row.sample + number], row.sample + number
            is_right = token == guessed
            req.num_steered += bool(row.limits) and row.limits[number].is_steered
            num_right += is_right
            detail = None
            if req.wish.wants_details:
                detail = details.read(row.sample_detail + number, 1)
            held = row.residency if is_right and row.is_current else None
            goes_on = self.accept(req, token, logprobs[sample], detail, held, is_right)
            if not (is_right and goes_on):
                break
        if row.origin is not None:
            req.told.count("accepted", num_right)
            self._state.counters.verified(row.origin.source, len(row.draft), num_right)
            num_tried = number + (guessed is not None)
            self._state.speculation.verified(row, num_tried, num_right)

    def accept(
        self,
        req: Req,
        token: int,
        logprob: float,
        detail: LogprobDetail | None = None,
        guessed: Residency | None = None,
        was_guessed: bool = False,
    ) -> bool:
        """Append a sampled token and see whether it ends the req. In `guessed` its KV is there
        already. Whether what was sampled for the case that it comes next still holds."""
        had_grammar = req.grammar is not None
        if req.grammar is not None:
            try:
                rest = req.grammar.instead_of(token) if req.closes else None
                if rest is not None and may_be_closed(req, len(rest)):
                    self._jumps.close(req, rest)
                    return False
                req.grammar.accept([token])
            except GrammarError as error:
                fail_grammar(self._state, req, error)
                return False
            req.drop_free_grammar()
        req.tokens.append(token)
        if guessed is not None:
            self._state.memory.keep_guessed(guessed)
        self._state.count_outputs(req, 1)
        self._outputs.token(req, token, logprob, detail, was_guessed=was_guessed)
        if self.ends(req, token):
            return False
        if req.grammar is None:
            return not had_grammar
        return not self._jumps.take(req)

    def ends(self, req: Req, token: int) -> bool:
        """Whether `token`, its last output, has ended the req."""
        if req.is_stop(token, req.tokens.known_len):
            self._state.finish(req, Finish("stop", matched=token))
        elif req.grammar is not None and req.grammar.is_terminated():
            # Without an EOS it is text that has ended the output, and must not be hidden.
            is_text = req.grammar.is_accepting()
            self._state.finish(req, Finish("stop", matched=None if is_text else token))
        elif req.tokens.known_len == req.tokens.max_len:
            self._state.finish(req, req.finish_at_limit)
        return req.finish is not None

    def _commit_prefill(self, row: Row) -> None:
        """Put what a chunk has computed into the tree, for others to share."""
        self._state.counters.computed_prompt_tokens += row.num_known
        row.req.account.computed += row.num_known
        if row.is_current and row.req.finish is None:
            self._state.memory.insert_computed(row.req)
            if row.req.spans and row.residency.computed_len >= row.req.spans.spans[-1].stop:
                self._state.media.release(row.req.handle)

    def _tell_logprobs(self, row: Row, logprobs: np.ndarray, details: StepDetails) -> None:
        """Log-probabilities of the known tokens that the row scores: of the prompt, and of a
        jump, which is sent together with them once the whole of it is scored."""
        req, start, first = row.req, row.logprob_start, row.known_detail
        in_prompt = min(max(0, req.tokens.prompt_len - start), len(logprobs))
        if in_prompt > 0:
            detail = details.read(first, in_prompt)
            self._outputs.prompt_logprobs(req, start, logprobs[:in_prompt], detail)
            first += in_prompt if detail is not None else 0
        if len(logprobs) > in_prompt:
            pending = req.pending
            assert pending is not None
            pending.scored += logprobs[in_prompt:].tolist()
            detail = details.read(first, len(logprobs) - in_prompt)
            pending.details += [] if detail is None else [detail]
            if row.logprob_stop == pending.stop:
                self._tell_jump(req, pending)

    def _tell_jump(self, req: Req, pending: Pending) -> None:
        """Send a jump. A part of it would tell another core nothing of the rest, nor be as long as
        the text that it replaces."""
        tokens = req.tokens.known[pending.stop - len(pending.scored) : pending.stop].tolist()
        detail = joined(pending.details)
        self._outputs.jump(
            req, *pending.jump, tokens, pending.scored, detail, closes=pending.closes
        )
        pending.jump, pending.scored, pending.details = (0, 0), [], []


def _is_plain(row: Row) -> bool:
    """Whether it has sampled one token, of which nothing else is told or noted."""
    is_single = row.num_samples == 1 and row.origin is None and not row.limits
    return is_single and not row.req.wish.wants_details
