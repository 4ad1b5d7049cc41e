"""A replica's own seconds, and the replicas that exist."""

import numpy as np
import pytest

from srt.block_hash import BLOCK
from srt.wire.ring_messages import CacheEvents, ReplicaLoad
from tests.running.profiles import some
from tokenizer_proc.routing.paces import FEW, Paces
from tokenizer_proc.routing.router import Router


def paces(*seconds: float, reports: int = 800) -> Paces:
    made = Paces(len(seconds), default=7.0)
    for number in range(reports):
        for replica, each in enumerate(seconds):
            made.take(replica, each, 1, each * (1 + 1e-9 * number))
    return made


def test_before_a_report_all_have_the_default() -> None:
    assert Paces(3, default=7.0).own.tolist() == [7.0] * 3
    assert paces(0.0, 0.0).own.tolist() == [7.0] * 2  # which says nothing
    known = paces(0.0, 3.0, 0.0)
    assert known.mean == 3.0 and known.own.tolist() == [3.0] * 3


def test_noise_is_no_difference() -> None:
    """Equal replicas have the mean to the bit, so that placements are those of the mean."""
    for seed in range(50):
        seconds = np.random.default_rng(seed).uniform(0.0010, 0.0012, 5)
        made = paces(*seconds, reports=1)
        assert {*made.own.tolist()} == {made.mean} == {float(seconds.mean())}


def test_a_clear_difference_counts_as_far_as_it_was_reported_often() -> None:
    few, half, many = (paces(1.0, 3.0, reports=n).own for n in (FEW // 4, 2 * FEW, 10 * FEW))
    assert few.tolist() == [2.0, 2.0]
    assert 2.0 > half[0] > many[0] == pytest.approx(1.0, rel=0.1)
    assert 2.0 < half[1] < many[1] == pytest.approx(3.0, rel=0.1)


def test_a_step_that_is_reported_again_says_nothing_more() -> None:
    made = paces(1.0, 3.0, reports=1)
    for _ in range(800):
        made.take(1, 3.0, 1, 3.0)
    assert made.own.tolist() == [2.0, 2.0]


def test_longer_requests_make_no_replica_slower() -> None:
    made = Paces(2, default=7.0)
    for number in range(800):
        made.take(0, 4.0, 1 + number, 0.01)
        made.take(1, 1.0, 1 + number, 0.011)
    assert made.own.tolist() == [2.5, 2.5]


def sized(*steps: tuple[float, float]) -> Paces:
    """Of replicas whose steps have these sizes and seconds."""
    made = Paces(len(steps), default=7.0)
    for number in range(800):
        for replica, (size, seconds) in enumerate(steps):
            made.take(replica, 1.0, size, seconds * (1 + 1e-9 * number))
    return made


@pytest.mark.parametrize("row_s", some([0.0, 0.00625, 0.02, 1.0], 0.0, 0.02))
@pytest.mark.parametrize("sizes", [(1, 64), (1, 16, 256), (60, 1, 2, 3), (1, 1, 1, 500, 400)])
def test_larger_steps_make_no_replica_slower(row_s: float, sizes: tuple[int, ...]) -> None:
    """Whatever part of a step is its tokens'."""
    own = sized(*((size, 0.1 + row_s * size) for size in sizes)).own
    assert own.tolist() == [1.0] * len(sizes)


def test_one_that_is_slower_than_its_smaller_steps_explain_is_slower() -> None:
    own = sized((16, 0.13), (4, 0.44)).own  # of 0.1 s and 0.002 for a token, and of four times that
    assert own[1] / own[0] > 2.5
    own = sized((4, 0.1), (4, 0.1), (16, 1.6)).own
    assert own.tolist() == pytest.approx([1.0, 1.0, 3.7], rel=0.1)  # a step of four: 0.4 at least


def test_one_of_many_is_slower() -> None:
    own = paces(1.0, 1.1, 0.9, 1.0, 4.0).own
    assert own[4] == pytest.approx(4.0, rel=0.2) and own[:4].tolist() == [1.0] * 4


def test_who_is_not_present_is_forgotten() -> None:
    made = paces(1.0, 3.0, 3.2, reports=400)
    made.keep([1, 2])
    assert made.mean == pytest.approx(3.1) and made.own.tolist() == [made.mean] * 3
    made.take(0, 9.0, 1, 9.0)  # which was on its way
    made.keep([0, 1, 2])  # another machine, maybe
    assert made.own.tolist() == [made.mean] * 3
    made.take(0, 9.0, 1, 9.0)  # too few to tell
    assert made.own.tolist() == [made.mean] * 3
    made.keep([])
    assert made.own.tolist() == [7.0] * 3


# ---- placement -----------------------------------------------------------------------------------


def started(*token_s: float, reports: int = 800) -> Router:
    """Replicas with empty trees, which have reported these seconds of a token, and a hundred times
    as many of a request."""
    replicas = len(token_s)
    router = Router(replicas, seed=1)
    for replica, each in enumerate(token_s):
        router.started(replica, replicas + replica)
        router.events(CacheEvents(replicas + replica, 0, is_snapshot=True))
        for number in range(reports):
            load = ReplicaLoad(
                replicas + replica,
                0,
                prompt_token_s=each,
                request_s=100 * each,
                extend_len=8,
                extend_s=each * (1 + 1e-9 * number),
                decode_len=2,
                decode_s=10 * each * (1 + 1e-9 * number),
            )
            router.load(load)
    return router


def placed(router: Router, count: int, among: tuple[int, ...] = (0, 1)) -> list[int]:
    """Where prompts of their own go."""
    blocks = [[bytes([i, j]) * 8 for j in range(2)] for i in range(count)]
    return [router.place((i, among), own, 2 * BLOCK, among) for i, own in enumerate(blocks)]


def test_a_replica_that_is_three_times_as_slow_gets_less() -> None:
    """In flight, whose squares of seconds count: as many seconds at each."""
    slow = placed(started(0.001, 0.003), 40).count(1)
    assert 8 <= slow <= 13
    assert placed(started(0.001, 0.0012), 40).count(1) == 20
    assert placed(started(0.001, 0.001), 40).count(1) == 20


def test_an_idle_replica_that_is_slower_comes_last() -> None:
    router = started(0.001, 0.003, 0.001)
    firsts = [router.place(number, [], 1, (0, 1, 2)) for number in range(2)]
    assert firsts == [0, 2]


def test_absent_replicas_are_no_candidates_and_in_no_mean() -> None:
    router = started(0.001, 0.0012, 0.001)
    router.keep([0, 2])
    assert {*placed(router, 20, (0, 1, 2))} == {0, 2}
    assert router._loads.token_s.mean == 0.001 and router._loads.request_s.mean == 0.1
    router.keep([0, 1, 2])
    assert router._loads.token_s.mean == 0.001  # until the one that has come says what it takes
    router.started(1, 4)
    router.load(ReplicaLoad(4, 0, prompt_token_s=0.0011))
    assert router._loads.token_s.mean == pytest.approx(0.0031 / 3)
    assert router.place("new", [], 1, (1,)) == 1
    router.keep([])
    assert router.place("newer", [], 1, (1, 2)) in (1, 2)  # as whoever asks knows better
