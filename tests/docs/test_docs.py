"""Runs what the documents show.

`python` blocks run as programs of their own, in forks of a process that has imported `lang`, and
`sh` blocks of curl commands run in a shell, both against the shared server in place of the default
address. An `output` block after a block lists lines that it must print. Other `sh` commands are
checked without running them: make targets must exist, and options must parse. `json` blocks must be
JSON; `text` blocks are pictures.
"""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from srt.chat.main import make_parser as make_chat_parser
from srt.commands.command import COMMANDS as COMMANDS_BY_NAME
from srt.options.settings import LATER, make_parser, read_settings
from tests.docs.blocks import TAGS, TIMEOUT_S, Block, blocks_of, commands_of, missing_lines
from tests.docs.tables import ROOT, documents
from tests.e2e.server import Server
from tests.scheduler_proc.driver import Driver
from tests.srt.options.command_lines import parse_args

# Our commands that have options, and where these are parsed: imported when they are needed, as some
# bring torch.
OTHER_COMMANDS = {
    "bench.gpu_report": "bench.gpu_report.__main__",
    "bench.hit_rate": "bench.hit_rate.__main__",
    "bench.installs": "bench.installs",
    "bench.kernels": "bench.kernels",
    "bench.lang_graph": "bench.lang_graph.__main__",
    "bench.machines": "bench.machines.__main__",
    "bench.mixtures": "bench.mixtures.__main__",
    "bench.programs": "bench.programs.__main__",
    "bench.routing": "bench.routing.__main__",
    "bench.serving": "bench.serving",
    "bench.speculation": "bench.speculation",
    "bench.vision": "bench.vision",
}
COMMANDS_OF_SRT: dict[str, Callable[[list[str]], object]] = {
    **{name: command.parser().parse_args for name, command in COMMANDS_BY_NAME.items()},
    "serve": lambda words: read_settings(words, {}, "srt serve"),
}
URL, RING = "http://127.0.0.1:30000", "ipc:///tmp/my-ring"
_GPU_REPORT = "bench/gpu_report/__main__.py"
_SPECULATION = "bench/speculation.py"

BLOCKS = [block for document in documents() for block in blocks_of(document)]
PYTHON = [block for block in BLOCKS if block.tag == "python"]
# Those whose blocks run in short too: what a newcomer pastes first.
FIRST = ("README.md", "getting_started.md", "structured_output.md", "openai_api.md")
CURL = [b for b in BLOCKS if b.tag == "sh" and commands_of(b.code)[0][0] == "curl"]
COMMANDS = [block for block in BLOCKS if block.tag == "sh" and block not in CURL]


def where(block: Block) -> str:
    return block.where


def in_full(blocks: list[Block], is_late: Callable[[Block], bool]) -> list[Any]:
    """The blocks as parameters; those that are late only in full."""
    return [pytest.param(b, marks=pytest.mark.full if is_late(b) else ()) for b in blocks]


def is_not_first(block: Block) -> bool:
    return block.document.name not in FIRST


def brings_torch(block: Block) -> bool:
    return "bench.gpu_report" in block.code


def at_server(code: str, server: Server) -> str:
    """`code` with the documents' addresses replaced by the server's."""
    return code.replace(URL, server.url).replace(RING, server.ring)


def run(command: list[str], directory: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def check_output(block: Block, done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, f"{block.where}:\n{done.stdout}\n{done.stderr}"
    if block.expected is not None:
        missing = missing_lines(block.expected, done.stdout)
        assert not missing, f"{block.where} does not print {missing}, but:\n{done.stdout}"


class Preloaded:
    """Runs programs in forks of a process that has imported what most of them import."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.docs.preloaded"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, directory: Path) -> subprocess.CompletedProcess[str]:
        """The end of `block.py` in this directory."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{directory}\n")
        self.process.stdin.flush()
        try:
            status = int(self.process.stdout.readline())
        except BaseException:  # the next one would read the end of this one
            self.process.kill()
            raise
        out, err = ((directory / name).read_text() for name in ("out", "err"))
        return subprocess.CompletedProcess("block.py", status, out, err)


@pytest.fixture(scope="module")
def preloaded() -> Iterator[Preloaded]:
    preloaded = Preloaded()
    with preloaded.process as process:
        yield preloaded
        process.kill()


@pytest.mark.parametrize("block", in_full(PYTHON, is_not_first), ids=where)
def test_python_blocks_run(
    block: Block, server: Server, preloaded: Preloaded, tmp_path: Path
) -> None:
    """In a directory that has `server.trace`, the record of a small run."""
    write_trace(tmp_path / "server.trace")
    (tmp_path / "block.py").write_text(at_server(block.code, server))
    check_output(block, preloaded.run(tmp_path))


def test_a_block_that_fails_is_noticed(preloaded: Preloaded, tmp_path: Path) -> None:
    (tmp_path / "block.py").write_text("print('so far')\nundefined\n")
    done = preloaded.run(tmp_path)
    assert (done.returncode, done.stdout) == (1, "so far\n")
    assert "NameError: name 'undefined' is not defined" in done.stderr


def write_trace(path: Path) -> None:
    driver = Driver(lag=1, max_total_tokens=256, trace=path)
    for i in range(4):
        driver.add(f"r{i}", [*range(40), 50 + i], max_new=8)
    driver.run()
    driver.close()


@pytest.mark.parametrize("block", in_full(CURL, is_not_first), ids=where)
def test_curl_blocks_run(block: Block, server: Server, tmp_path: Path) -> None:
    """An HTTP error fails the command."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    assert all(words[0] == "curl" for words in commands_of(block.code)), "curl commands only"
    (tmp_path / ".curlrc").write_text("fail-with-body\nshow-error\n")
    script = "set -e\n" + at_server(block.code, server)
    check_output(block, run(["sh", "-c", script], tmp_path, CURL_HOME=str(tmp_path)))


@pytest.mark.parametrize("block", in_full(COMMANDS, brings_torch), ids=where)
def test_commands_are_real(block: Block) -> None:
    commands = commands_of(block.code)
    assert commands, f"{block.where} is empty"
    for words in commands:
        check_command(words)


def check_command(words: list[str]) -> None:
    """Raise AssertionError, or what a parser raises, for a command that would not work."""
    program, *arguments = words
    if program == "make":
        targets = [word for word in arguments if "=" not in word]
        assert targets and set(targets) <= make_targets(), words
        check_make_options(targets, arguments)
        return
    if Path(program).name == "srt":
        COMMANDS_OF_SRT[arguments[0]](arguments[1:])
        return
    assert Path(program).name == "python" and arguments[0] == "-m", words
    module, options = arguments[1], arguments[2:]
    if module == "srt.launch":
        parse_args(options)
    elif module in OTHER_COMMANDS:
        importlib.import_module(OTHER_COMMANDS[module]).parse_args(options)
    elif module == "srt.chat":
        make_chat_parser().parse_args(options)
    else:
        path = ROOT / module.replace(".", "/")
        is_there = path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()
        assert is_there and not options, words


def check_make_options(targets: list[str], arguments: list[str]) -> None:
    """`make serve ARGS="..."` and `make bench ARGS="..."` hand options on."""
    parsers: dict[str, Callable[[list[str]], object]] = {
        "serve": parse_args,
        "bench": importlib.import_module("bench.serving").parse_args,
    }
    for word in arguments:
        name, is_assignment, value = word.partition("=")
        if is_assignment and name == "ARGS" and targets[0] in parsers:
            parsers[targets[0]](value.split())


def make_targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text()
    return set(re.findall(r"^([a-z][a-z-]*):(?!=)", makefile, re.M))


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_commands_and_options_in_the_text_are_real(document: Path) -> None:
    text = document.read_text()
    for code in re.findall(r"`((?:make|python -m|srt) [^`\n]+)`", text):
        check_command(commands_of(code)[0])
    for code in re.findall(r"`([^`\n]*--[^`\n]*)`", text):
        options = set(re.findall(r"(?<!\S)--[a-z-]+", code))
        assert options <= known_options(), f"{document.name}: {code}"


def known_options() -> set[str]:
    """Options of the launcher, with those that it refuses for now, of benchmarks and of pip."""
    launcher = {option for action in make_parser()._actions for option in action.option_strings}
    others = {
        option
        for path in (
            "bench/serving.py",
            "bench/machines/__main__.py",
            "bench/mixtures/__main__.py",
            "bench/overhead.py",
            "bench/overload.py",
            "bench/fairness/__main__.py",
            _SPECULATION,
            "srt/chat/main.py",
            "srt/chat/run.py",
            "srt/commands/doctor.py",
            "srt/commands/models.py",
            "srt/commands/bench.py",
            "srt/commands/agent.py",
            "srt/commands/keys.py",
            _GPU_REPORT,
            "tests/running/profiles.py",
        )
        for option in re.findall(r"--[a-z-]+", (ROOT / path).read_text())
    }
    return launcher | set(LATER) | others | {"--no-deps"}


@pytest.mark.parametrize("words", ["make server", "python -m srt.launch --no-such", "rm -r x"])
def test_a_wrong_command_is_noticed(words: str) -> None:
    with pytest.raises((AssertionError, SystemExit)):
        check_command(words.split())


def test_every_block_has_a_known_tag() -> None:
    assert [block.where for block in BLOCKS if block.tag not in TAGS] == []


def test_every_output_belongs_to_a_block_that_runs() -> None:
    expecting = [block for block in BLOCKS if block.expected is not None]
    assert all(block in PYTHON or block in CURL for block in expecting)
    assert len(expecting) == len([block for block in BLOCKS if block.tag == "output"])


def test_blocks_are_found_with_their_outputs(tmp_path: Path) -> None:
    document = tmp_path / "x.md"
    document.write_text("a\n\n```sh\nls\n```\n\n```output\nb\n```\nc\n```cobol\nd\n```\n")
    found = [(block.line, block.tag, block.expected) for block in blocks_of(document)]
    assert found == [(3, "sh", "b\n"), (7, "output", None), (11, "cobol", None)]
    document.write_text("```sh\nls\n")
    with pytest.raises(AssertionError, match="no end"):
        blocks_of(document)


def test_toml_blocks_are_files_of_options(tmp_path: Path) -> None:
    file = tmp_path / "srt.toml"
    blocks = [block for block in BLOCKS if block.tag == "toml"]
    for block in blocks:
        file.write_text(block.code)
        parse_args(["--config", str(file)])
    assert blocks


def test_json_blocks_are_json() -> None:
    for block in BLOCKS:
        if block.tag == "json":
            json.loads(block.code)


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text())
    assert [target for target in targets if not (document.parent / target).exists()] == []
    if document.name == "README.md":
        linked = {Path(target).name for target in targets}
        assert linked >= {path.name for path in documents() if path != document}


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_paths_in_the_text_exist(document: Path) -> None:
    assert missing_paths(document.read_text()) == []


def missing_paths(text: str) -> list[str]:
    """Our files, folders and modules that `text` names but that do not exist."""
    folders = "srt|lang|tokenizer_proc|scheduler_proc|detokenizer_proc|bench|tests|docs|examples"
    named = re.findall(rf"`((?:{folders})/[\w./-]*)`", text.replace("NAME", "llama"))
    there = ((ROOT / path).exists() or (ROOT / f"{path}.py").is_file() for path in named)
    return [path for path, is_there in zip(named, there, strict=True) if not is_there]


def test_a_missing_path_is_noticed() -> None:
    assert missing_paths("`srt/args.py`, `lang/`, `a/b`, `srt/none.py`") == ["srt/none.py"]


def test_missing_output_is_noticed() -> None:
    assert missing_lines("a ... c\nd\n", "a b c\nd\n") == []
    assert missing_lines("d\na\n", "a\nd\n") == ["a"]
