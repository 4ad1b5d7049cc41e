"""gen and separate_reasoning: let the model write, into the text and into variables."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from lang.backends.base import Completion
from lang.backends.sampling import CONSTRAINTS, Sampling
from lang.errors import AnswerError, LangError, UnsupportedError
from lang.generation.calls import answered, closing, defaults_of, meta_of, note, recorded
from lang.generation.checked import TextCheck, has_own_check, text_check
from lang.generation.speculation import Speculator
from lang.generation.together import Together
from lang.run.ir import Constant, Expr, ExprList, Slots, Writer, num_bytes_of, num_steps_of
from lang.run.stream import Stream
from lang.run.variables import Slot
from lang.values.predicates import Predicate, missed
from lang.values.structured import Text, converted, typed
from srt.answers.reasoning import ReasoningSplitter
from srt.patterns.groups import GroupPattern
from srt.patterns.stop_search import PatternSearch
from srt.wire.constraint import Constraint
from srt.wire.sampling import sub_seed

MAX_SHOWN_CHARS = 1000  # of an answer in an error's message
_OF_LOGPROBS = ("logprob_start_len", "return_text_in_logprobs", "top_logprobs_num")


class Reader(NamedTuple):
    """How a gen's text becomes its value: by `convert`, or as a text with a value of `dtype`, or
    with what its `named_groups` or the captured rules of a grammar matched; in any case, the
    `predicate` must hold for it."""

    dtype: type | None = None
    convert: Callable[[str], Any] | None = None
    named_groups: GroupPattern | None = None
    predicate: Predicate | None = None
    captures: tuple[str, ...] = ()  # names in `grammar` that the back end finds
    grammar: str = ""

    @property
    def is_quick(self) -> bool:
        """Whether reading takes no search in the text."""
        return self.predicate is None and self.named_groups is None and not self.captures

    def value(self, text: str, captures: Sequence[dict[str, Any]] | None = None) -> Any:
        """The value; `captures` are what the back end found. Raises ValueError for a text that has
        none."""
        if self.predicate is not None and (miss := missed(self.predicate, text)) is not None:
            raise ValueError(f"it does not hold that {miss}")
        if self.convert is not None:
            return self.convert(text)
        if self.dtype is not None:
            return Text(text, converted(self.dtype, text))
        if self.captures:
            if captures is None:
                captures = self._captures_in(text)
            last = {each["name"]: each["text"] for each in captures}
            return Text(text, text, dict.fromkeys(self.captures) | last)
        if self.named_groups is not None:
            return self._with_groups(text, self.named_groups)
        return text

    def _captures_in(self, text: str) -> list[dict[str, Any]]:
        # Late: a parser, which needs more than the language alone.
        from srt.answers.captures import captures_of

        found = captures_of(Constraint("ebnf", self.grammar), text)
        return [msgspec.to_builtins(each) for each in found or []]

    def _with_groups(self, text: str, pattern: GroupPattern) -> Text:
        """The text with what the named groups of its pattern matched."""
        spans = pattern.whole_spans(text)
        if spans is None:
            return Text(text, text)
        groups: dict[str, str | None] = dict.fromkeys(sorted(pattern.names))
        return Text(text, text, groups | {name: text[a:b] for name, a, b in spans})


_AS_TEXT = Reader()
_Call = Callable[[Stream, Slot, Sampling, bool], Coroutine[Any, Any, Completion]]


class Gen(Writer):
    """Lets the model write. `given` are sampling arguments, and `reader` makes the value, which
    `has_value` says is not the text. `asked` is the argument that needs constraints, if one does.
    The pattern `ends_before` ends the text, besides those of stop_regex."""

    def __init__(
        self,
        name: str | None,
        given: dict[str, Any],
        reader: Reader = _AS_TEXT,
        *,
        asked: str | None = None,
        has_value: bool = False,
        ends_before: str | None = None,
    ) -> None:
        self.name = name
        self.given = given
        self.reader = reader
        self.asked, self.has_value, self.ends_before = asked, has_value, ends_before

    @property
    def num_steps(self) -> int:
        return 1

    async def perform(self, stream: Stream, slots: Slots) -> None:
        await self.write(stream, slots[0], quiet=False)

    async def write(self, stream: Stream, slot: Slot, quiet: bool) -> None:
        """Append the text and settle `slot`; `quiet` gens never stream."""
        sampling = sampling_of(stream, self)
        grows = stream.program.streaming and not quiet and sampling.n == 1
        check = await self._check(stream, sampling)
        speculates = not quiet and sampling.n == 1 and stream.program.place.ahead is not None
        one = self._speculated if speculates else _one
        with recorded(stream, "gen", slot.name, sampling) as call:
            try:
                completions = await answered(
                    stream,
                    call,
                    sampling.timeout_s,
                    lambda: _works(stream, slot, sampling, grows, one),
                    lambda n: _scored(stream, sampling, n),
                )
            except UnsupportedError as error:
                if self.asked in (None, "dtype") or error.param not in CONSTRAINTS:
                    raise
                raise UnsupportedError(str(self.asked), str(error)) from error  # what is written
            note(call, completions)
            metas = [meta_of(completion) for completion in completions]
            slot.meta = metas[0] if sampling.n == 1 else {"n": metas, **metas[0]}
            stream.grow(slot, completions[0].text[len(slot.text) :])
            values = [await self._value_of(sampling, each, check) for each in completions]
        slot.settle(values[0] if sampling.n == 1 else values)

    async def _speculated(
        self, stream: Stream, slot: Slot, sampling: Sampling, grows: bool
    ) -> Completion:
        """The completion, by what was written ahead if that can be."""

        def sampling_after(expr: Expr) -> Sampling | None:
            if not isinstance(expr, Gen) or expr.asked is not None or expr.ends_before is not None:
                return None
            try:
                return sampling_of(stream, expr)
            except (LangError, ValueError, TypeError):  # it raises that itself, in its turn
                return None

        def show(text: str) -> None:
            if grows:
                stream.grow(slot, text)

        site = f"{stream.position.source} {self.name or ''}"
        speculator = Speculator(stream, sampling, site, sampling_after, show)
        answer = await speculator.answer()
        return await _one(stream, slot, sampling, grows) if answer is None else answer

    def value_of_text(self, text: str) -> Any:
        """The variable's value for a whole text. Raises AnswerError as a run does."""
        try:
            return self.reader.value(text)
        except ValueError as error:
            raise _wrong_answer(str(error), text) from error

    async def _check(self, stream: Stream, sampling: Sampling) -> TextCheck | None:
        """What answers must pass, besides being read, if the server may ignore the constraint."""
        capabilities = stream.program.backend.capabilities
        reads_itself = self.reader.predicate is not None or has_own_check(self.reader.convert)
        if capabilities.enforces or reads_itself or not sampling.sets_any(CONSTRAINTS):
            return None
        return await asyncio.to_thread(text_check, sampling)

    async def _value_of(
        self, sampling: Sampling, completion: Completion, check: TextCheck | None
    ) -> Any:
        """The variable's value for what the model wrote. Raises AnswerError for a text that is not
        an instance of the schema, or does not pass `check`."""
        text, captures = completion.text, completion.meta.get("captures")

        def read() -> Any:
            if check is not None:
                check(text, completion.finish == "length")
            return self.reader.value(text, captures)

        try:
            if self.reader.is_quick and check is None:
                return read()
            return await asyncio.to_thread(read)
        except ValueError as error:
            why = str(error)
            if completion.finish == "length":
                why = "cut at the context's end, before the value was complete"
                if completion.completion_tokens >= sampling.max_tokens:
                    why = why.replace("the context's end", f"max_tokens={sampling.max_tokens}")
            raise _wrong_answer(why, text) from error


def _wrong_answer(why: str, text: str) -> AnswerError:
    shown = repr(text[:MAX_SHOWN_CHARS])
    if len(text) > MAX_SHOWN_CHARS:
        shown += f"... ({len(text)} characters)"
    return AnswerError(f"{why}: {shown}", text)


def sampling_of(stream: Stream, gen: Gen) -> Sampling:
    """The run's defaults, the gen's arguments, and what its type and role ask for."""
    program = stream.program
    capabilities = program.backend.capabilities
    if capabilities.chat_only and stream.transcript.role != "assistant":
        raise UnsupportedError("gen", "a chat model writes only inside the assistant's role")
    sampling = defaults_of(stream).merged(gen.given)
    if sampling.n < 1:
        raise ValueError(f"n must be at least 1, not {sampling.n}")
    if not sampling.return_logprob and (ignored := sampling.sets_any(_OF_LOGPROBS)):
        raise ValueError(f"{ignored[0]} needs return_logprob")
    if gen.asked is not None and not capabilities.constraints:
        backend = type(program.backend).__name__
        raise UnsupportedError(gen.asked, f"{backend} has no constrained decoding")
    if gen.reader.dtype is not None:
        sampling = typed(sampling, gen.reader.dtype)
    if gen.ends_before is not None:
        ends = (*sampling.stop_regex, gen.ends_before)
        sampling = msgspec.structs.replace(sampling, stop_regex=ends)
    if stream.transcript.role and program.template is not None and not capabilities.chat_only:
        stops = tuple(s for s in program.template.stop if s not in sampling.stop)
        sampling = msgspec.structs.replace(sampling, stop=sampling.stop + stops)
    return sampling


def _works(
    stream: Stream, slot: Slot, sampling: Sampling, grows: bool, one: _Call
) -> Iterable[Coroutine[Any, Any, Completion]]:
    """The calls of the back end that give the samples of a gen, each by `one`."""
    if sampling.n > 1 and _is_native(stream, sampling):
        return Together(stream.program.backend, stream.transcript.prompt(), sampling).each()
    return (one(stream, slot, each, grows) for each in _samples(sampling))


def _scored(
    stream: Stream, sampling: Sampling, n: int
) -> Iterable[Coroutine[Any, Any, Completion]]:
    """`n` samples with their log-probabilities, for a decoder."""
    sampling = msgspec.structs.replace(sampling, n=n, return_logprob=True)
    if n > 1 and _is_native(stream, sampling):
        return Together(stream.program.backend, stream.transcript.prompt(), sampling).each()
    return (_whole(stream, each) for each in _samples(sampling))


def _is_native(stream: Stream, sampling: Sampling) -> bool:
    return stream.program.backend.capabilities.several and not sampling.stop_regex


def _samples(sampling: Sampling) -> Iterator[Sampling]:
    """The sampling of each sample of a call."""
    if sampling.n == 1:
        yield sampling
        return
    for i in range(sampling.n):
        seed = None if sampling.seed is None else sub_seed(sampling.seed, i)
        yield msgspec.structs.replace(sampling, n=1, seed=seed)


async def _one(stream: Stream, slot: Slot, sampling: Sampling, grows: bool) -> Completion:
    knows_patterns = stream.program.backend.capabilities.stop_regex
    if not grows or (sampling.stop_regex and not knows_patterns):
        return await _whole(stream, sampling)
    last: Completion | None = None
    # The prompt is made first: the stream's text grows with the answer.
    growing = stream.program.backend.stream(stream.transcript.prompt(), sampling)
    async with closing(growing):
        async for last in growing:
            slot.meta = meta_of(last)
            stream.grow(slot, last.text[len(slot.text) :])
    return _ended(last)


async def _whole(stream: Stream, sampling: Sampling) -> Completion:
    """One completion that is not streamed."""
    backend, prompt = stream.program.backend, stream.transcript.prompt()
    if not sampling.stop_regex or backend.capabilities.stop_regex:
        return await backend.generate(prompt, sampling)
    plain = msgspec.structs.replace(sampling, stop_regex=())
    search, num_read = PatternSearch(sampling.stop_regex), 0
    last: Completion | None = None
    growing = backend.stream(prompt, plain)
    async with closing(growing):
        async for last in growing:
            found = list(search.feed(last.text[num_read:]))
            if not found:
                num_read = len(last.text)
                found = list(search.at_end()) if last.finish is not None else []
            if found:
                start, _, matched = min(found)
                text = last.text[: num_read + start]
                return msgspec.structs.replace(last, text=text, finish="stop", matched=matched)
    return _ended(last)


def _ended(last: Completion | None) -> Completion:
    if last is None or last.finish is None:
        raise RuntimeError("the back end's stream ended before the completion did")
    return last


class SeparateReasoning(Expr):
    """Performs `parts`; moves the reasoning of their gens into `NAME_reasoning_content`."""

    def __init__(self, inner: Expr, opened: bool) -> None:
        self.parts = ExprList([inner]).parts
        self.opened = opened
        for part in self.parts:
            if isinstance(part, Gen) and part.has_value:
                raise ValueError(f"separate_reasoning and type exclude each other: {part.name!r}")
            if isinstance(part, Writer) and part.num_steps > 1:
                raise ValueError("separate_reasoning cannot hold an agent, whose turns stay whole")

    @property
    def names(self) -> tuple[str | None, ...]:
        of = [each.name for each in self.parts if isinstance(each, Gen) and each.name]
        return (*of, *map(_reasoning_name, of))

    @property
    def num_bytes(self) -> int:
        return num_bytes_of(self.parts)

    @property
    def num_steps(self) -> int:
        return num_steps_of(self.parts)

    async def perform(self, stream: Stream, slots: Slots) -> None:
        by_name = {slot.name: slot for slot in slots}
        numbers = itertools.accumulate(
            (num_steps_of([part]) for part in self.parts), initial=stream.position.at
        )
        for part, stream.position.at in zip(self.parts, numbers, strict=False):
            if isinstance(part, Gen):
                await self._write(part, stream, by_name)
                continue
            each = Constant(part) if isinstance(part, str) else part
            await each.perform_inside(stream, tuple(map(stream.variables.declare, each.names)))

    async def _write(self, gen: Gen, stream: Stream, by_name: dict[str, Slot]) -> None:
        start = len(stream.transcript.text)
        raw = Slot(gen.name or "")  # no name refers to it
        await gen.write(stream, raw, quiet=True)
        thoughts, value = self._split(stream.transcript.text[start:])
        stream.transcript.text = stream.transcript.text[:start] + value
        raw_value = raw.done.result()
        if gen.name is None:
            return
        mine, of_reasoning = by_name[gen.name], by_name[_reasoning_name(gen.name)]
        mine.meta = of_reasoning.meta = raw.meta
        if isinstance(raw_value, list):
            pairs = [self._split(str(value)) for value in raw_value]
            of_reasoning.settle([pair[0] for pair in pairs])
            mine.settle([pair[1] for pair in pairs])
        else:
            of_reasoning.settle(thoughts)
            mine.settle(value)

    def _split(self, text: str) -> tuple[str, str]:
        """The reasoning, and the answer."""
        parts = ReasoningSplitter(opened=self.opened).feed(text, final=True)
        reasoning = "".join(part.text for part in parts if part.is_reasoning)
        return reasoning, "".join(part.text for part in parts if not part.is_reasoning)


def _reasoning_name(name: str) -> str:
    """The variable that holds the reasoning of the gen `name`."""
    return f"{name}_reasoning_content"
