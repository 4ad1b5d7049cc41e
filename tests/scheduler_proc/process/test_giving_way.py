"""What a scheduler does when a request is asked to give way."""

import pytest

from scheduler_proc.process.core_lock import CoreLock
from scheduler_proc.process.entry import CoreEntry
from srt.wire.errors import OVERLOADED, ErrorInfo
from srt.wire.ring_messages import GiveWay, TokenBatch
from tests.scheduler_proc.driver import Driver

ERROR = ErrorInfo(OVERLOADED, "others are below their shares", retryable=True)


def entry_of(driver: Driver) -> tuple[CoreEntry, list[TokenBatch]]:
    sent: list[TokenBatch] = []
    return CoreEntry(driver.core, CoreLock(), sent.append), sent


def test_waiting_requests_end_together_with_the_error() -> None:
    driver = Driver(max_total_tokens=1000)
    for rid in ("a", "b", "c"):
        driver.add(rid, [1, 2, 3])
    entry, sent = entry_of(driver)
    assert entry.give_way(GiveWay(b"c", ["a", "b"], 0, ERROR))
    finishes = [end.finish for batch in sent for end in batch.ends]
    assert [(finish.type, finish.error) for finish in finishes] == [("abort", ERROR)] * 2
    assert [rid for _, rid in driver.core.state.live.by_name] == ["c"]


@pytest.mark.parametrize("rids", [["a", "b"], ["b", "gone"], ["a"]])
def test_who_has_begun_or_ended_stays_with_all_its_parts(rids: list[str]) -> None:
    driver = Driver(max_total_tokens=1000, max_running_requests=1)
    for rid in ("a", "b"):
        driver.add(rid, [1, 2, 3], max_new=4)
    driver.step()
    entry, sent = entry_of(driver)
    assert not entry.give_way(GiveWay(b"c", rids, 0, ERROR))
    assert not sent and len(driver.core.state.live.by_name) == 2


def test_who_was_retracted_stays() -> None:
    driver = Driver(max_total_tokens=1000)
    driver.add("a", [1, 2, 3], max_new=8)
    driver.step()
    driver.step()
    driver.pause_in("retract")
    driver.step()
    assert len(driver.core.state.waiting) == 1
    entry, _ = entry_of(driver)
    assert not entry.give_way(GiveWay(b"c", ["a"], 0, ERROR))
