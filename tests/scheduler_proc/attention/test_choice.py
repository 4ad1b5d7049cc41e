"""Which attention backend is made, what the log says of it, and what is refused."""

import logging
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from srt.wire.errors import ConfigError
from tests.running.late import late

if TYPE_CHECKING:
    import torch

    from scheduler_proc.attention import base, choice
else:
    base = late("scheduler_proc.attention.base")
    choice = late("scheduler_proc.attention.choice")
    torch = late("torch")


@cache
def kinds() -> "list[base.LayerKind]":
    return [base.LayerKind(4, 2, 80, 80, 0.1)]


class Fast:
    """Stands for a backend: it is made unless `lacks` is set."""

    name = "fast"
    lacks = ""

    def __init__(self, kinds: "Sequence[base.LayerKind]", **options: Any) -> None:
        if self.lacks:
            raise ConfigError(self.lacks)
        self.kinds, self.options = kinds, options


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, type[Fast]]:
    """Classes in the places of both fast backends."""
    classes = {name: type(name, (Fast,), {"name": name}) for name in ("flashinfer", "triton")}
    for name, title in (("flashinfer", "FlashInferAttention"), ("triton", "TritonAttention")):
        module: Any = SimpleNamespace(**{title: classes[name]})
        monkeypatch.setitem(sys.modules, f"scheduler_proc.attention.{name}", module)
    return classes


def make(name: str, device: str = "cuda", **changes: Any) -> Any:
    options: dict[str, Any] = {"dtype": torch.bfloat16, "kv_dtype": torch.bfloat16} | changes
    return choice.make_attention(name, kinds(), device=torch.device(device), **options)


@pytest.mark.usefixtures("made")
def test_auto_is_the_fastest_on_cuda_and_the_reference_elsewhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    assert make("auto").name == "triton"
    assert caplog.messages == ["attention runs on triton"]
    assert make("auto", "cpu").name == make("auto", "mps").name == "reference"
    assert make("reference").name == "reference"


def test_what_a_backend_lacks_is_logged_once(
    made: dict[str, type[Fast]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    made["triton"].lacks = "triton has no heads of size 81"
    assert make("auto").name == "flashinfer"
    assert caplog.messages == [
        "attention does not run on triton: triton has no heads of size 81",
        "attention runs on flashinfer",
    ]
    made["flashinfer"].lacks = "flashinfer has no float32"
    assert make("auto").name == "reference"
    assert "many times slower" in caplog.messages[-1]


def test_a_forced_one_that_cannot_is_an_error(made: dict[str, type[Fast]]) -> None:
    made["triton"].lacks = "triton has no heads of size 80"
    with pytest.raises(ConfigError, match=r"^--attention-backend triton: triton has no heads"):
        make("triton")
    assert make("flashinfer", "cpu").name == "flashinfer"  # it knows itself what it runs on
    with pytest.raises(ConfigError, match="'cudnn' is not one of auto, flashinfer, triton, ref"):
        make("cudnn")


@pytest.mark.parametrize(
    ("name", "remedy"), [("flashinfer", "no-deps flashinfer"), ("triton", "CUDA builds")]
)
def test_a_missing_package_is_named_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, name: str, remedy: str
) -> None:
    module = f"scheduler_proc.attention.{name}"
    monkeypatch.setitem(sys.modules, module, None)  # as if its import failed
    with pytest.raises(ConfigError, match=f"--attention-backend {name}: .*{name}.*{remedy}"):
        make(name)


@pytest.mark.usefixtures("made")
def test_options_reach_the_backend() -> None:
    fp8 = torch.float8_e4m3fn
    backend = make("triton", kv_dtype=fp8, deterministic=True)
    assert backend.kinds is kinds()
    expected = {
        "device": torch.device("cuda"),
        "dtype": torch.bfloat16,
        "kv_dtype": fp8,
        "deterministic": True,
    }
    assert backend.options == expected


@pytest.mark.full
def test_no_backend_is_imported_before_it_is_made() -> None:
    code = (
        "import sys, scheduler_proc.executor.torch_executor; "
        "assert not {'triton', 'flashinfer'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_flashinfer_has_no_masks_for_tokens_that_see_each_other(
    made: dict[str, type[Fast]], caplog: pytest.LogCaptureFixture
) -> None:
    assert make("auto", sees_both_ways=True).name == "triton"
    made["triton"].lacks = "triton has no float32"
    assert make("auto", sees_both_ways=True).name == "reference"
    assert "flashinfer: the tokens of the model's pictures see each other" in caplog.text
    with pytest.raises(ConfigError, match=r"^--attention-backend flashinfer: the tokens of"):
        make("flashinfer", sees_both_ways=True)
