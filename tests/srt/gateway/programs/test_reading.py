"""Programs as JSON: what the HTTP client writes, the gateway reads as the same program."""

import json
import random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from srt.client.http.programs import _got, _var, program_body
from srt.client.programs import Got
from srt.gateway.programs.answers import got_json, var_json
from srt.gateway.programs.reading import program_of
from srt.gateway.wire.programs import SubmitFrame
from srt.wire.errors import CONFLICT, ErrorInfo
from srt.wire.messages import DraftCounts, Finish
from srt.wire.programs import Cause, OutputMeta, Perf, VarInfo
from tests.e2e import random_programs
from tests.srt.programs.test_random_programs import random_program


@given(st.integers(0, 2**32))
async def test_the_same_program(seed: int) -> None:
    rng = random.Random(seed)
    for program in (random_program(rng, [], 0), random_programs.random_program(rng)):
        body = json.loads(json.dumps({"session": "s", **program_body(program)}, default=list))
        frame = msgspec.convert(body, SubmitFrame)
        assert await program_of(frame) == program


def test_the_same_variables() -> None:
    error = ErrorInfo(CONFLICT, "it was cancelled")
    drafts = DraftCounts(2, 5, 1)
    meta = OutputMeta(Finish("stop", "x"), 3, 2, 1, 1, 1, 0.5, 2, [0.25, 0.75], drafts)
    full = VarInfo(
        id="var-1",
        session="s",
        name="n",
        state="failed",
        text="t",
        error=error,
        causes=[Cause("var-2", "m", "cancelled", error), Cause("var-3", "k", "ready", None)],
        producer="call",
        consumers=["var-4"],
        meta=meta,
        perf=Perf("ttft", 5.0),
    )
    for var in (full, VarInfo("var-1", "s", "n", "pending")):
        assert _var(msgspec.to_builtins(var_json(var))) == var
    got = Got([full], True)
    assert _got(msgspec.to_builtins(got_json(got))) == got
