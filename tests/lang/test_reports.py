"""Reports of runs to a page: what is sent, and that no program waits for it."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import lang as sgl
from lang.errors import LangError
from lang.logs.reports import report, sender
from lang.logs.reports.sender import Head, Sender, address_of
from tests.lang.fakes import BOOM, FakeBackend
from tests.waiting import SOON_S

HEAD = Head("0" * 32, "judge", 1.0)


class Sink:
    """A page: what was posted to it, and what it answers."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        self.status = 200
        self.hold = threading.Event()
        self.hold.set()
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                sink.hold.wait(SOON_S)
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.path == "/ui/runs" and sink.status == 200:
                    sink.bodies.append(json.loads(body))
                sink.keys.add(self.headers["authorization"])
                answer = b'{"error": {"message": "not so"}}'
                self.send_response(sink.status)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        # It ends in the time that it waits for calls.
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_port}/#key=secret"

    @property
    def posts(self) -> list[dict[str, Any]]:
        """The reports of all bodies."""
        return [report for body in self.bodies for report in body["runs"]]

    def steps(self) -> dict[str, dict[str, Any]]:
        """As a page has them: a later one of the same id replaces the former."""
        return {step["id"]: step for post in self.posts for step in post["steps"]}


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sink]:
    sink = Sink()
    monkeypatch.setattr(sender, "INTERVAL_S", 0.02)
    monkeypatch.setenv(report.VARIABLE, sink.address)
    monkeypatch.setattr(report, "_is_on", True)
    monkeypatch.setattr(report, "_sender", None)
    yield sink
    sink.hold.set()
    if report._sender is not None:
        report._sender.close()
    sink.server.shutdown()
    sink.server.server_close()


@sgl.function
def judge(s: sgl.ProgramState, essay: str) -> None:
    s += f"Essay: {essay}"
    forks = s.fork(2)
    forks += sgl.gen("verdict", max_tokens=4)
    forks.join()
    s += sgl.gen("summary", max_tokens=4)


def look_up(word: str) -> str:
    return word.upper()


@sgl.function
def agent(s: sgl.ProgramState) -> None:
    s += "Look: " + s.effect(look_up, "moon")
    s += inner.run(backend=fake())["thought"]


@sgl.function
def inner(s: sgl.ProgramState) -> None:
    s += sgl.gen("thought")


@sgl.function
def broken(s: sgl.ProgramState) -> None:
    s += BOOM + sgl.gen("thought")


def fake() -> FakeBackend:
    return FakeBackend(lambda prompt, sampling: "fine")


def flushed() -> None:
    assert report._sender is not None
    report._sender.flush(SOON_S)


def test_a_run_is_reported_with_lanes_tokens_and_its_end(sink: Sink) -> None:
    state = judge.run("short", backend=fake())
    state.sync()
    flushed()
    steps = sink.steps()
    assert set(steps) == {"0/fork0.0/0", "0/fork0.1/0", "0/2"}
    assert {post["name"] for post in sink.posts} == {"judge"}
    assert len({post["run"] for post in sink.posts}) == 1
    summary = steps["0/2"]
    assert (summary["kind"], summary["name"], summary["text"]) == ("gen", "summary", "fine")
    assert summary["t1"] >= summary["t0"] >= steps["0/fork0.0/0"]["t1"] - 1e-3
    assert summary["prompt"].startswith("Essay: short")
    assert sink.posts[-1]["ended"] is not None
    assert sink.keys == {"Bearer secret"}


def test_effects_and_runs_inside_belong_to_the_outermost(sink: Sink) -> None:
    agent.run(backend=fake()).sync()
    flushed()
    kinds = {step["kind"]: step for step in sink.steps().values()}
    assert set(kinds) == {"effect", "gen"} and kinds["effect"]["text"] == '"MOON"'
    assert kinds["gen"]["id"].startswith("0/run")
    assert {post["name"] for post in sink.posts} == {"agent"}


def test_a_failed_call_says_why(sink: Sink) -> None:
    state = broken.run(backend=fake())
    assert state.error() is not None
    flushed()
    (step,) = sink.steps().values()
    assert "exploded" in step["error"] and step["t1"] is not None


def test_rows_of_a_batch_are_runs_of_their_own(sink: Sink) -> None:
    judge.run_batch([{"essay": "a"}, {"essay": "b"}], backend=fake())
    flushed()
    assert len({post["run"] for post in sink.posts}) == 2
    assert {step.split("/")[0] for step in sink.steps()} == {"0", "1"}


def test_a_page_that_hangs_holds_nobody_up(sink: Sink) -> None:
    sink.hold.clear()
    for _ in range(5):
        judge.run("short", backend=fake()).sync()
    assert sink.posts == []
    sink.hold.set()
    flushed()
    assert len({post["run"] for post in sink.posts}) == 5


def test_what_is_too_much_is_dropped_and_counted(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sender, "MAX_STEPS", 10)
    sink.hold.clear()
    sending = Sender(sink.address)
    for number in range(100):
        sending.add(HEAD, {"id": str(number)})
    sink.hold.set()
    sending.flush(SOON_S)
    kept = len(sink.steps())
    assert 10 <= kept <= 20 and caplog.text == ""
    sending.close()
    assert f"{100 - kept} steps were not reported: there were too many" in caplog.text


def test_texts_that_wait_are_bounded(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "MAX_CHARS", 10_000)
    sink.hold.clear()
    sending = Sender(sink.address)
    for number in range(50):
        sending.add(HEAD, {"id": str(number), "text": "x" * 1000})
        sending.add(HEAD, {"id": str(number), "text": "y" * 1000})  # in the place of the former
    assert sending._chars <= 10_000
    sink.hold.set()
    sending.flush(SOON_S)
    assert 9 <= len(sink.steps()) <= 20 and sending._chars == 0
    sending._dropped = 0
    sending.close()


def test_long_runs_go_in_parts(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "MAX_STEPS_AT_ONCE", 7)
    sending = Sender(sink.address)
    for number in range(50):
        sending.add(HEAD, {"id": str(number)})
    sending.end(HEAD)
    sending.flush(SOON_S)
    assert len(sink.steps()) == 50 and max(len(post["steps"]) for post in sink.posts) <= 7
    assert len(sink.bodies) >= 8
    assert [post["ended"] is not None for post in sink.posts].count(True) == 1
    assert sink.posts[-1]["ended"] is not None


def test_many_runs_are_posted_together(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "MAX_RUNS_AT_ONCE", 10)
    sink.hold.clear()
    sending = Sender(sink.address)
    heads = [Head(f"{number:032}", "judge", 1.0) for number in range(35)]
    for head in heads:
        sending.add(head, {"id": "0/0"})
        sending.end(head)
    sink.hold.set()
    sending.flush(SOON_S)
    assert {post["run"] for post in sink.posts if post["ended"]} == {head.run for head in heads}
    assert len(sink.bodies) <= 5


@pytest.mark.parametrize("status", [308, 401, 403, 404])
def test_a_refused_key_is_told_once(
    sink: Sink, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    sink.status = status
    for _ in range(3):
        judge.run("short", backend=fake()).sync()
        flushed()
    assert caplog.text.count("not reported any more") == 1 and str(status) in caplog.text


def test_a_refused_step_is_told_once(sink: Sink, caplog: pytest.LogCaptureFixture) -> None:
    sink.status = 400
    for _ in range(3):
        judge.run("short", backend=fake()).sync()
        flushed()
    assert caplog.text.count("SGL_TRACE") == 1 and "not so" in caplog.text
    sink.status = 200
    judge.run("short", backend=fake()).sync()
    flushed()
    assert len(sink.steps()) == 3


@pytest.mark.parametrize("status", [429, 503])
def test_a_page_that_is_busy_is_asked_again(
    sink: Sink, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    sink.status = status
    judge.run("short", backend=fake()).sync()
    assert report._sender is not None
    report._sender.flush(0.1)
    sink.status = 200
    flushed()
    assert len(sink.steps()) == 3 and caplog.text == ""


def test_what_was_not_sent_is_told_at_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sender, "LAST_CHANCE_S", 0.1)
    sending = Sender("http://127.0.0.1:9/#key=x")
    sending.add(HEAD, {"id": "0"})
    sending.close()
    sending.close()
    assert caplog.text.count("1 steps were not reported: http://127.0.0.1:9 cannot be") == 1


def test_a_defect_of_the_thread_is_told_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sending = Sender("http://127.0.0.1:9/#key=x")
    sending.add(HEAD, {"id": "0", "text": "\ud800"})
    sending.flush(SOON_S)
    assert caplog.text.count("not reported any more: UnicodeEncodeError") == 1


def test_halves_of_characters_are_shown_as_such(sink: Sink) -> None:
    judge.run("\ud83d half", backend=fake()).sync()
    flushed()
    assert sink.steps()["0/2"]["prompt"].startswith("Essay: ? half")


FORKS = """
import os, sys, multiprocessing
import lang as sgl
from lang.logs.reports import sender
from tests.lang.fakes import FakeBackend

sender.LAST_CHANCE_S = 60  # whatever else the machine does


@sgl.function
def judge(s, essay):
    s += essay + sgl.gen("verdict")


def work(essay):
    assert judge.run(essay, backend=FakeBackend(lambda *_: "fine"))["verdict"] == "fine"


work("parent")
if sys.argv[1] == "os":
    if os.fork() == 0:
        work("child")
        sys.exit()
    os.wait()
else:
    child = multiprocessing.get_context("fork").Process(target=work, args=("child",))
    child.start()
    child.join()
    assert child.exitcode == 0
"""


@pytest.mark.parametrize("way", ["os", "multiprocessing"])
def test_forks_of_the_process_report_for_themselves(sink: Sink, way: str) -> None:
    command = [sys.executable, "-c", FORKS, way]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SOON_S)
    assert (done.returncode, done.stderr) == (0, "")
    prompts = {post["run"]: post["steps"][0]["prompt"] for post in sink.posts if post["steps"]}
    assert sorted(prompts.values()) == ["child", "parent"]


def test_a_page_that_is_gone_is_left_alone(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sender, "PATIENCE_S", 0.1)
    sending = Sender("http://127.0.0.1:9/#key=x")
    sending.add(HEAD, {"id": "0"})
    sending.flush(SOON_S)
    assert "cannot be reached" in caplog.text
    sending.add(HEAD, {"id": "1"})
    assert sending._waiting == {}


@pytest.mark.parametrize(
    "text",
    [
        *("", "nonsense", "http://127.0.0.1:1/", "ftp://a/#key=x", "http:///#key=x", "http://a/#k"),
        *("http://[a/#key=x", "http://a:99999/#key=x", "http://a:b/#key=x", "http://u:p@a/#key=x"),
        *("http://a/#key=\xe9", "http://a/#key=a%0Ab"),
    ],
)
def test_addresses_that_are_none(
    text: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(LangError, match="SGL_TRACE"):
        address_of(text)
    monkeypatch.setenv(report.VARIABLE, text)
    monkeypatch.setattr(report, "_is_on", True)
    monkeypatch.setattr(report, "_sender", None)
    for _ in range(2):
        judge.run("short", backend=fake()).sync()
    assert caplog.text.count("SGL_TRACE") == 1


def test_an_address_is_taken_apart() -> None:
    assert address_of("http://[::1]:80/#key=a-b_c") == ("http://[::1]:80", "a-b_c")
    assert address_of("https://host/page#key=x") == ("https://host", "x")


def test_without_the_variable_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "_is_on", False)
    monkeypatch.setattr(report, "_started", lambda: pytest.fail("it was asked for"))
    judge.run("short", backend=fake()).sync()
