"""The binding of the native kernels, compared with the header and, where built, the library."""

import ctypes
import mmap
import os
import re
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from ctypes import POINTER
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np
import pytest

from scheduler_proc.executor.native_pool import PoolFormat
from scheduler_proc.kernels import build, library
from scheduler_proc.kernels.library import Format, Library, NativeUnavailable, Source
from srt import machine
from tests.scheduler_proc.kernels.compiler import EXPORT, needs_compiler

HEADER = build.SOURCES / "srt_kernels.h"
STRUCTURES = {
    "srt_matrix": library.Matrix,
    "srt_router_rule": library.RouterRule,
    "srt_experts": library.Experts,
    "srt_layer": library.Layer,
    "srt_model": library.Model,
    "srt_batch": library.Batch,
    "srt_trie": library.Trie,
    "srt_dfa": library.Dfa,
}
C_TYPES: dict[str, Any] = {
    "void": None,
    "int32_t": ctypes.c_int32,
    "uint8_t *": POINTER(ctypes.c_uint8),
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "size_t": ctypes.c_size_t,
    "float": ctypes.c_float,
    "char *": ctypes.c_char_p,
    "void *": ctypes.c_void_p,
    "srt_engine *": ctypes.c_void_p,
    "srt_pool *": ctypes.c_void_p,
    "float *": POINTER(ctypes.c_float),
    "double *": POINTER(ctypes.c_double),
    "int32_t *": POINTER(ctypes.c_int32),
    "int64_t *": POINTER(ctypes.c_int64),
    "uint32_t *": POINTER(ctypes.c_uint32),
    **{f"{name} *": POINTER(structure) for name, structure in STRUCTURES.items()},
}


INPUT_NAMES = [f"SRT_IN_{name.upper()}" for name in library.INPUTS]


class TestHeader:
    @needs_compiler
    def test_c_lays_the_structures_out_as_ctypes_does(self, tmp_path: Path) -> None:
        expected: dict[str, int] = {"SRT_ABI_VERSION": library.ABI_VERSION}
        expected["SRT_NUM_PHASES"] = library.NUM_PHASES
        for name, structure in STRUCTURES.items():
            expected[f"sizeof({name})"] = ctypes.sizeof(structure)
            for field, *_ in structure._fields_:
                expected[f"offsetof({name}, {field})"] = getattr(structure, field).offset
                expected[f"sizeof((({name} *)0)->{field})"] = getattr(structure, field).size
        expected |= {f"SRT_{f.name}": f.value for f in (*Format, *PoolFormat)}
        expected |= {f"SRT_SRC_{s.name}": s.value for s in Source}
        expected |= {name: number for number, name in enumerate((*INPUT_NAMES, "SRT_NUM_INPUTS"))}
        assert c_values(list(expected), tmp_path) == list(expected.values())

    def test_every_member_of_the_header_is_bound(self) -> None:
        text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
        enums = re.findall(r"\b(SRT_\w+) = \d+,", text)
        formats = dict.fromkeys(f"SRT_{f.name}" for f in (*Format, *PoolFormat))
        sources = [f"SRT_SRC_{s.name}" for s in Source]
        assert enums == [*formats, *sources, *INPUT_NAMES, "SRT_NUM_INPUTS"]
        for name, structure in STRUCTURES.items():
            body = re.search(r"typedef struct {([^}]*)} " + name + ";", text)
            assert body
            members = re.findall(r"(\w+)(?:\[\w+\])?\s*[,;]", body[1])
            assert members == [field for field, *_ in structure._fields_]

    def test_every_function_is_declared_with_its_types(self) -> None:
        text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
        found = re.findall(r"SRT_EXPORT\s+([^;]*?)\b(srt_\w+)\(([^)]*)\);", text)
        declared = {
            name: (c_type(result), *(c_type(re.sub(r"\w+$", "", a)) for a in arguments(text)))
            for result, name, text in found
        }
        assert declared == library.SIGNATURES


def arguments(text: str) -> list[str]:
    return [] if text.strip() == "void" else text.split(",")


def c_type(text: str) -> Any:
    return C_TYPES[" ".join(text.replace("const", "").replace("*", " * ").split())]


def c_values(expressions: list[str], folder: Path) -> list[int]:
    """The values of the C expressions after including the header, compiled as C (not C++)."""
    prints = "".join(f'  printf("%ld\\n", (long)({e}));\n' for e in expressions)
    program = f'#include "{HEADER}"\n#include <stdio.h>\nint main(void) {{\n{prints}}}\n'
    (folder / "values.c").write_text(program)
    command = [*build.compiler(), "-x", "c", "values.c", "-o", "values"]
    subprocess.run(command, cwd=folder, check=True)
    return [int(line) for line in subprocess.check_output([folder / "values"]).split()]


class TestLoad:
    def test_a_library_that_was_not_built(self, tmp_path: Path) -> None:
        with pytest.raises(NativeUnavailable, match="not built"):
            library.load(tmp_path / "none.so")

    def test_a_file_that_is_not_a_library(self, tmp_path: Path) -> None:
        path = tmp_path / "text.so"
        path.write_text("text")
        with pytest.raises(NativeUnavailable, match="cannot be loaded"):
            library.load(path)

    @needs_compiler
    @pytest.mark.parametrize(
        ("function", "reason"),
        [
            ("srt_abi_version() { return 999; }", "ABI version 999"),
            (f"srt_abi_version() {{ return {library.ABI_VERSION}; }}", "srt_last_error"),
            ("srt_other() { return 1; }", "srt_abi_version"),
        ],
    )
    def test_a_library_of_other_sources(self, tmp_path: Path, function: str, reason: str) -> None:
        (tmp_path / "other.cpp").write_text(f"{EXPORT}EXPORT int {function}\n")
        path = build.build(tmp_path / "lib.so", sources=tmp_path, objects=tmp_path / "objects")
        with pytest.raises(NativeUnavailable, match=reason):
            library.load(path)


class TestPointers:
    def test_a_pointer_reads_the_array(self) -> None:
        batch = library.Batch()
        temperature = np.array([0.5, 0.25], np.float32)
        batch.temperature = library.pointer(temperature, ctypes.c_float)
        temperature[1] = 2
        assert batch.temperature[1] == 2
        assert not batch.top_p

    def test_another_type_is_refused(self) -> None:
        with pytest.raises(TypeError, match="float64, where C reads float32"):
            library.pointer(np.zeros(4), ctypes.c_float)

    def test_gaps_are_refused(self) -> None:
        with pytest.raises(ValueError, match="not C-contiguous"):
            library.pointer(np.zeros((4, 4), np.float32)[:, 1], ctypes.c_float)

    def test_aligned_memory(self) -> None:
        for size in (1, 63, 64, 1000):
            memory = library.huge_memory(size)
            assert len(memory) == size
            assert library.address(memory) % 64 == 0

    def test_source_rows(self) -> None:
        assert Source.Q4_0.row_bytes(64) == 36
        assert Source.Q6_K.row_bytes(512) == 420
        with pytest.raises(ValueError, match="Q4_K"):
            Source.Q4_K.row_bytes(128)


@pytest.fixture
def native() -> Library:
    try:
        return library.load()
    except NativeUnavailable as reason:
        pytest.skip(str(reason))


class TestNative:
    def test_levels(self, native: Library) -> None:
        available = native.available_isas()
        assert available[-1] == "portable"
        assert os.environ.get("SRT_ISA", available[0]) == native.isa()

    def test_rows_come_back_in_the_order_asked_for(self, native: Library) -> None:
        weights = np.random.default_rng(0).standard_normal((5, 32), np.float32)
        order = np.array([4, 0, 2], np.int32)
        packed = native.pack(Source.F32, weights, 3, 32, Format.F32, order)
        assert library.address(packed) % 64 == 0
        assert packed.nbytes == native.packed_bytes(Format.F32, 3, 32)
        matrix = library.Matrix(format=Format.F32, n=3, k=32, data=library.address(packed))
        for row, source_row in enumerate(order):
            out = np.empty(32, np.float32)
            at = library.pointer(out, ctypes.c_float)
            native.check(native.c.srt_unpack_row(ctypes.byref(matrix), row, at))
            assert (out == weights[source_row]).all()

    @pytest.mark.parametrize("order", [[0, 5], [-1, 0], [0]])
    def test_rows_that_the_source_lacks_are_refused(
        self, native: Library, order: list[int]
    ) -> None:
        weights = np.zeros((5, 32), np.float32)
        with pytest.raises(ValueError, match="2 rows"):
            native.pack(Source.F32, weights, 2, 32, Format.F32, np.array(order, np.int32))

    def test_an_error_is_raised_with_its_text(self, native: Library) -> None:
        with pytest.raises(RuntimeError, match=r"\w+"):
            native.created(native.c.srt_pool_create(1, b"abacus", 0))
        with pytest.raises(RuntimeError, match=r"\w+"):
            native.check(native.c.srt_pack(99, None, 16, 32, None, Format.F32, None))

    @pytest.mark.parametrize("format", [-1, max(Format) + 1])
    def test_packing_in_a_format_that_does_not_exist_is_refused(
        self, native: Library, format: int
    ) -> None:
        weights, out = np.ones((16, 32), np.float32), np.zeros(16 * 32 * 4, np.uint8)
        arrays = library.address(weights), library.address(out)
        with pytest.raises(RuntimeError, match=f"cannot become {format}"):
            native.check(native.c.srt_pack(Source.F32, arrays[0], 16, 32, None, format, arrays[1]))
        assert (out == 0).all()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux")
def test_a_part_of_a_file_that_is_let_go_can_be_read_again(tmp_path: Path) -> None:
    content = np.random.default_rng(0).integers(0, 256, 5 * mmap.PAGESIZE, np.uint8)
    (tmp_path / "file").write_bytes(content.tobytes())
    with (tmp_path / "file").open("rb") as file:
        mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    for part in (slice(None), slice(100, 200), slice(100, 3 * mmap.PAGESIZE + 7)):
        library.let_go(mapped[part])
        assert np.array_equal(mapped, content)


class AskedSystem:
    """Replaces madvise, and is asked for one page at a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.held: list[np.ndarray] = []  # released at the first call
        monkeypatch.setattr(ctypes, "CDLL", lambda name: self)
        monkeypatch.setattr(library, "_AT_ONCE", mmap.PAGESIZE)

    def madvise(self, *arguments: object) -> int:
        self.calls += 1
        self.held.clear()
        return 0


def in_a_thread(memory: "ref[np.ndarray]", *parts: range) -> None:
    """Run `populate` in a thread of its own, as it lowers its thread's priority."""
    with ThreadPoolExecutor(1) as threads:
        array = memory()
        everything = () if array is None else (range(array.nbytes),)
        del array
        threads.submit(library.populate, memory, parts or everything).result()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux")
class TestPopulate:
    @pytest.fixture(autouse=True)
    def enough_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """However little this machine has left, beside other tests."""
        monkeypatch.setattr(library, "_LEFT_FREE", 0)

    def test_pages_are_there_and_values_stay(self) -> None:
        memory = library.huge_memory(64 * 4096)
        memory[::4096] = 7
        in_a_thread(ref(memory))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        assert memory.sum() == 64 * 7
        memory[1::4096] = 1
        assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 64

    def test_only_the_parts_that_are_asked_for(self) -> None:
        memory = library.huge_memory(4 * 2**21)
        in_a_thread(ref(memory), range(100, 5000), range(2**21 + 1, 2**21 + 2))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        memory[[0, 4096, 2**21]] = 1
        assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 3

    def test_stops_where_little_memory_is_free(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(library, "_LEFT_FREE", 1 << 62)
        system, memory = AskedSystem(monkeypatch), library.huge_memory(4096)
        in_a_thread(ref(memory))
        assert system.calls == 0

    @pytest.mark.parametrize(
        ("limit", "used"),
        [
            ("memory.max", "memory.current"),
            ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
        ],
    )
    @pytest.mark.parametrize(("most", "calls"), [("5000000", 0), ("7000000", 3), ("max", 3)])
    def test_stops_before_the_limit_of_its_container(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        limit: str,
        used: str,
        most: str,
        calls: int,
    ) -> None:
        (tmp_path / "memory").mkdir()
        (tmp_path / limit).write_text(f"{most}\n")
        (tmp_path / used).write_text("4000000\n")
        monkeypatch.setattr(machine, "CONTROL_GROUPS", tmp_path)
        monkeypatch.setattr(library, "_LEFT_FREE", 2_000_000)
        system, memory = AskedSystem(monkeypatch), library.huge_memory(3 * mmap.PAGESIZE)
        in_a_thread(ref(memory))
        assert system.calls == calls

    def test_stops_when_nobody_holds_the_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        system = AskedSystem(monkeypatch)
        system.held.append(library.huge_memory(4 * mmap.PAGESIZE))
        in_a_thread(ref(system.held[0]))
        assert system.calls == 1
