"""The primitives that ask the model: gen, select, score, separate_reasoning, and the prefetch.

Called by the interpreter's task. Each call is recorded in the state's trace, also when it fails.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from lang import structured
from lang.backends.base import Completion, Prompt
from lang.choices import decide, distribution
from lang.errors import UnsupportedError
from lang.ir import Gen, Score, Select, SeparateReasoning
from lang.patterns import PatternWatch
from lang.sampling import Sampling
from lang.trace import Call, call_on
from srt.reasoning import ReasoningSplitter
from srt.sampling_params import sub_seed

if TYPE_CHECKING:
    from lang.interpreter import Interpreter
    from lang.work import Slot

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


@contextlib.asynccontextmanager
async def _limited(what: str, timeout_s: float | None) -> AsyncIterator[None]:
    """asyncio's time-out, with a message."""
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise TimeoutError(f"{what} took longer than timeout_s={timeout_s}") from None


async def prefetch(state: "Interpreter") -> None:
    """Let the server compute the text so far, if enough of it is new."""
    if state.has_news():
        with _recorded(state, "prefetch", ""):
            await state.program.backend.prefetch(state.text)
        state.sent_chars = len(state.text)


# ---- gen -----------------------------------------------------------------------------------------


async def generate(state: "Interpreter", gen: Gen, slot: "Slot", quiet: bool = False) -> None:
    """Perform a gen: append its text and settle its variable. `quiet` ones never stream."""
    sampling = _sampling_of(state, gen)
    with _recorded(state, "gen", slot.name) as call:
        async with _limited(f"gen {slot.name!r}", sampling.timeout_s):
            if sampling.n > 1:
                completions = await _several(state, sampling)
            else:
                grows = state.program.streaming and not quiet
                completions = [await _one(state, slot, sampling, grows)]
        _note(call, completions)
        metas = [_meta_of(completion) for completion in completions]
        values = [await structured.value_of(gen, each.text) for each in completions]
    slot.meta = metas[0] if sampling.n == 1 else {"n": metas, **metas[0]}
    state.grow(slot, completions[0].text[len(slot.text) :])
    state.sent_chars = len(state.text)
    state.settle(slot, values[0] if sampling.n == 1 else values)


def _sampling_of(state: "Interpreter", gen: Gen) -> Sampling:
    """The run's defaults, the gen's arguments, and what its type and role ask for."""
    program = state.program
    capabilities = program.backend.capabilities
    if capabilities.chat_only and state.role != "assistant":
        raise UnsupportedError("gen", "a chat model writes inside of the assistant's role only")
    sampling = program.defaults.merged(gen.given)
    if sampling.n < 1:
        raise ValueError(f"n must be at least 1, not {sampling.n}")
    if gen.dtype is not None:
        if not capabilities.constraints:
            backend = type(program.backend).__name__
            raise UnsupportedError("dtype", f"{backend} has no constrained decoding")
        sampling = structured.typed(sampling, gen.dtype)
    if state.role and program.template is not None and not capabilities.chat_only:
        stops = tuple(s for s in program.template.stop if s not in sampling.stop)
        sampling = msgspec.structs.replace(sampling, stop=sampling.stop + stops)
    return sampling


async def _several(state: "Interpreter", sampling: Sampling) -> list[Completion]:
    """`n` completions of one prompt, side by side; the first failure ends the others."""
    await prefetch(state)
    prompt = state.prompt()
    seed = sampling.seed
    seeds = [None if seed is None else sub_seed(seed, i) for i in range(sampling.n)]
    each = [msgspec.structs.replace(sampling, n=1, seed=seed) for seed in seeds]
    tasks = [asyncio.ensure_future(_whole(state, prompt, one)) for one in each]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _one(state: "Interpreter", slot: "Slot", sampling: Sampling, grows: bool) -> Completion:
    knows_patterns = state.program.backend.capabilities.stop_regex
    if not grows or (sampling.stop_regex and not knows_patterns):
        return await _whole(state, state.prompt(), sampling)
    last: Completion | None = None
    # The prompt is what was said before; the state's text grows behind it.
    stream = state.program.backend.stream(state.prompt(), sampling)
    async with _closing(stream):
        async for last in stream:
            slot.meta = _meta_of(last)
            state.grow(slot, last.text[len(slot.text) :])
    return _ended(last)


async def _whole(state: "Interpreter", prompt: Prompt, sampling: Sampling) -> Completion:
    """One completion that nobody sees grow."""
    backend = state.program.backend
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
    defaults = state.program.defaults
    with _recorded(state, "select", slot.name) as call:
        async with _limited(f"select {slot.name!r}", defaults.timeout_s):
            if backend.capabilities.score:
                if part.temperature > MAX_SELECT_TEMPERATURE:
                    raise ValueError("select is exact: its temperature must be 0")
                scores = await backend.score(
                    prompt,
                    part.choices,
                    unconditional=part.method.requires_unconditional_logprobs,
                )
                call.prompt_tokens, call.cached_tokens = scores.prompt_tokens, scores.cached_tokens
                decision = decide(part.method, scores.continuations)
                text, slot.meta = decision.decision, decision.meta_info
            else:
                sampling = defaults.merged({"temperature": part.temperature, "n": 1})
                completion = await backend.select(prompt, part.choices, sampling)
                _note(call, [completion])
                text, slot.meta = completion.text, _meta_of(completion)
        call.text = text
    state.grow(slot, text)
    state.sent_chars = len(prompt.text)
    state.settle(slot, text)


async def score(state: "Interpreter", part: Score, slot: "Slot") -> None:
    """Write what the texts would score here; the state's text stays as it is."""
    with _recorded(state, "score", slot.name) as call:
        async with _limited(f"score {slot.name!r}", state.program.defaults.timeout_s):
            scores = await state.program.backend.score(state.prompt(), part.texts)
        call.prompt_tokens, call.cached_tokens = scores.prompt_tokens, scores.cached_tokens
    state.sent_chars = len(state.text)
    slot.meta = {"token_logprobs": {s.text: s.logprobs for s in scores.continuations}}
    probabilities = distribution(scores.continuations)
    slot.meta["probabilities"] = probabilities
    totals = {each.text: each.total for each in scores.continuations}
    state.settle(slot, probabilities if part.normalised else totals)
