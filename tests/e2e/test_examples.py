"""The examples on the real model: what they do, not how good its answers are."""

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import pytest

import lang as sgl
from examples import (
    chain_summary,
    essay_judge,
    few_shot_qa,
    json_extraction,
    map_reduce_summary,
    multi_agent_coding,
    multi_turn_chat,
    parallel_tips,
    rag,
    react_agent,
    self_consistency,
    skeleton_of_thought,
    streaming_chat,
    tool_agent,
    tree_of_thought,
)
from tests.e2e.server import Server

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.stem != "__init__")
LIST = ROOT / "examples" / "README.md"
TIMEOUT_S = 240


@pytest.fixture
def backend(server: Server) -> Iterator[sgl.RuntimeEndpoint]:
    """Its cache is empty, so that cached tokens were shared within the example."""
    with sgl.RuntimeEndpoint(server.ring) as backend:
        httpx2.post(f"{server.url}/flush_cache", params={"timeout": 30}).raise_for_status()
        yield backend


def test_the_judge_merges_its_branches(backend: Any) -> None:
    found = essay_judge.main(backend)
    assert found["argues"] in ("yes", "no")
    assert len(found["judgment"]) == len(essay_judge.DIMENSIONS) and all(found["judgment"])
    assert set(found["verdict"]) == {"grade", "publish"}
    assert found["verdict"]["publish"] == (found["verdict"]["grade"] in "AB") and found["summary"]
    # Each branch finds the essay in the cache: some 100 tokens.
    assert min(found["cached_tokens"]) > 100


def test_the_judge_cannot_see_with_a_text_model(backend: Any, tmp_path: Path) -> None:
    image = tmp_path / "tree.png"
    image.write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(sgl.LangError, match="image"):
        essay_judge.main(backend, image=str(image))


def test_questions_share_their_examples(backend: Any) -> None:
    answers = few_shot_qa.main(backend)
    assert [a["question"] for a in answers] == list(few_shot_qa.QUESTIONS)
    assert all(a["answer"] and "\n" not in a["answer"] for a in answers)
    assert min(a["cached_tokens"] for a in answers) > 50


def test_a_chat_reuses_its_turns(backend: Any) -> None:
    chat = multi_turn_chat.main(backend)
    roles = [message["role"] for message in chat["messages"]]
    assert roles == ["system", *["user", "assistant"] * len(multi_turn_chat.TURNS)]
    assert all(message["content"] for message in chat["messages"])
    later = pairwise(zip(chat["prompt_tokens"], chat["cached_tokens"], strict=True))
    assert all(cached >= before for (before, _), (_, cached) in later)


def test_the_agent_acts_until_it_finishes(backend: Any) -> None:
    steps = react_agent.main(backend, max_steps=3)
    tools = [step["tool"] for step in steps]
    assert 2 <= len(steps) <= 3 and tools[-1] == "finish" and "finish" not in tools[:-1]
    assert all(step["thought"] for step in steps)
    assert all(s["input"] in react_agent.NOTES for s in steps if s["tool"] == "search")


def test_the_tools_of_the_agent() -> None:
    assert react_agent.observe("calculate", "7 * 6") == "42"
    assert react_agent.observe("calculate", "7 + 6") == "13"
    assert "7 floors" in react_agent.observe("search", "lighthouse")


def test_an_agent_with_tools(backend: Any) -> None:
    found = tool_agent.main(backend)
    assert found["number"] in range(10_000) and 1 <= len(found["calls"]) <= 2
    for call in found["calls"]:
        function = getattr(tool_agent, call["tool"])
        assert function(**call["arguments"]) == call["result"]
    assert tool_agent.multiply(7, 6) == 42 and tool_agent.add(7, 6) == 13


@pytest.mark.full
def test_a_tree_of_thought(backend: Any) -> None:
    found = tree_of_thought.main(backend, width=2)
    plans = [leaf["plan"] for leaf in found["leaves"]]
    assert len(plans) == 4 and plans[0] == plans[1] and plans[2] == plans[3]
    assert all(1 <= leaf["score"] <= 5 for leaf in found["leaves"])
    assert all(leaf["solution"].startswith("The ") for leaf in found["leaves"])
    assert found["best"]["score"] == max(leaf["score"] for leaf in found["leaves"])
    assert all(leaf["cached_tokens"] > 0 for leaf in found["leaves"])


@pytest.mark.full
def test_a_skeleton_is_expanded(backend: Any) -> None:
    parts = skeleton_of_thought.main(backend)
    assert len(parts) == 3 and all(part["point"] and part["text"] for part in parts)


@pytest.mark.full
def test_the_majority_wins(backend: Any) -> None:
    found = self_consistency.main(backend, chains=4)
    assert len(found["answers"]) == len(found["reasoning"]) == 4
    assert found["votes"] == found["answers"].count(found["vote"]) >= 1


def test_a_struct_is_extracted(backend: Any) -> None:
    person = json_extraction.main(backend)
    assert isinstance(person, json_extraction.Person)
    assert person.name and 1000 <= person.birth_year <= 2100 and len(person.prizes) <= 3


def test_passages_are_found_and_used(backend: Any) -> None:
    bridge, quarry = rag.main(backend)
    assert "1911" in bridge["passages"][0] and bridge["answer"]
    assert any("lake" in passage for passage in quarry["passages"]) and quarry["answer"]


def test_a_chain_of_summaries(backend: Any) -> None:
    found = chain_summary.main(backend)
    assert len(found["steps"]) == len(chain_summary.PARTS)
    assert found["summary"] == "".join(found["steps"])


def test_a_map_reduce_on_the_server(backend: Any) -> None:
    found = map_reduce_summary.main(backend)
    assert len(found["parts"]) == 3 and found["summary"] is not None


@pytest.mark.full
def test_agents_write_code_in_rounds(backend: Any) -> None:
    found = multi_agent_coding.main(backend)
    assert set(found["files"]) == set(multi_agent_coding.FILES)
    for code in found["files"].values():
        compile(code, "code", "exec")


@pytest.mark.full
def test_tips_are_expanded_in_parallel(backend: Any) -> None:
    found = parallel_tips.main(backend)
    assert found["text"].count("The tip to ") == 2 and found["text"].endswith(found["summary"])
    assert len(found["cached_tokens"]) == 2 and max(found["cached_tokens"]) > 10


@pytest.mark.full
def test_a_chat_streams(backend: Any) -> None:
    """In pieces. On a busy machine many tokens may come at once, as do those guessed from an answer
    given before: each trial asks something else."""
    most = 0
    for topic in ("moon", "sea", "wind", "desert", "forest"):
        written: list[str] = []
        asked = (f"Tell me about the {topic}.", "And about the sun?")
        answers = streaming_chat.main(backend, asked, write=written.append)
        turns = zip(asked, answers, strict=True)
        assert "".join(written) == "".join(f"> {turn}\n{answer}\n" for turn, answer in turns)
        most = max(most, len(written))
        if most > 4 * len(answers):  # two for the turn and the line's end, the others for the text
            return
    raise AssertionError(f"at most {most} pieces of {len(answers)} answers")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_short_and_importable(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 75
    assert importlib.import_module(f"examples.{path.stem}").__doc__
    assert f"    {path.stem},\n" in Path(__file__).read_text(), "import it here, and test it"


def test_the_list_of_examples_has_each() -> None:
    text = LIST.read_text()
    names = [path.stem for path in EXAMPLES]
    assert re.findall(r"^\| \[(\w+)\]\(\1\.py\) \|", text, re.M) == names


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages that an install has, and no examples beside them."""
    folder: Path = tmp_path_factory.mktemp("installed")
    for name in ("srt", "lang", "tokenizer_proc", "scheduler_proc", "detokenizer_proc"):
        (folder / name).symlink_to(ROOT / name)
    return folder


FAST = ("few_shot_qa", "map_reduce_summary")
PROGRAMS = [
    pytest.param(path.stem, marks=() if path.stem in FAST else pytest.mark.full)
    for path in EXAMPLES
]


@pytest.mark.parametrize("name", PROGRAMS)
def test_examples_run_as_programs(name: str, server: Server, installed: Path) -> None:
    """Each with the same options, and prints what the list of examples says."""
    printed, at = run(name, installed, "--url", server.url, "--model", "smollm2"), 0
    row = re.search(rf"^\| \[{name}\].*\| (.*) \|$", LIST.read_text(), re.M)
    assert row is not None
    for piece in re.findall(r"`([^`]+)`", row[1]):
        at = printed.find(piece, at)
        assert at >= 0, f"{piece!r} is not where the list of examples says:\n{printed}"


@pytest.mark.full
def test_examples_bring_their_own_server(installed: Path) -> None:
    assert "\nassistant: " in run("multi_turn_chat", installed, "--model", "smollm2")


def run(name: str, installed: Path, *arguments: str) -> str:
    """What `python examples/NAME.py` prints."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py"), *arguments],
        env={**os.environ, "PYTHONPATH": str(installed)},
        cwd=installed,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
