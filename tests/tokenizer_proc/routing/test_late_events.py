"""Blocks that were sent to a replica count as there until their events have had time to come."""

from srt.wire.ring_messages import CacheEvents, ReplicaLoad
from tokenizer_proc.routing.router import Router

A, B = [bytes([i]) * 16 for i in range(8)], [bytes([64 + i]) * 16 for i in range(8)]
TOKENS = 8 * 64
BOTH = (0, 1)


def router() -> Router:
    """Two replicas of incarnations 2 and 3, with empty trees."""
    made = Router(2, seed=0)
    for replica in BOTH:
        made.started(replica, 2 + replica)
        made.events(CacheEvents(2 + replica, 0, is_snapshot=True))
    return made


def test_a_prefix_stays_where_it_was_computed_while_its_events_are_late() -> None:
    made = router()
    home = made.place("first", A, TOKENS, BOTH)
    made.ended("first")
    made.place("other", B, TOKENS, [home])  # the other replica is the idle one now
    made.ended("other")
    assert made.place("next", A, TOKENS, BOTH) == home


def test_what_was_not_kept_does_not_count_once_the_replica_has_reported_the_end() -> None:
    made = router()
    home = made.place("first", A, TOKENS, BOTH)
    made.ended("first")
    made.load(ReplicaLoad(2 + home, received=1, running=1))  # from before the end
    assert made.place("second", A, TOKENS, BOTH) == home
    made.ended("second")
    made.load(ReplicaLoad(2 + home, received=2))
    assert made.place("third", A, TOKENS, BOTH) != home  # chosen longest ago


def test_an_end_that_is_heard_of_after_the_last_report() -> None:
    """By way of the detokenizer. An idle replica reports nothing more."""
    made = router()
    home = made.place("first", A, TOKENS, BOTH)
    made.load(ReplicaLoad(2 + home, received=1))
    made.ended("first")
    assert made.place("second", A, TOKENS, BOTH) != home  # its tree has none of it


def test_a_lost_replica_has_nothing_even_if_its_requests_end_later() -> None:
    made = router()
    home = made.place("ended before", A, TOKENS, BOTH)
    made.place("ended after", A, TOKENS, [home])
    made.ended("ended before")
    made.lost(home)
    made.ended("ended after")
    made.started(home, 4 + home)
    made.events(CacheEvents(4 + home, 0, is_snapshot=True))
    made.load(ReplicaLoad(4 + home, received=0))
    assert made.place("next", A, TOKENS, BOTH) != home
    assert made.index.blocks(home) == frozenset()


def test_a_new_epoch_forgets_what_was_sent() -> None:
    made = router()
    home = made.place("first", A, TOKENS, BOTH)
    made.clear()
    assert made.place("next", A, TOKENS, BOTH) != home
