"""`srt.Engine`: offline use, on a server of its own without HTTP."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from srt import Engine, RequestError, RingError
from srt.client.generation import GenerateOutput
from srt.files.model_files import resolve_model
from srt.wire.errors import ConfigError
from tests.e2e.server import gone

PROMPT = "The capital of France is"
POOL = 8192  # of the shared engine
GREEDY = {"max_new_tokens": 6, "temperature": 0.0}


def test_one_prompt(engine: Engine) -> None:
    output = engine.generate(PROMPT, GREEDY)
    assert isinstance(output, GenerateOutput) and output.text.startswith(" Paris")
    assert output.completion_tokens == len(output.output_ids) == 6
    assert output.finish is not None and output.finish.type == "length"


def test_prompts_in_order(engine: Engine) -> None:
    prompts = [PROMPT, "One, two, three,", PROMPT]
    outputs = engine.generate(prompts, GREEDY)
    assert [o.text for o in outputs] == [engine.generate(p, GREEDY).text for p in prompts]
    assert outputs[0].text != outputs[1].text
    assert engine.generate([], GREEDY) == []


def test_a_stream(engine: Engine) -> None:
    # Long enough that a busy machine does not take all of it in one piece.
    long = GREEDY | {"max_new_tokens": 64}
    whole = engine.generate(PROMPT, long)
    outputs = list(engine.stream(PROMPT, long | {"speculative": "off"}))
    assert len(outputs) > 1 and outputs[-1].text == whole.text
    assert "".join(output.delta for output in outputs) == whole.text


def test_a_stream_left_early_is_aborted(engine: Engine) -> None:
    before = engine.stats()["num_aborted_requests_total"]
    for output in engine.stream(
        PROMPT, {"max_new_tokens": 500, "ignore_eos": True, "speculative": "off"}
    ):
        if output.completion_tokens >= 2:
            break
    assert engine.generate("Hello", GREEDY).completion_tokens > 0
    assert engine.stats()["num_aborted_requests_total"] == before + 1


def test_calls_from_several_threads(engine: Engine) -> None:
    expected = engine.generate(PROMPT, GREEDY).text
    texts: list[str] = []
    threads = [
        threading.Thread(target=lambda: texts.append(engine.generate(PROMPT, GREEDY).text))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [expected] * 3


def test_stats_and_flush(engine: Engine) -> None:
    engine.generate(PROMPT, GREEDY)
    assert engine.generate(PROMPT, GREEDY).cached_tokens == 4
    stats = engine.stats()
    assert stats["max_total_tokens"] == POOL and stats["cached_tokens_total"] >= 4
    engine.flush_cache()
    assert engine.stats()["num_cached_tokens"] == 0


def test_a_bad_request_does_not_end_the_engine(engine: Engine) -> None:
    """Neither alone nor in a batch, which fails as a whole."""
    with pytest.raises(RequestError) as caught:
        engine.generate(PROMPT, {"top_p": 0.0})
    assert caught.value.info.param == "top_p"
    with pytest.raises(RequestError) as caught:
        engine.generate(
            [PROMPT, ""], {"max_new_tokens": 500, "ignore_eos": True, "speculative": "off"}
        )
    assert caught.value.info.param == "text"
    with pytest.raises(RequestError):
        list(engine.stream(PROMPT, {"temprature": 1.0}))
    with pytest.raises(RequestError):
        engine.generate(PROMPT, {"max_new_tokens": POOL + 1})
    steps = engine.stats()["forward_steps_total"]
    assert engine.generate(PROMPT, GREEDY).text.startswith(" Paris")
    assert engine.stats()["forward_steps_total"] - steps < 100


def test_a_forked_process_is_told_so_at_once(engine: Engine) -> None:
    """It has none of the engine's threads; the server still belongs to its parent."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            os.write(write_end, "\n".join(_errors_of(engine)).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as answers:
        errors = answers.read().splitlines()
    os.waitpid(child, 0)
    assert len(errors) == 3, errors
    assert all(f"belongs to process {os.getpid()}" in error for error in errors)
    assert engine.generate("Hello", {"max_new_tokens": 2}).completion_tokens == 2


def _errors_of(engine: Engine) -> list[str]:
    """The messages of what the engine's calls raise."""
    calls: list[Callable[[], Any]] = [
        lambda: engine.generate("Hello"),
        lambda: engine.stats(),
        lambda: asyncio.run(engine.client.generate("Hello")),
        lambda: engine.close(),
    ]
    errors = []
    for call in calls:
        try:
            call()
        except ConfigError as error:
            errors.append(str(error))
    return errors


@pytest.mark.full
def test_closing(engine: Engine) -> None:
    """Closing twice is harmless; processes and directory are gone, and calls say why they fail."""
    other = Engine(max_total_tokens=1024)
    pid, directory = other._process.pid, other.directory
    assert directory.exists()
    stream = other.stream(PROMPT, {"max_new_tokens": 500, "ignore_eos": True, "speculative": "off"})
    next(stream)
    other.close()
    other.close()
    assert gone([pid], 1.0) and not directory.exists()
    for call in (lambda: other.generate(PROMPT), other.stats, lambda: list(other.stream(PROMPT))):
        with pytest.raises(RingError, match="closed"):
            call()
    stream.close()
    assert engine.generate(PROMPT, GREEDY).text.startswith(" Paris")


@pytest.mark.full
def test_what_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SRT_MODEL", str(tmp_path / "none.gguf"))
    with pytest.raises(ConfigError, match=r"none.gguf.*\(set by SRT_MODEL\)"):
        Engine()
    monkeypatch.setenv("SRT_LOG_LEVEL", "info")
    (tmp_path / "-model.gguf").symlink_to(resolve_model("smollm2").path)
    names = ["-a", "b"]
    with Engine(tmp_path / "-model.gguf", max_total_tokens=512, served_model_name=names) as other:
        assert other.generate("Hello", {"max_new_tokens": 2}).completion_tokens == 2
    assert "starting -a" in capfd.readouterr().err


@pytest.mark.full
def test_what_cannot_start_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        ({"model": "/nonexistent/model.gguf"}, "/nonexistent/model.gguf"),
        ({"max_total_tokens": -1}, "--max-total-tokens"),
        ({"device": "nowhere"}, "nowhere"),
        ({"no_such": 1}, "--no-such"),
    ):
        with pytest.raises(ConfigError) as caught:
            Engine(**arguments)
        assert message in str(caught.value) + capfd.readouterr().err
