"""A server of two replicas: placement, what it tells of each, and losses."""

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from scheduler_proc.trace.recorded import replay
from srt.block_hash import BLOCK
from srt.client.face import AsyncClient
from srt.client.generation import GenerateOutput
from srt.kv_addresses import address_of
from srt.llm import LLM
from srt.wire.errors import RequestError
from srt.wire.hints import Hints
from tests.e2e.server import Server, running_server
from tests.e2e.test_resume import GREEDY, LONG, nothing, round_of
from tests.scheduler_proc.kv_subscriber import Peers, Subscriber
from tests.waiting import SOON_S

SHORT = GREEDY | {"max_new_tokens": 4}
PREFIX = "It is said that a long prefix is worth keeping where it is. " * 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ("--dp", "2", "--threads", "1", "--check-invariants")
    with running_server(tmp_path_factory.mktemp("replicas"), *options) as server:
        yield server


async def metrics(server: Server) -> list[str]:
    async with httpx2.AsyncClient(base_url=server.url, timeout=SOON_S) as http:
        return (await http.get("/metrics")).text.splitlines()


async def test_a_prefix_stays_where_it_is_and_others_go_elsewhere(server: Server) -> None:
    async with AsyncClient(server.ring) as client:
        where = []
        for turn in range(4):
            output = await client.generate(PREFIX + f"Turn {turn}:", sampling=SHORT)
            where.append(output.routed_replica)
            assert turn == 0 or output.cached_tokens >= 192
        assert len(set(where)) == 1
        some = LONG | {"max_new_tokens": 40}
        many = [client.generate(f"{i} things are " * 40, sampling=some) for i in range(8)]
        outputs = await asyncio.gather(*many)
    replicas = [output.routed_replica for output in outputs]
    assert sorted(replicas) == [0] * 4 + [1] * 4


async def test_classes_are_apart_and_groups_are_spread(server: Server) -> None:
    async with AsyncClient(server.ring) as client:
        chat = await client.submit(
            text="A chat:", sampling=LONG, stream=True, hints=Hints(perf="latency")
        )
        outputs = aiter(chat)
        first = await anext(outputs)
        maps = [
            client.generate(
                f"Part {i}: " * 10,
                sampling=SHORT,
                hints=Hints(app="a", perf="throughput", group="maps", group_size=4),
            )
            for i in range(4)
        ]
        others = [output.routed_replica for output in await asyncio.gather(*maps)]
        await chat.aclose()
        assert others == [1 - first.routed_replica] * 4
        group = Hints(app="b", group="maps", group_size=8)
        many = [client.generate(f"{i} parts " * 10, sampling=SHORT, hints=group) for i in range(8)]
        spread = [output.routed_replica for output in await asyncio.gather(*many)]
    assert spread.count(0) > 1 < spread.count(1)


@pytest.mark.parametrize("way", ["http", pytest.param("ring", marks=pytest.mark.full)])
async def test_a_look_at_both_trees(server: Server, way: str) -> None:
    url, key = server.ring, None
    if way == "http":
        url, key = server.url, (server.directory / "page_key").read_text()
    async with AsyncClient(url, api_key=key) as client:
        mine = LONG | {"max_new_tokens": 1000}
        busy = await client.submit(
            text=f"By {way}: " + PREFIX, sampling=mine, stream=True, routed_replica=1
        )
        outputs = aiter(busy)
        await anext(outputs)
        looks = await client.look()
        name = busy.rid
        await busy.aclose()
    assert [look["replica"] for look in looks] == [0, 1] and looks[0]["running"] == []
    (request,) = looks[1]["running"]
    nodes = {node[0]: node for node in looks[1]["nodes"]}
    assert request["state"] == "decode" and request["prompt"] > 192 and request["rid"] == name
    where = nodes[request["node"]]
    assert where[4] == 1 and where[2] + where[3] >= request["prompt"]
    for look in looks:
        assert look["nodes_are_all"]
        assert sum(node[3] for node in look["nodes"]) == look["cached_tokens"]
    await asyncio.to_thread(server.wait_idle)


async def test_samples_stay_together(server: Server) -> None:
    async with httpx2.AsyncClient(base_url=server.url, timeout=SOON_S) as http:
        body = {"text": PREFIX + "So", "sampling_params": {"n": 6, "max_new_tokens": 8}}
        for _ in range(2):
            answers = (await http.post("/generate", json=body)).json()
            assert len({answer["meta_info"]["routed_replica"] for answer in answers}) == 1


@pytest.mark.parametrize(
    "route",
    [
        pytest.param("/generate", marks=pytest.mark.full),
        pytest.param("/v1/completions", marks=pytest.mark.full),
        "/v1/chat/completions",
    ],
)
async def test_a_client_may_choose(server: Server, route: str) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/generate": {"text": "Hello", "sampling_params": {"max_new_tokens": 4}},
        "/v1/completions": {"prompt": "Hello", "max_tokens": 4},
        "/v1/chat/completions": {
            "messages": [{"role": "user", "content": "Hello"}],
            "max_tokens": 4,
        },
    }
    prompt = bodies[route]
    async with (
        httpx2.AsyncClient(base_url=server.url, timeout=SOON_S) as http,
        AsyncClient(server.ring) as client,
    ):
        for replica in (0, 1, 1, 0):
            before = await counts(client)
            answer = await http.post(route, json=prompt | {"routed_replica": replica})
            assert answer.status_code == 200, answer.text
            after = await counts(client)
            assert [b - a for a, b in zip(before, after, strict=True)] == [
                int(number == replica) for number in range(2)
            ]
        answer = await http.post(route, json=prompt | {"routed_replica": 2})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "routed_replica")
        assert error["message"] == "routed_replica must be below 2, the number of replicas"


async def counts(client: AsyncClient) -> list[int]:
    """The requests that each replica has had."""
    return [part["num_requests_total"] for part in (await client.stats())["replicas"]]


async def test_numbers_are_told_by_replica_and_in_all(server: Server) -> None:
    async with httpx2.AsyncClient(base_url=server.url, timeout=SOON_S) as http:
        info = (await http.get("/server_info")).json()
        health = (await http.get("/health")).json()["ring"]
    states, totals = info["internal_states"], info["totals"]
    assert [state["replica"] for state in states] == [0, 1] and info["dp"] == 2
    for name in ("num_requests_total", "max_total_tokens", "generation_tokens_total"):
        assert sum(state[name] for state in states) == totals[name] > 0, name
    assert 0 < totals["cache_hit_rate"] < 1
    assert {"scheduler.0", "scheduler.1"} < health["parts"].keys()
    assert len(health["incarnations"]) == 2 and max(health["incarnations"]) == health["incarnation"]
    lines = await metrics(server)
    total = totals["num_requests_total"]
    assert f"srt_num_requests_total {float(total)}" in lines
    for state in states:
        line = f'srt_replica_num_requests_total{{replica="{state["replica"]}"}}'
        assert f"{line} {float(state['num_requests_total'])}" in lines


@pytest.mark.full
async def test_a_flush_names_who_is_busy(server: Server) -> None:
    async with AsyncClient(server.ring) as client:
        await client.flush_cache(SOON_S)
        sampling = LONG | {"max_new_tokens": 4000}
        busy = await client.submit(text="Once", sampling=sampling, stream=True, routed_replica=1)
        await anext(aiter(busy))
        with pytest.raises(RequestError, match=r"^scheduler\.1: the cache is in use") as error:
            await client.flush_cache()
        assert error.value.info.http_status == 409
        await busy.aclose()
        await client.flush_cache(SOON_S)
        assert (await client.stats())["num_cached_tokens"] == 0


async def lose(server: Server, client: AsyncClient, replica: int) -> None:
    """Kill a replica's scheduler, and wait until the ring has noticed."""
    before = client._transport.ring.incarnation
    os.kill(server.pids()[f"scheduler.{replica}"], signal.SIGKILL)
    await until_lost(client, before)


async def until_lost(client: AsyncClient, before: int) -> None:
    """Until the client has heard that a scheduler of the incarnation `before` was lost."""
    async with asyncio.timeout(SOON_S):
        while client._transport.ring.incarnation == before:
            await asyncio.sleep(0.002)


async def until_both_are_ready(client: AsyncClient) -> None:
    async with asyncio.timeout(SOON_S):
        while len(client._transport.ring.ready_schedulers) < 2:
            await asyncio.sleep(0.01)


async def test_a_lost_ones_requests_go_on_at_the_other_at_once(server: Server) -> None:
    """Before there is another scheduler in its place. One that had ended when that was killed, as
    on a machine on which this process slept, has lost nothing: then again."""
    some = LONG | {"max_new_tokens": 160}
    async with AsyncClient(server.ring) as client:
        alone = [client.generate(f"Number {i}", sampling=some) for i in range(4)]
        expected = await asyncio.gather(*alone)
        for _ in range(5):
            pid = server.pids()["scheduler.0"]
            calls = [
                client.submit(text=f"Number {i}", sampling=some, stream=True) for i in range(4)
            ]
            streams = [aiter(call) for call in await asyncio.gather(*calls)]
            first = await asyncio.gather(*map(anext, streams))
            assert sorted(output.routed_replica for output in first) == [0, 0, 1, 1]
            before = client._transport.ring.incarnation
            os.kill(pid, signal.SIGKILL)
            outputs = await asyncio.gather(*map(last_of, streams, first))
            assert [output.text for output in outputs] == [output.text for output in expected]
            await until_lost(client, before)
            assert client._transport.ring.ready
            await until_both_are_ready(client)
            if all(output.routed_replica == 1 for output in outputs):
                break
        assert {output.routed_replica for output in outputs} == {1}
        again = [client.generate(f"Other {i}", sampling=SHORT) for i in range(8)]
        replicas = [output.routed_replica for output in await asyncio.gather(*again)]
        assert 0 in replicas and 1 in replicas
    await asyncio.to_thread(server.wait_idle)


async def last_of(stream: Any, last: GenerateOutput) -> GenerateOutput:
    """The last output of a stream whose output before is `last`."""
    async for output in stream:
        last = output
    return last


@pytest.mark.full
async def test_both_lost_go_on_when_one_is_back(server: Server) -> None:
    async with AsyncClient(server.ring) as client:
        expected = (await client.generate("Once", sampling=LONG)).text
        calls = [await client.submit(text="Once", sampling=LONG) for _ in range(4)]
        await lose(server, client, 0)
        await lose(server, client, 1)
        for call in calls:
            assert (await call.result()).text == expected
        await until_both_are_ready(client)
    await asyncio.to_thread(server.wait_idle)


@pytest.mark.full
@pytest.mark.parametrize("seed", [0])
async def test_killed_in_the_middle(server: Server, seed: int) -> None:
    await kills(server, random.Random(seed), rounds=1)


@pytest.mark.slow
async def test_killed_in_the_middle_again_and_again(server: Server) -> None:
    await kills(server, random.Random(2), rounds=20)


async def kills(server: Server, rng: random.Random, rounds: int) -> None:
    """Kill one replica, or one after the other, among requests of all kinds: no answer changes."""
    expected = await round_of(server, nothing)
    for _ in range(rounds):

        async def disturb() -> None:
            async with AsyncClient(server.ring) as client, asyncio.timeout(SOON_S):
                await asyncio.sleep(rng.uniform(0.0, 1.5))
                for replica in rng.sample(range(2), rng.randint(1, 2)):
                    while f"scheduler.{replica}" not in server.pids():
                        await asyncio.sleep(0.01)
                    await lose(server, client, replica)
                    await asyncio.sleep(rng.uniform(0.0, 1.0))
                await until_both_are_ready(client)

        answers = await round_of(server, disturb)
        for name, answer in expected.items():
            assert answers[name] == answer, name
        await asyncio.to_thread(server.wait_idle)


def test_each_replica_has_cpus_of_its_own(server: Server) -> None:
    """If there are enough; its threads would slow down others' that spin."""
    pids = server.pids()
    sets = [os.sched_getaffinity(pids[f"scheduler.{replica}"]) for replica in range(2)]
    if len(os.sched_getaffinity(0)) >= 2:
        assert not sets[0] & sets[1] and all(len(cpus) == 1 for cpus in sets)
    else:
        assert "they slow each other down" in server.log()


@pytest.mark.full
def test_llm_uses_all_replicas_and_records_a_trace_of_each(tmp_path: Path) -> None:
    """So does its engine."""
    trace = tmp_path / "trace"
    with LLM(dp=2, threads=1, record_trace=str(trace), max_total_tokens=4096) as llm:
        completions = llm.generate([f"{i} is" for i in range(6)], use_tqdm=False)
        stats = llm.engine.call(llm.engine.client.stats())
        outputs = llm.engine.generate([f"Now {i} is" for i in range(6)], SHORT)
    assert len(completions) == 6
    assert [part["num_requests_total"] for part in stats["replicas"]] == [3, 3]
    assert {output.routed_replica for output in outputs} == {0, 1}
    cores = [replay(Path(f"{trace}.{replica}")) for replica in range(2)]
    assert [core.state.counters.requests for core in cores] == [6, 6]


@pytest.mark.full
async def test_each_replica_publishes_its_blocks(tmp_path: Path) -> None:
    """A subscriber with vLLM's structs knows what each tree holds, over a flush too, and hears of
    nothing salted. More threads than CPUs work too, and are said."""
    events, replay_at = (f"ipc://{tmp_path}/{name}" for name in ("events", "replay"))
    options = ["--dp", "2", "--threads", str(os.cpu_count())]
    options += ["--kv-events", events, "--kv-events-replay", replay_at]
    peers = Peers()
    with running_server(tmp_path, *options) as server:
        assert "they slow each other down" in server.log()
        subscribers = [
            Subscriber(peers, address_of(events, replica), address_of(replay_at, replica))
            for replica in range(2)
        ]
        async with AsyncClient(server.ring) as client, asyncio.timeout(SOON_S):
            for number in range(6):
                text = f"{number} is a number among others, and it is said " * 30
                await client.generate(text, sampling=SHORT, routed_replica=number % 2)
                await client.generate(text, sampling=SHORT, cache_salt="mine")
            for subscriber in subscribers:
                while len(subscriber.index) < 3 * 5:
                    await subscriber.take(*await subscriber.hear())
                assert all(len(ids) == BLOCK for _, ids in subscriber.index.values())
            assert not subscribers[0].index.keys() & subscribers[1].index.keys()
            await client.flush_cache()
            for subscriber in subscribers:
                while subscriber.index:
                    await subscriber.take(*await subscriber.hear())
    peers.close()
