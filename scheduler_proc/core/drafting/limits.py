"""What a req may sample at each place along a draft, and how far the draft may go.

A draft ends before the first token that cannot be drawn there, and before the first after which the
req would not simply sample on: where it would end, where text would be appended (a jump), where its
grammar would be dropped. Such a token may still be drawn; what would be drafted after it is void.
The req and its grammar stay where they are.
"""

from collections.abc import Sequence

import numpy as np

from scheduler_proc.core.requests.request import Req
from scheduler_proc.grammar.base import Grammar, GrammarError
from scheduler_proc.grammar.retokenise import WINDOW_TOKENS
from scheduler_proc.sampling.token_rules import Limits, NoTokenLeft


def limits_along(req: Req, draft: Sequence[int]) -> tuple[list[int], tuple[Limits, ...]]:
    """Of a draft for what comes after the known tokens, the first k that may be drawn and sampled
    on from, and k+1 limits: what may be sampled after the first 0, 1, ... k of them; no limits at
    all where anything may be.

    The newest token must be known. Raises GrammarError and NoTokenLeft where `Req.limits` does;
    further on they end the draft.
    """
    draft = list(draft[: max(0, req.remaining - 1)])
    if not req.is_limited:
        return _until_stop(req, draft), ()
    limits = [req.limits()]
    walk, next_len = _Walk(req, draft), req.tokens.known_len + 1
    try:
        for place, token in enumerate(draft):
            if not _allows(limits[-1], token) or req.is_stop(token, next_len + place):
                break
            following = walk.after(place, token)
            if following is None:
                break
            limits.append(following)
    except (GrammarError, NoTokenLeft):
        pass
    return draft[: len(limits) - 1], tuple(limits)


def _until_stop(req: Req, draft: list[int]) -> list[int]:
    """The tokens before the first that would end the req."""
    if not req.wish.stop_ids.isdisjoint(draft):
        for place, token in enumerate(draft):
            if req.is_stop(token, req.tokens.known_len + place + 1):
                return draft[:place]
    return draft


def _allows(limits: Limits, token: int) -> bool:
    """Whether `token` may be sampled."""
    mask, suppressed, _ = limits
    if mask is not None:
        return bool(mask[token >> 5] >> (token & 31) & 1)
    return suppressed is None or token not in suppressed


class _Walk:
    """Follows the draft of a limited req, token by token."""

    def __init__(self, req: Req, draft: list[int]) -> None:
        self._req = req
        self._grammar: Grammar | None = None  # once a token was followed, if the req has one
        outputs = req.tokens.outputs
        # What only bad words and the like look at, a copy of all outputs.
        if req.rules.forbid_something:
            outputs = np.concatenate((outputs, np.array(draft, np.int32)))
        self._outputs = outputs
        self._tail = [*req.tokens.outputs[-WINDOW_TOKENS:].tolist(), *draft]
        self._num_before = len(self._tail) - len(draft)

    def after(self, place: int, token: int) -> Limits | None:
        """What may be sampled after the draft's `token` at `place`, those before it followed; None
        if the req would not go on sampling there. Raises GrammarError and NoTokenLeft."""
        req, grammar = self._req, self._grammar
        num_outputs = req.tokens.num_outputs + place + 1
        if req.grammar is not None:
            if grammar is None:
                grammar = self._grammar = req.grammar.for_drafts()
            grammar.accept([token])
            if grammar.is_terminated() or grammar.is_free() or self._jumps(grammar, num_outputs):
                return None
        limits = req.limits_after(self._outputs[:num_outputs], num_outputs, grammar)
        return None if grammar is not None and self._must_end(grammar, limits) else limits

    def _jumps(self, grammar: Grammar, num_outputs: int) -> bool:
        """Whether a jump would be taken; `grammar` may go along."""
        req, retokeniser = self._req, self._req.jumping
        if retokeniser is None or not grammar.forced_bytes():
            return False
        place = num_outputs - req.tokens.num_outputs
        stop = self._num_before + place
        tail = self._tail[max(0, stop - WINDOW_TOKENS) : stop]
        is_whole = len(tail) == num_outputs
        most = req.remaining - place
        return retokeniser.jump(tail, is_whole, grammar, most, req.closes) is not None

    def _must_end(self, grammar: Grammar, limits: Limits) -> bool:
        """Whether only EOS may follow, which ends the req at once."""
        req, retokeniser = self._req, self._req.jumping
        if retokeniser is None or retokeniser.eos_id is None or req.pending is not None:
            return False
        if limits.mask is None or not grammar.is_accepting():
            return False
        return not retokeniser.allows_text(limits.mask)
