"""The native executor's KV pool: its formats, where its parts lie, which one a model gets."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scheduler_proc.executor import native_pool
from scheduler_proc.executor.native_executor import NativeExecutor
from scheduler_proc.executor.native_pool import KV_DTYPES, KVPool, pool_dtype
from scheduler_proc.kernels.library import Layer
from srt.wire.errors import ConfigError
from tests.scheduler_proc.executor.test_native_executor import SIZES
from tests.scheduler_proc.kernels.ops import levels
from tests.scheduler_proc.models.checkpoints import random_llama, save_directory


@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("slots", [1, 7, 1000, 40000])
def test_parts_are_aligned_and_apart(dtype: str, slots: int) -> None:
    pool = KVPool((3, 2, slots, 3, 16), dtype)
    layers = (Layer * 3)()
    pool.attach(layers)
    starts = [start for layer in layers for start in (layer.k_pool, layer.v_pool)]
    assert all(start % 64 == 0 for start in starts)
    used = pool.elements[0, 0].nbytes + (0 if pool.scales is None else pool.scales[0, 0].nbytes)
    assert all(b - a >= used for a, b in pairwise(starts))
    assert used <= pool.num_bytes // 6 < used + 64
    if pool.scales is not None:  # kernels find them by the number of slots
        assert pool.scales.ctypes.data == starts[0] + pool.elements[0, 0].nbytes
        assert pool.scales[2, 1].ctypes.data == starts[5] + pool.elements[0, 0].nbytes


def test_a_pool_that_cannot_be_had() -> None:
    with pytest.raises(ConfigError, match=r"a KV pool of 1099511627776 tokens takes .* GiB, which"):
        KVPool((3, 2, 2**40, 3, 16), "float16")


@pytest.mark.parametrize(
    ("name", "exact", "integers", "isa", "wanted"),
    [
        ("auto", False, True, "avx2", "int16"),
        ("auto", False, False, "avx2", "float16"),
        ("auto", False, True, "avx512", "float16"),
        ("auto", True, True, "avx512", "float32"),
        ("auto", False, True, "portable", "float16"),
        ("auto", False, True, "amx", "float16"),
        ("auto", True, True, "avx2", "float32"),
        ("int16", False, False, "portable", "int16"),
        ("float32", False, True, "avx2", "float32"),
    ],
)
def test_what_a_name_means(
    monkeypatch: pytest.MonkeyPatch, name: str, exact: bool, integers: bool, isa: str, wanted: str
) -> None:
    monkeypatch.setattr(native_pool, "cpu_vendor", lambda: "GenuineIntel")
    assert pool_dtype(name, exact, integers, isa) == wanted


@pytest.mark.parametrize(
    ("vendor", "isa", "wanted"),
    [
        ("AuthenticAMD", "avx512", "int16"),
        ("AuthenticAMD", "avx2", "int16"),
        ("AuthenticAMD", "portable", "float16"),
        ("", "avx512", "float16"),
    ],
)
def test_what_is_faster_depends_on_the_processor(
    monkeypatch: pytest.MonkeyPatch, vendor: str, isa: str, wanted: str
) -> None:
    monkeypatch.setattr(native_pool, "cpu_vendor", lambda: vendor)
    assert pool_dtype("auto", False, True, isa) == wanted


def test_integers_are_not_exact() -> None:
    with pytest.raises(ConfigError, match="--kv-cache-dtype int16: with --exact"):
        pool_dtype("int16", True, True, "avx2")


@pytest.mark.skipif("avx2" not in levels(), reason="a level of x86-64")
@pytest.mark.parametrize(
    ("options", "bias", "wanted"),
    [
        ({"quantization": "q8"}, False, "int16"),
        ({"quantization": "q8"}, True, "float16"),
        ({}, False, "float16"),
    ],
)
def test_which_models_get_integers(
    tmp_path: Path, options: dict[str, Any], bias: bool, wanted: str
) -> None:
    """Keys with a bias have elements that leave few digits for the others."""
    files = save_directory(random_llama(**SIZES, attention_bias=bias), tmp_path)
    executor = NativeExecutor(files, max_total_tokens=2, num_threads=1, isa="avx2", **options)
    assert executor.dtype == wanted
    assert np.shape(executor._pool.elements)[2] == 2


@pytest.mark.parametrize("dtype", list(KV_DTYPES))
@pytest.mark.parametrize("uses", [(), (5000,), (2100, 2050, 9000, 9001, 12_000), (20_000,)])
def test_pages_are_asked_for_ahead_of_use(
    monkeypatch: pytest.MonkeyPatch, dtype: str, uses: tuple[int, ...]
) -> None:
    """Each byte of the slots once, and always those of twice the slots in use."""
    asked: list[range] = []

    class AtOnce:
        def __init__(self, args: tuple[object, list[range]], **_: object) -> None:
            asked.extend(args[1])

        def start(self) -> None:
            pass

    monkeypatch.setattr(native_pool, "Thread", AtOnce)
    slots = 12_000
    pool = KVPool((2, 2, slots, 3, 16), dtype)
    for stop in uses:
        pool.use(stop)
    for part in range(4):
        ready = min(slots, max(4096, 2 * max(uses, default=0)))
        found = covered(asked, pool.elements[part // 2, part % 2])
        row = pool.elements[0, 0, 0].nbytes
        assert found.sum() >= ready * row and (found[: ready * row] == 1).all()
        if pool.scales is not None:
            scales = covered(asked, pool.scales[part // 2, part % 2])
            assert (scales[: ready * 12] == 1).all() and scales.max() == 1


def covered(asked: list[range], part: np.ndarray) -> np.ndarray:
    """How often each byte of a part of the pool is in `asked`."""
    base = part
    while isinstance(base.base, np.ndarray):
        base = base.base
    start = part.ctypes.data - base.ctypes.data
    counts = np.zeros(part.nbytes, np.int8)
    for each in asked:
        begin, stop = max(each.start, start), min(each.stop, start + part.nbytes)
        if begin < stop:
            counts[begin - start : stop - start] += 1
    return counts
