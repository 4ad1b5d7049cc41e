"""Pictures on a replica of an agent: the answers are a local replica's, and outlive it."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from srt.client.face import AsyncClient
from tests.checkpoints_vision import make_vision_checkpoint
from tests.e2e.machines import Machine, join_address, running_machine, wait_replicas
from tests.e2e.server import Server, running_server
from tests.e2e.test_media import NEW_TOKENS, PICTURES, QUESTIONS, data_url, messages
from tests.waiting import SOON_S

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Machine]]:
    tmp: Path = tmp_path_factory.mktemp("seeing")
    make_vision_checkpoint("idefics3", tmp / "model")
    options = ["--model", str(tmp / "model"), "--max-total-tokens", "2048", "--check-invariants"]
    options += ["--executor", "native", "--remote-replicas", "1", "--cluster-insecure"]
    with (
        running_server(tmp, *options, "--exact") as head,
        running_machine(tmp, join_address(head)) as machine,
    ):
        wait_replicas(head, [0, 1], 2)
        yield head, machine


def ask(head: Server, replica: int) -> list[Any]:
    """Choices, with log-probabilities, and usage of each question."""
    found = []
    for question in QUESTIONS:
        body = {"messages": messages(question), "max_tokens": NEW_TOKENS, "temperature": 0}
        body |= {"routed_replica": replica, "logprobs": True, "top_logprobs": 3}
        answer = httpx2.post(head.url + "/v1/chat/completions", json=body, timeout=SOON_S)
        assert answer.status_code == 200, answer.text
        found.append([answer.json()[name] for name in ("choices", "usage")])
    return found


def test_pictures_on_both_replicas(ring: tuple[Server, Machine]) -> None:
    local, remote = (ask(ring[0], replica) for replica in (0, 1))
    assert remote == local
    assert remote[0][1]["prompt_tokens_details"]["image_tokens"] > 0


def test_an_answer_about_a_picture_outlives_its_scheduler(ring: tuple[Server, Machine]) -> None:
    """The pixels go to whoever goes on."""
    head, machine = ring
    sampling = {"max_new_tokens": 300, "ignore_eos": True, "temperature": 0.0, "speculative": "off"}
    shown = [{"type": "image_url", "image_url": {"url": data_url(PICTURES[0])}}]
    said = [{"role": "user", "content": [*shown, {"type": "text", "text": "What?"}]}]

    async def answer(replica: int, *, kill: bool) -> tuple[list[int], set[int]]:
        ids: list[int] = []
        replicas: set[int] = set()
        async with AsyncClient(head.ring) as client:
            generation = await client.submit(
                messages=said, sampling=sampling, stream=True, routed_replica=replica
            )
            async for output in generation:
                if kill and not replicas:
                    os.kill(machine.schedulers()[0], signal.SIGKILL)
                replicas.add(output.routed_replica)
                ids = list(output.output_ids)
        return ids, replicas

    expected, _ = asyncio.run(answer(0, kill=False))
    ids, replicas = asyncio.run(answer(1, kill=True))
    assert len(ids) == 300 and ids == expected
    assert replicas == {0, 1}
    wait_replicas(head, [0, 1], 2)
