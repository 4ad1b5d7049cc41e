"""What the scheduler core has done since its start, in numbers."""

from dataclasses import dataclass, field

from scheduler_proc.core.steps.step import STEP_KINDS
from srt.wire.messages import DRAFT_SOURCES


def _by_source() -> dict[str, int]:
    return dict.fromkeys(DRAFT_SOURCES, 0)


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
    steps: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STEP_KINDS, 0))
    closed: int = 0  # constrained outputs that were steered to their end
    resumed: int = 0  # requests that an earlier scheduler had
    recomputed_tokens: int = 0  # of these, when they were admitted: all that was not cached
    verified_drafts: int = 0  # rows with guessed tokens; these by their source, and the right ones
    drafted_tokens: dict[str, int] = field(default_factory=_by_source)
    accepted_draft_tokens: dict[str, int] = field(default_factory=_by_source)

    def verified(self, source: str, drafted: int, accepted: int) -> None:
        """A row has verified `drafted` guessed tokens, of which `accepted` were right."""
        self.verified_drafts += 1
        for counts, more in (
            (self.drafted_tokens, drafted),
            (self.accepted_draft_tokens, accepted),
        ):
            counts[source] = counts.get(source, 0) + more
