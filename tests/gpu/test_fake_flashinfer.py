"""The fake FlashInfer: its signatures against the installed package's, and its own contract."""

import inspect
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.gpu import fake_flashinfer as fake
from tests.gpu.fake_stream import STREAM

pytestmark = pytest.mark.full

CLASSES = ("BatchPrefillWithPagedKVCacheWrapper", "BatchDecodeWithPagedKVCacheWrapper")
METHODS = ("__init__", "plan", "run", "reset_workspace_buffer")


@pytest.fixture
def package() -> ModuleType:
    """The installed package; it needs no GPU for this."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: ModuleType = pytest.importorskip("flashinfer")
    return found


def named(call: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters with names of their own."""
    unnamed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    found = inspect.signature(inspect.unwrap(call)).parameters
    return {name: each for name, each in found.items() if each.kind not in unnamed}


def check_signature(ours: Callable[..., Any], theirs: Callable[..., Any]) -> None:
    """Each parameter of ours is one of theirs, of the same kind and default, and theirs has no
    other that must be given. What can be given by position has the same place."""
    own, real = named(ours), named(theirs)
    for name, parameter in own.items():
        assert name in real
        assert (name, parameter.kind) == (name, real[name].kind)
        assert (name, parameter.default) == (name, real[name].default)
    needed = [name for name, each in real.items() if each.default is each.empty]
    by_place = needed + ["kv_layout"] * ("kv_layout" in own)
    assert list(own)[: len(by_place)] == list(real)[: len(by_place)] == by_place


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CLASSES)
def test_methods_are_the_packages(package: ModuleType, name: str, method: str) -> None:
    theirs = getattr(package, name)
    # The public plan of decodes takes anything and passes it on.
    real = getattr(theirs, "_plan_impl", theirs.plan) if method == "plan" else None
    check_signature(getattr(getattr(fake, name), method), real or getattr(theirs, method))


def test_functions_are_the_packages(package: ModuleType) -> None:
    check_signature(fake.merge_state_in_place, package.merge_state_in_place)


def test_the_comparison_notices_differences() -> None:
    def real(a: int, b: int = 1, *, c: int = 2) -> None: ...
    def renamed(a: int, d: int = 1) -> None: ...
    def other_default(a: int, b: int = 3) -> None: ...
    def positional(a: int, b: int = 1, c: int = 2) -> None: ...
    def lacking(b: int = 1) -> None: ...

    check_signature(lambda a, b=1: None, real)
    for wrong in (renamed, other_default, positional, lacking):
        with pytest.raises(AssertionError):
            check_signature(wrong, real)


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def prefill() -> fake.BatchPrefillWithPagedKVCacheWrapper:
    workspace = torch.zeros(4096, dtype=torch.uint8)
    return fake.BatchPrefillWithPagedKVCacheWrapper(workspace, backend="fa2")


def test_two_halves_merge_by_base_two_log_sum_exps_and_causal_is_off_by_default() -> None:
    q = torch.randn(3, 2, 64).half()
    cache = (torch.randn(8, 1, 1, 64).half(), torch.randn(8, 1, 1, 64).half())
    ones = torch.ones(2, dtype=torch.int32)
    whole, halves = prefill(), [prefill() for _ in range(2)]
    whole.plan(int32(0, 3), int32(0, 8), torch.arange(8).int(), ones[:1], 2, 1, 64, 1)
    expected, lse = whole.run(q, cache, return_lse=True)
    dense = torch.einsum("qhd,kd->hqk", q.float(), cache[0][:, 0, 0].float()) / 8
    torch.testing.assert_close(lse, dense.exp().sum(-1).log2().T)
    states = []
    for half, slots in zip(halves, torch.arange(8).int().view(2, 4), strict=True):
        half.plan(int32(0, 3), int32(0, 4), slots, ones[:1], 2, 1, 64, 1)
        states.append(half.run(q, cache, return_lse=True))
    fake.merge_state_in_place(*states[0], *states[1])
    torch.testing.assert_close(states[0][0], expected, atol=2e-3, rtol=2e-3)
    torch.testing.assert_close(states[0][1], lse)
    # Nothing is merged with what has no slots.
    empty = prefill()
    empty.plan(int32(0, 3), int32(0, 0), int32(), int32(0), 2, 1, 64, 1)
    fake.merge_state_in_place(*states[0], *empty.run(q, cache, return_lse=True))
    torch.testing.assert_close(states[0][1], lse)


def test_larger_pages_hold_the_same() -> None:
    q = torch.randn(2, 2, 64).half()
    pools = torch.randn(2, 48, 1, 64).half()
    outs = []
    for page in (1, 16):
        wrapper = fake.BatchDecodeWithPagedKVCacheWrapper(
            torch.zeros(4096, dtype=torch.uint8), use_tensor_cores=True, backend="fa2"
        )
        pages = 32 // page
        last = int32(*(1, 1) if page == 1 else (12, 15))
        indptr = int32(0, 28, 59) if page == 1 else int32(0, pages, 2 * pages)
        slots = torch.tensor([*range(28), *range(16, 47)]) if page == 1 else int32(0, 1, 1, 2)
        wrapper.plan(indptr, slots.int(), last, 2, 1, 64, page)
        outs.append(wrapper.run(q, tuple(pool.view(-1, page, 1, 64) for pool in pools)))
    torch.testing.assert_close(outs[0], outs[1])


def plan_one(qo: torch.Tensor, kv: torch.Tensor, slots: torch.Tensor, last: torch.Tensor) -> None:
    prefill().plan(qo, kv, slots, last, 2, 1, 64, 1)


def test_plans_that_the_package_would_misread_are_refused() -> None:
    one, slots = int32(1), int32(3, 4)
    good = {"qo": int32(0, 1), "kv": int32(0, 2), "slots": slots, "last": one}
    for name, wrong in (
        ("qo", int32(0, 1).long()),
        ("kv", int32(1, 2)),
        ("kv", int32(0, 3)),
        ("kv", int32(0, 0)),  # with a last page of 1
        ("slots", int32(3, 0, 4, 0)[::2]),
        ("last", int32(2)),
    ):
        with pytest.raises(ValueError):
            plan_one(**(good | {name: wrong}))
    plan_one(**good)
    STREAM.run()
