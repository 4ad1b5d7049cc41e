"""Parrot's routes on a real server, called as its front end calls them."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.e2e.server import Server
from tests.waiting import SOON_S

SHORT = {"temperature": 0.0, "max_gen_length": 6}


class Parrot:
    """A session of Parrot's front end."""

    def __init__(self, server: Server) -> None:
        self.http = httpx2.Client(base_url=server.url, timeout=SOON_S)
        opened = self.answer("POST", "/v1/session", {"api_key": "1"})
        self.session = {name: opened[name] for name in ("session_id", "session_auth")}

    def ask(self, method: str, path: str, body: Any = None) -> httpx2.Response:
        return self.http.request(method, path, json=body)

    def answer(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.ask(method, path, body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def call(self, template: str, *parameters: dict[str, Any], **more: Any) -> dict[str, str]:
        """The ids of a call's variables, by placeholder."""
        body = {**self.session, "func_name": "f", "template": template, **more}
        told = self.answer("POST", "/v1/semantic_call", body | {"parameters": list(parameters)})
        assert told["request_id"]
        return {each["placeholder_name"]: each["var_id"] for each in told["param_info"]}

    def get(self, var: str, criteria: str = "LATENCY") -> str:
        text: str = self.answer("GET", f"/v1/semantic_var/{var}", {"criteria": criteria})["content"]
        return text


@pytest.fixture
def parrot(server: Server) -> Iterator[Parrot]:
    made = Parrot(server)
    yield made
    made.http.close()


def output(name: str) -> dict[str, Any]:
    return {"name": name, "is_output": True, "sampling_config": SHORT}


def given(name: str, **how: str) -> dict[str, Any]:
    return {"name": name, "is_output": False, **how}


def test_a_chain_of_semantic_calls(parrot: Parrot) -> None:
    topic = parrot.answer("POST", "/v1/semantic_var", {**parrot.session, "var_name": "topic"})
    first = parrot.call(
        "About {{topic}} in {{style}} style: {{line}} and this is dropped",
        given("topic", var_id=topic["var_id"]),
        given("style", value="good"),
        output("line"),
    )
    second = parrot.call(
        "Title of {{line}}: {{title}}", given("line", var_id=first["line"]), output("title")
    )
    assert first["topic"] == topic["var_id"]
    assert (
        parrot.answer("POST", f"/v1/semantic_var/{topic['var_id']}", {"content": "the sea"}) == {}
    )
    title, line = parrot.get(second["title"]), parrot.get(first["line"], "THROUGHPUT")
    body = {"sampling_params": {"max_new_tokens": 6, "temperature": 0}}
    alone = parrot.answer("POST", "/generate", {"text": "About the sea in good style: ", **body})
    assert alone["text"] == line
    alone = parrot.answer("POST", "/generate", {"text": f"Title of {line}: ", **body})
    assert alone["text"] == title
    listed = parrot.answer("GET", "/v1/semantic_var", parrot.session)["vars"]
    assert [var["var_name"] for var in listed] == ["topic", "line", "title"]
    name = f"/v1/session/{parrot.session['session_id']}"
    assert parrot.answer("DELETE", name, {"session_auth": parrot.session["session_auth"]}) == {}
    assert parrot.ask("GET", name).status_code == 404


@pytest.mark.parametrize(
    ("parameters", "more", "param"),
    [
        ([given("a", var_id="v", value="x"), output("b")], {}, "parameters[0].value"),
        ([output("a") | {"var_id": "v"}, output("b")], {}, "parameters[0].var_id"),
        ([given("a") | {"sampling_config": {}}, output("b")], {}, "parameters[0].sampling_config"),
        ([output("a"), output("a")], {}, "parameters"),
        ([given("a")], {}, "template"),
        ([output("a"), output("b"), output("c")], {}, "parameters"),
        ([given("a", value="x"), output("b")], {"session_auth": "wrong"}, "session_auth"),
    ],
)
def test_what_is_wrong_is_named(
    parrot: Parrot, parameters: list[dict[str, Any]], more: dict[str, Any], param: str
) -> None:
    body = {**parrot.session, "template": "{{a}} {{b}}", "parameters": parameters, **more}
    answer = parrot.ask("POST", "/v1/semantic_call", body)
    assert answer.status_code in (400, 403, 404), answer.text
    assert answer.json()["error"]["param"] == param, answer.text
    several = output("b") | {"sampling_config": {"n": 2}}
    refused = parrot.ask("POST", "/v1/semantic_call", body | {"parameters": [several]})
    assert refused.json()["error"]["param"] == "parameters[0].sampling_config.n"


def test_native_functions_are_refused(parrot: Parrot) -> None:
    answer = parrot.ask("POST", "/v1/py_native_call", {**parrot.session, "func_name": "f"})
    assert answer.status_code == 400 and "native" in answer.json()["error"]["message"]
