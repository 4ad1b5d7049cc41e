"""The rules that keep the folders apart, checked on the source.

Each rule is also tried on a line that breaks it, so that a rule that finds nothing is noticed.
"""

import ast
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import pytest

from bench.house import Module, When, cycles, graph, grouped, read, rooms_of, with_packages
from tests.class_limits import EXCEPTIONS, MAX_ATTRIBUTES, MAX_METHODS, above_limits
from tests.rooms import ROOMS

ROOT = Path(__file__).parents[1]
OURS = ("srt", "tokenizer_proc", "scheduler_proc", "detokenizer_proc", "lang", "bench", "tests")
PACKAGES = OURS[:-1]

# Which of our folders a folder may import, besides itself.
MAY_IMPORT = {
    "srt": (),
    "tokenizer_proc": ("srt",),
    "scheduler_proc": ("srt",),
    "detokenizer_proc": ("srt",),
    "lang": ("srt",),
    "bench": OURS,
    "tests": OURS,
}
MAY_USE_TORCH = ("scheduler_proc", "bench", "tests")
# The second makes the random model that it serves.
USE_TRANSFORMERS = (
    *("scheduler_proc/models/transformers_model", "scheduler_proc/models/vision"),
    *("bench/gpu_report", "bench/vision_model.py"),
)
UNSAFE_MODULES = ("pickle", "cPickle", "_pickle", "cloudpickle", "marshal", "dill", "shelve")
UNSAFE_NAMES = ("send_pyobj", "recv_pyobj")  # pyzmq's pickling shortcuts
ZMQ_FILES = (
    "srt/ring/places.py",
    "srt/ring/socket.py",
    "srt/client/ring/link.py",
    "srt/client/ring/sockets.py",
    "srt/ring/actor.py",
    "srt/ring/supervisor.py",
    "srt/cluster/agent.py",
    "srt/cluster/curve.py",
    "srt/cluster/door.py",
    "srt/cluster/hub.py",
    "srt/cluster/node_ring.py",
    "scheduler_proc/events/kv_events.py",
)
MAX_FILE_LINES = 400
MAX_LOOSE_MODULES = 16  # of a folder, but for bench; __init__ and __main__ aside
MAX_MODULES_WITHOUT_ROOMS = 12  # of a package, in all its folders
MAX_FUNCTION_LINES = 80


def sources(*folders: str) -> list[Path]:
    """The Python files of `folders`, relative to the root."""
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path.relative_to(ROOT) for path in files]


@lru_cache(maxsize=1)
def walk(tree: ast.AST) -> list[ast.AST]:
    """All nodes. The rules look at the same tree one after the other."""
    return list(ast.walk(tree))


class Facts(NamedTuple):
    """What the rules look at in a file; all files' trees together are a million nodes."""

    import_faults: list[str]
    unsafe_calls: list[str]
    long_functions: list[str]
    is_silent: bool
    lines: int


@cache
def facts(path: Path) -> Facts:
    text = (ROOT / path).read_text()
    parts = path.with_suffix("").parts
    module = our_modules().get(".".join(parts[: -1 if path.stem == "__init__" else None]))
    tree = ast.parse(text, str(path)) if module is None else module.tree
    return Facts(
        import_faults(path, tree),
        unsafe_calls(tree),
        long_functions(tree),
        bool(tree.body) and not ast.get_docstring(tree),
        len(text.splitlines()),
    )


def imports(tree: ast.AST) -> Iterator[str]:
    """The full names of all modules that a file imports, at its top or anywhere in it."""
    for node in walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, "imports are absolute"
            yield node.module


def import_faults(path: Path, tree: ast.AST) -> list[str]:
    """The modules that `path` imports but must not."""
    return [f"{path} imports {name}" for name in imports(tree) if not _is_allowed(path, name)]


def _is_allowed(path: Path, module: str) -> bool:
    folder, top = path.parts[0], module.partition(".")[0]
    if top in OURS:
        return top == folder or top in MAY_IMPORT[folder]
    if top == "torch":
        return folder in MAY_USE_TORCH
    if top == "transformers":
        places = (path.parent.as_posix(), path.as_posix())
        return folder == "tests" or any(place in USE_TRANSFORMERS for place in places)
    if top == "zmq":
        is_actor = path.name == "actor.py"
        return folder == "tests" or is_actor or path.as_posix() in ZMQ_FILES
    return top not in UNSAFE_MODULES


def unsafe_calls(tree: ast.AST) -> list[str]:
    """Uses of pickle that need no import of it."""
    found = []
    for node in walk(tree):
        if isinstance(node, ast.Attribute):
            is_torch_load = node.attr == "load" and ast.unparse(node.value) == "torch"
            if node.attr in UNSAFE_NAMES or is_torch_load:
                found.append(ast.unparse(node))
    return found


def long_functions(tree: ast.AST) -> list[str]:
    """Functions above the limit."""
    return [
        node.name
        for node in walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 > MAX_FUNCTION_LINES
    ]


def test_folders_import_only_what_they_may() -> None:
    assert [fault for path in sources(*OURS) for fault in facts(path).import_faults] == []


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("srt/x.py", "import tokenizer_proc.admission.front"),
        ("srt/gateway/x.py", "def f():\n    from tests.fakes import FakeClient"),
        ("srt/x.py", "from bench import text"),
        ("tokenizer_proc/x.py", "import scheduler_proc"),
        ("scheduler_proc/x.py", "from detokenizer_proc.core import Detokenizer"),
        ("detokenizer_proc/x.py", "import torch.nn"),
        ("bench/x.py", "import transformers"),
        ("scheduler_proc/models/x.py", "import transformers"),
        ("tests/x.py", "import pickle"),
        ("srt/x.py", "from marshal import loads"),
        ("srt/gateway/app.py", "import zmq.asyncio"),
        ("scheduler_proc/core/scheduler.py", "import zmq"),
    ],
)
def test_a_forbidden_import_is_noticed(path: str, line: str) -> None:
    assert len(import_faults(Path(path), ast.parse(line))) == 1


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("tokenizer_proc/x.py", "from srt.wire.errors import RequestError"),
        ("scheduler_proc/executor/x.py", "import torch"),
        ("detokenizer_proc/actor.py", "import zmq"),
        ("srt/ring/places.py", "import zmq"),
        ("tests/e2e/x.py", "import transformers"),
    ],
)
def test_an_allowed_import_is_let_through(path: str, line: str) -> None:
    assert import_faults(Path(path), ast.parse(line)) == []


@cache
def our_modules() -> dict[str, Module]:
    return read(ROOT)


def room_faults(modules: Mapping[str, Module], package: str) -> list[str]:
    """Imports between rooms of `package` that are not in `ROOMS`, type checkers' imports too."""
    edges = grouped(graph(modules, When.NEVER), rooms_of(modules, package))
    found = {(_room(room), _room(target)) for room in edges for target in edges[room]}
    allowed = {(room, target) for room, t in ROOMS[package].items() for target in t.split()}
    return [f"{room} imports {target}" for room, target in sorted(found - allowed)]


def _room(name: str) -> str:
    return name.rpartition(".")[2]


@pytest.mark.parametrize("package", ROOMS)
def test_rooms_import_only_what_they_may(package: str) -> None:
    assert room_faults(our_modules(), package) == []


@pytest.mark.parametrize("package", ROOMS)
def test_rooms_stand_below_what_they_import(package: str) -> None:
    rooms = list(ROOMS[package])
    assert set(rooms) == set(map(_room, rooms_of(our_modules(), package).values()))
    for number, targets in enumerate(ROOMS[package].values()):
        assert set(targets.split()) <= set(rooms[:number])


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("srt.wire.x", "from srt.ring.places import RingPaths"),
        ("srt.ring.x", "def f():\n    import srt.gateway.app"),
        ("srt.gateway.wire.x", "from srt.gateway import batch"),
        ("lang.run.x", "from lang.state.state import ProgramState"),
        (
            "scheduler_proc.grammar.fsm.x",
            "if TYPE_CHECKING:\n    import scheduler_proc.grammar.llg",
        ),
    ],
)
def test_an_import_of_another_room_is_noticed(module: str, line: str) -> None:
    modules = our_modules() | {module: Module(ast.parse(line), module.rpartition(".")[0], 1)}
    assert sum(len(room_faults(modules, package)) for package in ROOMS) == 1


def test_large_packages_have_rooms() -> None:
    packages = {module.folder for module in our_modules().values()}
    sizes = {p: sum(name.startswith(f"{p}.") for name in our_modules()) for p in packages}
    assert {p for p, size in sizes.items() if size > MAX_MODULES_WITHOUT_ROOMS} == ROOMS.keys()


def test_folders_hold_few_loose_modules() -> None:
    loose = Counter(
        path.parent.as_posix()
        for path in sources(*PACKAGES[:-1])
        if path.name not in ("__init__.py", "__main__.py")
    )
    assert {folder: n for folder, n in loose.items() if n > MAX_LOOSE_MODULES} == {}


def test_no_module_leads_back_to_itself() -> None:
    """Neither when it is imported (packages included) nor in functions or for type checkers."""
    assert cycles(with_packages(graph(our_modules(), When.AT_IMPORT))) == []
    assert cycles(graph(our_modules(), When.NEVER)) == []


def test_nothing_is_pickled() -> None:
    assert {p.as_posix(): c for p in sources(*OURS) if (c := facts(p).unsafe_calls)} == {}
    assert unsafe_calls(ast.parse("socket.send_pyobj(1); torch.load(path)")) != []


def test_every_module_says_what_it_is() -> None:
    """Every module has a docstring, except empty package files."""
    assert [path.as_posix() for path in sources(*OURS) if facts(path).is_silent] == []


@pytest.mark.filterwarnings("default:long modules")
def test_files_and_functions_stay_small() -> None:
    """A long module is only a warning: where to divide it is a question of its meaning."""
    found = {path.as_posix(): facts(path) for path in sources(*PACKAGES)}
    if long := [path for path, file in found.items() if file.lines > MAX_FILE_LINES]:
        warnings.warn(f"long modules: {', '.join(long)}", stacklevel=1)
    assert {path: names for path, file in found.items() if (names := file.long_functions)} == {}
    assert long_functions(ast.parse("def f():\n" + "    g()\n" * MAX_FUNCTION_LINES)) == ["f"]


def test_classes_have_one_meaning() -> None:
    trees = {name: module.tree for name, module in our_modules().items()}
    assert above_limits(trees) == EXCEPTIONS


def methods(count: int) -> str:
    return "".join(f" @property\n def f{number}(self): ...\n" for number in range(count))


FIELDS = "".join(f" a{number}: int\n" for number in range(MAX_ATTRIBUTES + 1))
ASSIGNED = ", ".join(f"self._a{number}" for number in range(MAX_ATTRIBUTES + 1))


@pytest.mark.parametrize(
    ("source", "size"),
    [
        (f"class C:\n{methods(MAX_METHODS + 1)}", (MAX_METHODS + 1, 0)),
        (f"class C:\n def __init__(self):\n  {ASSIGNED} = given", (0, MAX_ATTRIBUTES + 1)),
        (f"@dataclass\nclass C:\n{FIELDS}{methods(1)}", (1, MAX_ATTRIBUTES + 1)),
        (f"class C:\n{methods(MAX_METHODS)}", None),
        (f"@dataclass\nclass C:\n{FIELDS}", None),
        (f"@dataclass(frozen=True)\nclass C:\n{FIELDS}{methods(1)}", None),
        (f"class C(Struct, frozen=True):\n{FIELDS}{methods(1)}", None),
    ],
)
def test_a_large_class_is_noticed(source: str, size: tuple[int, int] | None) -> None:
    assert above_limits({"m": ast.parse(source)}) == ({} if size is None else {"m.C": size})


LIGHT = (
    *("srt.launch", "srt.client.face", "srt.offline.engine", "srt.programs.actor"),
    *("srt.gateway.actor", "detokenizer_proc.actor"),
)
READERS = ("tokenizer_proc.actor", "scheduler_proc.actor", "scheduler_proc.grammar.worker.actor")


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        (LIGHT, {"torch", "transformers", "httpx2", "PIL", "numpy"}),
        (READERS, {"torch", "transformers", "httpx2"}),
    ],
)
def test_processes_load_only_what_they_need(modules: Sequence[str], absent: set[str]) -> None:
    """Each process of a server takes as long to start as its libraries to load."""
    code = f"import sys, {', '.join(modules)}; print(sorted({absent} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
