"""Which calls begin: applications that came first keep their rows, and none is held for ever."""

from srt.programs.parts import Work
from srt.programs.starts import Turns
from srt.wire.programs import Call, Input, Output, Perf, Program, Text
from tests.srt.programs.driver import Driver

MOST_S = 30.0
TURNS = Turns(2, MOST_S)  # in two rows


def chain(length: int) -> Program:
    calls = [Call([Text("x"), Output("o0")])]
    calls += [Call([Input(f"o{i - 1}"), Output(f"o{i}")]) for i in range(1, length)]
    return Program(calls=calls)


def fan(width: int) -> Program:
    return Program(calls=[Call([Text("x"), Output(f"o{i}")]) for i in range(width)])


class Line:
    """Programs, a session each, that came one after the other, by the caller `tenant`."""

    def __init__(self, turns: Turns | None = TURNS) -> None:
        self.driver = Driver(max_running=64, max_of_caller=32, turns=turns)
        self.names: dict[str, str] = {}  # by session
        self.running: list[Work] = []

    def come(self, name: str, program: Program, perf: Perf | None = None, tenant: str = "") -> None:
        session = self.driver.open(tenant)
        self.names[session] = name
        ids = self.driver.submit(session, program, tenant=tenant)
        self.driver.get(list(ids.values()), tenant, perf=perf)
        self.driver.now += 1.0
        self.driver.core.tick(self.driver.now)

    def begun(self) -> list[str]:
        """What begins now."""
        core = self.driver.core
        while core.graph.has_work:
            core.graph.step()
        works = list(iter(core.next_start, None))
        self.running += works
        return [self.names[work.session.id] for work in works]

    def end(self, name: str) -> list[str]:
        """One call of this application ends; what begins then."""
        work = next(each for each in self.running if self.names[each.session.id] == name)
        self.running.remove(work)
        graph = self.driver.core.graph
        assert graph.runs(work.outputs[0])
        graph.grow(work.outputs[0], "text")
        graph.finish(work.outputs[0], None)
        self.driver.core.has_run(work)
        return self.begun()


def test_the_next_call_of_an_application_finds_the_row_that_it_had() -> None:
    line = Line()
    for name in "abc":
        line.come(name, chain(3))
    assert line.begun() == ["a", "b"]
    assert [line.end(name) for name in "abba"] == [["a"], ["b"], ["b"], ["a"]]
    assert line.end("b") == ["c"] and line.end("a") == []
    assert [line.end("c") for _ in range(3)] == [["c"], ["c"], []]


def test_a_wide_application_begins_as_a_whole_and_leaves_rows_at_its_end() -> None:
    line = Line()
    line.come("wide", fan(5))
    line.come("next", fan(3))
    line.come("last", fan(1))
    assert line.begun() == ["wide"] * 5
    assert [line.end("wide") for _ in range(3)] == [[]] * 3
    assert line.end("wide") == ["next"] * 3
    assert line.end("wide") == [] and line.end("next") == []
    assert line.end("next") == ["last"]


def test_classes_go_before_arrival() -> None:
    line = Line()
    line.come("first", chain(2))
    line.come("second", chain(2))
    assert line.begun() == ["first", "second"]
    line.come("slow", chain(1), Perf("throughput"))
    line.come("plain", chain(1))
    line.come("fast", chain(1), Perf("latency"))
    assert line.begun() == ["fast"]  # before it nobody has a row
    assert line.end("fast") == []
    assert line.end("first") == ["first"]
    assert line.end("second") == ["second"]
    assert line.end("first") == ["plain"]
    assert line.end("second") == ["slow"]


def test_none_is_held_for_longer_than_it_may_be() -> None:
    line = Line()
    for name in "abc":
        line.come(name, chain(40))
    assert line.begun() == ["a", "b"]
    line.driver.now += MOST_S
    line.driver.core.tick(line.driver.now)
    assert line.begun() == []
    line.driver.now += 1.0
    line.driver.core.tick(line.driver.now)
    assert line.begun() == ["c"]


def test_callers_do_not_wait_for_each_other() -> None:
    line = Line()
    for name in "abc":
        line.come(name, chain(1), tenant="one")
    line.come("other", chain(1), tenant="two")
    assert sorted(line.begun()) == ["a", "b", "other"]


def test_what_is_cancelled_leaves_its_row() -> None:
    """Also if it has been handed on and had not begun, or was held."""
    line = Line()
    for name in "abcd":
        line.come(name, chain(1))
    assert line.begun() == ["a", "b"]
    sessions = {name: session for session, name in line.names.items()}
    line.driver.close(sessions["c"])
    assert line.begun() == []
    assert line.end("a") == ["d"]


def test_without_turns_all_begin() -> None:
    line = Line(None)
    for name in "abc":
        line.come(name, chain(1))
    assert line.begun() == ["a", "b", "c"]
