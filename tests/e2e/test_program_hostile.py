"""Programs that are meant to do harm: refused by name, within bounds, and at nobody else's cost."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from srt.programs.limits import CALLER_SHARE, MAX_GETS, MAX_SESSIONS, MAX_TEXT_BYTES
from tests.e2e.conftest import KEYS
from tests.e2e.server import Server
from tests.waiting import SOON_S

MIB = 2**20
WITHIN_MIB = 200  # of memory that the part may gain by all of this: 64 for the texts of each caller


@pytest.fixture
async def callers(keyed: Server) -> AsyncIterator[list[httpx2.AsyncClient]]:
    """A client with each key: the victim's and the attacker's."""
    clients = [
        httpx2.AsyncClient(
            base_url=keyed.url,
            headers={"authorization": f"Bearer {key}"},
            timeout=SOON_S,
            limits=httpx2.Limits(max_connections=None),
        )
        for key in KEYS[:2]
    ]
    yield clients
    for client in clients:
        await client.aclose()


async def session_of(http: httpx2.AsyncClient, **body: Any) -> str:
    answer = await http.post("/v1/sessions", json=body)
    assert answer.status_code == 200, answer.text
    found: str = answer.json()["id"]
    return found


def output(name: str, **more: Any) -> dict[str, Any]:
    return {"output": name, "sampling_params": {"max_new_tokens": 2, "temperature": 0}, **more}


def call(name: str, *inputs: str, **more: Any) -> dict[str, Any]:
    segments = [{"text": "x"}, *({"input": each} for each in inputs), output(name)]
    return {"segments": segments, **more}


def transform(name: str, op: str, **fields: Any) -> dict[str, Any]:
    return {"output": name, "op": op, **fields}


def join(name: str, inputs: list[str], **more: Any) -> dict[str, Any]:
    return transform(name, "join", inputs=inputs, separator="", **more)


DEEP: Any = "x"
for _ in range(60):
    DEEP = [DEEP]
MANY = {"calls": [call(f"c{i}") for i in range(3000)]}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a cycle": ({"calls": [call("a", "b"), call("b", "a")]}, "calls"),
    "a cycle of transforms": ({"transforms": [join("a", ["b"]), join("b", ["a"])]}, "calls"),
    "itself": ({"calls": [call("a", "a")]}, "calls"),
    "too many": (MANY, "calls"),
    "an unknown name": ({"calls": [call("a", "nobody")]}, "calls[0].segments[1].input"),
    "set twice": ({"calls": [call("a"), call("a")]}, "calls[1].segments[1].output"),
    "an id for a name": ({"vars": {"var-1": "x"}}, "vars['var-1']"),
    "a long name": ({"calls": [call("n" * MIB)]}, "calls[0].segments[1].output"),
    "a long text": ({"vars": {"a": "x" * (MAX_TEXT_BYTES + 1)}}, "vars['a']"),
    "no output": ({"calls": [{"segments": [{"text": "x"}]}]}, "calls[0]"),
    "both forms": (
        {"calls": [call("a") | {"messages": [{"role": "user", "content": "x"}]}]},
        "calls[0]",
    ),
    "an output of a user": (
        {"calls": [{"messages": [{"role": "user", "content": [output("a")]}]}]},
        "calls[0].messages[0].content[0].output",
    ),
    "several samples": (
        {"calls": [{"segments": [{"text": "x"}, {"output": "a", "sampling_params": {"n": 2}}]}]},
        "calls[0].segments[1].sampling_params.n",
    ),
    "a temperature": (
        {
            "calls": [
                {
                    "segments": [
                        {"text": "x"},
                        {"output": "a", "sampling_params": {"temperature": -1}},
                    ]
                }
            ]
        },
        "calls[0].segments[1].sampling_params.temperature",
    ),
    "an unknown field": ({"calls": [call("a", tools=[])]}, "calls[0].tools"),
    "a field of another": (
        {"vars": {"v": "x"}, "transforms": [join("a", ["v"], pattern="x")]},
        "transforms[0].pattern",
    ),
    "a missing field": (
        {"vars": {"v": "x"}, "transforms": [{"output": "a", "op": "split", "input": "v"}]},
        "transforms[0].",
    ),
    "a deep list": (
        {"vars": {"v": "x"}, "transforms": [join("a", DEEP)]},
        "transforms[0].inputs",
    ),
    "a pattern": (
        {
            "vars": {"v": "x"},
            "transforms": [
                {"output": "a", "op": "extract", "input": "v", "pattern": "(a{1,99}){1,99}"}
            ],
        },
        "transforms[0].pattern",
    ),
    "a bad pattern": (
        {
            "vars": {"v": "x"},
            "calls": [call("a", when={"input": "v", "matches": "(x"})],
        },
        "calls[0].when.matches",
    ),
    "a template": (
        {
            "vars": {"v": "x"},
            "transforms": [
                {"output": "a", "op": "format", "template": "{b}", "inputs": {"c": "v"}}
            ],
        },
        "transforms[0].inputs",
    ),
}


@pytest.mark.parametrize("name", BAD)
async def test_bad_programs_are_refused_by_name(
    callers: list[httpx2.AsyncClient], name: str
) -> None:
    program, param = BAD[name]
    http = callers[1]
    session = await session_of(http)
    answer = await http.post("/v1/submit", json={"session": session, **program})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"] or "").startswith(param), error
    assert len(error["message"]) < 1000
    told = (await http.delete(f"/v1/sessions/{session}")).json()
    assert told["vars"] == []  # nothing of it was taken


async def test_texts_that_explode_are_not_built(callers: list[httpx2.AsyncClient]) -> None:
    http = callers[1]
    session = await session_of(http)
    doubled = [join(f"d{i}", [f"d{i - 1}"] * 2) for i in range(1, 40)]
    template = {"op": "format", "template": "{a}" * 10_000, "inputs": {"a": "d0"}}
    program = {
        "vars": {"d0": "0123456789" * 20},
        "transforms": [*doubled, template | {"output": "f"}],
    }
    ids = (await http.post("/v1/submit", json={"session": session, **program})).json()["vars"]
    got = (await http.post("/v1/get", json={"vars": [ids["d39"], ids["f"]]})).json()
    assert [var["state"] for var in got["vars"]] == ["failed", "failed"]
    assert "more than" in got["vars"][1]["error"]["message"]
    await http.delete(f"/v1/sessions/{session}")


async def test_ids_of_others_are_unknown(callers: list[httpx2.AsyncClient]) -> None:
    victim, attacker = callers
    session = await session_of(victim)
    body = {"session": session, "vars": {"a": "secret", "b": None}}
    ids = (await victim.post("/v1/submit", json=body)).json()["vars"]
    own = await session_of(attacker)
    tries = [
        attacker.get(f"/v1/sessions/{session}"),
        attacker.delete(f"/v1/sessions/{session}"),
        attacker.post("/v1/submit", json=body),
        attacker.get(f"/v1/vars/{ids['a']}"),
        attacker.put(f"/v1/vars/{ids['b']}", json={"text": "x"}),
        attacker.delete(f"/v1/vars/{ids['b']}"),
        attacker.post("/v1/get", json={"vars": [ids["a"]]}),
        attacker.post("/v1/get", json={"vars": [ids["a"]], "stream": True}),
    ]
    assert [(await each).status_code for each in tries] == [404] * len(tries)
    stolen = {"session": own, "calls": [call("c", ids["a"])]}
    answer = await attacker.post("/v1/submit", json=stolen)
    assert answer.status_code == 400 and "secret" not in answer.text
    assert (await victim.get(f"/v1/vars/{ids['a']}")).json()["text"] == "secret"
    for http, name in ((victim, session), (attacker, own)):
        await http.delete(f"/v1/sessions/{name}")


@pytest.mark.full
async def test_a_flood_gives_others_no_429(callers: list[httpx2.AsyncClient]) -> None:
    """One caller opens sessions and gets until it is refused; the other one goes on."""
    victim, attacker = callers
    sessions: list[str] = []
    while len(sessions) <= MAX_SESSIONS * CALLER_SHARE:
        answer = await attacker.post("/v1/sessions", json={})
        if answer.status_code == 429:
            break
        sessions.append(answer.json()["id"])
    assert len(sessions) == MAX_SESSIONS * CALLER_SHARE
    body = {"session": sessions[0], "vars": {"never": None}}
    never = (await attacker.post("/v1/submit", json=body)).json()["vars"]["never"]
    most = int(MAX_GETS * CALLER_SHARE)
    gets = [
        asyncio.create_task(attacker.post("/v1/get", json={"vars": [never]}))
        for _ in range(most + 20)
    ]
    async with asyncio.timeout(SOON_S):
        while sum(get.done() for get in gets) < 20:  # those that wait end with their variable
            await asyncio.sleep(0.01)
    mine = await session_of(victim)
    asked = {"session": mine, "calls": [call("c")]}
    var = (await victim.post("/v1/submit", json=asked)).json()["vars"]["c"]
    got = await victim.post("/v1/get", json={"vars": [var]})
    assert got.status_code == 200 and got.json()["done"]
    await attacker.put(f"/v1/vars/{never}", json={"text": "x"})
    states = [(await get).status_code for get in gets]
    assert states.count(429) == 20 and set(states) == {200, 429}
    for http, names in ((victim, [mine]), (attacker, sessions)):
        for name in names:
            await http.delete(f"/v1/sessions/{name}")


@pytest.mark.full
async def test_memory_is_bounded(keyed: Server, callers: list[httpx2.AsyncClient]) -> None:
    """Texts are taken up to the caller's bound; then 429, and all is given back at the end."""
    http = callers[1]
    pid = keyed.pids()["programs"]
    before = resident_mib(pid)
    session = await session_of(http)
    text, refused = random.Random(1).randbytes(MIB // 2).hex(), 0
    for i in range(80):
        body = {"session": session, "vars": {f"v{i}": text}}
        answer = await http.post("/v1/submit", json=body)
        refused += answer.status_code == 429
    assert refused >= 16
    assert resident_mib(pid) - before < WITHIN_MIB
    told = (await http.delete(f"/v1/sessions/{session}")).json()
    assert 60 * MIB < told["num_bytes"] <= 64 * MIB
    assert keyed.pids()["programs"] == pid


def resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / MIB
