"""The front's answer to a request that it admits, and what then goes to the scheduler.

A request for several samples, like a score, is several requests from here on: admitted together,
each with a rid and a place of its own.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from srt.callers.key_lines import CallerLimits
from srt.wire.messages import Admitted, Refused, sample_rid
from srt.wire.packing import num_packed
from srt.wire.ring_messages import TokenizedReq
from srt.wire.sampling import sub_seed


class Admission(NamedTuple):
    """What the client gets, and what the scheduler gets: one request per sample or score. All go to
    one replica, to that which the client has chosen, if it has."""

    admitted: Admitted
    parts: list[TokenizedReq]
    replica: int | None = None

    def until(self, deadline_s: float) -> "Admission":
        """The same, with this deadline; 0 is none."""
        if not deadline_s:
            return self
        parts = [replace(part, deadline_s=deadline_s) for part in self.parts]
        return self._replace(parts=parts)

    def of_caller(self, caller: str, limits: CallerLimits) -> "Admission":
        """The same, charged to this caller. Where it has a limit on what a request may generate,
        that holds for one that may fill all the room too."""
        return self._replace(parts=[_of_caller(part, caller, limits) for part in self.parts])


def _of_caller(part: TokenizedReq, caller: str, limits: CallerLimits) -> TokenizedReq:
    sampling, most = part.sampling, limits.max_tokens
    if most and (sampling.max_new_tokens or 0) > most:
        sampling = replace(sampling, max_new_tokens=most)
    return replace(part, caller=caller, weight=limits.share, sampling=sampling)


Answer = tuple[bytes, Admission | Refused]  # with the client that gets it


def samples_of(req: TokenizedReq) -> list[TokenizedReq]:
    """The requests of all samples of `req`: only itself, if it wants one sample.

    Only the first one computes the prompt's log-probabilities, which are the same for all.
    """
    sampling = req.sampling
    if sampling.n == 1:
        return [req]
    seed, later = sampling.seed, req.scoring and replace(req.scoring, start=-1)
    return [
        replace(
            req,
            rid=sample_rid(req.rid, i),
            sampling=replace(sampling, n=1, seed=None if seed is None else sub_seed(seed, i)),
            scoring=req.scoring if i == 0 else later,
        )
        for i in range(sampling.n)
    ]


def without(admission: Admission, aborted: Sequence[int]) -> Admission:
    """The same without the samples of these numbers, which have already ended."""
    if not aborted:
        return admission
    parts = [part for i, part in enumerate(admission.parts) if i not in aborted]
    admitted = replace(admission.admitted, aborted=list(aborted))
    return admission._replace(admitted=admitted, parts=parts)


def prompt_tokens(part: TokenizedReq) -> int:
    """The number of tokens in its prompt, as the client gave it."""
    return num_packed(part.input_ids) + num_packed(part.healed_ids)


def charged_tokens(parts: Iterable[TokenizedReq]) -> int:
    """The prompt tokens that count for the rate of a request's caller: samples share a prompt."""
    prompts = {part.input_ids: part for part in parts}
    return sum(map(prompt_tokens, prompts.values()))
