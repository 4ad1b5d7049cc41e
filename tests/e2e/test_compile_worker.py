"""A real server's compiler: what it answers, and what its failures cost others."""

import asyncio
import contextlib
import os
import re
import resource
import signal
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import pytest

from srt.client.face import AsyncClient
from srt.ring.places import ring_at
from srt.wire.constraint import Constraint, artefact_key
from srt.wire.errors import RequestError
from srt.wire.messages import Finish
from tests.e2e.server import Server, gone, running_server
from tests.waiting import SOON_S

LONG = {"max_new_tokens": 500, "ignore_eos": True, "temperature": 0.0, "speculative": "off"}
SLOW = r"[ab]*a[ab]{14}"  # takes long enough to be stopped while it compiles
SLOW_S = 0.1  # of CPU time: more than a child's rehearsal, less than SLOW
Calls = list["asyncio.Task[Any]"]
started = asyncio.ensure_future
DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"


def constrained(regex: str) -> dict[str, object]:
    return {"regex": regex, "max_new_tokens": 24, "temperature": 0.0}


def compiler_of(server: Server, instead_of: int | None = None) -> int:
    """The compiler, as soon as there is one; not the process `instead_of`.

    What a compiler made before it died is still used, so requests may be answered before the next
    one has started."""
    deadline = time.monotonic() + SOON_S
    while (found := server.pids().get("compiler", instead_of)) == instead_of:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert found is not None
    return found


def children(server: Server) -> list[int]:
    """The compiler's children: some compile, some are ending, and one waits for a job."""
    pid = compiler_of(server)
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def cpu_seconds(child: int) -> float:
    """The CPU time that a child has used; zero if it has ended."""
    try:
        fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def stop(child: int) -> None:
    """Stop it, unless it has ended; it does nothing any more then."""
    with contextlib.suppress(OSError):
        os.kill(child, signal.SIGSTOP)
        while Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] not in "TZX":
            time.sleep(0.001)


async def stopped(
    server: Server, ask: Callable[[dict[str, object]], Calls], start: str = ""
) -> tuple[Calls, int]:
    """Calls that wait for something slow, and the child that compiles it, which is stopped. On a
    busy machine it may end before it is seen: then `ask` is called again, with another pattern."""
    async with asyncio.timeout(SOON_S):
        for number in count():
            pattern = f"{start}{number}?{SLOW}"
            before = {child: cpu_seconds(child) for child in children(server)}  # one waits for jobs
            calls = ask(constrained(pattern))
            while not any(call.done() for call in calls):
                used = {child: cpu_seconds(child) - before[child] for child in before}
                if found := [child for child, seconds in used.items() if seconds >= SLOW_S]:
                    await asyncio.to_thread(stop, found[0])
                    if not artefact_of(server, pattern).exists():
                        return calls, found[0]
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(found[0], signal.SIGCONT)
                    break
                await asyncio.sleep(0.001)
            await asyncio.gather(*calls)
    raise AssertionError("unreachable")


def artefact_of(server: Server, regex: str) -> Path:
    """The file of a compiled regex."""
    key = artefact_key(Constraint("regex", regex), ring_at(server.ring).read_naming())
    return server.directory / "grammars" / key


async def test_an_output_follows_its_regex(sacrificial: Server) -> None:
    artefact = artefact_of(sacrificial, DATE)
    async with AsyncClient(sacrificial.ring) as client:
        outputs = await asyncio.gather(
            *(client.generate("Today is", sampling=constrained(DATE)) for _ in range(4))
        )
        assert all(re.fullmatch(DATE, output.text) for output in outputs)
        assert artefact.exists()
        kept = sacrificial.directory.parent / "grammars" / artefact.name
        async with asyncio.timeout(SOON_S):
            while not kept.exists():  # the answers do not wait for the cache
                await asyncio.sleep(0.001)
        assert kept.samefile(artefact)
        artefact.unlink()  # as if another server had made it: found in the cache
        artefact_again = await client.generate("Today is", sampling=constrained(DATE))
        assert artefact_again.text == outputs[0].text and kept.samefile(artefact)


async def test_a_bad_regex_is_refused_with_its_position(sacrificial: Server) -> None:
    async with AsyncClient(sacrificial.ring) as client:
        for _ in range(2):  # compiled, and remembered
            with pytest.raises(RequestError, match=r"regex: .*position 3") as caught:
                await client.generate("Hello", sampling=constrained("abc)d"))
            info = caught.value.info
            assert (info.http_status, info.param, info.retryable) == (400, "regex", False)


async def test_a_damaged_grammar_is_made_again(sacrificial: Server) -> None:
    """The front finds its file, and the scheduler cannot read it."""
    damaged = artefact_of(sacrificial, DATE + "!")
    damaged.write_bytes(b"damaged")
    async with AsyncClient(sacrificial.ring) as client:
        outputs = await asyncio.gather(
            *(client.generate("It is", sampling=constrained(DATE + "!")) for _ in range(3))
        )
    assert all(re.fullmatch(DATE + "!", output.text) for output in outputs)
    assert damaged.stat().st_size > 100


@pytest.mark.full
async def test_a_dead_compiler_costs_nobody_anything(sacrificial: Server) -> None:
    """It is stopped, so that requests park; then killed, and killed again. Neither a stream in
    flight nor requests whose grammar exists notice; for parked ones the next compiler is asked."""
    async with AsyncClient(sacrificial.ring) as client:
        known = await client.generate("It is", sampling=constrained(DATE))
        before = client._transport.ring
        assert before is not None and before.parts["compiler"] == "ready"
        stream = await client.submit(text="Once upon a time", sampling=LONG, stream=True)
        compiler = compiler_of(sacrificial)
        os.kill(compiler, signal.SIGSTOP)
        parked = [
            asyncio.ensure_future(client.generate("It is", sampling=constrained(f"{DATE}{i}")))
            for i in range(3)
        ]
        aborted = asyncio.ensure_future(
            client.generate(text="Hi", sampling=constrained("x") | {"n": 2}, rid="mine")
        )
        async with asyncio.timeout(SOON_S):
            while (await client.stats())["num_grammar_queue_reqs"] < 4:
                await asyncio.sleep(0.01)
        assert not any(task.done() for task in (*parked, aborted))
        again = await client.generate("It is", sampling=constrained(DATE))
        assert again.text == known.text and not any(task.done() for task in parked)
        assert (await client.stats())["num_grammar_queue_reqs"] == 4
        await client.abort("mine")
        samples: Any = await aborted
        for sample in samples:
            assert sample.finish == Finish("abort") and sample.text == ""
            assert sample.prompt_tokens > 0 == sample.completion_tokens
        os.kill(compiler, signal.SIGKILL)
        second = await asyncio.to_thread(compiler_of, sacrificial, compiler)
        os.kill(second, signal.SIGKILL)
        outputs = await asyncio.wait_for(asyncio.gather(*parked), SOON_S)
        for i, output in enumerate(outputs):
            assert re.fullmatch(f"{DATE}{i}", output.text)
        assert (await stream.result()).completion_tokens == 500
        after = client._transport.ring
        assert after is not None and after.epoch == before.epoch and after.ready
    assert await asyncio.to_thread(compiler_of, sacrificial, second) != compiler


@pytest.mark.full
async def test_others_go_on_beside_a_compilation_that_hangs(sacrificial: Server) -> None:
    """The child is stopped: it would never end by itself."""
    async with AsyncClient(sacrificial.ring) as client:
        compiler = compiler_of(sacrificial)
        [hanging], child = await stopped(
            sacrificial, lambda sampling: [started(client.generate("Hello", sampling=sampling))]
        )
        output = await client.generate("Today is", sampling=constrained("[a-c]{5}"))
        assert re.fullmatch("[a-c]{5}", output.text)
        hanging.cancel()
        assert await asyncio.to_thread(gone, [child], SOON_S)
        assert sacrificial.pids().get("compiler") == compiler


@pytest.mark.full
async def test_what_nobody_waits_for_is_killed(sacrificial: Server) -> None:
    """As soon as the second of two requests that wait for it is cancelled."""
    async with AsyncClient(sacrificial.ring) as client:
        calls, child = await stopped(
            sacrificial,
            lambda sampling: [started(client.generate("Hi", sampling=sampling)) for _ in range(2)],
            "c",
        )
        calls[0].cancel()
        output = await client.generate("Today is", sampling=constrained("[d-f]{5}"))
        assert re.fullmatch("[d-f]{5}", output.text)  # the compiler knows of the first cancel
        assert not gone([child], 0.1)
        calls[1].cancel()
        assert await asyncio.to_thread(gone, [child], SOON_S)
    await asyncio.to_thread(sacrificial.wait_idle)


@pytest.mark.parametrize("way", ["ring", pytest.param("http", marks=pytest.mark.full)])
async def test_an_abort_of_what_waits_for_its_grammar(sacrificial: Server, way: str) -> None:
    async with AsyncClient(sacrificial.ring if way == "ring" else sacrificial.url) as client:
        rid = f"parked-{way}"
        [call], child = await stopped(
            sacrificial,
            lambda sampling: [started(client.generate("Hi", sampling=sampling, rid=rid))],
            way,
        )
        await client.abort(rid)
        output = await asyncio.wait_for(call, SOON_S)
        assert output.finish is not None and output.finish.type == "abort"
        assert output.text == "" and output.completion_tokens == 0
        assert await asyncio.to_thread(gone, [child], SOON_S)


@pytest.mark.full
async def test_new_constraints_do_not_wait_behind_slow_ones(sacrificial: Server) -> None:
    """Children that never end by themselves take all places, and more constraints wait."""
    async with AsyncClient(sacrificial.ring) as client:
        before = await client.stats()
        slow = [
            asyncio.ensure_future(client.generate("Hi", sampling=constrained(f"s{i}" + SLOW)))
            for i in range(6)
        ]
        stopping = asyncio.ensure_future(stop_children(sacrificial))
        outputs = await asyncio.wait_for(
            asyncio.gather(
                *(client.generate("Hi", sampling=constrained(f"[a-c]{{{i}}}")) for i in (3, 4))
            ),
            SOON_S,
        )
        assert [len(output.text) for output in outputs] == [3, 4]
        assert not all(call.done() for call in slow)
        for call in slow:
            call.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        stopping.cancel()
        async with asyncio.timeout(SOON_S):  # the statistics follow within a second or two
            while True:
                stats = await client.stats()
                if stats["num_grammar_compiled_total"] >= before["num_grammar_compiled_total"] + 2:
                    break
                await asyncio.sleep(0.1)
        assert stats["num_grammar_queue_reqs"] == 0
    metrics = httpx2.get(sacrificial.url + "/metrics", timeout=SOON_S).text
    assert "srt_num_grammar_compiled_total" in metrics
    assert "srt_num_grammar_cancelled_total" in metrics


async def stop_children(server: Server) -> None:
    """Stop every child of the compiler that takes longer than a quick pattern."""
    while True:
        await asyncio.sleep(0.05)
        for child in children(server):
            if cpu_seconds(child) >= SLOW_S:
                stop(child)


@pytest.mark.full
async def test_a_compiler_killed_in_mid_compile(sacrificial: Server) -> None:
    """Its child dies too; the next compiler is asked again, and answers."""
    async with AsyncClient(sacrificial.ring) as client:
        [slow], child = await stopped(
            sacrificial,
            lambda sampling: [started(client.generate("Hi", sampling=sampling))],
            "b",
        )
        killed_at = time.monotonic()
        os.kill(compiler_of(sacrificial), signal.SIGKILL)
        assert gone([child], SOON_S)
        print(f"the child was gone after {1000 * (time.monotonic() - killed_at):.0f} ms")
        assert (await asyncio.wait_for(slow, SOON_S)).completion_tokens == 24
    await asyncio.to_thread(sacrificial.wait_idle)


@pytest.mark.slow
async def test_a_compiler_that_hangs_is_a_503(tmp_path: Path) -> None:
    with running_server(tmp_path, "--grammar-compile-timeout", "1") as server:
        compiler = compiler_of(server)
        os.kill(compiler, signal.SIGSTOP)
        try:
            async with AsyncClient(server.ring) as client:
                with pytest.raises(RequestError, match="does not answer") as caught:
                    await client.generate("Hello", sampling=constrained(DATE))
                assert caught.value.info.http_status == 503 and caught.value.info.retryable
        finally:
            os.kill(compiler, signal.SIGCONT)


@pytest.mark.slow
async def test_more_grammars_than_files_may_be_open(tmp_path: Path) -> None:
    """1,200 constraints where no part may have more than 128 files open, or raise that."""
    with running_server(tmp_path) as server:
        for pid in server.pids().values():
            soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            assert soft == hard or soft >= 2**14, "it raises its limit when it starts"
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (128, 128))
        async with AsyncClient(server.ring) as client:
            for i in range(0, 1200, 4):
                calls = [
                    client.generate("a", sampling=constrained(f"[a-z]{j}")) for j in range(i, i + 4)
                ]
                for number, output in enumerate(await asyncio.gather(*calls), i):
                    assert output.text[1:] == str(number)
        (stats,) = httpx2.get(server.url + "/server_info").json()["internal_states"]
        assert stats["num_running_reqs"] == 0
