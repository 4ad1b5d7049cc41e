"""What a server counts about the tokens that it guesses, from its /metrics."""

from msgspec import Struct

from srt.benchmark.load import LoadGenerator


class Guesses(Struct):
    """What a server counted: rows that verified, tokens guessed and accepted, and of ours forward
    passes, and seconds in them and between them."""

    verified: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0
    steps: float = 0.0
    forward_s: float = 0.0
    exposed_s: float = 0.0

    @property
    def accept_length(self) -> float | None:
        """Output tokens per row that verified."""
        return 1.0 + self.accepted / self.verified if self.verified else None

    def since(self, before: "Guesses") -> "Guesses":
        """What has been counted after `before`."""
        pairs = ((getattr(self, name), getattr(before, name)) for name in self.__struct_fields__)
        return Guesses(*(new - old for new, old in pairs))

    def __add__(self, other: "Guesses") -> "Guesses":
        pairs = ((getattr(self, name), getattr(other, name)) for name in self.__struct_fields__)
        return Guesses(*(one + more for one, more in pairs))


# By name; those of other servers have the server's in front.
COUNTERS = {
    "srt_verified_drafts_total": "verified",
    "srt_drafted_tokens_total": "drafted",
    "srt_accepted_draft_tokens_total": "accepted",
    "srt_forward_steps_total": "steps",
    "srt_forward_seconds_total": "forward_s",
    "srt_exposed_seconds_total": "exposed_s",
    "spec_decode_num_drafts_total": "verified",
    "spec_decode_num_draft_tokens_total": "drafted",
    "spec_decode_num_accepted_tokens_total": "accepted",
}


def guesses_of(metrics: str) -> Guesses:
    """Read from the text of /metrics; labels are added up, and what is not there is 0."""
    found = Guesses()
    for line in metrics.splitlines():
        sample, _, value = line.rpartition(" ")
        name = sample.partition("{")[0].rpartition(":")[2]
        if line[:1] != "#" and (field := COUNTERS.get(name)) is not None:
            setattr(found, field, getattr(found, field) + float(value))
    return found


async def counted_by(load: LoadGenerator) -> Guesses:
    """What a server has counted so far; nothing if it does not say."""
    reply = await load.http.get("/metrics")
    return guesses_of(reply.text if reply.is_success else "")
