"""The benchmark client: the shapes of workloads, its figures, and runs on a fake server."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.figures import figures_of, percentile, table
from bench.guesses import Guesses
from bench.measure import measure, words_of
from bench.serving import main, parse_args
from srt.benchmark.corpus import CorpusSource
from srt.benchmark.load import PROBES, LoadGenerator, Record, Run
from srt.benchmark.text import Source, TextSource
from srt.benchmark.workloads import WORKLOADS, Node, Workload
from srt.client.generation import Request
from srt.wire.errors import OVERLOADED, RequestError
from srt.wire.messages import Finish
from tests.fakes import FakeClient
from tests.srt.gateway.setup import served
from tests.waiting import SOON_S


def shape(name: str, scale: float = 1.0, source: Source | None = None) -> Workload:
    return WORKLOADS[name](source or TextSource(0), scale)


def common_prefix(texts: list[str]) -> str:
    length = 0
    for letters in zip(*texts, strict=False):
        if len(set(letters)) > 1:
            break
        length += 1
    return texts[0][:length]


def requests_of(workload: Workload) -> list[Node]:
    """Every node that is a request."""
    nodes = list(workload.roots)
    for node in nodes:
        nodes += node.children
    return [node for node in nodes if node.out_tokens]


def depth(node: Node) -> int:
    return 1 + max((depth(child) for child in node.children), default=0)


@pytest.mark.parametrize(
    ("name", "concurrency", "requests", "out_tokens"),
    [
        ("single", 1, 4, 128),
        ("batch", 32, 64, 128),
        ("fewshot", 16, 64, 16),
        ("multiturn", 16, 64, 64),
        ("tree", 24, 8 * 39, 40),
        ("longprompt", 4, 8, 32),
    ],
)
def test_counts(name: str, concurrency: int, requests: int, out_tokens: int) -> None:
    workload = shape(name)
    nodes = requests_of(workload)
    assert (workload.concurrency, len(nodes)) == (concurrency, requests)
    assert {node.out_tokens for node in nodes} == {out_tokens}


@pytest.mark.parametrize(
    ("name", "words"), [("single", 128), ("batch", 256), ("longprompt", 4000), ("fewshot", 1530)]
)
@pytest.mark.parametrize("source", [TextSource(0), CorpusSource(0)])
def test_prompt_lengths(name: str, words: int, source: Source) -> None:
    for root in shape(name, source=source).roots:
        assert source.words(root.text) == pytest.approx(words, rel=0.06)


@pytest.mark.parametrize("source", [TextSource(0), CorpusSource(0)])
def test_sharing(source: Source) -> None:
    fewshot = [root.text for root in shape("fewshot", source=source).roots]
    assert source.words(common_prefix(fewshot)) == pytest.approx(1470, rel=0.06)
    assert len(set(fewshot)) == 64
    batch = [root.text for root in shape("batch", source=source).roots]
    assert source.words(common_prefix(batch)) <= 1


def test_dependencies() -> None:
    assert {depth(root) for root in shape("multiturn").roots} == {4}
    assert all(len(n.children) <= 1 for n in requests_of(shape("multiturn")))
    for problem in shape("tree").roots:
        assert (problem.out_tokens, depth(problem), len(problem.children)) == (0, 4, 3)


def test_seed_scale_and_calibration() -> None:
    assert shape("batch") == shape("batch")
    assert WORKLOADS["batch"](TextSource(1), 1.0) != shape("batch")
    assert len(shape("batch", 0.25).roots) == 16
    assert len(shape("longprompt", 0.01).roots) == 1
    assert len(TextSource(0, tokens_per_word=2.0).text(100).split()) == 50


def test_words_of_jsonl(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"q": "one two", "n": 3}\n{"l": ["three", {"x": "four"}]}\n')
    assert words_of(tmp_path) == ["one", "two", "three", "four"]
    with pytest.raises(ValueError, match="jsonl"):
        words_of(tmp_path / "none")


def test_figures() -> None:
    good = Record(
        started=1.0,
        ended=2.0,
        chunk_times=[1.1, 1.2, 1.4],
        prompt_tokens=10,
        cached_tokens=5,
        completion_tokens=3,
    )
    silent = Record(started=1.0, prompt_tokens=30, completion_tokens=1, chunk_times=[1.5])
    silent.loops = True
    failed = Record(started=1.0, error="no")
    guesses = Guesses(verified=2, drafted=8, accepted=1)
    figures = figures_of(Run([good, silent, failed], wall_s=2.0, cpu_s=0.1), guesses)
    assert (figures.requests, figures.errors) == (3, 1)
    assert (figures.out_tok_s, figures.prompt_tok_s) == (2.0, 20.0)
    assert figures.hit_rate == 0.5
    assert figures.ttft_p50_ms == pytest.approx(100)
    assert figures.ttft_p99_ms == pytest.approx(500)
    assert figures.tpot_p50_ms == figures.tpot_p99_ms == pytest.approx(150)
    assert figures.itl_p50_ms == pytest.approx(100)
    assert figures.itl_p99_ms == figures.itl_max_ms == pytest.approx(200)
    assert (figures.prompt_tokens_min, figures.prompt_tokens_max) == (10, 30)
    header, row = table({"x": figures}).splitlines()
    assert len(header) == len(row) and "50.0%  50.0%         1.5    25.0%" in row
    assert (figures.loop_share, figures.accept_length, figures.guessed_share) == (0.5, 1.5, 0.25)
    other = figures_of(Run([silent], 1.0, 0.0), Guesses())
    assert (other.hit_rate, other.accept_length, other.guessed_share) == (None, None, None)


async def test_seeds_and_loops() -> None:
    client = FakeClient(("The same. ",) * 9)
    async with served(client) as server:
        for words in ([], ["--temperature", "0", "--random-words"], []):
            args = parse_args(["--workload", "multiturn", "--scale", "0.125", *words])
            args.url = server.url
            figures = (await measure(args))["figures"]["multiturn"]
            assert (figures.requests, figures.loop_share) == (8, 1.0)
    per_run = len(client.requests) // 3
    runs = [client.requests[i * per_run : (i + 1) * per_run] for i in range(3)]
    seeds = [sorted(r.sampling.seed for r in run[PROBES:] if r.sampling.seed) for run in runs]
    assert seeds[0] == seeds[2] and len(set(seeds[0])) == 8 and seeds[1] == []
    assert {r.sampling.temperature for r in runs[1]} == {0}


def test_data_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"--data .*none: No such file"):
        main(["--workload", "single", "--data", str(tmp_path / "none")])


def test_percentile() -> None:
    assert percentile([], 50) is None
    assert percentile([3, 1, 2], 50) == 2
    assert percentile(list(range(1, 101)), 99) == 99


class Counting(FakeClient):
    """A fake client that records the most requests in flight at once."""

    def __init__(self) -> None:
        super().__init__(("x", " y"))
        self.finish = Finish("length")
        self.delay_s = 0.002
        self.most = 0

    async def submit_samples(self, request: Request) -> Any:
        samples = await super().submit_samples(request)
        live = sum(not g.closed for g in self.generations)
        self.most = max(self.most, live)
        return samples


async def test_a_tree_run_on_a_server(tmp_path: Path) -> None:
    client = Counting()
    out = tmp_path / "r.json"
    async with served(client, api_keys=("k",)) as server:
        args = parse_args(
            ["--workload", "tree", "--url", server.url, "--scale", "0.125", "--api-key", "k"]
        )
        report = await measure(args)
    out.write_bytes(msgspec.json.encode(report))
    figures = report["figures"]["tree"]
    assert (figures.requests, figures.errors, figures.out_tokens) == (39, 0, 78)
    assert 1 < client.most <= 24
    assert report["cache_flushed"] == {"tree": True} and client.flushes == [5.0]
    assert report["server"]["version"] == "0.1"
    assert "k" not in str(report["server"].get("api_key", ""))
    requests = client.requests[PROBES:]
    assert all(r.sampling.ignore_eos and r.sampling.temperature == 0.7 for r in requests)
    assert len({r.sampling.seed for r in requests}) == 39
    texts = [r.text or "" for r in requests]
    leaves = [t for t in texts if t.count("\nStep") == 3]
    assert len(leaves) == 27
    assert all(t.count("x y\nStep") == 2 for t in leaves)
    saved = msgspec.json.decode(out.read_bytes())
    assert saved["figures"]["tree"]["requests"] == 39 and saved["machine"]["cores"]


async def test_refused_requests_are_counted() -> None:
    client = FakeClient(("x",))
    client.refusals[PROBES] = RequestError("full", code=OVERLOADED, retryable=True)
    async with served(client) as server:
        args = parse_args(
            ["--workload", "multiturn", "--url", server.url, "--scale", "0.125", "--no-ignore-eos"]
        )
        report = await measure(args)
    figures = report["figures"]["multiturn"]
    assert (figures.requests, figures.errors) == (5, 1)
    assert not client.requests[-1].sampling.ignore_eos


async def test_a_server_that_is_not_there() -> None:
    async with LoadGenerator("http://127.0.0.1:1", "m") as load:
        record = await asyncio.wait_for(load.complete("a", 4), SOON_S)
        assert record.error is not None and "ConnectionRefusedError" in record.error
        with pytest.raises(RuntimeError, match="probe"):
            await load.tokens_per_word(TextSource(0))
