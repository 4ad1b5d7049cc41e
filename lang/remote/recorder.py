"""Records a function in place of running it: its states become calls of a program.

A state's text is a list of segments. Its call ends where something else needs the text so far: at a
fork, and before the text of another variable. The next call begins with the same segments, the
outputs as inputs, so that prompts are token for token those of a run.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from lang import loop
from lang.backends.runtime import params_of
from lang.backends.sampling import Sampling
from lang.errors import UnsupportedError
from lang.generation.choices import TokenLengthNormalized
from lang.generation.constrained import ReturnGen
from lang.generation.gens import Gen, sampling_of
from lang.generation.selects import Select
from lang.logs.address import Step
from lang.remote.session import ADVICE, ProgramVar, Reading, Session
from lang.run import marks
from lang.run.ir import Constant, ExprList, Media, Part, RoleBegin, RoleEnd
from lang.run.program import Program
from lang.run.stream import Stream
from lang.state.forks import CONCATE_AND_APPEND, RecordedForking
from lang.state.unread import trace_error
from srt.wire.programs import Call, Guard, Input, Output, Perf, Segment, Text
from srt.wire.sampling import SamplingParams

_MUST_HAVE_TEXT = "a program on a server begins with text: there is none before this call"


class Recording:
    """One submission: what its states share."""

    def __init__(
        self,
        session: Session,
        defaults: Sampling,
        name: str,
        when: Guard | None,
        retries: int,
        perf: Perf | None = None,
    ) -> None:
        self.session, self.name, self.perf = session, name, perf
        self.program = Program(session.backend, defaults)
        self._when, self._retries = when, retries
        self.states: list[RecordedState] = []

    def add(self, segments: Sequence[Segment]) -> None:
        """A call is complete."""
        call = Call(
            [*segments], when=self._when, retries=self._retries, name=self.name, perf=self.perf
        )
        self.session.add_call(call)


class RecordedState(RecordedForking):
    """Stands for a state while its function is recorded."""

    advice = ADVICE

    def __init__(
        self,
        recording: Recording,
        parent: "RecordedState | None" = None,
        step: Step | None = None,
    ) -> None:
        self._recording = recording
        recording.states.append(self)
        self._stream = Stream(recording.program, lambda: None, itertools.count())
        self._segments: list[Segment] = []
        self._has_output = False  # in a call that has not ended
        self.variables: dict[str, Any] = {}
        if parent is not None and step is not None:
            self._stream.begin_as(parent._stream, step)
            self._segments = [*parent._segments]
            self.variables = dict(parent.variables)
        self._num_inherited = len(self._segments)
        self._inherited = dict(self.variables)

    # ---- extending -----------------------------------------------------------------------------

    def _extend(self, part: Part) -> None:
        match part:
            case str() if not marks.has_mark(part):
                self._text(part)
            case str():
                self._extend(ExprList([part]))
            case ExprList():
                for each in part.parts:
                    self._extend(each)
            case Constant():
                self._text(part.text)
            case ProgramVar():
                self._input(part)
            case RoleBegin() | RoleEnd():
                self._role_mark(part)
            case ReturnGen():
                self._extend(part.in_program(self._recording.program))
            case Gen():
                self._gen(part)
            case Select():
                self._select(part)
            case _:
                what = part.image.kind if isinstance(part, Media) else type(part).__name__.lower()
                raise UnsupportedError(what, "programs on a server have no such call: run this one")

    def _text(self, text: str) -> None:
        if text:
            self._segments.append(Text(text, literal=self._is_literal))

    def _input(self, var: ProgramVar) -> None:
        self._recording.session.check(var)
        self.cut()
        self._segments.append(Input(var.name, literal=self._is_literal))

    def _role_mark(self, part: RoleBegin | RoleEnd) -> None:
        """The template's marks around a turn are the only text that may have control tokens."""
        stream = self._stream
        if stream.program.template is None:
            loop.call(stream.program.find_template())
        start = len(stream.transcript.text)
        if isinstance(part, RoleBegin):
            stream.begin_role(part.role)
        else:
            stream.end_role(part.role)
        if mark := stream.transcript.text[start:]:
            self._segments.append(Text(mark))

    @property
    def _is_literal(self) -> bool:
        return bool(self._stream.transcript.role)

    def _gen(self, gen: Gen) -> None:
        self._stream.position.at = self._stream.position.step()
        sampling = sampling_of(self._stream, gen)
        for name, is_asked in (
            ("n", sampling.n != 1),
            ("return_logprob", sampling.return_logprob),
            ("timeout_s", sampling.timeout_s is not None),
        ):
            if is_asked:
                raise UnsupportedError(name, "outputs of programs on a server do not have it")
        params = SamplingParams(**params_of(sampling))
        self._output(gen.name, lambda var: Output(var, params, literal=self._is_literal), gen)

    def _select(self, select: Select) -> None:
        if not isinstance(select.method, TokenLengthNormalized):
            reason = "a server decides by the mean log-probability of a token"
            raise UnsupportedError("choices_method", reason)
        if select.given.get("temperature"):
            raise ValueError("select is exact: its temperature must be 0")
        self._stream.position.step()
        choices = [*select.choices]
        self._output(
            select.name,
            lambda var: Output(var, choices=choices, literal=self._is_literal),
            None if select.values is None else select,
        )

    def _output(
        self, name: str | None, make: Callable[[str], Output], gen: Gen | Select | None = None
    ) -> None:
        if not self._segments:
            raise UnsupportedError("gen", _MUST_HAVE_TEXT)
        convert = None if gen is None else gen.value_of_text
        recording = self._recording
        full_name = f"{recording.name}.{name or 'gen'}"
        var = recording.session.declare(full_name, Reading(convert, recording.perf))
        self._segments.append(make(var.name))
        self._has_output = True
        if name is not None:
            self.variables[name] = var

    def cut(self) -> None:
        """End the call, if there is one; from here on its outputs are inputs."""
        if self._has_output:
            self._has_output = False
            last = max(i for i, each in enumerate(self._segments) if isinstance(each, Output))
            self._recording.add(self._segments[: last + 1])
            self._segments = [
                Input(each.var, each.literal) if isinstance(each, Output) else each
                for each in self._segments
            ]

    # ---- variables -----------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        """The variable, which stands for its text."""
        if name not in self.variables:
            raise KeyError(name)
        return self.variables[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.variables[name] = value

    def var(self, name: str) -> Any:
        """`s[name]`."""
        return self[name]

    def var_scope(self, name: str) -> Any:
        """Refused: see UnsupportedError."""
        raise UnsupportedError("var_scope", "programs on a server have none: run this one")

    # ---- forks ---------------------------------------------------------------------------------

    def _forked(self, size: int) -> list["RecordedState"]:
        self.cut()
        number = self._stream.position.step()
        steps = [Step("fork", number, i) for i in range(size)]
        return [RecordedState(self._recording, self, step) for step in steps]

    def _join(self, forks: Sequence["RecordedState"], mode: str) -> None:
        self._stream.position.step()
        for each in forks:
            each.cut()
        if mode == CONCATE_AND_APPEND:
            for each in forks:
                self._append_all_of(each)
            return
        new = [
            name
            for each in forks
            for name, var in each.variables.items()
            if each._inherited.get(name) is not var
        ]
        for name in dict.fromkeys(new):
            self[name] = [each.variables.get(name) for each in forks]

    def _append_all_of(self, child: "RecordedState") -> None:
        """Append all that a fork has added."""
        self.cut()
        self._segments += child._segments[child._num_inherited :]
        added = child._stream.transcript
        self._stream.transcript.messages += added.messages[added.fork_turns[-1] :]


def record(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    recording: Recording,
) -> dict[str, Any]:
    """Submit a function: the variables that it writes, by name."""
    state = RecordedState(recording)
    returned = function(state, *args, **kwargs)
    if returned is not None and returned is not state:
        what = "a submitted function returns nothing: its variables are what it makes"
        raise trace_error(what, ADVICE)
    for each in recording.states:  # forks need not be joined
        each.cut()
    return state.variables
