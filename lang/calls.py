"""The primitives that ask the model: gen, select, score and separate_reasoning.

Called by the interpreter's task. Each call is recorded in the state's trace, also when it fails.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from lang import structured
from lang.backends.base import Completion
from lang.choices import counts, decide, distribution
from lang.errors import UnsupportedError
from lang.ir import Gen, Score, Select, SeparateReasoning
from lang.patterns import PatternWatch
from lang.sampling import Sampling, derived_seed
from lang.trace import Call, call_on
from srt.answers.reasoning import ReasoningSplitter
from srt.tasks import all_of
from srt.wire.sampling import sub_seed

if TYPE_CHECKING:
    from lang.interpreter import Interpreter
    from lang.work import Slot

T = TypeVar("T")
MAX_SELECT_TEMPERATURE = 1e-5


@contextlib.contextmanager
def _recorded(state: "Interpreter", kind: str, name: str) -> Iterator[Call]:
    call = call_on(kind, name, state.text)
    state.trace.steps.append(call)
    began = time.perf_counter()
    try:
        yield call
    except BaseException as error:
        call.error = f"{type(error).__name__}: {error}"
        raise
    finally:
        call.latency_s = time.perf_counter() - began


async def _limited(
    call: Call, timeout_s: float | None, works: Iterable[Coroutine[Any, Any, T]]
) -> list[T]:
    """What the back end gives, side by side. However it ends, all that it was asked has ended."""
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            return await all_of(works)
    except TimeoutError:
        if not limit.expired():
            raise
        message = f"{call.kind} {call.name!r} took longer than timeout_s={timeout_s}"
        raise TimeoutError(message) from None


# ---- gen -----------------------------------------------------------------------------------------


async def generate(state: "Interpreter", gen: Gen, slot: "Slot", quiet: bool = False) -> None:
    """Perform a gen: append its text and settle its variable. `quiet` ones never stream."""
    sampling = _sampling_of(state, gen)
    grows = state.program.streaming and not quiet and sampling.n == 1
    with _recorded(state, "gen", slot.name) as call:
        works = (_one(state, slot, each, grows) for each in _samples(sampling))
        completions = await _limited(call, sampling.timeout_s, works)
        _note(call, completions)
        metas = [_meta_of(completion) for completion in completions]
        slot.meta = metas[0] if sampling.n == 1 else {"n": metas, **metas[0]}
        state.grow(slot, completions[0].text[len(slot.text) :])
        values = [await structured.value_of(gen, sampling, each) for each in completions]
    state.settle(slot, values[0] if sampling.n == 1 else values)


def _sampling_of(state: "Interpreter", gen: Gen) -> Sampling:
    """The run's defaults, the gen's arguments, and what its type and role ask for."""
    program = state.program
    capabilities = program.backend.capabilities
    if capabilities.chat_only and state.role != "assistant":
        raise UnsupportedError("gen", "a chat model writes inside of the assistant's role only")
    sampling = _defaults(state).merged(gen.given)
    if sampling.n < 1:
        raise ValueError(f"n must be at least 1, not {sampling.n}")
    details = {"logprob_start_len", "top_logprobs_num", "return_text_in_logprobs"}
    if not sampling.return_logprob and (ignored := details & sampling.set_fields()):
        raise ValueError(f"{min(ignored)} needs return_logprob")
    if gen.dtype is not None:
        if not capabilities.constraints:
            backend = type(program.backend).__name__
            raise UnsupportedError("dtype", f"{backend} has no constrained decoding")
        sampling = structured.typed(sampling, gen.dtype)
    if state.role and program.template is not None and not capabilities.chat_only:
        stops = tuple(s for s in program.template.stop if s not in sampling.stop)
        sampling = msgspec.structs.replace(sampling, stop=sampling.stop + stops)
    return sampling


def _defaults(state: "Interpreter") -> Sampling:
    """The run's, with a seed of this call's own if the run has one."""
    seed = derived_seed(state.seed, "call", next(state.calls))
    return msgspec.structs.replace(state.program.defaults, seed=seed)


def _samples(sampling: Sampling) -> Iterator[Sampling]:
    """Of each sample of a call."""
    for i in range(sampling.n):
        seed = None if sampling.seed is None else sub_seed(sampling.seed, i)
        yield msgspec.structs.replace(sampling, n=1, seed=seed)


async def _one(state: "Interpreter", slot: "Slot", sampling: Sampling, grows: bool) -> Completion:
    knows_patterns = state.program.backend.capabilities.stop_regex
    if not grows or (sampling.stop_regex and not knows_patterns):
        return await _whole(state, sampling)
    last: Completion | None = None
    # The prompt is what was said before; the state's text grows behind it.
    stream = state.program.backend.stream(state.prompt(), sampling)
    async with _closing(stream):
        async for last in stream:
            slot.meta = _meta_of(last)
            state.grow(slot, last.text[len(slot.text) :])
    return _ended(last)


async def _whole(state: "Interpreter", sampling: Sampling) -> Completion:
    """One completion that nobody sees grow."""
    backend, prompt = state.program.backend, state.prompt()
    if not sampling.stop_regex or backend.capabilities.stop_regex:
        return await backend.generate(prompt, sampling)
    patterns, plain = sampling.stop_regex, msgspec.structs.replace(sampling, stop_regex=())
    last: Completion | None = None
    stream = backend.stream(prompt, plain)
    async with PatternWatch(patterns) as watch, _closing(stream):
        async for last in stream:
            found = await watch.first_match(last.text)
            if found is not None:
                start, matched = found
                return msgspec.structs.replace(
                    last, text=last.text[:start], finish="stop", matched=matched
                )
    return _ended(last)


def _ended(last: Completion | None) -> Completion:
    if last is None or last.finish is None:
        raise RuntimeError("the back end's stream ended before the completion did")
    return last


@contextlib.asynccontextmanager
async def _closing(stream: AsyncIterator[Completion]) -> AsyncIterator[None]:
    """Close a stream that is left early, which ends its request."""
    try:
        yield
    finally:
        aclose = getattr(stream, "aclose", None)
        if aclose is not None:
            await aclose()


def _meta_of(completion: Completion) -> dict[str, Any]:
    """SGLang's names, and whatever else the back end told."""
    reason = {"type": completion.finish, "matched": completion.matched}
    return {
        "prompt_tokens": completion.prompt_tokens,
        "completion_tokens": completion.completion_tokens,
        "cached_tokens": completion.cached_tokens,
        "finish_reason": None if completion.finish is None else reason,
        **completion.meta,
    }


def _note(call: Call, completions: Sequence[Completion]) -> None:
    call.prompt_tokens = sum(each.prompt_tokens for each in completions)
    call.cached_tokens = sum(each.cached_tokens for each in completions)
    call.completion_tokens = sum(each.completion_tokens for each in completions)
    call.finish, call.text = completions[0].finish, completions[0].text


def _note_counts(call: Call, meta: dict[str, Any]) -> None:
    for name in ("prompt_tokens", "cached_tokens", "completion_tokens"):
        setattr(call, name, meta[name])


async def separate_reasoning(
    state: "Interpreter", part: SeparateReasoning, slots: Sequence["Slot"]
) -> None:
    """Perform the gens of `part` with their reasoning apart; other text goes through as it is."""
    by_name = {slot.name: slot for slot in slots}
    for each in part.parts:
        if not isinstance(each, Gen):
            await state.perform_inner(each)
            continue
        start = len(state.text)
        raw = state.new_slot(each.name)
        await generate(state, each, raw, quiet=True)
        written = state.text[start:]
        reasoning, answer = _split(written, part.opened)
        state.text = state.text[:start] + answer
        raw_value = raw.done.result()
        if isinstance(raw_value, list):
            pairs = [_split(str(value), part.opened) for value in raw_value]
            thoughts: Any = [pair[0] for pair in pairs]
            value: Any = [pair[1] for pair in pairs]
        else:
            thoughts, value = reasoning, answer
        if each.name is not None:
            mine, of_reasoning = by_name[each.name], by_name[f"{each.name}_reasoning_content"]
            mine.meta = of_reasoning.meta = raw.meta
            state.settle(mine, value)
            state.settle(of_reasoning, thoughts)


def _split(text: str, opened: bool) -> tuple[str, str]:
    parts = ReasoningSplitter(opened=opened).feed(text, final=True)
    reasoning = "".join(part.text for part in parts if part.is_reasoning)
    return reasoning, "".join(part.text for part in parts if not part.is_reasoning)


# ---- select and score ----------------------------------------------------------------------------


async def select(state: "Interpreter", part: Select, slot: "Slot") -> None:
    """Append the best choice."""
    backend, prompt = state.program.backend, state.prompt()
    sampling = _defaults(state).merged({**part.given, "n": 1})
    with _recorded(state, "select", slot.name) as call:
        if backend.capabilities.score:
            if sampling.temperature > MAX_SELECT_TEMPERATURE:
                raise ValueError("select is exact: its temperature must be 0")
            unconditional = part.method.requires_unconditional_logprobs
            asked = backend.score(prompt, part.choices, unconditional=unconditional)
            (scores,) = await _limited(call, sampling.timeout_s, [asked])
            decision = decide(part.method, scores)
            text, slot.meta = decision.decision, decision.meta_info
            _note_counts(call, slot.meta)
        else:
            chosen = backend.select(prompt, part.choices, sampling)
            completions = await _limited(call, sampling.timeout_s, [chosen])
            _note(call, completions)
            text, slot.meta = completions[0].text, _meta_of(completions[0])
        call.text = text
    state.grow(slot, text)
    state.settle(slot, text)


async def score(state: "Interpreter", part: Score, slot: "Slot") -> None:
    """Write what the texts would score here; the state's text stays as it is."""
    with _recorded(state, "score", slot.name) as call:
        asked = state.program.backend.score(state.prompt(), part.texts)
        (scores,) = await _limited(call, state.program.defaults.timeout_s, [asked])
        tokens = counts(scores)
        _note_counts(call, tokens)
    probabilities = distribution(scores.continuations)
    logprobs = {each.text: each.logprobs for each in scores.continuations}
    slot.meta = {**tokens, "token_logprobs": logprobs, "probabilities": probabilities}
    totals = {each.text: each.total for each in scores.continuations}
    state.settle(slot, probabilities if part.normalised else totals)
