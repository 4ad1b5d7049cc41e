"""What a call costs in the graph of programs: CPU time in this process, with a model that answers
at once."""

import time

from srt.programs.core import Core
from srt.wire.program_messages import GetVars, OpenSession, SubmitProgram, VarsTold
from srt.wire.programs import Call, Input, Join, Output, OutputMeta, Program, Text, Transform

CALLS = 1000
PIECES = 4  # of each output


def report() -> None:
    """Print the time of a submission and of a run, for each call of a chain and of a fan."""
    for name in ("chain", "fan"):
        submit_us, run_us = _measure(_program(name == "chain"))
        print(f"{name} of {CALLS}: {submit_us:.0f} us a call to submit, {run_us:.0f} us to run")


def _program(is_chain: bool) -> Program:
    calls = []
    for i in range(CALLS):
        before = [Input(f"o{i - 1}")] if is_chain and i else []
        calls.append(Call([Text("So far: "), *before, Text(" On:"), Output(f"o{i}")]))
    everything = Join([f"o{i}" for i in range(CALLS)])
    return Program(calls=calls, transforms=[Transform("all", everything)])


def _measure(program: Program) -> tuple[float, float]:
    """Microseconds of CPU time for each call."""
    core = Core(512, 256)
    core.handle(b"", OpenSession("1"), 0.0)
    (session,) = core._sessions
    began = time.process_time()
    core.handle(b"", SubmitProgram("2", session, program), 0.0)
    submitted = time.process_time()
    (sink,) = [var.id for var in core._vars.values() if var.name == "all"]
    core.handle(b"", GetVars("3", [sink], stream=True), 0.0)
    _run(core)
    ended = time.process_time()
    told = core.answers[-1][1]
    assert isinstance(told, VarsTold) and told.done and told.vars[0].state == "ready"
    return 1e6 * (submitted - began) / CALLS, 1e6 * (ended - submitted) / CALLS


def _run(core: Core) -> None:
    while True:
        while core.graph.has_work:
            core.graph.step()
        work = core.next_start()
        if work is None:
            return
        for var in work.outputs:
            core.graph.runs(var)
            for _ in range(PIECES):
                core.graph.grow(var, "some text of it")
            core.graph.finish(var, OutputMeta())
        core.has_run(work)
        core.gets.tell(0.0)
