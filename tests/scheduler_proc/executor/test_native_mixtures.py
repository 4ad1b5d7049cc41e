"""Mixtures of experts on the native executor, served: the same tokens however a request is served,
and how much memory a load takes."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.mixtures.files import Shape, write_mixture
from scheduler_proc.executor import ExecutorOptions, make_executor
from scheduler_proc.executor.base import Executor
from tests.running.profiles import some
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.kernels.ops import load_or_skip
from tests.scheduler_proc.models.checkpoints import save_directory
from tests.scheduler_proc.models.families import MIXTURES, random_family

POOL, MAX_NEW = 1024, 12
PREFIX = 40
WAYS: dict[str, dict[str, Any]] = {
    "batched, cold": {"disable_radix_cache": True},
    "batched, sharing": {},
    "chunked": {"chunked_prefill_size": 16},
    "overlapped": {"lag": 1, "chunked_prefill_size": 24},
}


def prompts() -> list[list[int]]:
    """Six of one prefix, and six of none."""
    rng = np.random.default_rng(0)
    found = [rng.integers(0, 131, count).tolist() for count in range(30, 90, 5)]
    return [found[0][:PREFIX] + ids if i % 2 else ids for i, ids in enumerate(found)]


def serve(executor: Executor, name: str = "", driver: Driver | None = None, **config: Any) -> Any:
    """The outputs of all prompts, and the driver that they were served by."""
    sizes = {"max_total_tokens": POOL, "max_running_requests": 12, "context_len": 256}
    driver = driver or Driver(executor=executor, **{**sizes, **config})
    for i, prompt in enumerate(prompts()):
        driver.add(f"{name}{i}", prompt, MAX_NEW)
    driver.run()
    return [driver.outputs[f"{name}{i}"] for i in range(len(prompts()))], driver


@pytest.mark.parametrize("family", some(MIXTURES, "qwen2_moe"))
@pytest.mark.parametrize("options", [{}, {"quantization": "q8"}])
def test_tokens_do_not_depend_on_how_they_are_served(
    tmp_path: Path, family: str, options: dict[str, Any]
) -> None:
    """The bits of a token would show in its greedy choice soon: those of the next ones depend on
    them."""
    load_or_skip()
    files = save_directory(random_family(family), tmp_path)
    executor = make_executor("native", files, ExecutorOptions(max_total_tokens=POOL, **options))
    alone, _ = serve(executor, max_running_requests=1, disable_radix_cache=True)
    assert len({tuple(output) for output in alone}) > 6
    for way, config in WAYS.items():
        found, driver = serve(executor, **config)
        assert found == alone, way
        if way == "batched, sharing":
            again, driver = serve(executor, "again ", driver)
            assert again == alone
            assert all(driver.cached[f"again {i}"] > 0 for i in range(len(alone)))
    driver = Driver(
        executor=executor, max_total_tokens=220, max_running_requests=12, context_len=256, lag=1
    )
    driver.core.state.admissions.ratio.MIN = driver.core.state.admissions.ratio.value = 0.0
    retracted, driver = serve(executor, driver=driver)
    assert driver.core.state.counters.retracted > 0
    assert retracted == alone


PEAK = """
import re, sys
from pathlib import Path
from scheduler_proc.kernels.library import load
from scheduler_proc.models.checkpoint import open_checkpoint
from scheduler_proc.models.packed import Packing, pack_model
from srt.files.model_files import ModelFiles

def resident(key):
    return 1024 * int(re.search(key + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

library = load()
checkpoint = open_checkpoint(ModelFiles("m", "gguf", Path(sys.argv[1])))
Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
before = resident("VmRSS")
weights = pack_model(checkpoint, library, Packing(tiles=library.has_tiles()))
print((resident("VmHWM") - before) / weights.num_bytes)
"""


@pytest.mark.full
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_load_takes_little_more_memory_than_the_weights(tmp_path: Path) -> None:
    """Experts are packed one by one, and what was read of the file is let go. The largest tensor
    that is packed at once, the embedding, is 6 % of the file."""
    load_or_skip()
    path = tmp_path / "m.gguf"
    write_mixture(path, Shape("qwen3moe", 4, 256, 4, 2, 64, 64, 4, 1024), "Q8_0")
    assert path.stat().st_size > 200 * 2**20
    found = subprocess.run(
        [sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, check=True
    )
    path.unlink()
    assert 1 < float(found.stdout) <= 1.15
