"""What is shown of requests, and why they wait."""

from typing import Any

import msgspec

from scheduler_proc.process.admin import Controls, Views
from scheduler_proc.process.snapshots import queue
from srt.wire.ring_messages import Control, ControlReply
from tests.scheduler_proc.driver import Driver

PROMPT = [*range(1, 41)]


def look_at(driver: Driver) -> dict[str, Any]:
    return Views(driver.core.state).look()


def test_running_requests_stand_at_their_nodes() -> None:
    driver = Driver(max_total_tokens=400, chunked_prefill_size=16)
    driver.add("long", PROMPT, 4)
    driver.step()
    look = look_at(driver)
    (req,) = look["running"]
    assert req["rid"] == f"{b'c'.hex()}/long"  # clients number their requests alike
    assert (req["state"], req["prompt"], req["computed"]) == ("prefill", 40, 16)
    (node,) = look["nodes"]
    assert (node.uid, node.tokens, node.locks) == (req["node"], 16, 1)
    for _ in range(3):
        driver.step()
    (req,) = look_at(driver)["running"]
    assert (req["state"], req["cached"], req["constrained"]) == ("decode", 0, False)
    assert req["output"] > 0
    driver.run()
    look = look_at(driver)
    assert (look["running"], look["num_running"]) == ([], 0)
    assert all(node.locks == 0 for node in look["nodes"])


def test_why_requests_wait() -> None:
    driver = Driver(max_total_tokens=400, max_running_requests=1, chunked_prefill_size=16)
    driver.add("first", PROMPT, 4)
    driver.step()
    driver.add("second", PROMPT, 4)
    driver.step()
    (second,) = look_at(driver)["waiting"]
    assert second["why"] == "all 1 places of the batch are taken"

    driver = Driver(max_total_tokens=400, max_running_requests=4, chunked_prefill_size=16)
    driver.add("first", PROMPT, 4)
    driver.step()
    driver.add("same", PROMPT, 4)
    driver.step()
    driver.core.prepare(driver.now)
    (same,) = look_at(driver)["waiting"]
    assert same["why"] == "another request computes a part of its prompt"
    assert same["cached"] > 0 and same["node"] > 0

    driver = Driver(max_total_tokens=64, max_running_requests=4)
    driver.add("large", PROMPT, 8)
    driver.step()
    driver.add("other", [*range(50, 90)], 8)
    driver.step()
    (other,) = look_at(driver)["waiting"]
    assert other["why"].startswith("it needs memory for 40 tokens, and there is some for ")
    assert other["node"] == 0


def test_a_look_is_bounded() -> None:
    driver = Driver(max_total_tokens=4000, max_running_requests=2)
    for number in range(queue.SHOWN + 20):
        driver.add(f"r{number}", [number + 1, 2, 3], 1)
    look = look_at(driver)
    assert len(look["waiting"]) == queue.SHOWN
    assert look["num_waiting"] == queue.SHOWN + 20


def test_a_look_is_asked_for_like_statistics() -> None:
    driver = Driver(max_total_tokens=400)
    driver.generate(PROMPT, 2)
    replies: list[ControlReply] = []
    Controls(driver.core, dict, replies.append).take(Control(b"c", "r", 3, "look"))
    (reply,) = replies
    found = msgspec.json.decode(reply.data)
    assert (reply.client, reply.rid, reply.incarnation, reply.error) == (b"c", "r", 3, None)
    assert found["nodes"] == [[*node] for node in look_at(driver)["nodes"]]
    assert found["cached_tokens"] == found["nodes"][0][3]
