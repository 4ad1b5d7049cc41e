"""The kernel benchmark: bounds, what its cases read and compute, and the tables. No figures."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np
import pytest

from bench import kernel_attention, kernel_experts, kernel_peaks, kernel_steps, kernels, roofline
from bench.kernel_attention import CASES, Case, Pool, Shape, attention_rows, smallest_attention
from bench.kernel_calls import Operations
from bench.kernel_ops import ALLOWED, Linear, linear_rows, mask_arrays, sampling_rows
from bench.kernel_peaks import Setting, caches
from bench.kernel_steps import (
    SLOTS,
    STEPS,
    MeasuredStep,
    Step,
    StepWork,
    phase_table,
    step_cells,
    step_work,
)
from bench.roofline import (
    OP_COLUMNS,
    WORKING_SET,
    Measured,
    Peaks,
    Runner,
    TablePrinter,
    Timing,
    Work,
    copies_of,
    markdown,
    number,
    op_cells,
)
from scheduler_proc.executor.native_executor import NativeExecutor
from scheduler_proc.executor.native_pool import KVPool
from scheduler_proc.kernels.library import (
    Format,
    Layer,
    Library,
    Matrix,
    NativeUnavailable,
    Source,
    address,
    load,
)
from scheduler_proc.models.config import DecoderConfig
from scheduler_proc.models.packed import PackedModel
from srt.files.model_files import DEFAULT_MODEL, resolve_model
from tests.running.late import late

if TYPE_CHECKING:
    import torch
else:
    torch = late("torch")


PEAKS = Peaks(read=20e9, fp32=100e9, int8=400e9)
SHAPE = Shape(heads=6, kv_heads=2, head_dim=64)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows run as often as they are asked to, without a minimum time."""
    monkeypatch.setattr(roofline, "MIN_S", 0.0)


@pytest.fixture
def native() -> Library:
    try:
        return load()
    except NativeUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def operations(native: Library, at_once: None) -> Iterator[Operations]:
    with closing(Operations(native, 2, native.isa())) as made:
        yield made


@pytest.mark.parametrize(
    ("work", "seconds", "by"),
    [
        (Work(20e9, 100e9), 1.0, "read"),
        (Work(20e9, 200e9), 2.0, "fp32"),
        (Work(10e9, 800e9, "int8"), 2.0, "int8"),
        (Work(10e9, 100e9, "int8"), 0.5, "read"),
        (Work(5e9), 0.25, "read"),
    ],
)
def test_the_slower_of_reading_and_computing_is_the_bound(
    work: Work, seconds: float, by: str
) -> None:
    assert PEAKS.bound(work) == (seconds, by)


def test_a_row_has_rates_of_its_median() -> None:
    row = Measured("x", Timing(2e-3, 1e-3, 9), Work(20e6, 600e6, "int8"))
    cells = dict(zip(OP_COLUMNS, op_cells(row, PEAKS), strict=True))
    assert cells == {
        "op": "x",
        "µs": "2,000",
        "best": "1,000",
        "GB/s": "10.0",
        "GFLOP/s": "300",
        "bound, µs": "1,500",
        "by": "int8",
        "share": "75 %",
    }


def test_numbers_keep_three_digits() -> None:
    values = (0, 0.123, 4.567, 45.67, 456.7, 4567.8)
    assert [number(v) for v in values] == ["0.00", "0.12", "4.57", "45.7", "457", "4,568"]


def test_a_markdown_table() -> None:
    lines = markdown(("op", "longer"), [["a name", "1"], ["b", "12345678"]]).splitlines()
    assert lines == [
        "| op     |   longer |",
        "| ------ | -------: |",
        "| a name |        1 |",
        "| b      | 12345678 |",
    ]
    assert len(markdown(("op", "x"), []).splitlines()) == 2


def test_calls_are_timed_in_turns(at_once: None) -> None:
    seen: list[str] = []
    calls = [lambda name=name: seen.append(name) for name in "abc"]
    timing = Runner(repeat=7).time(calls)
    assert timing.runs == 7 and timing.calls == len(seen) == 9
    assert "".join(seen) == "ab" + "abcabca"
    assert 0 <= timing.best_s <= timing.median_s


def test_a_short_call_is_repeated_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "MIN_S", 0.01)
    assert Runner(repeat=1).time([lambda: None]).runs > 10


def test_the_working_set() -> None:
    assert copies_of(WORKING_SET) == copies_of(2 * WORKING_SET) == 1
    assert copies_of(WORKING_SET - 1) == 2
    assert copies_of(1_000_000) == 96 and copies_of(1_000_000, most=7) == 7


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_attention_case_counts_what_its_batch_says(case: Case) -> None:
    slots = np.random.default_rng(0).permutation(case.slots)
    arrays = case.arrays(slots)
    lengths, new = np.diff(arrays["kv_indptr"]), np.diff(arrays["qo_indptr"])
    assert len(lengths) == len(new) == case.rows
    assert arrays["kv_indptr"][-1] == len(arrays["kv_indices"])
    assert set(arrays["kv_indices"]) == set(slots), "every slot is read"
    seen = [length - n + i + 1 for length, n in zip(lengths, new, strict=True) for i in range(n)]
    assert sum(seen) == case.pairs
    times = Counter(Counter(arrays["kv_indices"].tolist()).values())
    expected = Counter({1: case.rows * case.own})
    expected[case.rows] += case.shared
    assert times == +expected
    work = case.work(SHAPE)
    assert work.num_bytes == case.slots * SHAPE.slot_bytes == case.slots * 512
    assert work.flops == sum(seen) * 2 * 2 * 6 * 64


def test_names_are_unique() -> None:
    names = [case.name for case in CASES] + [step.name for step in STEPS]
    assert len(set(names)) == len(names)
    assert Case(32, 64, shared=1500, sharing=False).name.endswith("1500 shared + 64, sharing off")


@pytest.mark.parametrize("permuted", [False, True])
def test_variants_read_no_slot_twice(permuted: bool) -> None:
    pool, case = Pool(SHAPE, layers=3, slots=100, isa="avx2"), Case(2, 20, permuted=permuted)
    variants = list(pool.variants(case))
    assert len(variants) == 6
    read = [(layer.k_pool, slot) for layer, slots in variants for slot in slots.tolist()]
    assert len(set(read)) == len(read) == 6 * case.slots
    assert np.isfinite(pool.memory.elements).all() and pool.memory.elements.all(-1).any()


def test_attention_rows_that_were_asked_for(
    operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.kernel_attention.POOL_SLOTS", 512)
    config = DecoderConfig(384, 1, 6, 2, 64, 512, 1000, 2048, 1e-5)
    cases = [case for case in CASES if case.slots <= 512]
    monkeypatch.setattr("bench.kernel_attention.CASES", cases)
    runner = Runner("ctx=64, permuted", 2)
    rows = list(attention_rows(operations, config, runner))
    assert [r.name for r in rows] == [f"attention decode B={b} ctx=64, permuted" for b in (1, 8)]


def packed_matrix(native: Library, format: Format, n: int, k: int) -> tuple[Matrix, np.ndarray]:
    values = np.random.default_rng(n).standard_normal((n, k), np.float32)
    packed = native.pack(Source.F32, values, n, k, format)
    return Matrix(format, n, k, address(packed)), packed


def test_joined_matrices_compute_what_each_does(operations: Operations) -> None:
    """In a model of two layers: q, k and v become one matrix of 64 outputs."""
    kept = [packed_matrix(operations.library, Format.Q8, n, 64) for n in (32, 16, 16)]
    parts = [matrix for matrix, _ in kept]
    linear = Linear("qkv", [[parts], [parts]])
    assert linear.title(8) == "linear qkv 64x64 Q8, M=8" and linear.arithmetic == "int8"
    copy = next(iter(linear.copies(operations.library)))
    x = np.random.default_rng(0).standard_normal((3, 64), np.float32)
    joined = np.empty((3, 64), np.float32)
    operations.linear(copy.matrices, x, joined, copy)()
    at = 0
    for part in parts:
        y = np.empty((3, part.n), np.float32)
        operations.linear([part], x, y, kept)()
        np.testing.assert_array_equal(joined[:, at : at + part.n], y)
        at += part.n


def test_matrices_of_two_formats_are_not_joined(native: Library) -> None:
    kept = [packed_matrix(native, format, 16, 32) for format in (Format.Q8, Format.F32)]
    with pytest.raises(ValueError, match="cannot be joined"):
        Linear("qkv", [[[matrix for matrix, _ in kept]]]).copies(native)


def test_linear_rows_of_a_model(operations: Operations, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the row that was asked for is measured: the head, which is in no layer."""
    monkeypatch.setattr(roofline, "WORKING_SET", 10_000)
    head, memory = packed_matrix(operations.library, Format.Q8, 48, 64)
    none = np.empty(0, np.float32)
    packed = PackedModel((Layer * 1)(), head, head, none, none, [memory])
    rows = list(linear_rows(operations, packed, Runner("head 64x48 Q8, M=8", 1)))
    assert [row.name for row in rows] == ["linear head 64x48 Q8, M=8"]
    size = operations.library.packed_bytes(Format.Q8, 48, 64)
    assert rows[0].work == Work(size, 2 * 8 * 64 * 48, "int8")


def test_sampling_rows(operations: Operations) -> None:
    rows = list(sampling_rows(operations, 1000, Runner(repeat=1)))
    assert [(row.name, row.samples) for row in rows[-2:]] == [
        ("sampling mask of 200 allowed, rows=1", 1),
        ("sampling mask of 200 allowed, rows=32", 32),
    ]
    assert len(rows) == 8


def test_masks_allow_so_many() -> None:
    fields = mask_arrays(np.random.default_rng(0), 3, 1000)
    bits = np.unpackbits(fields["masks"].view(np.uint8), axis=1, bitorder="little")
    assert bits.sum(axis=1).tolist() == [ALLOWED] * 3 and not bits[:, 1000:].any()


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_a_step_s_batch(step: Step) -> None:
    batch = step.batch(1000)
    assert (batch.num_rows, batch.num_tokens) == (step.rows, step.tokens)
    assert (np.diff(batch.kv_indptr) == step.shared + step.own).all()
    slots = np.unique(batch.kv_indices)
    assert len(slots) == step.shared + step.rows * step.own and slots[-1] < SLOTS
    assert len(np.unique(batch.out_slots)) == batch.num_tokens
    assert (np.diff(slots) == 1).all() != step.permuted


def test_step_tables() -> None:
    phases = {"qkv": 0.001, "head": 0.0025}
    timing, peaks = Timing(0.010, 0.008, 5), PEAKS._replace(bf16=2000e9)
    one = MeasuredStep(Step("one", 1, 16), timing, phases, StepWork(100e6, 400e6, 50e6))
    more = MeasuredStep(Step("more", 8, 512), timing, phases, StepWork(20e6, 2e9, 500e6))
    beginning = ["one", "10.0", "8.00", "100"]
    assert step_cells(one, peaks, has_tiles=False) == [*beginning, "50 %", "10 %", "5 %"]
    assert step_cells(one, peaks, has_tiles=True) == [*beginning, "50 %", "2 %", "0 %"]
    assert step_cells(more, peaks, has_tiles=False)[3:] == ["800", "10 %", "50 %", "50 %"]
    columns, cells = phase_table([one, more])
    assert columns == ["mean ms of", "qkv", "head"]
    assert cells == [["one", "1.00", "2.50"], ["more", "1.00", "2.50"]]
    assert phase_table([]) == (["mean ms of"], [])


def test_a_table_is_printed_row_by_row(capsys: pytest.CaptureFixture[str]) -> None:
    table = TablePrinter("Caption:", ("name", "x"), 6)
    assert not capsys.readouterr().out
    table.add("one", "1.00")
    assert capsys.readouterr().out.splitlines() == [
        "Caption:",
        "",
        "| name   |       x |",
        "| ------ | ------: |",
        "| one    |    1.00 |",
    ]
    table.add("longer than that", "2")
    assert capsys.readouterr().out == "| longer than that |       2 |\n"


def test_the_work_of_a_step(native: Library) -> None:
    files = resolve_model(DEFAULT_MODEL)
    config = DecoderConfig(64, 2, 4, 2, 16, 96, 1000, 2048, 1e-5)
    executor = NativeExecutor(files, max_total_tokens=8, num_threads=1)
    slot = executor.pool_bytes / 8
    with closing(executor):
        work = step_work(executor, config, Step("x", 3, 10, shared=5, extend=2))
    assert work.num_bytes == executor.weight_bytes + 35 * slot
    weights = 2 * (64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 96)
    assert work.linear == 2 * (6 * weights + 3 * 64 * 1000)
    assert work.attention == 2 * 4 * 64 * 3 * (14 + 15)


def test_caches(tmp_path: Path) -> None:
    for i, cache in enumerate(
        (("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2M"))
    ):
        folder = tmp_path / f"index{i}"
        folder.mkdir()
        for name, text in zip(("level", "type", "size"), cache, strict=True):
            (folder / name).write_text(text + "\n")
    assert caches(tmp_path) == ["L1 48K", "L2 2M"]
    assert caches(tmp_path / "none") == []


@pytest.mark.full
def test_the_machine_table(native: Library, at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """On small matrices, and without setting levels for torch's libraries."""
    monkeypatch.setattr(kernel_peaks, "_LEVELS", {})
    monkeypatch.setattr(kernel_peaks, "SIDE", 64)
    monkeypatch.setattr(kernel_peaks, "READS", (WORKING_SET, 1 << 20))
    shown: dict[str, str] = {}
    setting = Setting(native, native.isa(), torch.get_num_threads())
    assert min(kernel_peaks.measure_machine(setting, shown.__setitem__)) > 0
    for name in ("CPU, cores", "read 96 MB, 1 thread", "fp32 torch", "int8 srt_op_linear"):
        assert any(row.startswith(name) for row in shown), name


def test_a_call_keeps_its_pool(native: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    pools: list[ref[KVPool]] = []

    class Noted(KVPool):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            pools.append(ref(self))

    monkeypatch.setattr(kernel_attention, "KVPool", Noted)
    with closing(Operations(native, 1, native.isa())) as operations:
        call = smallest_attention(operations)
        assert [pool() is not None for pool in pools] == [True]
        call()


def test_the_command_line(
    native: Library,
    at_once: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings: list[Setting] = []

    def measured(setting: Setting, show: Callable[[str, str], None]) -> Peaks:
        settings.append(setting)
        show("a name", "a value")
        return PEAKS._replace(bf16=400e9)

    monkeypatch.setattr(kernels, "measure_machine", measured)
    for module in (kernels, kernel_steps):
        monkeypatch.setattr(module, "SLOTS", 64)
    assert kernels.main(["--threads", "1", "--only", "B=1 ctx=16", "--repeat", "1"]) == 0
    _, machine, _, steps, caption, phases = capsys.readouterr().out.split("\n\n")
    assert "a value" in machine and settings == [Setting(native, native.isa(), 1)]
    assert steps.splitlines()[2].startswith("| decode B=1 ctx=16 ") and "%" in steps
    assert caption.startswith("Phases of these steps")
    assert phases.startswith("| mean ms of") and len(phases.splitlines()) == 3


@pytest.mark.full
def test_kinds_of_pools_in_turns(
    native: Library,
    at_once: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(kernels, "measure_machine", lambda setting, show: PEAKS)
    for module in (kernels, kernel_steps):
        monkeypatch.setattr(module, "SLOTS", 64)
    wanted = ["--pools", "--threads", "1", "--only", "B=1 ctx=16", "--repeat", "2"]
    assert kernels.main(wanted) == 0
    *_, caption, table = capsys.readouterr().out.split("\n\n")
    assert caption.strip() == "Whole steps, by the KV pool:"
    head, _, row = table.strip().splitlines()
    assert "float16, ms" in head and "int16, ms" in head
    ratios = [float(cell) for cell in row.strip("|").split("|")[3:]]
    assert row.startswith("| decode B=1 ctx=16 ") and min(ratios) > 0


def test_a_level_that_is_not_there(
    native: Library, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Library, "available_isas", lambda self: ())
    assert kernels.main(["--isa", "avx2"]) == 1
    assert "does not run avx2" in capsys.readouterr().err


def test_options_that_do_not_go_together() -> None:
    for wrong in (["--ops", "--steps"], ["--repeat", "0"], ["--threads", "0"], ["--isa", "x"]):
        with pytest.raises(SystemExit):
            kernels.parse_args(wrong)


def test_mixtures_and_dense_layers_in_turns(
    native: Library,
    at_once: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(kernels, "measure_machine", lambda setting, show: PEAKS)
    monkeypatch.setattr(kernel_experts, "SHAPES", (kernel_experts.Shape(4, 2, 256, 256),))
    monkeypatch.setattr(kernel_experts, "LEAST_BYTES", 0)
    wanted = ["--experts", "--threads", "1", "--only", "2 of 4", "--repeat", "2"]
    assert kernels.main(wanted) == 0
    *_, caption, table = capsys.readouterr().out.split("\n\n")
    assert caption.strip() == "MLPs, mixtures and dense ones of all experts:"
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]
    ]
    names = [f"{f.name} 2 of 4, {n}" for f in kernel_experts.SOURCES for n in kernel_experts.TOKENS]
    assert [row[0].strip() for row in rows] == names
    assert all(float(row[3]) > 0 and row[4] == "0.50" for row in rows)
    assert [row[0] for row in rows if row[5]] == [name for name in names if name.endswith(", 1")]
