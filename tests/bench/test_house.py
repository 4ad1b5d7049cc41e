"""The measurements of a source tree, on a small tree with a fault of each kind."""

from pathlib import Path

import pytest

from bench.house import (
    When,
    cycles,
    floors,
    function_lengths,
    graph,
    grouped,
    names_used_twice,
    read,
    report,
    rooms_of,
    with_packages,
)

FILES = {
    "srt/__init__.py": "",
    "srt/faults.py": "class Error(Exception): ...\n",
    "srt/post/__init__.py": "import srt.faults\n",
    "srt/post/letters.py": "from srt import faults\nclass Error: ...\nclass Message: ...\n",
    "srt/circle.py": (
        "from typing import TYPE_CHECKING\n"
        "from srt.post.letters import Message\n"
        "if TYPE_CHECKING:\n"
        "    from srt.launch import main\n"
        "else:\n"
        "    import srt.faults\n"
    ),
    "srt/launch.py": (
        "import srt.circle\n"
        "\n"
        "def main() -> None:\n"
        "    from srt.late import run\n"
        "\n"
        "    def inner() -> None: ...\n"
    ),
    "srt/late.py": "import srt.launch\n" + "\n" * 400 + "class Message: ...\n",
    "lang/__init__.py": "import json\n",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_imports_are_told_apart_by_when_they_run(root: Path) -> None:
    modules = read(root)
    at_import = graph(modules, When.AT_IMPORT)
    assert at_import["srt.circle"] == {"srt.post.letters", "srt.faults"}
    assert at_import["srt.launch"] == {"srt.circle"}
    assert graph(modules, When.LATE)["srt.launch"] == {"srt.circle", "srt.late"}
    assert "srt.launch" in graph(modules, When.NEVER)["srt.circle"]
    assert at_import["lang"] == set()


def test_packages_of_what_is_imported_run_too(root: Path) -> None:
    edges = with_packages(graph(read(root), When.AT_IMPORT))
    assert edges["srt.circle"] == {"srt.post", "srt.post.letters", "srt.faults"}
    assert edges["lang"] == set()


@pytest.mark.parametrize(
    ("latest", "groups"),
    [
        (When.AT_IMPORT, []),
        (When.LATE, [["srt.late", "srt.launch"]]),
        (When.NEVER, [["srt.circle", "srt.late", "srt.launch"]]),
    ],
)
def test_cycles(root: Path, latest: When, groups: list[list[str]]) -> None:
    assert cycles(graph(read(root), latest)) == groups


def test_a_module_that_imports_itself_is_a_cycle() -> None:
    assert cycles({"a": {"a"}, "b": {"a"}}) == [["a"]]


def test_a_cycle_is_one_floor() -> None:
    assert floors({"roof": {"a"}, "a": {"b"}, "b": {"a", "cellar"}, "cellar": set()}) == 3


def test_rooms_and_floors(root: Path) -> None:
    modules = read(root)
    rooms = rooms_of(modules, "srt")
    assert set(rooms.values()) == {"srt.faults", "srt.post", "srt.circle", "srt.launch", "srt.late"}
    edges = grouped(graph(modules, When.AT_IMPORT), rooms)
    assert edges["srt.post"] == {"srt.faults"}
    assert edges["srt.circle"] == {"srt.post", "srt.faults"}
    assert floors(edges) == 5
    assert floors(grouped(graph(modules, When.LATE), rooms)) == 4  # launch and late are a cycle


def test_lengths_and_names(root: Path) -> None:
    modules = read(root)
    assert function_lengths(modules) == [1, 4]
    assert names_used_twice(modules) == {"lang": [], "srt.launch": ["Error", "Message"]}


def test_the_report_names_what_it_counts(root: Path) -> None:
    text = "\n".join(report(read(root)))
    assert "| `srt` | 6 | 5 | 6 | 4 | 1 |" in text
    assert "| files above 400 lines | 1: srt.late |" in text
    assert "| cycles at import | 0 |" in text
    assert "| class names used twice in `srt.launch` | 2: Error; Message |" in text
