"""A mixture of experts, served by two replicas."""

from pathlib import Path
from typing import Any

import httpx2
import pytest

from bench.mixtures.files import Shape, write_mixture
from tests.e2e.server import running_server

TINY = Shape("qwen3moe", 2, 256, 4, 2, 64, 8, 2, 256)
PROMPTS = [f"{number} experts were asked about the weather in town. " * 3 for number in range(6)]


@pytest.mark.full
def test_answers_do_not_depend_on_the_batch_and_the_load_of_experts_is_known(
    tmp_path: Path,
) -> None:
    path = tmp_path / "mixture.gguf"
    write_mixture(path, TINY, "Q4_K")
    options = ("--model", str(path), "--dp", "2", "--max-total-tokens", "2048")
    native = ("--executor", "native", "--check-invariants")
    with running_server(tmp_path, *options, *native) as server:

        def ask(text: Any) -> Any:
            limits = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}
            body = {"text": text, "sampling_params": limits}
            return httpx2.post(server.url + "/generate", json=body, timeout=60).json()

        together = ask(PROMPTS)
        alone = [ask(prompt) for prompt in PROMPTS]
        server.wait_idle()
        info = httpx2.get(server.url + "/server_info", timeout=60).json()
        metrics = httpx2.get(server.url + "/metrics", timeout=60).text.splitlines()
    assert [answer["text"] for answer in alone] == [answer["text"] for answer in together]
    assert len({answer["text"] for answer in alone}) > 1
    loads = [part["expert_load_max_over_mean"] for part in info["internal_states"]]
    assert len(loads) == 2 and all(1 < load <= 8 / 2 for load in loads)
    assert info["totals"]["expert_load_max_over_mean"] == max(loads)
    assert f"srt_expert_load_max_over_mean {max(loads)}" in metrics
