"""Guesses replayed over recorded outputs, without a model: how many tokens a step would give, and
what guessing costs.

Outputs are recorded greedily with nothing guessed. The replay asks the scheduler's own sources, so
that tokens per step differ from a server's only where the server does something else.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, count, cycle, islice, pairwise
from pathlib import Path
from statistics import median

import msgspec
import numpy as np
from msgspec import Struct

from bench.figures import percentile
from bench.roofline import markdown
from scheduler_proc.core.drafting.base import Match, Source
from scheduler_proc.core.drafting.limits import limits_along
from scheduler_proc.core.drafting.own import OwnTokens
from scheduler_proc.core.drafting.seen import SeenOutputs
from scheduler_proc.core.drafting.speculation import best
from scheduler_proc.core.drafting.tree import TreeTokens
from scheduler_proc.core.requests.request import Req
from scheduler_proc.memory.pools import TokenPool
from scheduler_proc.memory.radix_cache import RadixCache
from srt.benchmark.workloads import Node
from srt.offline.engine import Engine
from srt.wire.filled_params import FilledParams
from srt.wire.messages import Finish, pack_ids
from srt.wire.ring_messages import TokenizedReq

LENGTHS = (1, 2, 3, 4, 6, 8)
COMPARED = 8  # with the server
TOLERANCE = 0.05
CONTEXT = 8192
REPEATS = 7
BAR_US = 50.0
FIRST, ALL = "a request's first", "later ones"
VOCAB = 1 << 17  # no less than any model's here

_handles = count()


class Recorded(Struct):
    """A request's token ids, and how many outputs it had asked for."""

    workload: str
    prompt: list[int]
    outputs: list[int]
    limit: int


def record(nodes: Mapping[str, Sequence[Node]], model: str, file: Path | None) -> list[Recorded]:
    """The greedy outputs of the requests, without stop strings; those of the file if it is there,
    else they are written to it."""
    if file is not None and file.is_file():
        return msgspec.json.decode(file.read_bytes(), type=list[Recorded])
    found = []
    with Engine(model=model, speculative="off") as engine:
        for name, some in nodes.items():
            for node in some:
                output = engine.generate(node.text, sampling=_greedy(node.out_tokens))
                prompt = engine.call(engine.client.tokenize(node.text))
                found.append(Recorded(name, prompt, output.output_ids, node.out_tokens))
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(msgspec.json.encode(found))
    return found


def replay(
    recorded: Recorded, most: int, match: Callable[[Req, int], Match | None], before: Sequence[int]
) -> int:
    """The steps in which a request makes its outputs if each guesses up to `most` tokens; its
    prompt comes after the tokens `before`."""
    req = req_of([*before, *recorded.prompt], recorded.limit)
    steps = at = 0
    while at < len(recorded.outputs):
        found = match(req, min(most, req.remaining - 1)) if req.remaining > 1 else None
        draft = [] if found is None else found.tokens.tolist()
        right = 0
        for guess, token in zip(draft, recorded.outputs[at:], strict=False):
            if guess != token:
                break
            right += 1
        for token in recorded.outputs[at : at + right + 1]:
            req.tokens.append(token)
        at += right + 1
        steps += 1
    return steps


def req_of(prompt: Sequence[int], limit: int) -> Req:
    """A greedy req without limits."""
    handle = next(_handles)
    sampling = FilledParams(max_new_tokens=limit, temperature=0.0)
    wire = TokenizedReq(b"", str(handle), 0, pack_ids(list(prompt)), sampling)
    return Req.of(handle, wire, 0.0, VOCAB)


def tokens_per_step(recorded: Sequence[Recorded], most: int) -> float:
    """Of fixed lengths of guesses from a request's own tokens."""
    steps = sum(replay(one, most, OwnTokens().match, ()) for one in recorded)
    return sum(len(one.outputs) for one in recorded) / steps


def served_per_step(recorded: Sequence[Recorded], model: str) -> dict[str, float]:
    """By workload, what a server gives that guesses COMPARED own tokens, one request at a time."""
    tokens: dict[str, int] = {}
    passes: dict[str, int] = {}
    options = {"speculative": "own", "speculative_max_tokens": COMPARED}
    with Engine(model=model, **options) as engine:
        for one in recorded:
            output = engine.call(
                engine.client.generate(input_ids=one.prompt, sampling=_greedy(one.limit))
            )
            if output.output_ids != one.outputs:
                raise SystemExit(f"{one.workload}: with guesses the output is another")
            tokens[one.workload] = tokens.get(one.workload, 0) + output.completion_tokens
            steps = output.completion_tokens - output.drafts.accepted
            passes[one.workload] = passes.get(one.workload, 0) + steps
    return {name: tokens[name] / passes[name] for name in tokens}


def simulate(nodes: Mapping[str, Sequence[Node]], model: str, file: Path | None) -> int:
    """Print tokens per step by length; status 1 if the server's differ by more than TOLERANCE."""
    recorded = record(nodes, model, file)
    served = served_per_step(recorded, model)
    status, rows = 0, []
    for name in served:
        some = [one for one in recorded if one.workload == name]
        found = {most: tokens_per_step(some, most) for most in LENGTHS}
        ratio = served[name] / found[COMPARED]
        rows.append([name, *(f"{found[most]:.2f}" for most in LENGTHS), f"{served[name]:.2f}"])
        rows[-1].append(f"{ratio:.3f}")
        if abs(ratio - 1.0) > TOLERANCE:
            status = 1
    columns = ["tokens per step, k =", *map(str, LENGTHS), f"server, k = {COMPARED}", "ratio"]
    print(markdown(columns, rows))
    return status


def draft_time(nodes: Mapping[str, Sequence[Node]], model: str, file: Path | None) -> int:
    """Print what a guess costs with CONTEXT tokens before it: the median of each over REPEATS equal
    replays, as a busy machine interrupts some. Status 1 above the bar."""
    recorded = record(nodes, model, file)
    replays = [guess_times(recorded, CONTEXT) for _ in range(REPEATS)]
    times = {
        name: [median(us) for us in zip(*(times[name] for times in replays), strict=True)]
        for name in replays[0]
    }
    rows = [
        [name, str(len(us)), *(f"{percentile(us, p) or 0.0:.1f}" for p in (50, 99, 100))]
        for name, us in times.items()
    ]
    print(markdown(["guess", "count", "p50, us", "p99", "most"], rows))
    return 0 if (percentile(times[ALL], 99) or 0.0) <= BAR_US else 1


class _Timed:
    """Guesses from all sources; notes the CPU time of each guess by its parts, in us: of the
    sources that were asked, the limits, and ALL."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.times: list[dict[str, float]] = []
        self._sources = sources

    def match(self, req: Req, most: int) -> Match | None:
        """The best match; its limits are looked for, too."""
        marks = [("", time.thread_time_ns())]
        found = best(self._matches(req, most, marks))
        if found is not None:
            limits_along(req, found[1].tokens.tolist())
        marks.append(("limits", time.thread_time_ns()))
        parts = {name: (at - before) / 1000 for (_, before), (name, at) in pairwise(marks)}
        self.times.append({**parts, ALL: (marks[-1][1] - marks[0][1]) / 1000})
        return None if found is None else found[1]

    def _matches(
        self, req: Req, most: int, marks: list[tuple[str, int]]
    ) -> Iterator[tuple[str, Match | None]]:
        for source in self._sources:
            match = source.match(req, most)
            marks.append((source.name, time.thread_time_ns()))
            yield source.name, match


def guess_times(recorded: Sequence[Recorded], context: int) -> dict[str, list[float]]:
    """CPU time in us of each guess, its limits included, by part and in ALL; those of the first of
    each request, which indexes its prompt, are apart, in FIRST."""
    pool = TokenPool(2 * (context + len(recorded) * 1024))
    tree, seen = RadixCache(pool), SeenOutputs()
    times: dict[str, list[float]] = {FIRST: []}
    for number, one in enumerate(recorded):
        others = chain.from_iterable(
            [*other.prompt, *other.outputs]
            for other in cycle([*recorded[:number], *recorded[number + 1 :]])
        )
        own_length = len(one.prompt) + len(one.outputs)
        before = list(islice(others, max(0, context - own_length)))
        if number % 2:  # what half of them find in the tree
            _insert(tree, pool, [*before, *one.prompt, *one.outputs])
        timed = _Timed([TreeTokens(tree), OwnTokens(), seen])
        replay(one, COMPARED, timed.match, before)
        first, *later = timed.times
        times[FIRST].append(first[ALL])
        for name, us in chain.from_iterable(parts.items() for parts in later):
            times.setdefault(name, []).append(us)
        ended = req_of(one.prompt, one.limit)
        for token in one.outputs:
            ended.tokens.append(token)
        ended.finish = Finish("stop")
        seen.ended(ended)
    return times


def _insert(tree: RadixCache, pool: TokenPool, tokens: list[int]) -> None:
    tree.evict(max(0, len(tokens) - pool.free_size))
    slots = pool.alloc(len(tokens))
    assert slots is not None
    done = tree.insert(np.array(tokens, np.int32), slots)
    pool.free(slots[: done.existing])


def _greedy(limit: int) -> FilledParams:
    return FilledParams(max_new_tokens=limit, temperature=0.0)
