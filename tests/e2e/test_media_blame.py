"""Pictures at which a tower comes to harm end the requests that show them, and nobody else."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from PIL import Image

from tests.checkpoints_vision import make_vision_checkpoint
from tests.e2e.faulty_scheduler import CRASHES, FAILS, FAULTS_BY_RED, WAITS_FOR_EVER
from tests.e2e.server import Server, running_server
from tests.e2e.test_media import data_url

pytestmark = pytest.mark.slow  # each lost scheduler loads torch and the model again
LENGTH = 200  # of the texts beside


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path: Path = tmp_path_factory.mktemp("seeing") / "model"
    make_vision_checkpoint("smolvlm", path)
    options = ["--model", str(path), "--max-total-tokens", "4096", "--check-invariants"]
    options += ["--step-timeout", "5", "--queue-while-restarting", "--executor", "torch"]
    directory = tmp_path_factory.mktemp("server")
    with running_server(directory, *options, launcher="tests.e2e.faulty_launch") as running:
        yield running


def ask(server: Server, text: str, picture: Image.Image | None = None, most: int = 4) -> object:
    """The answer to a chat, or its status."""
    content: list[object] = [{"type": "text", "text": text}]
    if picture is not None:
        content.append({"type": "image_url", "image_url": {"url": data_url(picture)}})
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": most}
    body |= {"temperature": 0, "ignore_eos": True, "speculative": "off"}
    answer = httpx2.post(server.url + "/v1/chat/completions", json=body, timeout=120)
    if answer.status_code != 200:
        return answer.status_code
    return answer.json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    ("fault", "status", "losses"),
    [(FAILS, 500, 0), (CRASHES, 503, 2), (WAITS_FOR_EVER, 503, 2)],
    ids=["fails", "crashes", "waits for ever"],
)
def test_a_picture_that_a_tower_cannot_bear(
    server: Server, fault: int, status: int, losses: int
) -> None:
    (red,) = (red for red, its in FAULTS_BY_RED.items() if its == fault)
    bad, good = (Image.new("RGB", (60, 60), colour) for colour in ((red, 0, 0), (9, 9, red)))
    expected = [ask(server, "Once", most=LENGTH), ask(server, "What?", good)]
    before = _losses(server)
    with ThreadPoolExecutor(3) as pool:
        beside = [pool.submit(ask, server, "Once", most=LENGTH)]
        harmful = pool.submit(ask, server, "What?", bad)
        beside.append(pool.submit(ask, server, "What?", good))
        assert harmful.result() == status
        assert [each.result() for each in beside] == expected
    assert _losses(server) - before == losses


def _losses(server: Server) -> float:
    lines = httpx2.get(server.url + "/metrics", timeout=60).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("srt_losses_total"))
