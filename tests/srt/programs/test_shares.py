"""What callers hold of programs: sessions, gets, bytes and running calls; nobody is shut out."""

import random
from contextlib import suppress

import pytest

from srt.programs import core as core_module
from srt.programs import gets as gets_module
from srt.programs.limits import CALLER_SHARE, MAX_SESSIONS
from srt.programs.parts import OBJECT_BYTES
from srt.wire.errors import NOT_FOUND, OVERLOADED, RequestError
from srt.wire.program_messages import ProgramsRefused, ReadSession
from srt.wire.programs import Call, Input, Output, Program, Text
from tests.running.profiles import seeds
from tests.srt.programs.driver import Driver

NEVER = Program({"never": None}, calls=[Call([Input("never"), Output("late")])])
WORK = Program(calls=[Call([Text("x"), Output("a")]), Call([Input("a"), Output("b")])])
ENDLESS = Program(calls=[Call([Text("x"), Output("o", choices=["a"] * 3)])], eager=True)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_module, "MAX_SESSIONS", 20)
    monkeypatch.setattr(core_module, "MAX_BYTES", 400 * OBJECT_BYTES)
    monkeypatch.setattr(gets_module, "MAX_GETS", 12)


def test_four_callers_with_idle_sessions_shut_out_nobody() -> None:
    """The one that was idle longest gives way, and its client is told why."""
    driver = Driver()
    ids: dict[str, list[str]] = {}
    for caller in "abcd":
        driver.now += 1.0
        ids[caller] = [driver.open(caller) for _ in range(int(MAX_SESSIONS * CALLER_SHARE))]
    assert driver.core.counts()["sessions"] == MAX_SESSIONS
    driver.now = 10.0
    driver.ask(ReadSession, ids["a"][0], tenant="a")
    var = driver.submit(ids["a"][1], NEVER, tenant="a")["late"]
    driver.get([var], "a")
    driver.open("e")
    with pytest.raises(RequestError, match="to make room for another caller") as gone:
        driver.ask(ReadSession, ids["a"][2], tenant="a")
    assert gone.value.info.code == NOT_FOUND
    with pytest.raises(RequestError, match="there is no such session"):
        driver.ask(ReadSession, ids["a"][2], tenant="b")  # it is not theirs
    for session in (ids["a"][0], ids["a"][1]):
        driver.ask(ReadSession, session, tenant="a")
    assert driver.core.counts()["sessions.gave_way.total"] == 1


def test_of_callers_with_one_session_each_the_one_idle_longest_gives_way(small: None) -> None:
    """To who has none; nobody gets a second one for the only one of another."""
    driver = Driver()
    ids = {}
    for number in range(20):
        driver.now += 1.0
        ids[number] = driver.open(f"c{number}")
    driver.get([driver.submit(ids[0], NEVER, tenant="c0")["late"]], "c0")
    with pytest.raises(RequestError, match="sessions are open"):
        driver.open("c5")
    driver.open("another")
    with pytest.raises(RequestError, match="to make room for another caller"):
        driver.ask(ReadSession, ids[1], tenant="c1")
    for number in (0, 2):
        driver.ask(ReadSession, ids[number], tenant=f"c{number}")


def test_a_session_at_work_gives_way_last(small: None) -> None:
    driver = Driver()
    gets: list[str] = []
    for caller in "abcd":
        for number in range(5):
            session = driver.open(caller)
            if number < 3:
                var = driver.submit(session, NEVER, tenant=caller)["late"]
                gets.append(driver.get([var], caller))

    def refused() -> list[str]:
        told = [each for get in gets for each in driver.told[get]]
        return [each.error.message for each in told if isinstance(each, ProgramsRefused)]

    for caller in "efghefgh":  # each of the four loses the two that are idle
        driver.open(caller)
    assert not refused()
    driver.open("i")
    (reason,) = refused()
    assert "session was ended" in reason and driver.core.counts()["sessions"] == 20


def test_the_newest_get_gives_way(small: None) -> None:
    driver = Driver()
    var = driver.submit(driver.open("a"), NEVER, tenant="a")["late"]
    gets = [driver.get([var], "a") for _ in range(3)]
    with pytest.raises(RequestError, match="for this caller"):
        driver.get([var], "a")
    for caller in "bcd":
        theirs = driver.submit(driver.open(caller), NEVER, tenant=caller)["late"]
        for _ in range(3):
            driver.get([theirs], caller)
    mine = driver.submit(driver.open("e"), NEVER, tenant="e")["late"]
    waiting = driver.get([mine], "e")
    (refused,) = driver.told[gets[2]]
    assert isinstance(refused, ProgramsRefused) and not driver.told[waiting]
    assert refused.error.code == OVERLOADED and "another caller's" in refused.error.message
    assert not driver.told[gets[0]] and len(driver.core.gets) == 12


@pytest.mark.parametrize("seeds_of", seeds(5))
def test_no_callers_shut_out_another(small: None, seeds_of: int) -> None:
    for seed in range(20 * seeds_of, 20 * (seeds_of + 1)):
        _fill_and_open(seed)


def _fill_and_open(seed: int) -> None:
    """Two to four callers open sessions, fill them, let gets wait and calls run for ever; another
    one opens a session all the same, and its program comes to its end."""
    rng = random.Random(seed)
    driver = Driver(max_running=16, max_of_caller=8)
    others = ["a", "b", "c", "d"][: rng.randint(2, 4)]
    sessions: dict[str, list[str]] = {other: [] for other in others}
    kinds = rng.sample(["open", "never", "text", "endless", "close"], rng.randint(2, 5))
    for _ in range(rng.choice((30, 200))):
        other, kind = rng.choice(others), rng.choice(["open", *kinds])
        with suppress(RequestError):
            if kind == "open" or not sessions[other]:
                sessions[other].append(driver.open(other))
                continue
            session = rng.choice(sessions[other])
            if kind == "never":
                driver.get([driver.submit(session, NEVER, tenant=other)["late"]], other)
            elif kind == "text":
                text = "x" * rng.randint(1, 20 * OBJECT_BYTES)
                driver.submit(session, Program({"v": text}), tenant=other)
            elif kind == "endless":
                driver.submit(session, ENDLESS, tenant=other)
            elif kind == "close" and rng.random() < 0.3:
                sessions[other].remove(session)
                driver.close(session, other)
        while driver.core.graph.has_work:
            driver.core.graph.step()
        while driver.core.next_start() is not None:
            pass  # it runs, and never ends
    mine = [driver.open("e") for _ in range(2)]
    for session in mine:
        get = driver.get([driver.submit(session, WORK, tenant="e")["b"]], "e")
        driver.run()
        told = driver.got(get)
        assert told is not None and told.done
    driver.check()
    for other in others:
        for session in sessions[other]:
            with suppress(RequestError):
                driver.close(session, other)
    for session in mine:
        driver.close(session, "e")
    counts = driver.core.counts()
    assert counts["sessions"] == counts["vars"] == counts["gets"] == counts["bytes"] == 0
