"""Parrot's routes over a part for programs that answers as a test says."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from srt.client.programs import Programs
from srt.wire.program_messages import GetVars, ProgramsQuestion, VarsGrew, VarsTold
from srt.wire.programs import VarInfo
from tests.fakes import FakeClient
from tests.srt.gateway.setup import in_process

PATHS = (
    ("POST", "/v1/session"),
    ("DELETE", "/v1/session/1"),
    ("POST", "/v1/semantic_call"),
    ("GET", "/v1/semantic_var/var-1"),
    ("POST", "/v1/py_native_call"),
)


class SlowPrograms(Programs):
    """The one variable is ready at the third get: the two before end at their bound."""

    def __init__(self) -> None:
        super().__init__()
        self.gets: list[GetVars] = []

    async def ask(self, question: ProgramsQuestion) -> Any:
        raise AssertionError(f"not asked here: {question}")

    async def answers(self, question: GetVars) -> AsyncGenerator[VarsGrew | VarsTold, None]:
        self.gets.append(question)
        is_ready = len(self.gets) == 3
        var = VarInfo(question.vars[0], "1", "a", "ready" if is_ready else "running", "done")
        yield VarsTold(question.rid, [var], is_ready)


async def test_a_get_waits_beyond_the_bound_of_one() -> None:
    """Parrot's client waits for as long as it takes."""
    programs = SlowPrograms()
    async with in_process(FakeClient(), programs=programs) as http:
        answer = await http.request("GET", "/v1/semantic_var/var-1", json={"criteria": "TTFT"})
    assert answer.json() == {"content": "done"} and answer.status_code == 200
    assert len({get.rid for get in programs.gets}) == len(programs.gets) == 3
    assert all(get.perf is not None and get.perf.objective == "ttft" for get in programs.gets)


@pytest.mark.parametrize(("method", "path"), PATHS)
async def test_its_client_cannot_log_in_where_there_are_keys(method: str, path: str) -> None:
    """Its key is in the body of /v1/session alone, where no key is looked for."""
    async with in_process(FakeClient(), api_keys=("k",)) as http:
        answer = await http.request(method, path, json={"api_key": "k"})
        assert answer.status_code == 401
        assert answer.json()["traceback"] == "" and "key" in answer.json()["error"]["message"]
        answer = await http.request(method, path, headers={"authorization": "Bearer k"})
        assert answer.status_code != 401


@pytest.mark.parametrize("path", ["/v1///session/1", "/v1//semantic_call", "/v1/semantic_call/"])
async def test_further_slashes_change_no_error(path: str) -> None:
    """Its client puts the path behind the address that it is given, which may end with a slash."""
    async with in_process(FakeClient()) as http:
        answer = await http.post(path, json={"x": 1})
    assert answer.status_code in (400, 405) and answer.json()["traceback"] == ""


async def test_other_routes_have_no_traceback() -> None:
    async with in_process(FakeClient()) as http:
        for path in ("/v1/sessions", "/v1/sessions/x", "/v1/semantic_variable", "/v1/get"):
            answer = await http.post(path, json={"x": 1})
            assert answer.status_code >= 400 and set(answer.json()) == {"error"}


async def test_a_defect_shows_no_traceback() -> None:
    """The part for programs of these tests raises what no route expects."""
    async with in_process(FakeClient(), programs=SlowPrograms()) as http:
        answer = await http.post("/v1/session", json={"api_key": "1"})
    assert answer.status_code == 500
    assert answer.json()["traceback"] == "" and "not asked here" not in answer.text
