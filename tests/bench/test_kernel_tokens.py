"""The tables of `bench.kernels --tokens`."""

from typing import cast

import pytest

from bench import kernel_steps, kernel_tokens, kernels
from bench.roofline import Peaks
from scheduler_proc.batch import ForwardBatch
from scheduler_proc.executor.native_executor import NativeExecutor
from tests.scheduler_proc.kernels.ops import load_or_skip


@pytest.fixture(autouse=True)
def few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("CONTEXT", 8), ("PREFILL", 16), ("MOST_TOKENS", 3)):
        monkeypatch.setattr(kernel_tokens, name, value)


def test_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Up to three tokens over eight, against a prefill of 16."""
    load_or_skip()
    monkeypatch.setattr(kernels, "measure_machine", lambda setting, show: Peaks(1.0, 1.0, 1.0))
    for module in (kernels, kernel_steps):
        monkeypatch.setattr(module, "SLOTS", 64)
    assert kernels.main(["--tokens", "--threads", "1", "--repeat", "1"]) == 0
    *_, caption, table, of_phases, phases = capsys.readouterr().out.strip().split("\n\n")
    assert caption.endswith("CPU time:") and of_phases.startswith("Phases of these steps")
    names, _, *rows = ([c.strip() for c in row.split("|")[1:-1]] for row in table.splitlines())
    assert tuple(names) == kernel_tokens.TOKEN_COLUMNS
    assert [row[0] for row in rows] == ["2", "3"] and all(float(row[1]) > 0 for row in rows)
    names, _, *rows = ([c.strip() for c in row.split("|")[1:-1]] for row in phases.splitlines())
    assert tuple(names) == kernel_tokens.PHASE_COLUMNS
    cells = {row[0]: row[1:] for row in rows}
    assert "attention" in cells and all(float(cell) > 0 for cell in cells["head"][:2])


def test_shares_of_a_prefill_s_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps whose times are known: 10 ms, 4 more for the second token, 1 for the third; the prefill
    takes 2 for each token. The head takes half of each."""
    now, taken = [0.0], {1: 0.010, 2: 0.014, 3: 0.015, 16: 0.032}
    monkeypatch.setattr(kernel_tokens, "fill_pool", lambda executor: None)
    monkeypatch.setattr("time.thread_time", lambda: now[0])

    class Executor:
        vocab_size, _pool, head_s = 100, None, 0.0

        def run(self, batch: ForwardBatch) -> None:
            now[0] += taken[batch.num_tokens]
            self.head_s += taken[batch.num_tokens] / 2

        def profile(self) -> dict[str, float]:
            self.head_s, seconds = 0.0, self.head_s
            return {"head": seconds}

    runs = kernel_tokens.token_runs(cast(NativeExecutor, Executor()), threads=1, repeat=2)
    two, three = kernel_tokens.token_rows(runs)
    assert two.cells() == ["2", "14.0", "4.00", "2.00", "2.00"]
    assert three.cells() == ["3", "15.0", "2.50", "1.25", "0.50"]
    assert list(kernel_tokens.phase_cells(runs)) == [["head", "5.00", "7.50", "1.25", "1.00"]]
