"""What Parrot's client sends, and what it reads of the answers; bodies that it does not send."""

import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.e2e.parrot.exchanges import check_reads, recorded, replayed, texts_alone
from tests.e2e.server import Server
from tests.waiting import SOON_S

PROGRAMS = recorded()
REFUSALS = {
    "/v1/py_native_call": (400, "native functions are not supported"),
    "/v1/semantic_var/var-of-nobody": (404, "there is no such variable"),
    "/v1/semantic_call": (400, "parameters[0].sampling_config.temperature"),
}


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "refused"])
def test_a_program_of_its_client_runs(server: Server, name: str) -> None:
    exchanges = replayed(server.url, PROGRAMS[name], SOON_S)
    assert [each.status for each in exchanges] == [200] * len(exchanges)
    for each in exchanges:
        check_reads(each)
    texts = texts_alone(server.url, exchanges, SOON_S)
    gets = [each for each in exchanges if each.is_get]
    assert gets
    for each in gets:
        assert each.answer["content"] == texts[each.path.rpartition("/")[2]]
    session = exchanges[-1].path
    assert httpx2.get(server.url + session, timeout=SOON_S).status_code == 404


def test_what_is_refused_is_read_by_its_client(server: Server) -> None:
    exchanges = replayed(server.url, PROGRAMS["refused"], SOON_S)
    for each in exchanges:
        check_reads(each)
    refused = [each for each in exchanges if each.status != 200]
    *first, again = refused
    assert [each.path for each in first] == [*REFUSALS]
    for each in first:
        status, words = REFUSALS[each.path]
        assert each.status == status and words in each.answer["error"]["message"]
    assert again.status == 409 and again.answer["error"]["message"] == "var_id has been set already"


# ---- bodies that its client does not send ------------------------------------------------------


class Session:
    """A session of Parrot's routes, by hand."""

    def __init__(self, server: Server) -> None:
        self.http = httpx2.Client(base_url=server.url, timeout=SOON_S)
        self.given = self.ask("POST", "/v1/session", {}).json()
        self.id: int = self.given["session_id"]

    def ask(self, method: str, path: str, body: Any = None) -> httpx2.Response:
        return self.http.request(method, path, json=body)

    def call(self, template: str, *parameters: dict[str, Any], **more: Any) -> httpx2.Response:
        body = {"session_id": self.id, "template": template, "parameters": list(parameters)}
        return self.ask("POST", "/v1/semantic_call", body | more)


@pytest.fixture
def session(server: Server) -> Iterator[Session]:
    made = Session(server)
    yield made
    made.ask("DELETE", f"/v1/session/{made.id}", {})
    made.http.close()


def output(name: str, **config: Any) -> dict[str, Any]:
    return {"name": name, "is_output": True, "sampling_config": {"max_gen_length": 2} | config}


def given(name: str, **how: Any) -> dict[str, Any]:
    return {"name": name, "is_output": False, **how}


@pytest.mark.parametrize(
    ("parameters", "more", "param"),
    [
        ([given("a", var_id="v", value="x"), output("b")], {}, "parameters[0].value"),
        ([output("a") | {"var_id": "v"}, output("b")], {}, "parameters[0].var_id"),
        ([output("a") | {"value": "v"}, output("b")], {}, "parameters[0].value"),
        ([given("a", var_id="b"), output("b")], {}, "parameters[0].var_id"),
        ([given("a", var_id="var-x"), output("b")], {}, "parameters[0].var_id"),
        ([given("a", value=1), output("b")], {}, "parameters[0].value"),
        ([given("a") | {"sampling_config": {}}, output("b")], {}, "parameters[0].sampling_config"),
        ([output("a"), output("a")], {}, "parameters"),
        ([given("a")], {}, "template"),
        ([given("a"), given("b")], {}, "template"),
        ([given("a"), output("b")], {"template": "{{ a }}{{b }}"}, "parameters[0]"),
        ([output("a")], {"template": "x{{a}}y{{a}}"}, "parameters[0].name"),
        ([output("a")], {"template": ""}, "parameters[0]"),
        (
            [given("a" * 300, value="x"), output("b")],
            {"template": "{{" + "a" * 300 + "}}{{b}}"},
            "parameters",
        ),
        (
            [output("a" * 300), given("b", value="x")],
            {"template": "x{{b}}{{" + "a" * 300 + "}}"},
            "parameters[0].name",
        ),
        (
            [given("a", value="x" * (2**20 + 1)), output("b")],
            {},
            "parameters[0].value",
        ),
        ([output("a"), output("b"), output("c")], {}, "parameters[2]"),
        ([output("a"), output("b"), given("c")], {}, "parameters[2]"),
        ([output("a"), output("b", n=2)], {}, "parameters[1].sampling_config.n"),
        ([output("a", top_p=2), output("b")], {}, "parameters[0].sampling_config.top_p"),
        (
            [output("a", repetition_penalty=-1), output("b")],
            {},
            "parameters[0].sampling_config.repetition_penalty",
        ),
        ([output("a", stop_str=""), output("b")], {}, "parameters[0].sampling_config.stop_str"),
        ([output("a"), output("b")], {"func_name": "f" * 300}, "func_name"),
        ([output("a"), output("b")], {"output_criteria": "soon"}, "output_criteria"),
        ([output("a"), output("b")], {"model_type": "image"}, "model_type"),
        ([output("a"), output("b")], {"session_auth": "wrong"}, "session_auth"),
        ([output("a"), output("b")], {"session_id": 1}, "session_id"),
        ([output("a"), output("b")], {"session_id": 2**63}, "session_id"),
        ([output("a"), output("b")], {"session_id": -1}, "session_id"),
        ([output("a"), output("b")], {"session_id": "1"}, "session_id"),
    ],
)
def test_what_is_wrong_with_a_call_is_named(
    session: Session, parameters: list[dict[str, Any]], more: dict[str, Any], param: str
) -> None:
    template = more.pop("template", "{{a}} {{b}}")
    answer = session.call(template, *parameters, **more)
    assert answer.status_code in (400, 403, 404), answer.text
    assert answer.json()["error"]["param"] == param, answer.text
    assert answer.json()["traceback"] == ""
    assert session.ask("GET", f"/v1/session/{session.id}", {}).json() == {"vars": []}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "param"),
    [
        ("GET", "/v1/semantic_var", {}, 400, "session_id"),
        ("GET", "/v1/semantic_var?session_id=x", None, 400, "session_id"),
        ("GET", "/v1/semantic_var", {"session_id": 1}, 404, "session"),
        ("GET", "/v1/session/1", {}, 404, "session"),
        ("DELETE", "/v1/session/1", {"session_auth": "2"}, 403, "session_auth"),
        ("DELETE", "/v1/session/1", {"session_id": 2}, 400, "session_id"),
        ("POST", "/v1/semantic_var", {"var_name": "a"}, 400, "session_id"),
        ("POST", "/v1/semantic_var", {"session_id": 1, "var_name": "a"}, 404, "session_id"),
        ("POST", "/v1/semantic_var/var-x", {"content": "a"}, 404, "var_id"),
        ("POST", "/v1/semantic_var/var-x", {"content": 1}, 400, "content"),
        ("GET", "/v1/semantic_var/var-x", {"criteria": "soon"}, 400, "criteria"),
        ("GET", "/v1/semantic_var/var-x", {"session_id": 1, "session_auth": "2"}, 403, None),
        ("POST", "/v1/session", {"name": "mine"}, 400, "name"),
        ("PUT", "/v1/session/1", {}, 405, None),
    ],
)
def test_what_is_wrong_with_a_request_is_named(
    session: Session, method: str, path: str, body: Any, status: int, param: str | None
) -> None:
    answer = session.ask(method, path, body)
    assert answer.status_code == status, answer.text
    assert answer.json()["traceback"] == ""
    assert param in (None, answer.json()["error"]["param"]), answer.text


def test_names_of_variables_that_cannot_be(session: Session) -> None:
    for name in ("", "n" * 300, "var-x"):
        body = {"session_id": session.id, "var_name": name}
        answer = session.ask("POST", "/v1/semantic_var", body)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == "var_name"


def test_text_in_braces_that_is_no_placeholder_is_text(session: Session, server: Server) -> None:
    """Its documents' form of a body, too: an input that is set later, text after the output."""
    template = "{ {{a}} } {{ b }} {{1}} {{b}} and {{c}}"
    cold = output("b", temperature=0)
    answer = session.call(
        template, given("a"), cold, given("c", value="x"), session_auth=str(session.id)
    )
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert told["session_id"] == session.id
    ids = {each["placeholder_name"]: each["var_id"] for each in told["param_info"]}
    assert list(ids) == ["a", "b"]
    session.ask("POST", f"/v1/semantic_var/{ids['a']}", {"content": "one"})
    got = session.ask("GET", f"/v1/semantic_var/{ids['b']}?criteria=latency").json()
    body = {"text": "{ one } {{ b }} {{1}} ", "sampling_params": {"temperature": 0}}
    body["sampling_params"] |= {"max_new_tokens": 2}  # type: ignore[operator]
    assert session.ask("POST", "/generate", body).json()["text"] == got["content"]
    listed = session.ask("GET", f"/v1/semantic_var?session_id={session.id}").json()["vars"]
    assert {each["var_name"]: each["var_id"] for each in listed} == ids


def test_ids_are_numbers_that_nobody_guesses(session: Session, server: Server) -> None:
    others = [Session(server) for _ in range(4)]
    numbers = [session.id, *(each.id for each in others)]
    assert len(set(numbers)) == 5 and max(numbers) > 2**53
    assert all(0 <= number < 2**63 for number in numbers)
    answers = [session.call("a {{b}}", output("b")).json() for _ in range(5)]
    requests = {each["request_id"] for each in answers}
    assert len(requests) == 5 and max(requests) > 2**53
    for each in others:
        assert each.ask("DELETE", f"/v1/session/{each.id}").json() == {}
        each.http.close()


def test_a_call_with_criteria_begins_at_once(session: Session) -> None:
    answer = session.call("One, two, {{b}}", output("b"), output_criteria="throughput")
    (info,) = answer.json()["param_info"]
    lazy = session.call("One, two, {{b}}", output("b")).json()["param_info"][0]
    path, deadline = f"/v1/vars/{info['var_id']}", time.monotonic() + SOON_S
    while session.ask("GET", path).json()["state"] != "ready":  # which begins nothing
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert session.ask("GET", f"/v1/vars/{lazy['var_id']}").json()["state"] == "pending"
