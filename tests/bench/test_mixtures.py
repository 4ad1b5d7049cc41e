"""The benchmark of mixtures: its files, the work on both sides, and the table. No figures."""

import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from bench import serving
from bench.mixtures import __main__ as command
from bench.mixtures import runs
from bench.mixtures.__main__ import Figures, compared, figures_of
from bench.mixtures.files import QUANTIZATIONS, SHAPES, Shape, write_mixture
from bench.mixtures.runs import Case, EngineError, Times, llamacpp
from bench.peers.catalogue import LlamaCpp
from srt.files.gguf import open_gguf
from tests.running.profiles import some

TINY = Shape("qwen3moe", 3, 256, 4, 2, 64, 8, 2, 256)
# Prints what llama-batched-bench would, and its arguments to a file.
FAKE = """#!{python}
import sys
with open("{log}", "a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
print("a line of another kind")
for rows in given["-npl"].split(","):
    print('{{"n_kv_max": 1, "pp": %s, "tg": %s, "pl": %s, "t_pp": 2.0, "t_tg": 4.0, "speed": 1.0}}'
          % (given["-npp"], given["-ntg"], rows))
"""


def fake_peer(folder: Path) -> Path:
    """A program in the place of llama.cpp's below the home `folder`."""
    binary = LlamaCpp(folder).batched_bench
    binary.parent.mkdir(parents=True)
    binary.write_text(FAKE.format(python=sys.executable, log=folder / "log"))
    binary.chmod(0o755)
    return binary


@pytest.mark.parametrize("quantization", some(QUANTIZATIONS, "Q4_K"))
def test_weights_are_of_the_size_that_keeps_sums_small(tmp_path: Path, quantization: str) -> None:
    """As the gguf package reads them, which writes none of these types but one."""
    path = tmp_path / "m.gguf"
    write_mixture(path, TINY._replace(architecture="olmoe"), quantization)
    found, kinds = open_gguf(path).tensors, set[int]()
    for tensor in gguf.GGUFReader(path).tensors:
        if not tensor.name.startswith("blk."):  # as these, and larger
            continue
        shape = found[tensor.name].shape
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(shape)
        kinds.add(int(tensor.tensor_type))
        if len(shape) == 1:
            assert np.array_equal(values, np.ones(shape)), tensor.name
            continue
        assert np.isfinite(values).all() and abs(values.mean()) * 16 < 0.1, tensor.name
        assert 0.8 < values.std() * shape[-1] ** 0.5 < 1.2, tensor.name
    assert kinds == ({0, 8} if quantization == "Q8_0" else {0, 12, 14})


def test_shapes_are_those_of_the_released_models() -> None:
    """Parameters without embedding and head, in billions."""
    sizes = {
        name: sum(
            int(np.prod(tensor.shape)) for i in range(shape.layers) for tensor in shape.layer(i, 8)
        )
        for name, shape in SHAPES.items()
    }
    assert {name: round(size / 1e9, 1) for name, size in sizes.items()} == {
        "qwen3-30b-a3b": 29.9,
        "olmoe": 6.7,
    }
    olmoe = SHAPES["olmoe"]
    assert olmoe.layers_within(4 * 2**30, 12) == 16, "whole"
    assert olmoe.layers_within(4 * 2**30, 8) < 16
    assert SHAPES["qwen3-30b-a3b"].layers_within(1, 8) == 1


def test_llamacpp_has_one_process_for_each_length(tmp_path: Path) -> None:
    binary = fake_peer(tmp_path)
    cases = [Case(512, 32, 1), Case(512, 32, 1), Case(64, 32, 8), Case(64, 32, 32)]
    times = llamacpp(binary, Path("m.gguf"), cases, 3)
    assert [(each.prompt, each.tokens, each.rows) for each in times] == cases
    first, second = (tmp_path / "log").read_text().splitlines()
    assert "-npl 1,1" in first and "-npl 8,32" in second
    assert "-t 3 -tb 3" in first and "-c 768" in first and "-c 8192" in second
    binary.write_text("#!/bin/sh\necho wrong model >&2; exit 1\n")
    with pytest.raises(EngineError, match="status 1\nwrong model"):
        llamacpp(binary, Path("m.gguf"), cases, 3)


def test_the_second_run_of_a_prompt_counts() -> None:
    times = [Times(512, 32, 1, 9.0, 9.0), Times(512, 32, 1, 2.0, 4.0), Times(64, 32, 8, 1.0, 2.0)]
    figures = figures_of(times)
    assert figures == Figures(256.0, {1: 8.0, 8: 128.0})
    assert [name for name, _ in figures.named()] == [
        *("prompt of 512", "decode, 1 row", "decode, 8 rows"),
    ]


def test_the_table_has_medians_and_the_range_of_rounds() -> None:
    ours = [Figures(rate, {1: 2 * rate}) for rate in (10.0, 30.0, 20.0)]
    theirs = [Figures(10.0, {1: 10.0})] * 3
    assert compared(ours, theirs) == [
        ["prompt of 512", "20.0", "10.0", "2.00", "1.00 to 3.00"],
        ["decode, 1 row", "40.0", "10.0", "4.00", "2.00 to 6.00"],
    ]
    assert compared(ours, []) == [["prompt of 512", "20.0"], ["decode, 1 row", "40.0"]]


def test_the_command_takes_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files are written, both engines run as often, and a file that stays is used again."""
    fake_peer(tmp_path)
    order: list[str] = []

    def ours(model: Path, cases: list[Case], threads: int, level: str | None) -> list[Times]:
        order.append(model.name)
        return [Times(*case, 1.0, 2.0) for case in cases]

    monkeypatch.setattr(command, "ours", ours)
    monkeypatch.setattr(command, "SHAPES", {"tiny": TINY})
    monkeypatch.setattr(command, "read_rate", lambda threads, level: 1e9)
    argv = ["--home", str(tmp_path), "--repeat", "2", "--quantization", "Q8_0", "--threads", "1"]
    assert command.main([*argv, "--folder", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "tiny, 3 of 3 layers, Q8_0" in printed and "2 rounds" in printed
    assert "| decode, 32 rows" in printed and " 2.00 |  2.00 to 2.00 |" in printed
    (kept,) = tmp_path.glob("*.gguf")
    written = kept.stat().st_mtime_ns
    assert order == [kept.name] * 2
    assert len((tmp_path / "log").read_text().splitlines()) == 4
    assert command.main([*argv, "--folder", str(tmp_path)]) == 0
    assert kept.stat().st_mtime_ns == written
    assert command.main([*argv, "--home", str(tmp_path / "empty")]) == 1
    assert "bench.peers llamacpp --setup" in capsys.readouterr().err


@pytest.mark.parametrize("fails", [False, True])
def test_served_runs_the_workloads_alone_and_on_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """By the serving benchmark, whose status is the command's."""
    seen: list[Any] = []

    def main(argv: list[str]) -> int:
        seen.append(serving.parse_args(argv))
        return int(fails)

    monkeypatch.setattr(serving, "main", main)
    monkeypatch.setattr(command, "SHAPES", {"tiny": TINY})
    argv = ["--served", "--folder", str(tmp_path), "--quantization", "Q4_K", "--scale", "0.5"]
    assert command.main(argv) == int(fails)
    assert [each.server_args for each in seen] == (["", "--dp 2"] if not fails else [""])
    assert {(each.workload, each.guesses, each.scale) for each in seen} == {("all", "on", 0.5)}
    assert seen[0].model_file.endswith(".gguf")


def test_our_engine_runs_the_cases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.gguf"
    write_mixture(path, TINY, "Q8_0")
    assert runs.main([str(path), "1", "5,2,1", "5,2,3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(',"t_pp')[0] for line in lines] == [
        '{"pp":5,"tg":2,"pl":1',
        '{"pp":5,"tg":2,"pl":3',
    ]
