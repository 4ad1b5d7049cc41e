"""Custom tools with the real model: patches under the grammar of a coding agent, read by others."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from srt.answers.custom_tools import call_text
from srt.answers.tool_calls import answer_parser
from srt.answers.tool_constraint import OfferedTool, ToolPlan
from srt.answers.tool_events import CallArguments
from srt.answers.tool_format import HERMES
from srt.wire.messages import InputFormat, ToolCall, ToolSpec
from tests.e2e.server import Server
from tests.waiting import SOON_S

# As Codex sends it with `apply_patch`.
GRAMMAR = """\
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
# What Codex's own reader refuses although its grammar allows it.
LAX = re.compile(r"is empty|does not contain any lines|Unexpected line found|valid hunk header")
EDIT = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": GRAMMAR.replace("\n", "\r\n")},
}
PICK = r"(red|green) [0-9]{2,4} items of [a-z]{2,9}"
PATCHES = (
    ("Add a.txt", "*** Add File: a.txt\n+hello"),
    ("Change b.py", "*** Update File: b.py\n@@ def f():\n-    return 1\n+    return 2"),
    ("Delete old.md", "*** Delete File: old.md"),
)


def history() -> list[dict[str, Any]]:
    """Turns in which the tool was called, so that a small model does the same."""
    items: list[dict[str, Any]] = []
    for i, (wish, hunk) in enumerate(PATCHES):
        call = {"call_id": f"c{i}", "name": EDIT["name"]}
        patch = f"*** Begin Patch\n{hunk}\n*** End Patch"
        items += [
            {"role": "user", "content": wish},
            {"type": "custom_tool_call", "input": patch, **call},
            {"type": "custom_tool_call_output", "call_id": f"c{i}", "output": "Done!"},
            {"role": "assistant", "content": "Done."},
        ]
    return items


def post(server: Server, path: str, body: Any) -> Any:
    answer = httpx2.post(server.url + path, json=body, timeout=2 * SOON_S)
    assert answer.status_code == 200, answer.text
    return answer.json()


def patches(server: Server, seed: int) -> tuple[list[str], str]:
    """The whole patches of one answer, and its text."""
    named = {"type": "custom", "name": EDIT["name"]}
    body = {
        "input": [*history(), {"role": "user", "content": f"Change file number {seed}"}],
        "tools": [EDIT],
        "tool_choice": named if seed % 4 else "auto",
        "max_output_tokens": 64,
        "temperature": (0.8, 1.0)[seed % 2],
        "seed": seed,
        "store": False,
    }
    items = post(server, "/v1/responses", body)["output"]
    calls = [item for item in items if item["type"] == "custom_tool_call"]
    texts = [part["text"] for item in items for part in item.get("content", ())]
    return [c["input"] for c in calls if c["status"] == "completed"], "".join(texts)


def all_parse(server: Server, count: int) -> None:
    """Draw patches until there are `count`, and have others read them."""
    lark = pytest.importorskip("lark", reason="the package lark reads the patches")
    # Its lexer takes no empty terminals; the language is the same.
    reader = lark.Lark(GRAMMAR.replace("/(.*)/", "/(.+)/?"))
    found: list[str] = []
    with ThreadPoolExecutor(8) as pool:
        for first in range(0, 40 * count, 8):
            seeds = range(first, first + 8)
            for whole, _ in pool.map(lambda seed: patches(server, seed), seeds):
                found += whole
            if len(found) >= count:
                break
    assert len(found) >= count
    for text in found:
        reader.parse(text)
    codex = pytest.importorskip("codex_apply_patch", reason="Codex's own reader of patches")
    for text in found:
        try:
            codex.parse_patch(text)
        except ValueError as error:
            assert LAX.search(str(error)), (text, error)


def test_patches_parse(server: Server) -> None:
    all_parse(server, 20)


@pytest.mark.slow
def test_many_patches_parse(server: Server) -> None:
    all_parse(server, 1000)


def drawn(server: Server, tool: ToolSpec, lead: str, **sampling: Any) -> str:
    """What the model writes under the constraint of one tool that it may call."""
    tag = ToolPlan(tools=[OfferedTool(tool)], choice="auto").constraint(HERMES)
    given = {"structural_tag": json.dumps(tag), "max_new_tokens": 48, "temperature": 0.7}
    body = {"text": lead, "sampling_params": given | sampling}
    return str(post(server, "/generate", body)["text"])


@pytest.mark.full
def test_jumps_and_guesses_change_no_text(server: Server) -> None:
    """Calls come in the middle of free text; guesses change nothing, and all calls match."""
    pick = ToolSpec("pick", input=InputFormat("regex", PICK))
    turn = "Pick.\n" + call_text(ToolCall("", "pick", "red 20 items of wool")) + "\n"
    num_calls = 0
    for seed in range(6):
        lead = turn * 4 + "Pick.\n"
        for jumps in ("canonical", "off"):
            how = {"seed": seed, "jump_forward": jumps}
            text = drawn(server, pick, lead, speculative="auto", **how)
            assert drawn(server, pick, lead, speculative="off", **how) == text
            parser = answer_parser(HERMES, {}, {"pick"}, constrained=True)
            inputs: dict[int, str] = {}
            for event in parser.feed(text, final=True):
                if isinstance(event, CallArguments):
                    inputs[event.call] = inputs.get(event.call, "") + event.text
            whole = len(inputs) - parser.in_call
            num_calls += whole
            for number in range(whole):
                assert re.fullmatch(PICK, inputs[number])
    assert num_calls
