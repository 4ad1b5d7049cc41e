"""The places of other machines' schedulers."""

import random

from srt.cluster.places import Places
from srt.wire.ring_state import next_incarnation


def test_an_agent_gets_what_it_had_before() -> None:
    places: Places[str] = Places([1, 2, 3])
    assert places.take("a", 2) == [1, 2] and places.take("b", 2) == []
    assert places.take("b", 1) == [3] and places.free == 0
    assert places.leave("a") == [(1, 0), (2, 0)]
    assert places.take("a", 1, [2]) == [2] and places.take("c", 1, [2]) == [1]


def test_no_incarnation_runs_twice() -> None:
    """Random joins, losses and epochs, with the supervisor's answers late."""
    for seed in range(30):
        rng = random.Random(seed)
        incarnations, places = [4, 5, 6, 7], Places[int]([1, 2, 3])
        started: set[int] = set()
        running: dict[int, int] = {}
        losses: list[tuple[int, int]] = []  # not yet told the supervisor
        for agent in range(200):
            match rng.randrange(5):
                case 0:
                    places.take(agent, 1)
                case 1 if running:
                    place = rng.choice(list(running))
                    assert places.end(place) == running[place]
                    losses.append((place, running.pop(place)))
                case 2 if running:
                    node = places.node_at(rng.choice(list(running)))
                    assert node is not None
                    for place, lost in places.leave(node):
                        losses += [(place, running.pop(place))] if lost else []
                case 3 if losses:
                    place, lost = losses.pop(rng.randrange(len(losses)))
                    if incarnations[place] == lost:
                        incarnations[place] = next_incarnation(incarnations, place)
                case 4 if rng.random() < 0.2:
                    for place in range(4):
                        incarnations[place] = next_incarnation(incarnations, place)
                    places.renew(incarnations)
                    running = {place: incarnations[place] for place in running}
                    started |= set(running.values())
            for place, node in places.start(incarnations):
                assert incarnations[place] not in started and places.is_of(place, node)
                started.add(incarnations[place])
                running[place] = incarnations[place]
        assert len(started) > 10
