"""Forked processes: the parent's back ends, runs, logs and clients in a child, and the parent's own
afterwards."""

import asyncio
import importlib
import json
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

import lang as sgl
from lang import loop
from srt import forked
from srt.client.face import AsyncClient
from tests.lang.fakes import HANG, FakeBackend
from tests.lang.test_faults import until, within

FORK = multiprocessing.get_context("fork")
NAMES = ["ada", "bob", "cyd", "dot"]


class Echo(BaseHTTPRequestHandler):
    """Answers OpenAI's completions and our /generate with the prompt, over kept connections."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/generate":
            meta = {"id": "e", "finish_reason": {"type": "stop"}, "prompt_tokens": 1}
            meta |= {"completion_tokens": 1, "cached_tokens": 0}
            made: Any = {
                "text": f"<{body['text']}>",
                "output_ids": [1],
                "meta_info": meta,
                "start": 0,
            }
        else:
            made = {"choices": [{"text": f"<{body['prompt']}>", "finish_reason": "stop"}]}
        is_stream = body.get("stream", False)
        self._answer(f"data: {json.dumps(made)}\n\ndata: [DONE]\n\n" if is_stream else made)

    def do_GET(self) -> None:
        self._answer({"model_path": "m", "media_placeholders": {}})

    def _answer(self, made: Any) -> None:
        data = (made if isinstance(made, str) else json.dumps(made)).encode()
        kind = "text/event-stream" if isinstance(made, str) else "application/json"
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def in_child(work: Callable[[], Any]) -> Any:
    """What `work` returns in a forked process, or its error's class and text."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            try:
                said: Any = work()
            except BaseException as error:
                said = [type(error).__name__, str(error)]
            os.write(write, json.dumps(said).encode())
        finally:
            os._exit(0)
    os.close(write)
    try:
        with os.fdopen(read, "rb") as pipe:
            return json.loads(within(pipe.read))
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@sgl.function
def echo(s: Any, name: str) -> None:
    s += name + sgl.gen("said")


def said(backend: Any, name: str, **options: Any) -> Any:
    state = echo.run(name, backend=backend, **options)
    return "".join(state.text_iter("said")) if options.get("stream") else state["said"]


def all_said(backend: Any) -> list[Any]:
    return [said(backend, name) for name in NAMES]


RIGHT = [f"<{name}>" for name in NAMES]
KINDS: dict[str, Callable[[str], Any]] = {
    "http": sgl.RuntimeEndpoint,
    "openai": lambda url: sgl.OpenAI("m", False, base_url=f"{url}/v1"),
}


@pytest.fixture(params=KINDS)
def backend(request: pytest.FixtureRequest, url: str) -> Iterator[Any]:
    with KINDS[request.param](url) as made:
        yield made


def test_a_child_has_connections_of_its_own(backend: Any) -> None:
    assert all_said(backend) == RIGHT
    assert in_child(lambda: said(backend, "kim")) == "<kim>"
    assert all_said(backend) == RIGHT
    assert in_child(lambda: in_child(lambda: all_said(backend))) == RIGHT
    assert in_child(lambda: [in_child(lambda: said(backend, "kim")), *all_said(backend)]) == [
        "<kim>",
        *RIGHT,
    ]
    assert in_child(lambda: (backend.close(), said(backend, "kim"))[1]) == "<kim>"
    assert all_said(backend) == RIGHT


def test_a_fork_on_the_loops_own_thread_and_inside_a_run(backend: Any) -> None:
    async def on_loop() -> Any:
        return in_child(lambda: said(backend, "kim"))

    @sgl.function
    def outer(s: Any) -> Any:
        s += "x" + sgl.gen("said")
        return s["said"], in_child(lambda: said(backend, "kim")), said(backend, "ada")

    async def awaiting(s: Any) -> Any:
        s += "x" + sgl.gen("said")
        return await s.get("said"), in_child(lambda: said(backend, "kim"))

    assert all_said(backend) == RIGHT
    assert loop.submit(on_loop()).result(60) == "<kim>"
    assert outer.run(backend=backend).ret_value == ("<x>", "<kim>", "<ada>")
    assert sgl.function(awaiting).run(backend=backend).ret_value == ("<x>", "<kim>")
    assert all_said(backend) == RIGHT


def test_forks_while_other_threads_run_programs(backend: Any) -> None:
    stopped, wrong = threading.Event(), list[Any]()

    def work() -> None:
        while not stopped.is_set():
            try:
                found = [*all_said(backend), said(backend, "kim", stream=True)]
            except Exception as error:
                found = [error]
            if found != [*RIGHT, "<kim>"]:
                wrong.append(found)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(12):
            assert in_child(lambda: [*all_said(backend), said(backend, "kim", stream=True)]) == [
                *RIGHT,
                "<kim>",
            ]
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
    assert wrong == []


pooled_backend: Any = None


def pooled(name: str) -> Any:
    return said(pooled_backend, name, stream=True, timeout_s=60)


def test_a_pool_of_processes(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.lang.test_processes.pooled_backend", backend)
    assert said(backend, "kim", stream=True) == "<kim>"
    with ProcessPoolExecutor(2, mp_context=FORK) as pool:
        found = pool.map(pooled, NAMES)
        assert all_said(backend) == RIGHT
        assert list(found) == RIGHT
    assert all_said(backend) == RIGHT


async def test_a_client_that_was_used_says_whose_it_is(url: str) -> None:
    async def ask(client: AsyncClient, name: str) -> str:
        return (await client.generate(name, sampling={"max_new_tokens": 1})).text

    async with AsyncClient(url) as client, AsyncClient(url) as unused:
        assert await ask(client, "ada") == "<ada>"

        async def closed() -> str:
            await client.__aexit__()
            return "closed"

        kind, text = in_child(lambda: asyncio.run(ask(client, "kim")))
        assert kind == "ConfigError" and f"belongs to process {os.getpid()}" in text
        assert in_child(lambda: asyncio.run(ask(unused, "kim"))) == "<kim>"
        assert in_child(lambda: asyncio.run(closed())) == "closed"
        assert [await ask(client, name) for name in NAMES] == RIGHT


def test_a_given_transport_is_the_parents() -> None:
    answer = {"choices": [{"text": "x", "finish_reason": "stop"}]}
    transport = httpx2.MockTransport(lambda request: httpx2.Response(200, json=answer))
    backend = sgl.OpenAI("m", False, base_url="http://x", transport=transport)
    assert in_child(lambda: said(backend, "kim")) == "x"
    assert said(backend, "ada") == "x"
    kind, text = in_child(lambda: said(backend, "kim"))
    assert kind == "ProgramError" and "this transport belongs to process" in text


def test_a_run_of_the_parent_fails_in_a_child() -> None:
    backend = FakeBackend()
    over = echo.run("ada", backend=backend)

    @sgl.function
    def hanging(s: Any) -> None:
        s += "x" + sgl.gen("first")
        s += HANG + sgl.gen("second")
        forks = s.fork(2)
        forks += sgl.gen("third")
        forks.join()

    over.sync()
    running = hanging.run(backend=backend)
    # The first gen is a call that is live, too.
    until(lambda: backend.live == 1 and backend.prompts[-1].text.endswith(HANG))

    def reads(state: Any) -> list[Callable[[], Any]]:
        names = ("second", "third")
        return [state.text, state.sync, *(partial(state.__getitem__, name) for name in names)]

    def all_fail() -> list[str]:
        errors = []
        for read in reads(running):
            with pytest.raises(sgl.ProgramError) as caught:
                read()
            errors.append(str(caught.value))
        running.cancel()
        return [*errors, running["first"], running.text("keep")]

    *errors, first, text = in_child(all_fail)
    assert all(f"the run goes on in process {os.getpid()}" in each for each in errors)
    assert (first, text) == ("<1>", "x<1>HANG")

    def goes_on() -> list[Any]:
        over.__iadd__("!" + sgl.gen("more"))
        return [over.text(), over["more"]]

    assert in_child(goes_on) == ["ada<3>!<7>", "<7>"]
    assert running.error() is None if running.program.is_over else backend.live == 1
    running.cancel()
    assert isinstance(within(running.error), sgl.CancelledError)


def test_a_batch_of_the_parent_says_so_in_a_child() -> None:
    rows = [{"name": name} for name in NAMES * 3]
    states = echo.run_batch(rows, backend=FakeBackend(), generator_style=True, num_threads=2)
    assert next(states)["said"] == "<3>"
    kind, text = in_child(lambda: next(states)["said"])
    assert (kind, "belongs to process" in text) == ("ConfigError", True)
    assert len([state["said"] for state in states]) == len(rows) - 1


def test_a_log_is_written_by_the_parent_while_a_child_lives(tmp_path: Path) -> None:
    log = sgl.Log(tmp_path / "log")

    pids = list[int]()

    @sgl.function
    def forking(s: Any) -> None:
        s += "x" + sgl.gen("a")
        s.sync()
        if not pids:
            pids.append(os.fork())
            if pids == [0]:
                signal.pause()

    try:
        forking.run(backend=FakeBackend(), log=log)
        assert forking.run(backend=FakeBackend(), log=log).error() is None
    finally:
        os.kill(pids[0], signal.SIGKILL)
        os.waitpid(pids[0], 0)


def test_a_fork_waits_for_what_other_threads_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = tmp_path / "imported_late.py"
    late.write_text("import time\nbegun = True\ntime.sleep(0.3)\nended = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(forked, "_IMPORTED_LATE", {"imported_late"})
    thread = threading.Thread(target=lambda: importlib.import_module("imported_late"))
    thread.start()
    until(lambda: hasattr(sys.modules.get("imported_late"), "begun"))
    assert in_child(lambda: importlib.import_module("imported_late").ended) is True
    thread.join()
    del sys.modules["imported_late"]


def test_a_fork_waits_for_what_must_not_be_divided() -> None:
    begun, ended = threading.Event(), threading.Event()

    def work() -> None:
        with forked.undivided():
            begun.set()
            ended.wait(0.3)  # nobody sets it
            ended.set()

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    assert in_child(lambda: (ended.is_set(), in_child(lambda: 1))[0]) is True
    thread.join()


def test_what_a_child_leaves_is_never_freed() -> None:
    freed = list[int]()

    class Thing:
        def __del__(self) -> None:
            freed.append(1)

    thing = Thing()
    forked.renew_in_children(thing, forked.leave)

    def work() -> int:
        nonlocal thing
        del thing
        return len(freed)

    assert in_child(work) == 0
