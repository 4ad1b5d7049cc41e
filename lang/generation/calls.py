"""What all calls of a model have in common: their record, log, time limit, seed and meta info.

Each call is recorded in the stream's trace, even if it fails. One that the run's log has is not
made: its answers are those of the log.
"""

import asyncio
import contextlib
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from typing import Any, TypeVar

import msgspec

from lang.backends.base import Completion, Scores
from lang.backends.sampling import Sampling
from lang.errors import UnsupportedError
from lang.logs.entries import CallKind, Entry, request_of
from lang.logs.trace import Call
from lang.run.stream import Stream
from srt.tasks import all_of

T = TypeVar("T")
Works = Callable[[], Iterable[Coroutine[Any, Any, T]]]


@contextlib.contextmanager
def recorded(stream: Stream, kind: CallKind, name: str, parameters: Any) -> Iterator[Call]:
    """Records the call that the block makes, whether it succeeds or not."""
    place = stream.position
    call, ended = stream.begin_call(kind, name, place.at, place.source, parameters)
    began = time.perf_counter()
    try:
        yield call
    except UnsupportedError as error:
        located = error.at(place.source) if place.source else error
        call.error = f"{type(error).__name__}: {located}"
        raise located.with_traceback(error.__traceback__) from error.__cause__
    except BaseException as error:
        call.error = f"{type(error).__name__}: {error}"
        raise
    finally:
        call.latency_s = time.perf_counter() - began
        ended()


async def answered(
    stream: Stream,
    call: Call,
    timeout_s: float | None,
    works: Works[T],
    several: Callable[[int], Iterable[Coroutine[Any, Any, T]]] | None = None,
) -> list[T]:
    """The back end's results for the stream's prompt: the log's, or those of `works`; of a
    decoder's run, `several` of them. Raises Reached if those are what the run was for."""
    journal = stream.program.place.journal
    if journal is None:
        return await _shared(stream, call, timeout_s, works)
    model = await stream.program.fingerprint()
    request = request_of(model, stream.transcript.prompt(), described(call.asked.parameters))
    entry = journal.found(stream.position, call.at, request, call.source)
    if entry is not None:
        call.from_log = True
        if entry.branch is not None:
            stream.position.take_branch(entry.branch)
        return entry.answers
    frontier = journal.frontier
    if several is None or frontier is None:
        is_reached = False
    else:
        is_reached = frontier.is_at(stream.position.path, call.name, call.asked.parameters)
        works = partial(several, frontier.expand) if is_reached else works
    if is_reached:
        answers = await limited(call, timeout_s, works())
    else:
        answers = await _shared(stream, call, timeout_s, works)
    scores = [each for each in answers if isinstance(each, Scores)]
    entry = Entry(
        at=call.address,
        request=str(request),
        kind=call.kind,
        name=call.name,
        source=call.source,
        completions=tuple(each for each in answers if isinstance(each, Completion)),
        scores=scores[0] if scores else None,
        began_s=call.began_s,
        took_s=time.time() - call.began_s,
    )
    if frontier is not None and is_reached:
        raise frontier.reach(entry)
    journal.record(entry)
    return answers


async def _shared(stream: Stream, call: Call, timeout_s: float | None, works: Works[T]) -> list[T]:
    """The results of `works`, or, in a compiled program, of an equal call."""
    shared, parameters = stream.program.place.shared, call.asked.parameters
    if shared is None or not _is_determined(parameters):
        return await limited(call, timeout_s, works())
    key = str(request_of(call.kind, stream.transcript.prompt(), _deciding(parameters)))
    answers, call.is_shared = await shared.once(key, lambda: limited(call, timeout_s, works()))
    return answers


def _is_determined(parameters: Any) -> bool:
    """Whether the answer follows from what is asked."""
    if not isinstance(parameters, Sampling):
        return True
    return parameters.is_greedy or parameters.seed is not None


def _deciding(parameters: Any) -> Any:
    """What of the parameters the answer depends on: a greedy one on no seed."""
    made = described(parameters)
    if isinstance(parameters, Sampling) and parameters.is_greedy:
        made.pop("seed", None)
    return made


async def limited(
    call: Call, timeout_s: float | None, works: Iterable[Coroutine[Any, Any, T]]
) -> list[T]:
    """The back end's results, fetched side by side. However this ends, all requests have ended."""
    calls = [*works]
    if timeout_s is None and len(calls) == 1:  # in the worker's own task, which is cancelled once
        return [await calls[0]]
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            return await all_of(calls)
    except TimeoutError:
        if not limit.expired():
            raise
        message = f"{call.kind} {call.name!r} took longer than timeout_s={timeout_s}"
        raise TimeoutError(message) from None


@contextlib.asynccontextmanager
async def closing(stream: AsyncIterator[Completion]) -> AsyncIterator[None]:
    """Close a stream that is left early, which ends its request."""
    try:
        yield
    finally:
        aclose = getattr(stream, "aclose", None)
        if aclose is not None:
            await aclose()


def described(parameters: Any) -> Any:
    """Parameters as they are hashed and shown: of a `Sampling` only what it sets, and no limits of
    time, which change no answer."""
    if isinstance(parameters, Sampling):
        names = sorted(parameters.set_fields() - {"timeout_s"})
        return {name: getattr(parameters, name) for name in names}
    return parameters


def defaults_of(stream: Stream) -> Sampling:
    """The run's defaults, with a seed of this call's own if the run has one."""
    defaults = stream.program.defaults
    seed = stream.position.seed_of("call", stream.position.at)
    return defaults if seed == defaults.seed else msgspec.structs.replace(defaults, seed=seed)


def meta_of(completion: Completion) -> dict[str, Any]:
    """SGLang's names, and whatever else the back end reported."""
    reason = {"type": completion.finish, "matched": completion.matched}
    return {
        "text": completion.text,
        "prompt_tokens": completion.prompt_tokens,
        "completion_tokens": completion.completion_tokens,
        "cached_tokens": completion.cached_tokens,
        "finish_reason": None if completion.finish is None else reason,
        **completion.meta,
    }


def note(call: Call, completions: Sequence[Completion]) -> None:
    """Record the tokens of all samples of a call, and the first one's result."""
    if not call.is_shared:
        call.prompt_tokens = sum(each.prompt_tokens for each in completions)
        call.cached_tokens = sum(each.cached_tokens for each in completions)
        call.completion_tokens = sum(each.completion_tokens for each in completions)
        _note_speculation(call, completions[0].meta)
    call.finish, call.text = completions[0].finish, completions[0].text
    texts = [each.text for each in completions]
    call.asked.answers = texts[0] if len(texts) == 1 else texts
    times = completions[0].meta
    call.queued_s, call.ttft_s = times.get("queued_s"), times.get("ttft_s")
    call.decode_s = times.get("decode_s")


def _note_speculation(call: Call, meta: Mapping[str, Any]) -> None:
    call.is_speculated = bool(meta.get("speculated"))
    call.num_requests = 0 if call.is_speculated else meta.get("num_requests", 1)
    for name in ("num_uncounted", "tokens_ahead", "tokens_taken", "tokens_saved"):
        setattr(call, name, meta.get(name, 0))


def note_counts(call: Call, meta: dict[str, Any], answers: Any) -> None:
    """Record the numbers of tokens, and the answers."""
    call.asked.answers = answers
    for name in ("prompt_tokens", "cached_tokens", "completion_tokens"):
        if not call.is_shared:
            setattr(call, name, meta[name])
