"""Jump-forward within the scheduler core: appends what a grammar forces, and ends reqs that can do
nothing but end.

Called after each accepted token of a req with a grammar. The tokens are the req's `retokeniser`'s;
see `scheduler_proc.grammar.retokenise`.
"""

import math

from scheduler_proc.core.requests.request import Req
from scheduler_proc.core.state import SchedulerState
from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.retokenise import WINDOW_TOKENS, Jump, Retokeniser
from srt.wire.errors import INTERNAL
from srt.wire.messages import Finish


class Jumps:
    """The jumps of the reqs of one core."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state

    def take(self, req: Req) -> bool:
        """Append what the grammar forces, and end the req if it forces the end; whether either has
        happened."""
        retokeniser, jump = req.jumping, None
        if req.grammar is None or retokeniser is None:
            return False
        try:
            tail = req.tokens.outputs[-WINDOW_TOKENS:].tolist()
            is_whole = len(tail) == req.tokens.num_outputs
            jump = retokeniser.jump(tail, is_whole, req.grammar, req.remaining, req.closes)
            if jump is not None:
                self._append(req, jump)
                req.drop_free_grammar()
            if req.finish is None and req.pending is None:
                self._end_if_forced(req, retokeniser)
        except GrammarError as error:
            fail_grammar(self._state, req, error)
        return jump is not None or req.finish is not None

    def close(self, req: Req, rest: list[int]) -> None:
        """Append the `rest` of an output in the place of a sampled token, and end the req. Raises
        GrammarError if the grammar does not take it."""
        assert req.grammar is not None
        req.grammar.accept(rest)
        if not req.grammar.is_accepting():
            raise GrammarError("what was to complete it does not")
        req.num_steered += max(1, len(rest))
        if not rest:
            self._state.finish(req, Finish("stop"))
            return
        self._append(req, Jump(drop=0, tokens=rest, skip=0, num_old=0), Finish("stop"))

    def _append(self, req: Req, jump: Jump, ending: Finish | None = None) -> None:
        """Put a jump at the end of the outputs, along which the grammar has gone; `ending` ends the
        req if nothing else does."""
        first = req.tokens.known_len - jump.drop
        tokens, finish = jump.tokens, None
        for i, token in enumerate(jump.tokens):
            # Text that has been sent before cannot end the req: it would be taken back.
            if i >= jump.num_old and req.is_stop(token, first + i + 1):
                tokens, finish = jump.tokens[: i + 1], Finish("stop", matched=token)
                break
        req.replace_tail(jump.drop, tokens)
        self._count(req, max(0, len(tokens) - jump.drop))  # totals never shrink
        assert req.grammar is not None
        if finish is None and req.grammar.is_terminated():
            finish = Finish("stop")
        if finish is None and req.remaining == 0:
            finish = req.finish_at_limit
        finish = finish or ending
        pending = req.pending
        if pending is not None:  # sent when their log-probabilities are known
            pending.jump = (jump.drop, jump.skip)
            pending.start = pending.start if pending.is_unplanned else first
            pending.stop, pending.ending = req.tokens.known_len, finish
            pending.closes = ending is not None
            self._state.memory.truncate(req, first - 1)
            return
        self._state.memory.truncate(req, first)
        unknown, closes = [math.nan] * len(tokens), ending is not None
        self._state.outputs.jump(req, jump.drop, jump.skip, tokens, unknown, closes=closes)
        if finish is not None:
            self._state.finish(req, finish)

    def _end_if_forced(self, req: Req, retokeniser: Retokeniser) -> None:
        """Where only EOS may follow, no step is needed to sample it, unless it is to be scored."""
        eos = retokeniser.eos_id
        if eos is None or req.grammar is None:
            return
        if not retokeniser.only_eos(req.grammar):
            return
        req.replace_tail(0, [eos])
        self._count(req, 1)
        self._state.outputs.jump(req, 0, 0, [eos], [math.nan])
        self._state.finish(req, Finish("stop", matched=eos))

    def _count(self, req: Req, num_tokens: int) -> None:
        self._state.count_outputs(req, num_tokens)
        self._state.counters.jump_forward_tokens += num_tokens


def may_be_closed(req: Req, num_tokens: int) -> bool:
    """Whether `num_tokens` tokens that no step has sampled may end it: not where they could be
    ruled out, or be too few; nor where their log-probabilities would need a picture at the end of
    the prompt again."""
    if req.rules.forbid_something or (req.retokeniser is not None and req.jumping is None):
        return False
    return req.tokens.num_outputs + num_tokens >= req.wish.sampling.min_new_tokens


def fail_grammar(state: SchedulerState, req: Req, error: GrammarError) -> None:
    """A grammar that cannot go on ends its own req, and nothing else."""
    state.abort(req, INTERNAL, f"the constraint cannot be followed any further: {error}")
