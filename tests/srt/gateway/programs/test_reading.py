"""Programs as JSON: what the HTTP client writes, the gateway reads as the same program."""

import json
import random

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple, replace

from srt.client.http.programs import _told, _var, program_body
from srt.client.programs import Got
from srt.gateway.programs.reading import program_of
from srt.gateway.programs.routes import got_json, var_json
from srt.gateway.wire.programs import SubmitFrame
from srt.wire.answer_meta import AnswerMeta
from srt.wire.errors import CONFLICT, ErrorInfo
from srt.wire.messages import Finish
from srt.wire.programs import Cause, OutputMeta, Perf, VarInfo
from tests.e2e import random_programs
from tests.srt.programs.test_random_programs import random_program


@given(st.integers(0, 2**32))
async def test_the_same_program(seed: int) -> None:
    rng = random.Random(seed)
    for program in (random_program(rng, [], 0), random_programs.random_program(rng)):
        perfs = [rng.choice([None, Perf("latency"), Perf("ttft", 5.0)]) for _ in program.calls]
        calls = [replace(call, perf=perf) for call, perf in zip(program.calls, perfs, strict=True)]
        program = replace(program, calls=calls)
        body = json.loads(json.dumps({"session": "s", **program_body(program)}, default=list))
        frame = msgspec.convert(body, SubmitFrame)
        assert await program_of(frame) == program


def test_the_same_variables() -> None:
    error = ErrorInfo(CONFLICT, "it was cancelled")
    facts = AnswerMeta(3, 2, 1, verified=2, drafted=5, accepted=1, forward_passes=1)
    meta = OutputMeta(
        *astuple(facts),
        finish=Finish("stop", "x"),
        latency_s=0.5,
        attempts=2,
        probabilities=[0.25, 0.75],
    )
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
    told = _told("1", msgspec.to_builtins(got_json(got)))
    assert Got(told.vars, told.done) == got
