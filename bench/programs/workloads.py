"""The programs that are measured: a chain, a map-reduce, and agents that write code in rounds."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from srt.benchmark.text import TextSource
from srt.wire.programs import Call, Input, Join, Output, Program, Segment, Text, Transform
from srt.wire.sampling import SamplingParams

CHAIN_CALLS = 20
MAPS = 16
REVIEW_ROUNDS = 3
Chunk = Callable[[int], str]  # text of about so many tokens


class Workload(NamedTuple):
    """A program, the variables that it is for, and how many calls are one after the other."""

    name: str
    program: Program
    sinks: list[str]
    rounds: int


def sampling(outputs: int) -> SamplingParams:
    """Exactly so many tokens, the same ones each time."""
    return SamplingParams(max_new_tokens=outputs, temperature=0.0, ignore_eos=True)


def source(seed: int, tokens_per_word: float, words: list[str] | None) -> Chunk:
    """Texts that differ from run to run by the seed, so that no cache has them."""
    texts = TextSource(seed, tokens_per_word, words)
    return texts.text


def chain(chunk: Chunk, chunk_tokens: int, outputs: int, num_calls: int = CHAIN_CALLS) -> Workload:
    """A summary of a long text: each call sees the summary so far and the next part."""
    calls = []
    for i in range(num_calls):
        so_far: list[Segment] = [Text("\nSummary so far:"), Input(f"s{i - 1}")] if i else []
        part = Text(f"Part {i}:{chunk(chunk_tokens)}")
        calls.append(_call([part, *so_far, Text("\nNew summary:")], f"s{i}", outputs))
    return Workload("chain", Program(calls=calls, eager=True), [f"s{num_calls - 1}"], num_calls)


def map_reduce(chunk: Chunk, chunk_tokens: int, outputs: int, maps: int = MAPS) -> Workload:
    """Summaries of parts, and one of these."""
    names = [f"m{i}" for i in range(maps)]
    calls = [
        _call([Text(f"Part {i}:{chunk(chunk_tokens)}\nSummary:")], name, outputs)
        for i, name in enumerate(names)
    ]
    calls.append(_call([Text("All:\n"), Input("all"), Text("\nIn short:")], "end", outputs))
    join = Transform("all", Join(names, "\n"))
    program = Program(calls=calls, transforms=[join], eager=True)
    return Workload("map_reduce", program, ["end"], 2)


def coding(chunk: Chunk, agents: int, outputs: int) -> Workload:
    """An architect, coders with a file each, and as many reviewers, who see all files: MetaGPT's
    roles as in Parrot's evaluation, with three rounds of reviews."""
    task = f"Task:{chunk(100)}\n"
    calls = [_call([Text(f"{task}Architect's plan:")], "plan", outputs)]
    transforms = []
    for i in range(agents):
        asked = Text(f"\nFile {i} of the plan:")
        calls.append(_call([Text(task), Input("plan"), asked], f"code0.{i}", outputs))
    for r in range(REVIEW_ROUNDS):
        files = [f"code{r}.{i}" for i in range(agents)]
        transforms.append(Transform(f"files{r}", Join(files, "\n\n")))
        for i in range(agents):
            before: list[Segment] = [Text(task), Input("plan"), Text("\n"), Input(f"files{r}")]
            calls.append(
                _call([*before, Text(f"\nReview of file {i}:")], f"review{r}.{i}", outputs)
            )
            before += [Text(f"\nReview of file {i}:"), Input(f"review{r}.{i}")]
            calls.append(_call([*before, Text("\nNew file:")], f"code{r + 1}.{i}", outputs))
    sinks = [f"code{REVIEW_ROUNDS}.{i}" for i in range(agents)]
    program = Program(calls=calls, transforms=transforms, eager=True)
    return Workload("coding", program, sinks, 2 + 2 * REVIEW_ROUNDS)


def fan(chunk: Chunk, chunk_tokens: int, outputs: int, number: int) -> Workload:
    """Calls that have nothing to do with each other, and one text of them all."""
    names = [f"f{i}" for i in range(number)]
    calls = [
        _call([Text(f"{i}:{chunk(chunk_tokens)}")], name, outputs) for i, name in enumerate(names)
    ]
    join = Transform("all", Join(names, "\n"))
    return Workload("fan", Program(calls=calls, transforms=[join], eager=True), ["all"], 1)


def handed_on(chunk: Chunk, outputs: int, seed: int) -> Workload:
    """A long text, which is drawn by the seed so that it does not loop, and a question about it."""
    drawn = SamplingParams(max_new_tokens=outputs, temperature=0.8, seed=seed, ignore_eos=True)
    calls = [
        Call([Text(f"Write about{chunk(40)}:"), Output("text", drawn)]),
        _call([Text("Read this:\n"), Input("text"), Text("\nIn short:")], "short", 8),
    ]
    return Workload("handed_on", Program(calls=calls, eager=True), ["text", "short"], 2)


def _call(segments: Sequence[Segment], name: str, outputs: int) -> Call:
    return Call([*segments, Output(name, sampling(outputs))])
