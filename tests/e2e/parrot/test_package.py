"""Parrot's own package, as it is, and its examples: the folder `SRT_TEST_PARROT` has its source."""

import importlib.util
import json
import os
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.parrot.exchanges import check_reads, named, recorded, texts_alone
from tests.e2e.parrot.recorder import NAMES, run_example, run_program
from tests.e2e.server import Server
from tests.waiting import SOON_S

pytestmark = pytest.mark.slow
FOLDER = os.environ.get("SRT_TEST_PARROT", "")  # of microsoft/ParrotServe
NEEDS = ("aiohttp", "pydantic", "regex", "requests")  # of its client half


class Example(NamedTuple):
    """How often an example asks for a text, and what is typed."""

    gets: int
    keys: str = ""


EXAMPLES = {
    "hello_world": Example(1),
    "chain_summarization": Example(1),
    "play_with_linux_terminal": Example(1, "ls /\n"),
    "qa_agent": Example(2, "What is the capital of France?\nWhat is 1 + 1?\nexit\n"),
    "simple_codegen": Example(1),
    "snake_game_dev": Example(3),
    "tell_me_a_joke": Example(12),
    "test_dan": Example(20),
    "write_recommendation_letter": Example(1),
}
# Those that end in an error, with any server: at methods of their own package that it does not have
# in the form that they call, and at native functions, which are code for the server to run.
FAILING = {
    "chatbot": "'SemanticFunction' object has no attribute 'invoke_statefully'",
    "playwriter_workflow": "missing 1 required positional argument: 'criteria'",
    "summarization_map_reduce": "missing 1 required positional argument: 'criteria'",
    "readme_example": "native functions are not supported",
}


@pytest.fixture
def package() -> Path:
    """The folder of Parrot's source. Skips the test, with the reason, where there is none."""
    if not FOLDER:
        pytest.skip("SRT_TEST_PARROT names no folder with the source of microsoft/ParrotServe")
    for module in NEEDS:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module}, which Parrot's client needs, is not installed")
    return Path(FOLDER).absolute()


@pytest.mark.parametrize("name", NAMES)
def test_its_client_sends_what_was_recorded(
    package: Path, server: Server, name: str, tmp_path: Path
) -> None:
    run = run_program(package, server.url, name, tmp_path)
    assert run.output, run.errors
    assert named(run.exchanges) == recorded()[name]
    for each in run.exchanges:
        check_reads(each)
    results = json.loads(run.output.splitlines()[-1])
    if name == "refused":
        words = [each.answer["error"]["message"] for each in run.exchanges if each.status != 200]
        assert len(results) == len(words) == 4
        assert all(word in error for word, error in zip(words, results, strict=True))
        return
    texts = texts_alone(server.url, run.exchanges, SOON_S)
    gets = [texts[each.path.rpartition("/")[2]] for each in run.exchanges if each.is_get]
    assert results == gets and gets


def test_every_example_is_known(package: Path) -> None:
    found = {path.stem for path in (package / "examples").glob("*.py")}
    assert found == EXAMPLES.keys() | FAILING.keys()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(package: Path, server: Server, name: str, tmp_path: Path) -> None:
    example = EXAMPLES[name]
    run = run_example(package, server.url, name, tmp_path, example.keys)
    assert "Error happens" not in run.output, run.output
    assert {each.status for each in run.exchanges} == {200}, run.errors
    gets = [each.answer["content"] for each in run.exchanges if each.is_get]
    assert len(gets) == example.gets
    printed = _blanks(run.output)
    assert all(_blanks(text) in printed for text in gets)
    assert run.exchanges[-1].method == "DELETE"


@pytest.mark.parametrize(
    ("name", "gets"), [("playwriter_workflow", 3), ("summarization_map_reduce", 4)]
)
def test_an_example_runs_with_the_argument_that_it_lacks(
    package: Path, server: Server, name: str, gets: int, tmp_path: Path
) -> None:
    changed = ("aget()", "aget(P.PerformanceCriteria.LATENCY)")
    run = run_example(package, server.url, name, tmp_path, changed=changed)
    assert "Error happens" not in run.output, run.output
    assert {each.status for each in run.exchanges} == {200}, run.errors
    assert sum(each.is_get for each in run.exchanges) == gets


@pytest.mark.parametrize("name", FAILING)
def test_an_example_that_cannot_run(
    package: Path, server: Server, name: str, tmp_path: Path
) -> None:
    run = run_example(package, server.url, name, tmp_path)
    assert FAILING[name] in run.output, run.errors
    assert run.exchanges[-1].method == "DELETE" and run.exchanges[-1].status == 200


def _blanks(text: str) -> str:
    """The text with one blank for each run of them: the client's output may end lines otherwise."""
    return re.sub(r"\s+", " ", text).strip()
