"""Where a prompt left what is cached: `return_prefix`, and the header `x-return-prefix`."""

import uuid
from typing import Any

import httpx2
import pytest

from tests.e2e.conftest import ADMIN, KEYS
from tests.e2e.server import Server
from tests.waiting import SOON_S

RULES = "Rule é. " * 30


def said(server: Server, path: str, body: Any, **headers: str) -> Any:
    answer = httpx2.post(server.url + path, json=body, headers=headers, timeout=SOON_S)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_it_is_where_the_prompts_differ(server: Server) -> None:
    """By tokens and characters; with the text of this prompt only."""
    head = f"{uuid.uuid4().hex}. {RULES}Today it is "
    sampling = {"max_new_tokens": 1, "return_prefix": True}
    first, second = (
        said(server, "/generate", {"text": head + day, "sampling_params": sampling})["meta_info"]
        for day in ("monday, so work.", "tuesday, so rest.")
    )
    assert first["prefix"]["token"] < 10
    found = second["prefix"]
    text = head + "tuesday, so rest."
    assert found["token"] == second["cached_tokens"]
    assert head.rstrip() == text[: found["character"]].rstrip()
    assert found["text"] == text[found["character"] :][:40]
    assert "other" not in found  # nobody has a key


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions", "/v1/messages"])
def test_the_header_asks_for_it(server: Server, path: str) -> None:
    head = f"{uuid.uuid4().hex}. {RULES}"
    usages = []
    for day in ("monday", "tuesday"):
        messages = [{"role": "system", "content": f"{head}{day}"}, {"role": "user", "content": "a"}]
        given = {"input": messages} if path.endswith("responses") else {"messages": messages}
        limit = {"max_output_tokens": 1} if path.endswith("responses") else {"max_tokens": 1}
        usages.append(said(server, path, given | limit, **{"x-return-prefix": "true"})["usage"])
    usage = usages[1]
    details = usage.get("input_tokens_details") or usage.get("prompt_tokens_details") or usage
    assert details["prefix"]["text"].lstrip().startswith("tuesday")
    cached = details.get("cached_tokens", usage.get("cache_read_input_tokens"))
    assert details["prefix"]["token"] == cached
    plain = said(server, path, given | limit)["usage"]
    assert "prefix" not in str(plain)


def test_only_an_admins_key_shows_the_other_text(keyed: Server) -> None:
    """Without one, nobody is told what is cached there, were it one's own."""
    head = f"{uuid.uuid4().hex}. {RULES}Today it is "
    for key, sees in ((ADMIN, True), (KEYS[0], False)):
        for day in ("monday, so work.", "tuesday, so rest."):
            sampling = {"max_new_tokens": 1, "return_prefix": True}
            body = {"text": head + day, "sampling_params": sampling}
            answer = said(keyed, "/generate", body, authorization=f"Bearer {key}")
        found = answer["meta_info"]["prefix"]
        assert found["text"].lstrip().startswith("tuesday")
        assert ("other" in found) == sees
        assert not sees or found["other"].lstrip().startswith("monday")
    sampling = {"max_new_tokens": 1, "reveals_prefix": True}
    answer = httpx2.post(
        keyed.url + "/generate",
        json=body | {"sampling_params": sampling},
        headers={"authorization": f"Bearer {KEYS[0]}"},
        timeout=SOON_S,
    )
    assert answer.status_code == 400
