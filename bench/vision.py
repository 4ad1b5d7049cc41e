"""`python -m bench.vision`: requests that show pictures, on a server of its own.

The model has SmolVLM-256M's shape and random weights, made in a temporary directory, or is any
--model that sees pictures. Three parts:

* `bench`: 10 pictures (one tile each), 9 questions about each, shuffled, 8 at a time: with all
  caches, without the radix cache, and with another picture for each question, so that no cache
  helps. The optimum of the hit rate is what the same questions find cached one after the other,
  picture by picture.
* `chat`: the time to the first token of the turns of chats about one picture, from the second turn
  on, against chats of text of the same length.
* `crowd`: the latencies between tokens of streams of text while 32 pictures of 12 MP arrive, and
  while none does; the times to the first tokens about these pictures. They go on after the streams.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec

from bench.figures import percentile
from bench.streams import steady_streams
from bench.vision_load import Asked, each_its_own, made_questions, message, picture, read_questions
from srt.benchmark.summary import now
from srt.client.face import AsyncClient
from srt.client.generation import GenerateOutput
from srt.machine import machine
from srt.offline.engine import Engine

PARTS = ("bench", "chat", "crowd")
CONCURRENCY = 8
TURNS = 4
STREAMS = 4
TILE = 512
WIDE, HIGH = 4000, 3000  # 12 MP

Report = dict[str, Any]


class Run(NamedTuple):
    """What a run of questions took, and found cached."""

    seconds: float
    requests: int
    encoded: int
    prompt_tokens: int
    cached_tokens: int
    ttft_ms: float  # the median


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.vision",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--model", help="a model directory (default: random weights)")
    parser.add_argument("--questions", type=Path, help="JSON lines with `image` and `text`")
    parser.add_argument("--pictures", type=int, default=10, help="without --questions")
    parser.add_argument("--max-new-tokens", type=int, default=16)
    parser.add_argument("--large", type=int, default=32, help="pictures of 12 MP")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each run of streams")
    parser.add_argument("--chats", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=3, help="turns of each kind of run")
    parser.add_argument("--splits", action="store_true", help="large pictures are 17 tiles")
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures there")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    report: Report = {"date": now(), "machine": machine(), "command": sys.argv[1:]}
    with ExitStack() as stack:
        if args.model is None:
            from bench.vision_model import write_vision_model

            args.model = stack.enter_context(TemporaryDirectory())
            write_vision_model(Path(args.model), splits=args.splits, seed=args.seed)
        for part in args.parts:
            report[part] = {"bench": bench, "chat": chat, "crowd": crowd}[part](args)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    return 0


def _on_server(
    args: argparse.Namespace,
    work: Callable[[AsyncClient], Coroutine[Any, Any, Any]],
    **options: Any,
) -> Any:
    """What `work` returns with a fresh server, which has been warmed up by a text."""

    async def warmed(client: AsyncClient) -> Any:
        await client.generate("warm up", sampling={"max_new_tokens": 8, "ignore_eos": True})
        return await work(client)

    # A question may wait for seven pictures, which takes more than 30 s of a slow tower.
    with Engine(args.model, threads=args.threads, max_queue_wait=0, **options) as engine:
        return engine.call(warmed(engine.client))


async def _answer(
    client: AsyncClient, messages: Sequence[dict[str, object]], max_new_tokens: int
) -> tuple[GenerateOutput, float]:
    """The answer, and the milliseconds to its first token."""
    sampling = {"max_new_tokens": max_new_tokens, "temperature": 0.0, "ignore_eos": True}
    started, times, outputs = time.perf_counter(), list[float](), list[GenerateOutput]()
    async for output in client.stream(messages=messages, sampling=sampling):
        times.append(time.perf_counter())
        outputs.append(output)
    return outputs[-1], 1000 * (times[0] - started)


# ---- bench --------------------------------------------------------------------------------------


def bench(args: argparse.Namespace) -> Report:
    """Questions about pictures, with what is shared and without."""
    if args.questions:
        asked = read_questions(args.questions, args.seed)
    else:
        asked = made_questions(args.pictures, args.seed, TILE)
    kinds: dict[str, tuple[Asked, Report]] = {
        "cached": (asked, {}),
        "no radix cache": (asked, {"disable_radix_cache": True}),
        "nothing shared": (each_its_own(asked), {}),
    }
    found: dict[str, list[Run]] = {name: [] for name in kinds}
    for _ in range(args.repeat):
        for name, (given, options) in kinds.items():
            found[name].append(_asked(args, given, CONCURRENCY, options))
    in_order = asked._replace(questions=sorted(asked.questions))
    best = _asked(args, in_order, 1, {})
    print(
        f"\n{len(asked.questions)} questions, {len(asked.pictures)} pictures, {CONCURRENCY} at a "
        f"time, {args.max_new_tokens} tokens each\n"
    )
    print("| run | requests/s | range | encoded | cached | of the optimum | TTFT ms |")
    print("| --- | --: | --: | --: | --: | --: | --: |")
    for name, runs in found.items():
        rates = [run.requests / run.seconds for run in runs]
        middle = sorted(runs, key=lambda run: run.seconds)[len(runs) // 2]
        print(
            f"| {name} | {statistics.median(rates):.2f} | {min(rates):.2f} to {max(rates):.2f} | "
            f"{middle.encoded} | {middle.cached_tokens / middle.prompt_tokens:.1%} | "
            f"{middle.cached_tokens / best.cached_tokens:.1%} | {middle.ttft_ms:.0f} |"
        )
    return {"optimum": best._asdict(), **{n: [r._asdict() for r in rs] for n, rs in found.items()}}


def _asked(args: argparse.Namespace, asked: Asked, concurrency: int, options: Report) -> Run:
    """All questions on a fresh server."""

    async def work(client: AsyncClient) -> Run:
        places = asyncio.Semaphore(concurrency)

        async def ask(number: int, text: str) -> tuple[GenerateOutput, float]:
            async with places:
                messages = [message(text, [asked.pictures[number]])]
                return await _answer(client, messages, args.max_new_tokens)

        before = await client.stats()
        started = time.perf_counter()
        answers = await asyncio.gather(*(ask(*question) for question in asked.questions))
        seconds = time.perf_counter() - started
        after = await client.stats()
        outputs, firsts = zip(*answers, strict=True)
        return Run(
            seconds,
            len(outputs),
            after["media_encoded_total"] - before["media_encoded_total"],
            sum(output.prompt_tokens for output in outputs),
            sum(output.cached_tokens for output in outputs),
            statistics.median(firsts),
        )

    run: Run = _on_server(args, work, **options)
    return run


# ---- chat ---------------------------------------------------------------------------------------


def chat(args: argparse.Namespace) -> Report:
    """TTFT of later turns, of chats about a picture and of text."""

    async def work(client: AsyncClient) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {"picture": [], "text": []}
        for number in range(args.chats):
            shown = message(f"Chat {number}.", [picture(args.seed + number, TILE, TILE)])
            first, _ = await _answer(client, [shown], 1)
            told = await _text_of(client, number, first.prompt_tokens)
            # The picture's prompt is cached now; the text's has to be, too.
            await _answer(client, [told], 1)
            for name, opening in (("picture", shown), ("text", told)):
                found[name] += await _later_turns(client, opening, args.max_new_tokens)
        return found

    found = _on_server(args, work)
    medians = {name: statistics.median(times) for name, times in found.items()}
    print(
        f"\nTTFT from turn 2 on, {args.chats} chats of {TURNS} turns: about a picture "
        f"{medians['picture']:.1f} ms, of text of the same length {medians['text']:.1f} ms "
        f"({medians['picture'] / medians['text']:.2f})"
    )
    return {**found}


async def _text_of(client: AsyncClient, number: int, tokens: int) -> dict[str, object]:
    """A message whose prompt has about so many tokens."""
    for words in count(1):
        said = message(f"Text {number}. " + "and so it goes on " * words)
        if len(await client.tokenize(messages=[said])) >= tokens:
            return said
    raise AssertionError


async def _later_turns(
    client: AsyncClient, opening: dict[str, object], max_new_tokens: int
) -> list[float]:
    """The milliseconds to the first token, from the second turn on."""
    messages, times = [opening], []
    for turn in range(TURNS):
        answer, ttft_ms = await _answer(client, messages, max_new_tokens)
        times.append(ttft_ms)
        messages.append({"role": "assistant", "content": answer.text})
        messages.append(message(f"Turn {turn}: and what else?"))
    return times[1:]


# ---- crowd --------------------------------------------------------------------------------------


def crowd(args: argparse.Namespace) -> Report:
    """Latencies of text while large pictures arrive, and while none does."""
    ttft_ms: list[list[float]] = []

    async def work(client: AsyncClient) -> dict[str, list[list[float]]]:
        found: dict[str, list[list[float]]] = {"alone": [], "with pictures": []}
        for turn in range(args.repeat):
            files = [picture(seed, WIDE, HIGH) for seed in _seeds(args, turn)]
            found["alone"].append(await _latencies(client, args.seconds))
            showing = asyncio.create_task(_show(client, files))
            found["with pictures"].append(await _latencies(client, args.seconds))
            ttft_ms.append(await showing)
        return found

    found = _on_server(args, work)
    worst = {name: [percentile(times, 99) or 0.0 for times in runs] for name, runs in found.items()}
    print(f"\n{STREAMS} streams of text for {args.seconds:.0f} s, {args.large} pictures of 12 MP\n")
    print("| streams | ITL p50 ms | p99 ms | range of p99 |")
    print("| --- | --: | --: | --: |")
    for name, runs in found.items():
        half = statistics.median(percentile(times, 50) or 0.0 for times in runs)
        low, high = min(worst[name]), max(worst[name])
        middle = statistics.median(worst[name])
        print(f"| {name} | {half:.1f} | {middle:.1f} | {low:.1f} to {high:.1f} |")
    half = statistics.median(statistics.median(times) for times in ttft_ms)
    last = statistics.median(max(times) for times in ttft_ms)
    answered = sum(map(len, ttft_ms))
    print(
        f"\nTTFT about a picture, {answered} of {args.repeat * args.large} answered: "
        f"p50 {half / 1000:.1f} s, the last {last / 1000:.1f} s"
    )
    return {**found, "TTFT": ttft_ms}


def _seeds(args: argparse.Namespace, turn: int) -> range:
    """Of other pictures in each turn: nothing is known of them."""
    first = args.seed + turn * args.large
    return range(first, first + args.large)


async def _latencies(client: AsyncClient, seconds: float) -> list[float]:
    found, errors = await steady_streams([client], STREAMS, seconds)
    if errors:
        raise errors[0]
    return found


async def _show(client: AsyncClient, files: Sequence[bytes]) -> list[float]:
    """Send all at once, and wait for the answers: the milliseconds to their first tokens. A busy
    machine may refuse some."""
    asks = [_answer(client, [message("What is this?", [file])], 1) for file in files]
    answers = await asyncio.gather(*asks, return_exceptions=True)
    return [answer[1] for answer in answers if not isinstance(answer, BaseException)]


if __name__ == "__main__":
    sys.exit(main())
