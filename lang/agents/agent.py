"""`agent`: rounds in which the model calls one of its tools, or answers.

Each round is a gen under a constraint, each call an effect of the state: it has its number in the
order of the source, also where fewer calls are made than may be, and a replay does not make it
again. The results are turns of the role `tool`.
"""

import asyncio
from functools import partial
from typing import Any, cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from lang.agents.calling import Outcome, outcome_of
from lang.agents.tools import Forms, Functions, Tool, tools_of
from lang.backends.sampling import Sampling
from lang.generation.gens import Gen, Reader
from lang.run import marks
from lang.run.ir import Expr, Slots, Writer
from lang.run.stream import Stream
from lang.run.variables import Slot
from lang.state.effects import Called, Effect, names_of, program_in

_REFUSED = (
    *("n", "regex", "json_schema", "ebnf", "stop", "stop_regex", "stop_token_ids"),
    *("return_logprob", "logprob_start_len", "top_logprobs_num", "return_text_in_logprobs"),
    *("token_healing", "timeout_s"),
)
_MAY = ((True, True), (True, False), (False, True))  # call, and answer


def agent(
    name: str | None,
    tools: Functions,
    *,
    max_calls: int = 4,
    min_calls: int = 0,
    timeout_s: float | None = 10.0,
    type: Any = str,
    thoughts: bool = False,
    max_tokens: int | None = None,
    temperature: float | None = None,
    **others: Any,
) -> Expr:
    """Let the model call `tools`, Python functions, up to `max_calls` times, until it answers, as
    it may after `min_calls` of them: the variable `name` is its answer, of `type`.

    It stands in the assistant's role, or outside roles and opens that role itself. In each round
    the model writes `{"tool": ..., "arguments": ...}` or `{"answer": ...}`, with `thoughts` after
    a `"thought"`; results follow in the role `tool`. A tool has `timeout_s` seconds; what it
    raises, a time-out, and a result that JSON cannot have are told to the model as texts that begin
    with "error: ". `s.get_meta_info(name)["calls"]` are the calls. `max_tokens` is that of each
    round; `others` are more fields of `lang.backends.sampling.Sampling`.

    Raises TypeError for tools without annotations, or with *args; ValueError for two tools of one
    name and for limits that leave nothing to do.
    """
    given = {"max_tokens": max_tokens, "temperature": temperature, **others}
    for key in others:
        if key not in Sampling.__struct_fields__:
            raise TypeError(f"agent() has no argument {key!r}")
        if key in _REFUSED:
            raise ValueError(f"agent: {key} cannot be given: its rounds are JSON, one text each")
    marks.refuse(name=name, **given)
    _check_count("max_calls", max_calls, 1)
    _check_count("min_calls", min_calls, 0)
    if min_calls > max_calls:
        raise ValueError(f"min_calls={min_calls} is more than max_calls={max_calls}")
    if timeout_s is not None and not timeout_s > 0:
        raise ValueError(f"timeout_s must be above 0, or None, not {timeout_s!r}")
    found = tools_of(tools)
    forms = Forms(found, type, thoughts)
    return Agent(name, found, forms, (min_calls, max_calls), timeout_s, given)


def _check_count(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a number, {least} or more, not {value!r}")


class _Written(Struct, forbid_unknown_fields=True):
    """What the model wrote in a round."""

    thought: str = ""
    tool: str | UnsetType = UNSET
    arguments: Raw | UnsetType = UNSET
    answer: Raw | UnsetType = UNSET


class _Call(Struct, frozen=True):
    tool: Tool
    arguments: Raw
    thought: str


class _Answer(Struct, frozen=True):
    text: str
    value: Any


class Agent(Writer):
    """Performs the rounds: from the least to the most of `counts` have calls. `given` are sampling
    arguments of them all."""

    def __init__(
        self,
        name: str | None,
        tools: dict[str, Tool],
        forms: Forms,
        counts: tuple[int, int],
        timeout_s: float | None,
        given: dict[str, Any],
    ) -> None:
        self.name = name
        self._tools = tools
        self._read_answer = forms.read_answer
        self._min_calls, self._max_calls = counts
        self._timeout_s = timeout_s
        self._gens = {may: self._gen(given, forms, *may) for may in _MAY}

    def _gen(self, given: dict[str, Any], forms: Forms, may_call: bool, may_answer: bool) -> Gen:
        asked = {**given, "n": 1, "json_schema": forms.schema(may_call, may_answer)}
        reader = Reader(convert=partial(self._read, may_call, may_answer))
        return Gen(self.name, asked, reader, asked="agent", has_value=True)

    @property
    def num_steps(self) -> int:
        """Two for each call, and one for the last answer."""
        return 2 * self._max_calls + 1

    async def perform(self, stream: Stream, slots: Slots) -> None:
        (slot,) = slots
        first, opens = stream.position.at, not stream.transcript.role
        calls: list[dict[str, Any]] = []
        await self._begin(stream)
        written = await self._ask(stream, slot, calls)
        while isinstance(written, _Call):
            stream.position.at += 1
            _append(stream, await self._call(stream, written, calls))
            stream.position.at = first + 2 * len(calls)
            written = await self._ask(stream, slot, calls)
        if opens:
            stream.end_role("assistant")
        slot.text = written.text
        slot.settle(written.value)

    async def _begin(self, stream: Stream) -> None:
        """Open the assistant's turn if it is not open."""
        template = await stream.program.find_template()
        template.prefix("tool")  # refuses a template without that role before anything is asked
        role = stream.transcript.role
        if role not in ("", "assistant"):
            raise ValueError(f"an agent stands in the assistant's role, not in {role!r}")
        if not role:
            stream.begin_role("assistant")

    async def _ask(
        self, stream: Stream, slot: Slot, calls: list[dict[str, Any]]
    ) -> "_Call | _Answer":
        """A round, after those with `calls`."""
        gen = self._gens[len(calls) < self._max_calls, len(calls) >= self._min_calls]
        round_slot = Slot(slot.name)
        try:
            await gen.write(stream, round_slot, quiet=False)
        finally:
            slot.meta = {**(round_slot.meta or {}), "calls": calls}
        written: _Call | _Answer = round_slot.done.result()
        return written

    def _read(self, may_call: bool, may_answer: bool, text: str) -> "_Call | _Answer":
        """What a round's text means. Raises ValueError for one that the constraint has not made."""
        written = msgspec.json.decode(text, type=_Written)
        if isinstance(written.answer, Raw) and written.tool is UNSET:
            if not may_answer:
                raise ValueError(f"an answer before the {self._min_calls} calls that must be made")
            answer = bytes(written.answer)
            value = self._read_answer(answer.decode())
            return _Answer(value if isinstance(value, str) else answer.decode(), value)
        if not isinstance(written.arguments, Raw) or written.tool is UNSET:
            raise ValueError("neither a call of a tool nor an answer")
        if not may_call:
            raise ValueError(f"another call than the {self._max_calls} that may be made")
        if written.tool not in self._tools:
            raise ValueError(f"there is no tool {written.tool!r}")
        return _Call(self._tools[written.tool], written.arguments.copy(), written.thought)

    async def _call(self, stream: Stream, call: _Call, calls: list[dict[str, Any]]) -> Outcome:
        """Make a call, unless the log has its outcome."""
        arguments = msgspec.json.decode(call.arguments)
        module, name = names_of(call.tool.function)
        called = Called(module, name, (), arguments, Outcome)
        effect = Effect(stream, called, stream.position.at, stream.position.source)
        known, logged = effect.from_log()
        outcome: Outcome = logged if known else await self._make(stream, call, effect)
        found: dict[str, Any] = {"tool": call.tool.name, "arguments": arguments}
        if call.thought:
            found["thought"] = call.thought
        if outcome.error is None:
            found["result"] = outcome.value
        else:
            found["error"] = outcome.error
        calls.append(found | {"took_s": effect.took_s})
        return outcome

    async def _make(self, stream: Stream, call: _Call, effect: Effect) -> Outcome:
        try:
            program = program_in(stream, stream.position.at)
            outcome = await outcome_of(call.tool, call.arguments, self._timeout_s, program)
        except BaseException as error:
            effect.failed(error)
            raise
        return await _recorded(stream, effect, outcome)


async def _recorded(stream: Stream, effect: Effect, outcome: Outcome) -> Outcome:
    """The outcome, once it is in the log: on the disk, which other programs need not wait for."""
    if stream.program.place.journal is None:
        return cast(Outcome, effect.done(outcome))
    writing = asyncio.ensure_future(asyncio.to_thread(effect.done, outcome))
    try:
        return cast(Outcome, await asyncio.shield(writing))
    finally:
        if not writing.done():  # cancelled: nothing is written to the log of a run that is over
            await asyncio.wait({writing})


def _append(stream: Stream, outcome: Outcome) -> None:
    """End the assistant's turn, add the result's, and begin another."""
    stream.end_role("assistant")
    stream.begin_role("tool")
    stream.transcript.text += outcome.text
    stream.end_role("tool")
    stream.begin_role("assistant")
    stream.changed()
