"""The two ways in which the work of a program is done: by a client that makes its calls itself, and
by the server."""

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx2
from msgspec.structs import replace

from bench.programs.workloads import Workload
from srt.client.programs import Got, ProgramSession
from srt.programs.transforms import apply, inputs_of
from srt.wire.programs import Call, Input, Output, Perf, Segment, Text, Transform
from srt.wire.sampling import SamplingParams

TIMEOUT_S = 600.0


class Caller:
    """A client that makes the calls of a program itself, over /generate. `fields` are added to the
    body of each; with an `app` they have hints, but no groups."""

    def __init__(self, http: httpx2.AsyncClient, app: str = "", **fields: Any) -> None:
        self._http, self._app, self._fields = http, app, fields

    async def run(self, workload: Workload) -> dict[str, str]:
        """The texts of the sinks."""
        loop = asyncio.get_running_loop()
        program = workload.program
        outputs = [_output_of(call).var for call in program.calls]
        depths = depths_of(workload)
        texts: dict[str, asyncio.Future[str]] = {
            name: loop.create_future() for name in (*outputs, *(t.var for t in program.transforms))
        }
        async with asyncio.TaskGroup() as group:
            for call in program.calls:
                group.create_task(self._call(call, texts, depths))
            for transform in program.transforms:
                group.create_task(_joined(transform, texts))
        return {name: texts[name].result() for name in workload.sinks}

    async def _call(
        self, call: Call, texts: dict[str, "asyncio.Future[str]"], depths: dict[str, int]
    ) -> None:
        output, prompt, spans = _output_of(call), "", []
        for segment in call.segments[:-1]:
            piece = await _text_of(segment, texts)
            if segment.literal and piece:
                spans.append((len(prompt), len(prompt) + len(piece)))
            prompt += piece
        fields = dict(self._fields)
        if self._app:
            fields["hints"] = {"app": self._app, "depth": depths[output.var]}
        answer = await generated(self._http, prompt, output.sampling, spans, **fields)
        texts[output.var].set_result(answer)


def depths_of(workload: Workload) -> dict[str, int]:
    """How many calls follow in a row when a variable has been made, by name."""
    program = workload.program
    made_of = {transform.var: [*inputs_of(transform.op)] for transform in program.transforms}
    for call in program.calls:
        inputs = [each.var for each in call.segments if isinstance(each, Input)]
        made_of[_output_of(call).var] = inputs
    transforms = {transform.var for transform in program.transforms}
    depths: dict[str, int] = {}
    todo = [(name, 0) for name in workload.sinks]
    while todo:
        name, depth = todo.pop()
        if depth > depths.get(name, -1):
            depths[name] = depth
            before = depth + (name not in transforms)
            todo += [(each, before) for each in made_of.get(name, ())]
    return depths


def _output_of(call: Call) -> Output:
    output = call.segments[-1]
    assert isinstance(output, Output)
    return output


async def _text_of(segment: Segment, texts: dict[str, "asyncio.Future[str]"]) -> str:
    return segment.text if isinstance(segment, Text) else await texts[segment.var]


async def _joined(transform: Transform, texts: dict[str, "asyncio.Future[str]"]) -> None:
    values = {name: await texts[name] for name in inputs_of(transform.op)}
    texts[transform.var].set_result(apply(transform.op, values))


def body_of(
    prompt: str, asked: SamplingParams, spans: Sequence[tuple[int, int]] = (), **fields: Any
) -> dict[str, Any]:
    """The body of a request for what `workloads.sampling` gives, or the same with a seed."""
    names = "max_new_tokens", "temperature", "ignore_eos", "seed"
    params = {name: getattr(asked, name) for name in names if getattr(asked, name) is not None}
    return {"text": prompt, "sampling_params": params, "literal_spans": [*spans], **fields}


async def generated(
    http: httpx2.AsyncClient,
    prompt: str,
    asked: SamplingParams,
    spans: Sequence[tuple[int, int]] = (),
    **fields: Any,
) -> str:
    """The text of one request."""
    answer = await http.post("/generate", json=body_of(prompt, asked, spans, **fields))
    answer.raise_for_status()
    text: str = answer.json()["text"]
    return text


async def made(session: ProgramSession, workload: Workload, perf: Perf | None = None) -> Got:
    """What a program makes: its sinks, which are all ready. With a `perf`, which is then that of
    all its calls, nothing runs before the get."""
    program = workload.program if perf is None else replace(workload.program, eager=False)
    ids = await session.submit(program)
    got = await session.get_all([ids[name] for name in workload.sinks], perf=perf)
    assert got.done and all(var.state == "ready" for var in got.vars), got
    return got


async def submitted(session: ProgramSession, workload: Workload) -> dict[str, str]:
    """The texts of the sinks, by a program."""
    return {var.name: var.text for var in (await made(session, workload)).vars}


def client_at(url: str) -> httpx2.AsyncClient:
    """A client with as many connections as are needed at once."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx2.AsyncClient(base_url=url, timeout=TIMEOUT_S, limits=limits)
