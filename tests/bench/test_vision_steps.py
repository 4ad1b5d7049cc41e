"""What streams of text notice of pictures, in simulated time."""

import pytest

from bench.figures import percentile
from bench.vision_steps import MACHINES, Simulation, main
from scheduler_proc.core.steps.step_target import AUTO_STEPS, MIN_SHARE
from srt.args import ServerArgs

GPU, WHOLE, SLICED = MACHINES


@pytest.mark.full
def test_on_a_gpu_texts_hardly_notice_pictures() -> None:
    found = Simulation(GPU).run(pictures=32)
    assert len(found.ttft) == 32 and found.p99_ratio <= 1.2 + 1e-9


def test_on_a_cpu_slices_keep_steps_within_their_target() -> None:
    """But for the least that a prompt gets after a slice. Where tiles are whole, they do not."""
    sliced, whole = (Simulation(machine).run(pictures=8) for machine in (SLICED, WHOLE))
    decode_ms = percentile(sliced.alone, 50) or 0.0
    token_ms = 1000 * SLICED.cost.token_s
    most = ServerArgs().chunked_prefill_size // MIN_SHARE * token_ms
    assert max(sliced.beside) <= AUTO_STEPS * decode_ms + most + 0.001
    assert max(whole.beside) > 1000 * WHOLE.tile_s
    assert max(sliced.ttft) < 1.5 * max(whole.ttft)


def test_a_run_prints_each_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--pictures", "2"]) == 0
    printed = capsys.readouterr().out
    assert all(machine.name in printed for machine in MACHINES)
