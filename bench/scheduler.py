"""`python -m bench.scheduler`: what the scheduler core costs, without any model.

A null executor answers at once, so all time is the core's: CPU microseconds of this thread, at lag
1, as the actor drives it. Rows that decode: per step, by the number of rows, with room in the pool
and where every slot has to be evicted. A queue: per step that looks at `waiting` requests and
admits one; the mean is over all looks, as the core does not renew its order of the queue at each.

`--tree NODES` shows a radix tree of so many nodes instead, in a full pool: what it takes to match a
prompt, to insert one and to evict as much, and the longest step of traffic of `--seconds`, with the
garbage collector as the scheduler process has it. For a million nodes it needs 2 GiB and a minute
before the traffic.
"""

import argparse
import gc
import time
from itertools import product
from statistics import mean, median
from typing import NamedTuple

import numpy as np

from bench.roofline import markdown
from scheduler_proc.batch import ForwardBatch, StepResult
from scheduler_proc.core.queueing.queue import MARKED, MATCHED
from scheduler_proc.core.scheduler import Scheduler
from scheduler_proc.core.state import SchedulerConfig
from scheduler_proc.core.steps.step import Step
from scheduler_proc.grammar.base import Grammar
from scheduler_proc.grammar.retokenise import Retokeniser
from scheduler_proc.process import garbage
from srt.wire.filled_params import FilledParams
from srt.wire.messages import pack_ids
from srt.wire.ring_messages import TokenizedReq

VOCAB = 49152
PROMPT, OUTPUTS = 512, 16  # of a request that decodes, in tokens
DOCUMENTS, DOCUMENT, QUESTION = 100, 200, 40  # of the prompts in a queue, and their tokens
LOOKS = 100
# Of the tree: tokens of a document and of each of its ends, prompts that are timed, and reqs.
TREE_DOCUMENT, BRANCHES, TREE_END = 32, 100, 8
TREE_CALLS, TREE_ROWS = 10_000, 32


def null_result(batch: ForwardBatch) -> StepResult:
    """Token 7 for each sample."""
    samples, logprobs = len(batch.sample_tokens), len(batch.logprob_tokens)
    return StepResult(
        np.full(samples, 7, np.int32),
        np.full(samples, np.nan, np.float32),
        np.zeros(logprobs, np.float32),
    )


class StepCost(NamedTuple):
    """CPU microseconds of one step by its parts; `tell` makes the message."""

    prepare: float
    seal: float
    finalize: float
    commit: float
    tell: float
    is_decode: bool
    num_rows: int


class Loop:
    """One core and the step that would be running now."""

    def __init__(self, **config: object) -> None:
        self.core = Scheduler(SchedulerConfig(vocab_size=VOCAB, **config))  # type: ignore[arg-type]
        self._running: tuple[Step, StepResult] | None = None
        self._rng = np.random.default_rng(0)
        self._count = 0

    def tokens(self, length: int) -> np.ndarray:
        return self._rng.integers(0, VOCAB, length)

    def add(
        self,
        prompt: np.ndarray,
        outputs: int,
        presence_penalty: float = 0.0,
        grammar: Grammar | None = None,
        retokeniser: Retokeniser | None = None,
    ) -> None:
        sampling = FilledParams(
            max_new_tokens=outputs, temperature=0.0, presence_penalty=presence_penalty
        )
        wire = TokenizedReq(b"c", str(self._count), 0, pack_ids(prompt), sampling, stream=True)
        self._count += 1
        self.core.add(wire, 0.0, grammar, retokeniser)

    def step(self) -> StepCost:
        """Plans the next step, runs it and commits the one before."""
        core, (previous, self._running) = self.core, (self._running, None)
        clock = [time.thread_time()]
        plan = core.prepare(0.0)
        clock.append(time.thread_time())
        step = None if plan is None else core.seal(plan)
        clock.append(time.thread_time())
        if step is not None:
            step.finalize(None if previous is None else previous[1])
        clock.append(time.thread_time())
        if step is not None:
            self._running = step, null_result(step.batch)
        began = time.thread_time()
        if previous is not None:
            core.commit(*previous)
        clock[1:] = [at - clock[0] for at in clock[1:]]
        committed = time.thread_time()
        core.take_output(0.0)
        told = time.thread_time()
        rows = [] if step is None else step.rows
        return StepCost(
            1e6 * clock[1],
            1e6 * (clock[2] - clock[1]),
            1e6 * (clock[3] - clock[2]),
            1e6 * (committed - began),
            1e6 * (told - committed),
            all(row.is_decode for row in rows),
            len(rows),
        )

    def drain(self) -> list[StepCost]:
        """Steps until there is no work."""
        costs = []
        while self.core.has_work:
            costs.append(self.step())
        return costs


def decode_costs(rows: int, *, is_full: bool) -> list[StepCost]:
    """The costs of the steps in which `rows` requests decode and nothing else happens."""
    slots_each = PROMPT + OUTPUTS - 1 if is_full else 2 * (PROMPT + 2 * OUTPUTS)
    loop = Loop(
        max_total_tokens=rows * slots_each,
        context_len=2 * PROMPT,
        max_running_requests=rows,
        chunked_prefill_size=rows * PROMPT,
    )
    for _ in range(rows if is_full else 0):  # what is evicted later
        loop.add(loop.tokens(PROMPT), 1)
    loop.drain()
    for _ in range(rows):
        loop.add(loop.tokens(PROMPT), OUTPUTS)
    costs = loop.drain()
    return [cost for cost in costs if cost.is_decode and cost.num_rows == rows][2:]


def look_costs(waiting: int, policy: str, *, is_full: bool) -> list[float]:
    """CPU microseconds of the preparations that admit one of `waiting` requests each: questions
    to documents that are cached, all of them or half."""
    cached = DOCUMENTS * DOCUMENT
    loop = Loop(
        max_total_tokens=cached // 2 if is_full else cached + (waiting + LOOKS) * (QUESTION + 1),
        context_len=2 * PROMPT,
        max_running_requests=4,
        chunked_prefill_size=QUESTION if not is_full else DOCUMENT + QUESTION,
        schedule_policy=policy,
    )
    documents = [loop.tokens(DOCUMENT) for _ in range(DOCUMENTS)]
    for document in documents:
        loop.add(document, 1)
    loop.drain()
    for i in range(waiting):
        loop.add(np.concatenate((documents[i % DOCUMENTS], loop.tokens(QUESTION))), 1)
    for _ in range(waiting // MATCHED + waiting // MARKED + 2):  # looks until all are matched
        loop.core.state.waiting.ordered()
    return [loop.step().prepare for _ in range(LOOKS)]


def decode_line(rows: int, repeat: int, *, is_full: bool) -> list[str]:
    """Medians over all steps of all repetitions."""
    costs = [cost for _ in range(repeat) for cost in decode_costs(rows, is_full=is_full)]
    parts = [median(column) for column in list(zip(*costs, strict=True))[:5]]
    total = median(sum(cost[:5]) for cost in costs)
    cells = [*parts, total, total / rows]
    return [f"{rows}", "no" if is_full else "yes", *(f"{cell:.4g}" for cell in cells)]


def look_line(waiting: int, policy: str, *, is_full: bool) -> list[str]:
    costs = look_costs(waiting, policy, is_full=is_full)
    room = "no" if is_full else "yes"
    return [f"{waiting}", policy, room, f"{median(costs):.0f}", f"{mean(costs):.0f}"]


def grow_tree(loop: Loop, nodes: int) -> list[np.ndarray]:
    """Fill the pool with so many nodes: documents with `BRANCHES` different ends each. Returns the
    documents."""
    memory, documents = loop.core.state.memory, []
    for _ in range(nodes // (BRANCHES + 1)):
        tokens = loop.tokens(TREE_DOCUMENT + BRANCHES * TREE_END).astype(np.int32)
        slots = memory.alloc(len(tokens))
        assert slots is not None
        for first in range(TREE_DOCUMENT, len(tokens), TREE_END):
            parts = slice(0, TREE_DOCUMENT), slice(first, first + TREE_END)
            prompt, its_slots = (
                np.concatenate([x[part] for part in parts]) for x in (tokens, slots)
            )
            memory.cache.insert(prompt, its_slots)
        documents.append(tokens[:TREE_DOCUMENT])
    return documents


def insert_prompt(loop: Loop, prompt: np.ndarray) -> None:
    """As a req would that has computed it."""
    memory = loop.core.state.memory
    slots = memory.alloc(len(prompt))
    assert slots is not None
    done = memory.cache.insert(prompt.astype(np.int32), slots)
    memory.pool.free(slots[: done.existing])


def tree_line(nodes: int, seconds: float) -> list[str]:
    """p50 and p99 of the tree's operations, in CPU microseconds, and of traffic's steps in
    milliseconds the longest, and the longest collection of the garbage collector."""
    documents = nodes // (BRANCHES + 1)
    loop = Loop(
        max_total_tokens=documents * (TREE_DOCUMENT + BRANCHES * TREE_END),
        context_len=2 * PROMPT,
        max_running_requests=TREE_ROWS,
        schedule_policy="lpm",
    )
    garbage.begin()
    pauses = Collections()
    gc.callbacks.append(pauses)
    texts = grow_tree(loop, nodes)
    cache, rng = loop.core.state.memory.cache, np.random.default_rng(1)
    num_nodes = sum(1 for _ in cache.nodes())

    def prompt() -> np.ndarray:
        return np.concatenate((texts[rng.integers(len(texts))], loop.tokens(TREE_END)))

    costs = []
    for _ in range(TREE_CALLS):
        tokens = prompt().astype(np.int32)
        clock = [time.thread_time()]
        cache.match_prefix(tokens)
        clock.append(time.thread_time())
        loop.core.state.memory.find(len(tokens))
        clock.append(time.thread_time())
        insert_prompt(loop, tokens)
        clock.append(time.thread_time())
        costs.append(1e6 * np.diff(clock))
    steps, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        state = loop.core.state
        while len(state.running) + len(state.waiting) < TREE_ROWS:
            loop.add(prompt(), OUTPUTS)
        began = time.thread_time()
        loop.step()
        garbage.stepped()
        steps.append(1e3 * (time.thread_time() - began))
    gc.callbacks.remove(pauses)
    cells = [f"{at:.1f}" for column in np.array(costs).T for at in np.percentile(column, (50, 99))]
    ends = [f"{median(steps):.2f}", f"{max(steps):.1f}", f"{1e3 * pauses.longest_s:.1f}"]
    return [f"{num_nodes}", *cells, f"{len(steps)}", *ends]


class Collections:
    """The longest of the garbage collector's, in CPU seconds of this thread."""

    longest_s = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began_s = time.thread_time()
        else:
            self.longest_s = max(self.longest_s, time.thread_time() - self._began_s)


def main(argv: list[str] | None = None) -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.scheduler",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 32, 256, 1024])
    parser.add_argument("--waiting", type=int, nargs="*", default=[1000, 10_000])
    parser.add_argument("--policy", nargs="+", default=["lpm", "dfs-weight", "fcfs"])
    parser.add_argument("--repeat", type=int, default=5, help="of the steps that decode")
    parser.add_argument("--tree", type=int, nargs="*", default=[], metavar="NODES")
    parser.add_argument("--seconds", type=float, default=60.0, help="of traffic with a tree")
    args = parser.parse_args(argv)
    if args.tree:
        calls = ("match", "p99", "evict", "p99", "insert", "p99")
        steps = ("steps", "ms", "longest", "longest collection")
        lines = [tree_line(nodes, args.seconds) for nodes in args.tree]
        print("\n" + markdown(("nodes", *calls, *steps), lines))
        return
    lines = [
        decode_line(rows, args.repeat, is_full=is_full)
        for rows, is_full in product(args.rows, (False, True))
    ]
    parts = ("prepare", "seal", "finalize", "commit", "tell", "all", "per row")
    print("\n" + markdown(("rows", "room", *parts), lines), flush=True)
    lines = [
        look_line(waiting, policy, is_full=is_full)
        for waiting, policy, is_full in product(args.waiting, args.policy, (False, True))
    ]
    print("\n" + markdown(("waiting", "policy", "room", "median", "mean"), lines))


if __name__ == "__main__":
    main()
