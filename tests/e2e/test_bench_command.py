"""`srt bench` against a real server."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from srt.benchmark.load import LoadGenerator
from srt.commands.bench import main
from tests.e2e.server import Server
from tests.waiting import SOON_S


@pytest.mark.full
def test_chosen_lengths_at_a_rate(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "new" / "report.json"
    args = ["--url", f"{server.url}/v1", "--input-len", "32", "--output-len", "8"]
    args += ["--num-prompts", "6", "--request-rate", "50", "--warmup", "1", "--api-key", "secret"]
    args += ["--flush-cache"]
    assert main([*args, "--json", str(report)]) == 0
    said = capsys.readouterr().out
    assert "random: the prefix cache was emptied" in said and "6 requests ok, 0 failed" in said
    assert "secret" not in report.read_text() + said
    found = json.loads(report.read_text())
    assert found["options"]["input_len"] == 32
    result = found["results"]["random"]
    figures = result["figures"]
    assert result["cache_emptied"] and result["errors"] == {}
    assert (figures["ok"], figures["failed"], figures["output_tokens"]) == (6, 0, 48)
    assert 6 * 16 < figures["prompt_tokens"] < 6 * 64
    assert 0 < figures["ttft_ms"]["p50"] <= figures["latency_ms"]["p50"]


@pytest.mark.full
def test_a_data_set(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "prompts.jsonl"
    chat = json.dumps({"messages": [{"role": "user", "content": "Hello"}]})
    path.write_text(f'{{"prompt": "Hello", "max_tokens": 4}}\n\n{chat}\n')
    args = ["--url", server.url, "--dataset", str(path), "--output-len", "2"]
    assert main(args) == 0
    said = capsys.readouterr().out
    assert "prompts.jsonl: the prefix cache was left as it was" in said
    assert "2 requests ok" in said and "6 in all" in said
    path.write_text('{"prompt": "Hello"}\n{"prompt": 3}\n')
    assert main(args) == 1
    assert "line 2: Expected `str | null`, got `int` - at `$.prompt`" in capsys.readouterr().err


@pytest.mark.full
def test_a_data_set_that_changes_meanwhile(
    server: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a"}\n')
    flush = LoadGenerator.flush_cache

    async def changed(load: LoadGenerator) -> bool:
        file.write_text("nothing\n")
        return await flush(load)

    monkeypatch.setattr(LoadGenerator, "flush_cache", changed)
    assert main(["--url", server.url, "--dataset", str(file), "--flush-cache"]) == 1
    assert "(it has changed meanwhile)" in capsys.readouterr().err


@pytest.mark.full
def test_a_workload_that_fails_in_part(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"prompt": "word " * 20_000}) + '\n{"prompt": "Hello"}\n')
    args = ["--url", server.url, "--dataset", str(path), "--output-len", "2"]
    assert main(args) == 1
    said = capsys.readouterr()
    assert "1 times: HTTP 400" in said.err and "1 requests ok, 1 failed" in said.out


def test_a_second_run_finds_nothing_of_the_first(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cache stays as it is, so its texts are others, unless the seed is given."""
    args = ["--url", server.url, "--input-len", "64", "--output-len", "2", "--num-prompts", "2"]
    shares = []
    for seed in ([], [], ["--seed", "5"], ["--seed", "5"]):
        assert main([*args, *seed]) == 0
        said = capsys.readouterr().out
        assert "random: the prefix cache was left as it was; seed " in said
        shares.append(float(re.findall(r"([0-9.]+) % cached", said)[0]))
    assert max(shares[:2]) < 10 and shares[3] > 80


def test_reports_that_cannot_be_written(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["--url", server.url.removeprefix("http://"), "--input-len", "8", "--num-prompts", "1"]
    assert main([*args, "--json", str(tmp_path)]) == 1
    assert f"srt bench: {tmp_path}: Is a directory" in capsys.readouterr().err
    assert main([*args, "--output-len", "2", "--json", "/dev/full"]) == 1
    said = capsys.readouterr()
    assert "1 requests ok" in said.out and "No space left" in said.err
    report = tmp_path / "report.json"
    assert main(["--url", "http://127.0.0.1:9", "--json", str(report)]) == 1
    assert not report.exists()


@pytest.mark.full
def test_a_request_that_takes_too_long(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--url", server.url, "--input-len", "8", "--output-len", "7000", "--num-prompts", "1"]
    assert main([*args, "--timeout", "1"]) == 1
    assert "no answer within 1 s" in capsys.readouterr().err
    server.wait_idle()


@pytest.mark.full
def test_an_interrupt_shows_what_there_is(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "Hi", "max_tokens": 2}\n{"prompt": "Go on", "max_tokens": 7000}\n')
    before = server.stats()["generation_tokens_total"]
    command = [sys.executable, "-m", "srt", "bench", "--url", server.url, "--max-concurrency", "1"]
    process = subprocess.Popen(
        [*command, "--dataset", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        # A shell that starts the tests in the background has them ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert "the prefix cache" in process.stdout.readline()
    deadline = time.monotonic() + SOON_S
    while server.stats()["generation_tokens_total"] < before + 40:  # the long one runs
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert "prompts.jsonl: 1 requests ok" in output and "Traceback" not in errors
    assert "interrupted with 1 requests in flight" in output and process.returncode == 130
    server.wait_idle()


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", "http://127.0.0.1:9"]) == 1
    assert "http://127.0.0.1:9 cannot be measured" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--workload", "batch", "--dataset", "x"], "exclude each other"),
        (["--num-prompts", "3"], "goes with --dataset or --input-len"),
        (["--input-len", "0"], "--input-len: must be a whole number between 1 and"),
        (["--input-len", "5", "--request-rate", "0"], "--request-rate: must be a number above 0"),
        (["--scale", "-1"], "--scale: must be a number above 0"),
        (["--scale", "2", "--input-len", "5"], "--scale goes with --workload"),
        (["--workload", "single", "--output-len", "5"], "--output-len goes with --dataset"),
        (["--data", "x", "--dataset", "x"], "give one of them"),
        (["--temperature", "-1"], "--temperature: must be a number of at least 0"),
        (["--input-len", "1e3"], "--input-len: must be a whole number"),
        (["--warmup", "-3"], "--warmup: must be a whole number between 0 and"),
        (["--url", "http://127.0.0.1:99999"], "--url: must be like http://"),
        (["--url", "http://[::1"], "--url: must be like http://"),
        (["--url", "http://me:secret@127.0.0.1"], "--url: takes no user"),
        (["--api-key", "\u043a"], "--api-key: must be of printable ASCII"),
    ],
)
def test_options_that_contradict(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert message in capsys.readouterr().err
