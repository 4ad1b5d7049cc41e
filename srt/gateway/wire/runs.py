"""The JSON of /ui/runs, by which programs report what they do."""

from typing import Annotated

from msgspec import Meta, Struct, field

Name = Annotated[str, Meta(max_length=300)]
Text = Annotated[str, Meta(max_length=4000)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Seconds = Annotated[float, Meta(ge=0, le=1e10)]
MAX_STEPS = 500  # of a report
MAX_REPORTS = 100
MAX_AFTER = 64


class RunStep(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A call of a program: where it stands (`id`), its times in seconds since the run's start (`t1`
    null while it runs), the calls that it had to wait for, its tokens, and the ends of its texts.
    """

    id: Name
    kind: Name
    name: Name
    t0: Seconds
    t1: Seconds | None = None
    after: Annotated[list[Name], Meta(max_length=MAX_AFTER)] = field(default_factory=list)
    prompt_tokens: Count = 0
    cached_tokens: Count = 0
    completion_tokens: Count = 0
    prompt: Text = ""
    text: Text = ""
    error: Text | None = None
    from_log: bool = False
    is_shared: bool = False


class RunReport(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Steps of the run with the id `run`, that began at `started` and ended at `ended` (Unix
    times)."""

    run: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    name: Name
    started: Seconds
    ended: Seconds | None = None
    steps: Annotated[list[RunStep], Meta(max_length=MAX_STEPS)] = field(default_factory=list)


class RunReports(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The body of /ui/runs."""

    runs: Annotated[list[RunReport], Meta(max_length=MAX_REPORTS)]


class RunTaken(Struct, frozen=True, kw_only=True):
    """The answer of /ui/runs: how many steps were read."""

    steps: int
