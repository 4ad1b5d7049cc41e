"""The requests of Parrot's client as data: with names in place of the ids that a server gives.

`$N.session_id`, `$N.session_auth` and `$N.var_id` are those of the answer to request N of a
program, `$N.NAME` the id of the variable of parameter NAME; `$N.content` stands for a text that the
client has got and sends on. `recorded.json` has what the client
sends for `programs.py`; `python -m tests.e2e.parrot.recorder` writes it.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx2

RECORDED = Path(__file__).with_name("recorded.json")
_UNREAD = {"func_code"}  # it is another one with each version of Python

# What the client reads of an answer: the fields of its `protocol/public/apis.py` that it needs, and
# their types. `send_http_request` asserts that a refusal has both of the last two.
SESSION: dict[str, type] = {"session_id": int, "session_auth": str}
CALL: dict[str, type] = {"request_id": int, "param_info": list}
VAR: dict[str, type] = {"var_id": str}
TEXT: dict[str, type] = {"content": str}
REFUSAL: dict[str, type] = {"error": dict, "traceback": str}


class Exchange(NamedTuple):
    """A request and its answer."""

    method: str
    path: str
    body: dict[str, Any]
    status: int
    answer: dict[str, Any]

    @property
    def is_call(self) -> bool:
        return self.path == "/v1/semantic_call" and self.status == 200

    @property
    def is_get(self) -> bool:
        return self.method == "GET" and self.path.startswith("/v1/semantic_var/")

    def reads(self) -> dict[str, type]:
        """What the client reads of the answer."""
        if self.status != 200:
            return REFUSAL
        made = {"/v1/session": SESSION, "/v1/semantic_call": CALL, "/v1/semantic_var": VAR}
        return TEXT if self.is_get else made.get(self.path, {})


def check_reads(exchange: Exchange) -> None:
    """Check that the client can read an answer: its types are pydantic's, which take no text that
    is no number for an integer."""
    for name, kind in exchange.reads().items():
        assert type(exchange.answer[name]) is kind, exchange
    if exchange.is_call:
        inputs = {each["name"] for each in exchange.body["parameters"]}
        for each in exchange.answer["param_info"]:
            assert each["parameter_name"] == each["placeholder_name"] in inputs
            assert each["var_id"].startswith("var-")
    if exchange.status != 200:
        assert exchange.answer["traceback"] == ""


class Names:
    """The names of the ids in the answers of one program."""

    def __init__(self) -> None:
        self._num_answers = 0
        self._ids: dict[str, Any] = {}
        self._texts: dict[str, str] = {}

    def learn(self, answer: dict[str, Any]) -> None:
        """Take the ids of the next answer, as the client reads them."""
        found = {name: answer[name] for name in (*SESSION, *VAR) if name in answer}
        found |= {each["parameter_name"]: each["var_id"] for each in answer.get("param_info", [])}
        for name, value in found.items():
            if value not in self._ids.values():
                self._ids[f"${self._num_answers}.{name}"] = value
        if "content" in answer:
            self._texts[f"${self._num_answers}.content"] = answer["content"]
        self._num_answers += 1

    def named(self, value: Any) -> Any:
        """The value with names in place of ids."""
        if isinstance(value, dict):
            return {key: "" if key in _UNREAD else self.named(of) for key, of in value.items()}
        if isinstance(value, list):
            return [self.named(each) for each in value]
        if isinstance(value, str) and value not in self._ids.values():
            for name, text in self._texts.items():
                value = value.replace(text, name)
        return next((name for name, known in self._ids.items() if known == value), value)

    def filled(self, value: Any) -> Any:
        """The value with ids in place of names."""
        if isinstance(value, dict):
            return {key: self.filled(of) for key, of in value.items()}
        if isinstance(value, list):
            return [self.filled(each) for each in value]
        if not isinstance(value, str) or value in self._ids:
            return self._ids.get(value, value)
        for name, text in self._texts.items():
            value = value.replace(name, text)
        return value

    def named_path(self, path: str) -> str:
        texts = {str(known): name for name, known in reversed(self._ids.items())}
        return "/".join(texts.get(part, part) for part in path.split("/"))

    def filled_path(self, path: str) -> str:
        return "/".join(str(self._ids.get(part, part)) for part in path.split("/"))


def named(exchanges: Sequence[Exchange]) -> list[list[Any]]:
    """The requests as data: method, path and body of each."""
    names, requests = Names(), []
    for each in exchanges:
        requests.append([each.method, names.named_path(each.path), names.named(each.body)])
        names.learn(each.answer)
    return requests


def recorded() -> dict[str, list[list[Any]]]:
    """The recorded requests, by program."""
    found: dict[str, list[list[Any]]] = json.loads(RECORDED.read_text())
    return found


def replayed(url: str, requests: Sequence[Sequence[Any]], timeout_s: float) -> list[Exchange]:
    """Send requests one after the other."""
    names, exchanges = Names(), []
    with httpx2.Client(base_url=url, timeout=timeout_s) as http:
        for method, named_path, named_body in requests:
            path, body = names.filled_path(named_path), names.filled(named_body)
            answer = http.request(method, path, json=body)
            exchanges.append(Exchange(method, path, body, answer.status_code, answer.json()))
            names.learn(answer.json())
    return exchanges


def texts_alone(url: str, exchanges: Sequence[Exchange], timeout_s: float) -> dict[str, str]:
    """The texts of all variables, by id: those of the outputs as /generate writes them, asked one
    by one with all texts in their places."""
    texts = {
        each.path.rpartition("/")[2]: each.body["content"]
        for each in exchanges
        if "content" in each.body
    }
    with httpx2.Client(base_url=url, timeout=timeout_s) as http:
        for each in exchanges:
            if each.is_call:
                texts |= _outputs(http, each, texts)
    return texts


def _outputs(http: httpx2.Client, call: Exchange, texts: dict[str, str]) -> dict[str, str]:
    """The texts of a call's outputs. The client's templates end with an output."""
    ids = {each["parameter_name"]: each["var_id"] for each in call.answer["param_info"]}
    template, found, written = call.body["template"], {}, ""
    for each in call.body["parameters"]:
        place = "{{" + each["name"] + "}}"
        if not each["is_output"]:
            text = each["value"] if "value" in each else texts[each["var_id"]]
            template = template.replace(place, text)
    for each in call.body["parameters"]:
        if each["is_output"]:
            before, template = template.split("{{" + each["name"] + "}}")
            written += before
            body = {"text": written, "sampling_params": _sampling(each["sampling_config"])}
            answer = http.post("/generate", json=body)
            assert answer.status_code == 200, answer.text
            written += answer.json()["text"]
            found[ids[each["name"]]] = answer.json()["text"]
    return found


def _sampling(config: dict[str, Any]) -> dict[str, Any]:
    same = ("temperature", "top_p", "stop_token_ids", "presence_penalty", "frequency_penalty")
    return {name: config[name] for name in same} | {
        "max_new_tokens": config["max_gen_length"],
        "ignore_eos": config["ignore_tokenizer_eos"],
        "stop": config["stop_str"],
        "repetition_penalty": 1.0,  # Parrot has none, whatever the field says
    }
