"""From a program as it is submitted to variables and work: everything that can be wrong with it is
found before anything of it is taken. Errors name the fields of the JSON form."""

import secrets
from collections.abc import Iterator, Sequence

from srt.programs.limits import (
    MAX_CHOICES,
    MAX_NAME_CHARS,
    MAX_PARTS,
    MAX_PATTERNS,
    MAX_REFERENCES,
    MAX_RETRIES,
    MAX_SEGMENTS,
    MAX_TEXT_BYTES,
    MAX_VARS,
)
from srt.programs.parts import (
    OBJECT_BYTES,
    CallWork,
    Session,
    TransformWork,
    Variable,
    Work,
    outputs_of,
    references_of,
    segments_of,
    text_bytes,
)
from srt.programs.transforms import check_guard, check_op, pattern_of
from srt.wire.errors import RequestError
from srt.wire.messages import ChatOptions
from srt.wire.programs import (
    VAR_PREFIX,
    Call,
    Input,
    Output,
    Program,
    Segment,
    Text,
    Transform,
)
from srt.wire.sampling import SamplingParams

MEMORY_FACTOR = 12
_ANY_VOCAB = 2**31
_DEFAULT = SamplingParams()


class Submission:
    """A program that has passed all checks against `session`; `take` makes it part of that.

    `size` is about its memory, without the texts of variables. `num_bytes` is its length, encoded:
    what is no text, parameters for instance, takes many times as much in memory.
    """

    def __init__(self, session: Session, program: Program, num_bytes: int) -> None:
        self._session, self._program = session, program
        _check_counts(session, program)
        _check_patterns(program)
        self._new: dict[str, Variable] = {}
        for name, text in program.vars.items():
            self._declare(name, f"vars[{name!r}]" if len(name) < MAX_NAME_CHARS else "vars")
            _check_text(text or "", f"vars[{name!r}]")
        for i, call in enumerate(program.calls):
            _check_call(call, f"calls[{i}]")
            for at, segment in _placed(call, f"calls[{i}]"):
                if isinstance(segment, Output):
                    self._declare(segment.var, f"{at}.output")
        for i, transform in enumerate(program.transforms):
            _check_transform(transform, f"transforms[{i}]")
            self._declare(transform.var, f"transforms[{i}].output")
        self.works = [*self._calls(), *self._transforms()]
        _check_cycles(self.works)
        texts = [text for call in program.calls for text in _texts_of(call)]
        given = sum(len(text.encode()) for text in program.vars.values() if text)
        others = num_bytes - given - sum(len(text.encode()) for text in texts)
        objects = OBJECT_BYTES * (1 + len(self._new) + len(self.works))
        self.size = objects + MEMORY_FACTOR * others + sum(map(text_bytes, texts))

    def take(self) -> dict[str, str]:
        """Add it to the session, for which room has been taken: the variables' ids, by name."""
        self._session.vars |= {var.id: var for var in self._new.values()}
        self._session.works += self.works
        for work in self.works:
            for var in dict.fromkeys(work.inputs.values()):
                var.consumers.append(work)
                work.missing += not var.has_ended
        return {name: var.id for name, var in self._new.items()}

    @property
    def given(self) -> Iterator[tuple[Variable, str]]:
        """The variables that have been set with it, and their texts."""
        for name, text in self._program.vars.items():
            if text is not None:
                yield self._new[name], text

    @property
    def made(self) -> list[Variable]:
        """The variables that the program makes."""
        return [var for work in self.works for var in work.outputs]

    def _declare(self, name: str, at: str) -> None:
        if not 0 < len(name) <= MAX_NAME_CHARS:
            raise RequestError(f": a name has 1 to {MAX_NAME_CHARS} characters", at=at)
        if name.startswith(VAR_PREFIX):
            raise RequestError(f": a name must not begin with {VAR_PREFIX!r}", at=at)
        if name in self._new:
            raise RequestError(f": {name!r} is set twice", at=at)
        var_id = VAR_PREFIX + secrets.token_hex(16)
        self._new[name] = Variable(var_id, name, self._session)

    def _calls(self) -> Iterator[Work]:
        for i, call in enumerate(self._program.calls):
            at = f"calls[{i}]"
            for place, segment in _placed(call, at):
                if isinstance(segment, Input):
                    self._found(segment.var, f"{place}.input")
            work = CallWork(
                self._session,
                [self._new[output.var] for output in outputs_of(call)],
                self._inputs(call, f"{at}.when.input"),
                call.when,
                max(1, *(len(output.choices) for output in outputs_of(call))),
                call=call,
            )
            yield self._linked(work)

    def _transforms(self) -> Iterator[Work]:
        for i, transform in enumerate(self._program.transforms):
            work = TransformWork(
                self._session,
                [self._new[transform.var]],
                self._inputs(transform, f"transforms[{i}].inputs"),
                transform.when,
                transform=transform,
            )
            yield self._linked(work)

    def _linked(self, work: Work) -> Work:
        for var in work.outputs:
            var.work = work
        return work

    def _inputs(self, part: Call | Transform, at: str) -> dict[str, Variable]:
        return {name: self._found(name, at) for name in references_of(part)}

    def _found(self, name: str, at: str) -> Variable:
        var = self._new.get(name) or self._session.vars.get(name)
        if var is None:
            shown = name if len(name) <= MAX_NAME_CHARS else name[:MAX_NAME_CHARS] + "..."
            reason = f": {shown!r} is neither a name in this program nor the id of a variable"
            raise RequestError(f"{reason} of its session", at=at)
        return var


def _texts_of(call: Call) -> Iterator[str]:
    """Its long texts."""
    for segment in segments_of(call):
        if isinstance(segment, Text):
            yield segment.text
        elif isinstance(segment, Output):
            yield from segment.choices
            constraint = segment.sampling.constraint
            if constraint is not None:
                yield constraint.source


def _check_counts(session: Session, program: Program) -> None:
    if not (program.vars or program.calls or program.transforms):
        raise RequestError(" must not be empty, if there are no vars and no transforms", at="calls")
    lists = {"vars": program.vars, "calls": program.calls, "transforms": program.transforms}
    if sum(map(len, lists.values())) > MAX_PARTS:
        at = max(lists, key=lambda name: len(lists[name]))
        reason = f": vars, calls and transforms are at most {MAX_PARTS} together"
        raise RequestError(f"{reason}; more can be submitted after them", at=at)
    for i, call in enumerate(program.calls):
        if len(segments_of(call)) + len(call.turns) > MAX_SEGMENTS:
            raise RequestError(f": a call has at most {MAX_SEGMENTS} segments", at=f"calls[{i}]")
    parts: list[Call | Transform] = [*program.calls, *program.transforms]
    if sum(len(references_of(part)) for part in parts) > MAX_REFERENCES:
        reason = f": a program refers to variables at most {MAX_REFERENCES} times"
        raise RequestError(reason, at="transforms")
    num_outputs = sum(len(outputs_of(call)) for call in program.calls)
    total = len(program.vars) + num_outputs + len(program.transforms) + len(session.vars)
    if total > MAX_VARS:
        raise RequestError(f": it has at most {MAX_VARS} variables", at="session")


def _check_patterns(program: Program) -> None:
    guards = [*(call.when for call in program.calls), *(t.when for t in program.transforms)]
    patterns = {pattern_of(part) for part in (*guards, *(t.op for t in program.transforms))}
    if len(patterns - {None}) > MAX_PATTERNS:
        reason = f": a program has at most {MAX_PATTERNS} different patterns"
        raise RequestError(reason, at="transforms")


def _placed(call: Call, at: str) -> Iterator[tuple[str, Segment]]:
    """The segments of a call, with their places."""
    for i, segment in enumerate(call.segments):
        yield f"{at}.segments[{i}]", segment
    for i, turn in enumerate(call.turns):
        for j, segment in enumerate(turn.content):
            yield f"{at}.messages[{i}].content[{j}]", segment


def _check_call(call: Call, at: str) -> None:
    if bool(call.segments) == bool(call.turns):
        raise RequestError(": exactly one of segments and messages must be given", at=at)
    if call.segments and call.chat != ChatOptions():
        raise RequestError(" goes with messages only", at=f"{at}.chat_template_kwargs")
    if call.chat.continue_final or not call.chat.add_generation_prompt:
        reason = ": an output's place says whether it continues a message"
        raise RequestError(reason, at=f"{at}.messages")
    if not 0 <= call.retries <= MAX_RETRIES:
        raise RequestError(f" must be between 0 and {MAX_RETRIES}", at=f"{at}.retries")
    if len(call.name) > MAX_NAME_CHARS:
        raise RequestError(f" must have at most {MAX_NAME_CHARS} characters", at=f"{at}.name")
    if call.when is not None:
        check_guard(call.when, f"{at}.when")
    if call.perf is not None:
        call.perf.check(f"{at}.perf")
    if not outputs_of(call):
        raise RequestError(": a call has at least one output", at=at)
    for i, turn in enumerate(call.turns):
        _check_turn(turn.role, turn.content, f"{at}.messages[{i}]")
    for place, segment in _placed(call, at):
        if isinstance(segment, Text):
            _check_text(segment.text, f"{place}.text")
        elif isinstance(segment, Output):
            _check_output(segment, place)


def _check_turn(role: str, content: Sequence[Segment], at: str) -> None:
    for i, segment in enumerate(content):
        if isinstance(segment, Output) and role != "assistant":
            raise RequestError(f" is not for a message of {role!r}", at=f"{at}.content[{i}].output")
        if not isinstance(segment, Text) and not segment.literal:
            reason = " false is not for messages: their texts are always literal"
            raise RequestError(reason, at=f"{at}.content[{i}].literal")


def _check_output(output: Output, at: str) -> None:
    _check_text(output.default or "", f"{at}.default")
    sampling = output.sampling
    if not output.choices:
        try:
            sampling.check(_ANY_VOCAB)
            if sampling.n != 1:
                raise RequestError(" must be 1: give each text an output of its own", at="n")
        except RequestError as error:
            fields: tuple[str, ...] = _DEFAULT.__struct_fields__
            raise error.renamed(
                {name: f"{at}.sampling_params.{name}" for name in fields}
            ) from error
        return
    if sampling != _DEFAULT:
        raise RequestError(" has no meaning beside choices", at=f"{at}.sampling_params")
    if len(output.choices) > MAX_CHOICES or not all(output.choices):
        reason = f" takes at most {MAX_CHOICES} texts, none of them empty"
        raise RequestError(reason, at=f"{at}.choices")
    for i, choice in enumerate(output.choices):
        _check_text(choice, f"{at}.choices[{i}]")


def _check_transform(transform: Transform, at: str) -> None:
    if transform.when is not None:
        check_guard(transform.when, f"{at}.when")
    check_op(transform.op, at)
    _check_text(transform.default or "", f"{at}.default")


def _check_text(text: str, at: str) -> None:
    if len(text) > MAX_TEXT_BYTES or text_bytes(text) > MAX_TEXT_BYTES < len(text.encode()):
        raise RequestError(f" must have at most {MAX_TEXT_BYTES} bytes", at=at)


def _check_cycles(works: Sequence[Work]) -> None:
    """Kahn's algorithm (1962) on the new works: earlier ones cannot need them."""
    needed_by: dict[Work, list[Work]] = {work: [] for work in works}
    counts = dict.fromkeys(works, 0)
    for work in works:
        for need in {var.work for var in work.inputs.values()}:
            if need is not None and need in needed_by:
                needed_by[need].append(work)
                counts[work] += 1
    free = [work for work, count in counts.items() if count == 0]
    for work in free:
        for other in needed_by[work]:
            counts[other] -= 1
            if counts[other] == 0:
                free.append(other)
    if len(free) < len(works):
        name = next(work for work, count in counts.items() if count > 0).outputs[0].name
        raise RequestError(f"the variable {name!r} is made of itself", param="calls")
