"""The places of other machines' schedulers."""

import random
from collections import deque

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


class Late:
    """The hub's places and the supervisor's incarnations, each of which hears of the other late."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.epoch, self.incarnations = rng, 1, [4, 5, 6, 7]
        self.places, self.heard = Places[int]([1, 2, 3]), (1, [4, 5, 6, 7])
        self.events: deque[tuple[int, list[int]]] = deque()  # to the hub
        self.news: deque[tuple[int, int]] = deque()  # to the supervisor
        self.running: dict[int, int] = {}
        self.spent: set[int] = set()

    def renew(self, *numbers: int) -> None:
        """The supervisor gives these places the next incarnations, and says so."""
        for number in numbers:
            self.incarnations = [*self.incarnations]
            self.incarnations[number] = next_incarnation(self.incarnations, number)
        if self.events and self.rng.random() < 0.5:
            self.events.pop()  # it says what is, not what was
        self.events.append((self.epoch, self.incarnations))

    def lose(self, number: int) -> None:
        self.spent.add(self.running.pop(number))
        self.news.append((number, self.places.end(number)))

    def hear_news(self) -> None:
        number, lost = self.news.popleft()
        if lost == self.incarnations[number]:
            self.renew(number)

    def hear_event(self) -> None:
        before, self.heard = self.heard[0], self.events.popleft()
        if self.heard[0] > before:
            self.places.renew(self.heard[1])
            for number in self.running:
                self.running[number] = self.heard[1][number]

    def start(self) -> None:
        for number, _ in self.places.start(self.heard[1]):
            assert self.heard[1][number] not in self.spent
            self.running[number] = self.heard[1][number]


def test_late_news_and_late_events_agree_in_the_end() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        late = Late(rng)
        for agent in range(100):
            match rng.randrange(6):
                case 0:
                    late.places.take(agent, 1)
                case 1 | 2 if late.running:
                    late.lose(rng.choice(list(late.running)))
                case 3 if late.news:
                    late.hear_news()
                case 4 if late.events:
                    late.hear_event()
                case 5 if rng.random() < 0.3:
                    late.epoch += 1
                    late.renew(0, 1, 2, 3)
            late.start()
        late.places.take(100, late.places.free)
        while late.news or late.events:
            late.hear_news() if late.news else late.hear_event()
            late.start()
        assert late.running == {number: late.incarnations[number] for number in (1, 2, 3)}
