"""What a req may sample after a row of a step, which is found when the row is planned. Part of the
scheduler core."""

from scheduler_proc.core.drafting.limits import limits_along
from scheduler_proc.core.drafting.speculation import Proposal
from scheduler_proc.core.jumps import fail_grammar
from scheduler_proc.core.requests.request import Req
from scheduler_proc.core.state import SchedulerState
from scheduler_proc.core.steps.step import ANYTHING, Follows
from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.sampling.token_rules import NoTokenLeft
from srt.wire.errors import BAD_REQUEST


def follows(
    state: SchedulerState, req: Req, length: int, proposal: Proposal | None
) -> Follows | None:
    """What the req may sample if `length` more of its tokens are extended, and as much of the
    proposal as may come. None if nothing may, which has ended the req."""
    if length < req.extend_left or req.remaining == 0:
        return ANYTHING
    try:
        if proposal is None:
            return Follows([], (req.limits(),)) if req.is_limited else ANYTHING
        return Follows(*limits_along(req, proposal.tokens), proposal.origin)
    except GrammarError as error:
        fail_grammar(state, req, error)
    except NoTokenLeft as error:
        state.abort(req, BAD_REQUEST, str(error))
    return None
