"""Artefacts are read as they were written, and damage in between is noticed."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_proc.grammar import artefact
from scheduler_proc.grammar.artefact import (
    Artefact,
    ArtefactError,
    read_artefact,
    write_artefact,
)
from scheduler_proc.grammar.base import GrammarError
from tests.no_files import no_files

DTYPES = ["bool", "int8", "uint8", "int16", "int32", "uint32", "int64"]


def sample() -> Artefact:
    arrays = {
        "table": np.arange(300, dtype=np.int32).reshape(20, 15),
        "flags": np.array([True, False, True]),
        "empty": np.zeros((0, 4), np.uint32),
    }
    return Artefact("fsm", {"states": 20, "text": "é", "list": [1, {"a": None}]}, arrays)


def assert_equal(got: Artefact, wanted: Artefact) -> None:
    assert (got.backend, got.facts) == (wanted.backend, wanted.facts)
    assert list(got.arrays) == list(wanted.arrays)
    for name, array in wanted.arrays.items():
        assert got.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(got.arrays[name], array)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    assert write_artefact(path, sample()) == path.stat().st_size
    got = read_artefact(path)
    assert_equal(got, sample())
    for array in got.arrays.values():
        assert array.ctypes.data % 64 == 0 or array.size == 0
        with pytest.raises(ValueError):
            array.reshape(-1)[:1] = 1


@given(
    facts=st.dictionaries(st.text(max_size=5), st.integers(0, 2**40) | st.text(max_size=70)),
    shapes=st.lists(
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3)), max_size=5
    ),
)
def test_any_facts_and_arrays(
    facts: dict, shapes: list, tmp_path_factory: pytest.TempPathFactory
) -> None:
    arrays = {str(i): np.ones(shape, np.dtype(dtype)) for i, (dtype, shape) in enumerate(shapes)}
    path = tmp_path_factory.mktemp("artefact") / "a"
    write_artefact(path, Artefact("x", facts, arrays))
    assert_equal(read_artefact(path), Artefact("x", facts, arrays))


@pytest.mark.parametrize("completion", [None, [], [3, 70_000]])
def test_a_completion_is_read_again(tmp_path: Path, completion: list[int] | None) -> None:
    write_artefact(tmp_path / "a", Artefact("x", {}, {}, completion))
    assert read_artefact(tmp_path / "a").completion == completion


def test_other_dtypes_are_a_defect(tmp_path: Path) -> None:
    for array in (np.ones(2), np.array(["a"]), np.array([object()])):
        with pytest.raises(TypeError, match="dtype"):
            write_artefact(tmp_path / "a", Artefact("x", {}, {"a": array}))


def test_every_damaged_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_artefact(path, sample())
    data = path.read_bytes()
    for at in range(0, len(data), 7):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x20]) + data[at + 1 :])
        if 32 - 4 <= at < 32:
            continue  # padding of the head, which nothing reads
        with pytest.raises(GrammarError, match="damaged"):
            read_artefact(path)


@pytest.mark.parametrize("size", [0, 1, 31, 32, 100, 1000])
def test_a_file_cut_short_is_noticed(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a"
    write_artefact(path, sample())
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(GrammarError):
        read_artefact(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match=r"cannot be read: No such file or directory$"):
        read_artefact(tmp_path / "a")


def test_what_is_mapped_keeps_no_file_open(tmp_path: Path) -> None:
    """The scheduler keeps thousands, and may have 1,024 files open. A map ends with its arrays."""
    path, open_before = tmp_path / "a", len(os.listdir("/proc/self/fd"))
    write_artefact(path, sample())
    read = [read_artefact(path).arrays["table"][3:] for _ in range(50)]
    assert len(os.listdir("/proc/self/fd")) == open_before
    assert Path("/proc/self/maps").read_text().count(str(path)) == 50
    path.unlink()
    for table in read:
        with pytest.raises(ValueError, match="WRITEABLE"):
            table.flags.writeable = True
        np.testing.assert_array_equal(table, sample().arrays["table"][3:])
    del read, table
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_a_file_is_not_damaged_if_none_can_be_opened(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_artefact(path, sample())
    with no_files(), pytest.raises(OSError, match="Too many open files") as raised:
        read_artefact(path)
    assert not isinstance(raised.value, ArtefactError)
    assert_equal(read_artefact(path), sample())


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (("a", "<f8", (1,), 0), "dtype"),
        (("a", "|O", (1,), 0), "dtype"),
        (("a", "<i4", (1 << 40,), 0), "ends after"),
        (("a", "<i4", (-1,), 0), "no valid place"),
        (("a", "<i4", (1,), 1 << 20), "ends after"),
        (("a", "<i4", (1,), -64), "no valid place"),
        (("a", "<i4", (1,), 4), "no valid place"),
    ],
)
def test_a_wrong_table_with_a_right_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: tuple, reason: str
) -> None:
    """No array can reach beyond its file."""
    wrong = [artefact._Array(*entry)]
    one = {"a": np.zeros(1, np.int32)}
    monkeypatch.setattr(artefact, "_table", lambda _: (wrong, 64))
    monkeypatch.setattr(artefact, "_copy", lambda *_: None)
    write_artefact(tmp_path / "a", Artefact("x", {}, one))
    with pytest.raises(GrammarError, match=reason):
        read_artefact(tmp_path / "a")


def test_the_size_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artefact, "MAX_BYTES", 1000)
    with pytest.raises(GrammarError, match="above the limit of 1000"):
        write_artefact(tmp_path / "a", sample())
    assert not (tmp_path / "a").exists()
