"""How often the class latency may pass others."""

from scheduler_proc.core.queueing.overtaking import MOST_PASSES
from scheduler_proc.core.queueing.queue import WaitingQueue
from srt.wire.hints import Hints
from tests.scheduler_proc.core.queueing.test_queue import cache_with, queue_of, req

LATENCY = Hints(perf="latency", arrival_s=1.0)
THROUGHPUT = Hints(perf="throughput", arrival_s=1.0)


def admit(queue: WaitingQueue) -> int:
    """Admit the first one, and return its handle."""
    first = next(iter(queue.ordered()))
    queue.remove(first)
    return first.handle


def test_it_passes_what_is_overdue_and_what_was_retracted() -> None:
    reqs = [req(0, [1], 1.0, is_resumed=True, hints=THROUGHPUT), req(1, [2], 2.0)]
    reqs += [req(2, [3], 90.0, hints=LATENCY), req(3, [4], 91.0, hints=LATENCY, is_resumed=True)]
    queue = queue_of(reqs, "app", 10.0, cache_with([9]))
    assert [r.handle for r in queue.ordered()] == [3, 2, 0, 1]
    queue = queue_of(reqs, "lpm", 10.0, cache_with([9]))
    assert [r.handle for r in queue.ordered()] == [0, 3, 1, 2]


def test_after_so_many_passes_one_of_the_others_is_first() -> None:
    queue = queue_of([], "app", 10.0, cache_with([9]))
    queue.credits.join("", 1.0)
    for handle in range(2):
        queue.add(req(handle, [1 + handle], 1.0))
    admitted = []
    for handle in range(2, 2 * MOST_PASSES + 8):
        for more in (0, 1000):
            queue.add(req(handle + more, [3], 90.0 + handle, hints=LATENCY))
        admitted.append(admit(queue))
    assert admitted.index(0) == MOST_PASSES
    assert admitted.index(1) == 2 * MOST_PASSES + 1
