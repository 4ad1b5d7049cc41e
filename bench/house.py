"""`python -m bench.house [ROOT]`: the shape of a source tree: sizes, imports, cycles, names.

Files are read and never run, so one version of this measures any checkout of the project. A late
import, inside a function, closes no cycle at import, but what it loads belongs to the process.
"""

import argparse
import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from functools import cache
from pathlib import Path
from statistics import median
from typing import NamedTuple

PACKAGES = ("srt", "lang", "tokenizer_proc", "scheduler_proc", "detokenizer_proc")
LAUNCHERS = ("srt.launch", "srt.chat", "lang")  # entries of processes, besides every __main__
LONG_FILE_LINES = 400

_BLOCKS = (ast.stmt, ast.ExceptHandler, ast.match_case)  # in which there are imports

Graph = dict[str, set[str]]  # from each module or room to what it imports


class When(IntEnum):
    """When an import is executed."""

    AT_IMPORT = 0
    LATE = 1
    NEVER = 2  # for type checkers only


class Module(NamedTuple):
    """A parsed file; `folder` is its package."""

    tree: ast.Module
    folder: str
    lines: int


def read(root: Path) -> dict[str, Module]:
    """The modules of the project below `root` by full name; an __init__ has its package's name."""
    found = {}
    for path in sorted(file for top in PACKAGES for file in (root / top).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text()
        found[name] = Module(ast.parse(text, str(path)), ".".join(parts[:-1]), text.count("\n"))
    return found


def _imported(node: ast.AST, when: When) -> Iterator[tuple[str, When]]:
    """What `node` and all below it import: a module, or `module.name`."""
    match node:
        case ast.Import():
            yield from ((alias.name, when) for alias in node.names)
        case ast.ImportFrom():
            yield from ((f"{node.module}.{alias.name}", when) for alias in node.names)
        case ast.If() if ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from _imported(ast.Module(node.body, []), When.NEVER)
            yield from _imported(ast.Module(node.orelse, []), when)
        case _:
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            for child in (n for n in ast.iter_child_nodes(node) if isinstance(n, _BLOCKS)):
                yield from _imported(child, max(when, When.LATE) if is_function else when)


@cache
def _imports_of(tree: ast.Module) -> list[tuple[str, When]]:
    return list(_imported(tree, When.AT_IMPORT))


def graph(modules: Mapping[str, Module], latest: When) -> Graph:
    """Which of our modules each one imports, by imports executed at `latest` or before."""
    edges: Graph = {name: set() for name in modules}
    for name, module in modules.items():
        for target, when in _imports_of(module.tree):
            known = target if target in modules else target.rpartition(".")[0]
            if when <= latest and known in modules:
                edges[name].add(known)
    return edges


def with_packages(edges: Graph) -> Graph:
    """The same with the packages of what is imported: their __init__ runs before it."""
    found: Graph = {}
    for name, targets in edges.items():
        parts = [target.split(".") for target in targets]
        packages = {".".join(p[:end]) for p in parts for end in range(1, len(p) + 1)}
        found[name] = {p for p in packages if not f"{name}.".startswith(f"{p}.")}
    return found


def grouped(edges: Graph, rooms: Mapping[str, str]) -> Graph:
    """The imports between rooms; modules that `rooms` lacks are left out."""
    found: Graph = {room: set() for room in rooms.values()}
    for name, room in rooms.items():
        found[room] |= {rooms[target] for target in edges[name] & rooms.keys()} - {room}
    return found


def rooms_of(names: Iterable[str], package: str) -> dict[str, str]:
    """For each module inside `package`, the file or folder directly below it that holds it."""
    depth = package.count(".") + 2
    inside = [n for n in names if n.startswith(f"{package}.") and not n.endswith(".__main__")]
    return {name: ".".join(name.split(".")[:depth]) for name in inside}


def reached(edges: Graph) -> Graph:
    """All that each name leads to; itself only through a cycle."""
    found: Graph = {name: set() for name in edges}
    for name, names in found.items():
        rest = list(edges[name])
        while rest:
            if (target := rest.pop()) not in names:
                names.add(target)
                rest += edges[target]
    return found


def cycles(edges: Graph) -> list[list[str]]:
    """Groups of names in which each name leads to every other."""
    reach = reached(edges)
    groups = {frozenset(n for n in r if name in reach[n]) for name, r in reach.items() if name in r}
    return sorted(sorted(group) for group in groups)


def floors(edges: Graph) -> int:
    """The number of names in the longest chain of imports; a cycle counts as one."""
    reach = reached(edges)
    height: dict[str, int] = {}
    for name in sorted(edges, key=lambda name: len(reach[name] | {name})):
        below = [height[n] for n in reach[name] if name not in reach[n]]
        height[name] = 1 + max(below, default=0)
    return max(height.values(), default=0)


def function_lengths(modules: Mapping[str, Module]) -> list[int]:
    """Lines of each function, nested ones too, from its `def` to its end; ascending."""
    nodes = [node for module in modules.values() for node in ast.walk(module.tree)]
    functions = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    return sorted((n.end_lineno or n.lineno) - n.lineno + 1 for n in functions)


def names_used_twice(modules: Mapping[str, Module]) -> dict[str, list[str]]:
    """For each process's entry, the names of classes that several of its modules define."""
    reach = reached(with_packages(graph(modules, When.LATE)))
    classes = {
        name: {node.name for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)}
        for name, module in modules.items()
    }
    found = {}
    for entry in [n for n in modules if n.endswith(".__main__") or n in LAUNCHERS]:
        counts = Counter(c for name in reach[entry] | {entry} for c in classes[name])
        found[entry] = sorted(name for name, count in counts.items() if count > 1)
    return found


def _listed(name: str, items: list[str]) -> str:
    return f"| {name} | {len(items)}{': ' if items else ''}{'; '.join(items)} |"


def report(modules: Mapping[str, Module]) -> Iterator[str]:
    """The lines of two tables: packages with their rooms, and the whole tree."""
    everything, executed = graph(modules, When.NEVER), graph(modules, When.LATE)
    folders = {name: module.folder for name, module in modules.items()}
    yield "| package | modules | rooms | imports between them | floors | cycles of rooms |"
    yield "| --- | --: | --: | --: | --: | --: |"
    for package in sorted(set(folders.values())):
        rooms = rooms_of(modules, package)
        edges = grouped(executed, rooms)
        sizes = f"{len(rooms)} | {len(edges)} | {sum(map(len, edges.values()))} | {floors(edges)}"
        yield f"| `{package}` | {sizes} | {len(cycles(edges))} |"
    lengths = function_lengths(modules)
    figures = (f"{median(lengths):g}", str(lengths[len(lengths) * 9 // 10]), str(lengths[-1]))
    at_import = with_packages(graph(modules, When.AT_IMPORT))
    yield "\n| whole tree | |\n| --- | --- |"
    yield f"| modules, folders | {len(modules)}, {len(set(folders.values()))} |"
    yield f"| imports between folders | {sum(map(len, grouped(everything, folders).values()))} |"
    yield f"| lines of source | {sum(module.lines for module in modules.values())} |"
    yield f"| function lines: median / p90 / max | {' / '.join(figures)} |"
    yield _listed("cycles at import", [" ".join(group) for group in cycles(at_import)])
    yield _listed("cycles, late and typing too", [" ".join(group) for group in cycles(everything)])
    long_files = [name for name, module in modules.items() if module.lines > LONG_FILE_LINES]
    yield _listed(f"files above {LONG_FILE_LINES} lines", long_files)
    for entry, names in names_used_twice(modules).items():
        yield _listed(f"class names used twice in `{entry}`", names)


def main() -> None:
    """Measures the tree below ROOT, by default this one."""
    parser = argparse.ArgumentParser(prog="bench.house", description=__doc__)
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parents[1])
    print("\n".join(report(read(parser.parse_args().root))))


if __name__ == "__main__":
    main()
