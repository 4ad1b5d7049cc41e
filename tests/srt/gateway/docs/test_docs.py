"""The OpenAPI document and its page: complete, consistent, and nothing foreign on it."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import httpx2
import pytest

from srt.gateway.routes import HANDLERS
from srt.gateway.wire.anthropic import CountRequest, MessagesRequest
from srt.gateway.wire.fields import (
    CHAT,
    COMPLETION,
    COUNT,
    MESSAGES,
    NATIVE,
    NATIVE_SAMPLING,
    Kind,
    OnlyNeutral,
)
from srt.gateway.wire.native import NativeRequest, NativeSampling
from srt.gateway.wire.openai import ChatRequest, CompletionRequest
from srt.wire.sampling import rules_of
from tests.fakes import FakeClient
from tests.srt.gateway.setup import in_process

REFUSED = {
    *("/v1/embeddings", "/v1/responses/compact"),
    *("/v1/messages/batches", "/v1/messages/batches/{name}"),
}
WITHOUT_BODY = {"/flush_cache", "/start_profile", "/stop_profile", "/v1/py_native_call", *REFUSED}
WITHOUT_BODY |= {"/v1/responses/{name}"}
REF = "#/components/schemas/"


async def fetched(path: str, **info: Any) -> httpx2.Response:
    async with in_process(FakeClient(), **info) as http:
        response = await http.get(path)
    assert response.status_code == 200
    return response


@pytest.fixture
async def document() -> Any:
    return (await fetched("/openapi.json")).json()


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "$ref":
                yield item
            else:
                yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


def test_every_route_is_there(document: Any) -> None:
    expected = {
        (path, method.lower())
        for route in HANDLERS
        for path in route.paths
        for method in route.methods
    }
    found = {(p, m) for p, operations in document["paths"].items() for m in operations}
    assert found == expected and ("/generate", "put") in found


def test_every_body_and_every_answer_has_a_schema(document: Any) -> None:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            has_body = "requestBody" in operation
            assert has_body == (method not in ("get", "delete") and path not in WITHOUT_BODY), path
            assert operation["summary"], path
            if path not in REFUSED:
                assert operation["responses"]["200"]["content"], path
    generate = document["paths"]["/generate"]["post"]
    assert generate["requestBody"]["content"]["application/json"]["schema"] == {
        "$ref": REF + "NativeRequest"
    }
    assert set(generate["responses"]["200"]["content"]) == {
        "application/json",
        "text/event-stream",
    }


def test_references_lead_somewhere_and_ids_differ(document: Any) -> None:
    names = {ref.removeprefix(REF) for ref in references(document)}
    assert names <= set(document["components"]["schemas"]) and len(names) > 30
    ids = [o["operationId"] for ops in document["paths"].values() for o in ops.values()]
    assert len(ids) == len(set(ids))
    for path, operations in document["paths"].items():
        for operation in operations.values():
            inner = {p["name"] for p in operation.get("parameters", []) if p["in"] == "path"}
            assert inner == set(re.findall(r"{(\w+)}", path))


@pytest.mark.parametrize(
    ("struct", "kind"),
    [
        (NativeRequest, NATIVE),
        (NativeSampling, NATIVE_SAMPLING),
        (ChatRequest, CHAT),
        (CompletionRequest, COMPLETION),
        (MessagesRequest, MESSAGES),
        (CountRequest, COUNT),
    ],
)
def test_bodies_have_all_fields_that_are_taken(document: Any, struct: Any, kind: Kind) -> None:
    """Also those that have no effect; and null, where it means the default."""
    component = document["components"]["schemas"][struct.__name__]
    properties = component["properties"]
    assert set(properties) == {*struct.__struct_fields__, *kind.fields}
    assert component["additionalProperties"] is bool(kind.others)
    for name in struct.__struct_fields__:
        takes_null = {"type": "null"} in properties[name].get("anyOf", [])
        assert takes_null == (name not in component.get("required", [])), name
        assert properties[name]["description"]
    for name, field in kind.fields.items():
        if isinstance(field, OnlyNeutral):
            assert properties[name]["enum"][0] is None


@pytest.mark.parametrize("struct", [NativeSampling, ChatRequest, CompletionRequest])
def test_descriptions_say_the_rules(document: Any, struct: Any) -> None:
    properties = document["components"]["schemas"][struct.__name__]["properties"]
    for name, rule in rules_of(struct):
        assert rule.words[1:] in properties[name]["description"]
    assert properties["top_p"]["description"] == "1 is off; null is the model's. Must be in (0, 1]."


async def test_keys_are_told() -> None:
    closed = (await fetched("/docs/openapi.json", api_keys=("k",))).json()
    assert closed["paths"]["/generate"]["post"]["security"] == [{"key": []}, {"header": []}]
    assert "security" not in closed["paths"]["/health"]["get"]
    assert closed["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    assert '"k"' not in str(closed)


class Page(HTMLParser):
    """The tags, ids and links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attrs)
        assert not {"src", "onclick", "onload"} & set(given)
        if "id" in given:
            self.ids.add(str(given["id"]))
        if tag == "a":
            self.links.add(str(given["href"]))


async def test_the_page_stands_alone(document: Any) -> None:
    """No scripts, nothing from other hosts, and every link leads to a place on the page."""
    response = await fetched("/docs")
    assert response.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    page = Page(response.text)
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert page.links - {"/openapi.json"} == {"#" + name for name in page.ids} & page.links
    assert page.tags.count("details") == sum(len(ops) for ops in document["paths"].values())
    for word in ("POST /generate", "logit_bias", "return_text_in_logprobs", "beam_width"):
        assert word in response.text
