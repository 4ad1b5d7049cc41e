"""Prompts of programs ahead of time on a real server: what is left when an input has ended, and
that no text changes."""

from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.e2e.server import running_server
from tests.waiting import SOON_S

LINKS = 3
OUTPUTS = 60
HEAD = " ".join(f"line {i} of part" for i in range(40))
GREEDY = {"max_new_tokens": OUTPUTS, "temperature": 0, "ignore_eos": True}


def head_of(link: int) -> str:
    return f"Part {link}: {HEAD}. So far:"


def program() -> dict[str, Any]:
    calls = []
    for link in range(LINKS):
        before = [{"input": f"s{link - 1}"}] if link else []
        output = {"output": f"s{link}", "sampling_params": GREEDY}
        calls.append({"segments": [{"text": head_of(link)}, *before, {"text": "\nGo on:"}, output]})
    chat = [
        {"role": "system", "content": head_of(LINKS)},
        {"role": "user", "content": [{"text": "Go on:"}, {"input": f"s{LINKS - 1}"}]},
        {"role": "assistant", "content": [{"output": "chat", "sampling_params": GREEDY}]},
    ]
    return {"calls": [*calls, {"messages": chat}]}


@pytest.mark.full
def test_the_head_of_a_call_is_cached_when_its_input_has_ended(tmp_path: Path) -> None:
    options = ("--schedule-policy", "app", "--check-invariants")
    with (
        running_server(tmp_path, *options) as server,
        httpx2.Client(base_url=server.url, timeout=SOON_S) as http,
    ):
        session = http.post("/v1/sessions", json={}).json()["id"]
        ids = http.post("/v1/submit", json=program() | {"session": session}).json()["vars"]
        names = [*(ids[f"s{link}"] for link in range(LINKS)), ids["chat"]]
        got = {
            var["name"]: var for var in http.post("/v1/get", json={"vars": names}).json()["vars"]
        }
        http.delete(f"/v1/sessions/{session}")
        text = ""
        for link in range(LINKS):
            var = got[f"s{link}"]
            assert var["state"] == "ready"
            spans = [[len(head_of(link)), len(head_of(link) + text)]] if link else []
            prompt = f"{head_of(link)}{text}\nGo on:"
            body = {"text": prompt, "sampling_params": GREEDY, "literal_spans": spans}
            text = http.post("/generate", json=body).json()["text"]
            assert var["text"] == text
            meta = var["meta_info"]
            if link:  # the head, and not less than half of what has grown
                assert meta["prompt_tokens"] - meta["cached_tokens"] < 100
        chat = [
            {"role": "system", "content": head_of(LINKS)},
            {"role": "user", "content": f"Go on:{text}"},
        ]
        asked: dict[str, Any] = {"messages": chat, "sampling_params": GREEDY}
        assert got["chat"]["text"] == http.post("/generate", json=asked).json()["text"]
        meta = got["chat"]["meta_info"]
        assert meta["prompt_tokens"] - meta["cached_tokens"] < 100
        assert server.wait_idle()["num_running_reqs"] == 0
