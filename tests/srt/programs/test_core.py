"""The core of programs: what a client is told, and what is refused."""

import pytest

from srt.callers.names import caller_of
from srt.programs.limits import CALLER_SHARE, MAX_BYTES, MAX_GET_S, MAX_SESSIONS, MAX_TEXT_BYTES
from srt.programs.parts import CallWork
from srt.programs.prompts import request_of, score_of
from srt.wire.errors import CONFLICT, OVERLOADED, RequestError
from srt.wire.program_messages import OpenSession, VarsGrew
from srt.wire.programs import (
    Call,
    Format,
    Guard,
    Input,
    Join,
    Output,
    Perf,
    Program,
    Strip,
    Text,
    Transform,
)
from tests.srt.programs.driver import CLIENT, Driver

CHAIN = Program(calls=[Call([Text("a"), Output("a")]), Call([Input("a"), Output("b")])])


def start(driver: Driver) -> None:
    """Do what need not wait for a call."""
    while driver.core.graph.has_work:
        driver.core.graph.step()
    driver.step()


def test_nothing_runs_before_a_get() -> None:
    driver = Driver()
    ids = driver.submit(driver.open(), CHAIN)
    driver.run()
    assert driver.read(ids["a"]).state == "pending" and not driver.running
    get = driver.get([ids["a"]])
    driver.run()
    assert driver.got(get) is not None
    assert (driver.read(ids["a"]).state, driver.read(ids["b"]).state) == ("ready", "pending")


def test_a_deadline_ends_the_get_and_not_the_call() -> None:
    driver = Driver()
    ids = driver.submit(driver.open(), CHAIN)
    get = driver.get([ids["b"]], deadline_ms=50, perf=Perf("tpot", 20))
    start(driver)
    driver.now = 0.1
    driver.core.tick(driver.now)
    driver.deliver()
    told = driver.got(get)
    assert told is not None and not told.done and told.vars[0].perf == Perf("tpot", 20)
    driver.run()
    assert driver.read(ids["b"]).state == "ready"
    with pytest.raises(RequestError, match="deadline_ms"):
        driver.get([ids["b"]], deadline_ms=-1)


def test_a_get_is_probed_and_bounded() -> None:
    driver = Driver()
    ids = driver.submit(driver.open(), Program({"v": None}))
    get = driver.get([ids["v"]])
    driver.now = 6.0
    driver.core.tick(driver.now)
    driver.deliver()
    assert driver.told[get] == [VarsGrew(get, [])]
    driver.now = MAX_GET_S + 1
    driver.core.tick(driver.now)
    driver.deliver()
    assert driver.got(get) is not None and driver.core.counts()["gets"] == 0


def test_clients_that_are_gone_wait_no_longer() -> None:
    driver = Driver()
    ids = driver.submit(driver.open(), Program({"v": None}))
    driver.get([ids["v"]])
    ended = driver.get([ids["v"]])
    driver.end_get(ended)
    assert driver.core.counts()["gets"] == 1
    driver.core.gets.end_of(CLIENT)
    assert driver.core.counts()["gets"] == 0
    assert driver.read(ids["v"]).state == "pending"


def test_an_idle_session_ends_and_a_used_one_does_not() -> None:
    driver = Driver()
    idle, used = driver.open(idle_s=10.0), driver.open(idle_s=10.0)
    ids = driver.submit(used, Program({"v": None}))
    driver.get([ids["v"]])
    for now in (6.0, 12.0, 18.0):
        driver.now = now
        driver.core.tick(now)
    with pytest.raises(RequestError, match="no such session"):
        driver.submit(idle, CHAIN)
    driver.submit(used, CHAIN)


def test_keys() -> None:
    driver = Driver()
    session = driver.open()
    ids = driver.submit(session, CHAIN, key="k")
    assert driver.submit(session, CHAIN, key="k") == ids
    with pytest.raises(RequestError, match="another program") as refused:
        driver.submit(session, Program({"v": None}), key="k")
    assert refused.value.info.code == CONFLICT
    assert len(driver.variables) == 2


def test_a_failure_does_not_wait_for_other_inputs() -> None:
    driver = Driver()
    program = Program(
        {"never": None},
        transforms=[
            Transform("bad", Strip("x")),
            Transform("x", Format("{a}", {"a": "never"})),
            Transform("all", Join(["never", "bad"])),
        ],
    )
    ids = driver.submit(driver.open(), program)
    get = driver.get([ids["all"]])
    driver.cancel(ids["x"])
    driver.run()
    told = driver.got(get)
    assert told is not None and told.vars[0].state == "cancelled"
    assert [cause.name for cause in told.vars[0].causes] == ["bad", "x"]
    assert told.vars[0].error is not None and "'x' was cancelled" in told.vars[0].error.message


def test_a_default_does_not_replace_what_was_told() -> None:
    """A stream has a part of the text: another text would contradict it."""
    for stream, expected in ((True, "failed"), (False, "ready")):
        driver = Driver()
        program = Program(calls=[Call([Text("a"), Output("a", default="default")])])
        ids = driver.submit(driver.open(), program)
        get = driver.get([ids["a"]], stream=stream)
        start(driver)
        (var,) = driver.variables
        driver.core.graph.runs(var)
        driver.core.graph.grow(var, "par")
        driver.deliver()
        driver.core.graph.fail(var, RequestError("no").info)
        driver.deliver()
        told = driver.got(get)
        assert told is not None and told.vars[0].state == expected
        assert told.vars[0].text == ("par" if stream else "default")


def test_cancelling_goes_up_and_down() -> None:
    driver = Driver()
    program = Program(
        calls=[
            Call([Text("a"), Output("a")]),
            Call([Text("kept"), Output("kept")]),
            Call([Input("a"), Input("kept"), Output("b")]),
            Call([Input("b"), Output("c")]),
        ]
    )
    ids = driver.submit(driver.open(), program)
    driver.get([ids["c"]])
    driver.get([ids["kept"]])
    start(driver)
    driver.cancel(ids["b"])
    driver.run()
    states = {name: driver.read(var).state for name, var in ids.items()}
    assert states == {"a": "cancelled", "b": "cancelled", "c": "cancelled", "kept": "ready"}


def test_what_has_ended_makes_nothing_of_what_it_was_made_of() -> None:
    """A get of a variable that was cancelled before anybody wanted it, beside another one."""
    driver = Driver()
    calls = [
        Call([Text("a"), Output("a")]),
        Call([Input("a"), Output("b")]),
        Call([Text("c"), Output("c")]),
    ]
    ids = driver.submit(driver.open(), Program(calls=calls))
    driver.cancel(ids["b"])
    driver.get([ids["b"], ids["c"]])
    driver.run()
    states = {name: driver.read(var).state for name, var in ids.items()}
    assert states == {"a": "pending", "b": "cancelled", "c": "ready"}


def test_setting() -> None:
    driver = Driver()
    ids = driver.submit(driver.open(), Program({"v": None}, transforms=CHAIN.transforms))
    assert driver.set(ids["v"], "x").text == "x"
    with pytest.raises(RequestError, match="already"):
        driver.set(ids["v"], "y")
    made = driver.submit(driver.open(), CHAIN)
    with pytest.raises(RequestError, match="made by the program"):
        driver.set(made["a"], "x")
    late = driver.submit(driver.open(), Program({"v": None}))
    with pytest.raises(RequestError, match="bytes"):
        driver.set(late["v"], "é" * (MAX_TEXT_BYTES // 2 + 1))
    driver.set(late["v"], "é" * (MAX_TEXT_BYTES // 2))


def test_ids_of_sessions() -> None:
    driver = Driver()
    assert driver.open().startswith("session-")
    numbers = {driver.open(is_numbered=True) for _ in range(100)}
    assert len(numbers) == 100 and max(map(int, numbers)) > 2**53
    for number in numbers:
        assert str(int(number)) == number and int(number) < 2**63
        assert driver.submit(number, Program({"v": None})).keys() == {"v"}


def test_callers_have_bounds() -> None:
    driver = Driver()
    most = int(MAX_SESSIONS * CALLER_SHARE)
    for _ in range(most):
        driver.open("a")
    with pytest.raises(RequestError) as refused:
        driver.ask(OpenSession, tenant="a")
    assert refused.value.info.code == OVERLOADED and refused.value.info.retry_after_s > 0
    mine = driver.open("b")
    with pytest.raises(RequestError, match="no such session"):
        driver.submit(mine, CHAIN, tenant="a")


def test_calls_of_tenants_take_turns() -> None:
    driver = Driver(max_running=1, max_of_caller=1)
    fan = Program(calls=[Call([Text("x"), Output(f"o{i}")]) for i in range(3)], eager=True)
    for tenant in ("a", "b"):
        driver.submit(driver.open(tenant), fan, tenant=tenant)
    while driver.core.graph.has_work:
        driver.core.graph.step()
    order = []
    while (work := driver.core.next_start()) is not None:
        order.append(work.session.tenant)
        assert driver.core.next_start() is None
        driver.core.has_run(work)
    assert order == ["a", "b"] * 3


def test_requests_are_those_of_their_session_s_caller() -> None:
    """Not of the process that sends them: a session without a tenant is its client's."""
    driver = Driver()
    call = Call([Text("x"), Output("o")])
    for tenant, caller in (("a", "a"), ("", caller_of(CLIENT, ""))):
        program = Program(calls=[call], eager=True)
        driver.submit(driver.open(tenant), program, tenant=tenant)
        while driver.core.graph.has_work:
            driver.core.graph.step()
        work = driver.core.next_start()
        assert isinstance(work, CallWork)
        assert request_of(work, 0).tenant == score_of(work, 0, [1]).tenant == caller
        assert caller_of(b"the part programs", caller) == caller


def test_a_choice_counts_as_the_requests_that_it_makes() -> None:
    """One for each text, of all that the ring takes."""
    driver = Driver(max_running=8, max_of_caller=4)
    core = driver.core
    choice = Call([Text("x"), Output("o", choices=["a", "b", "c"])])
    huge = Call([Text("x"), Output("o", choices=["a"] * 100)])
    one = Call([Text("x"), Output("o")])
    for tenant, call in [("a", choice), ("a", choice), ("b", one), ("c", huge), ("b", one)]:
        program = Program(calls=[call], eager=True)
        driver.submit(driver.open(tenant), program, tenant=tenant)
    while core.graph.has_work:
        core.graph.step()
    running = [core.next_start(), core.next_start(), core.next_start()]
    assert [work and work.session.tenant for work in running] == ["a", "b", "c"]
    assert core.next_start() is None  # 8 requests
    assert core.counts()["calls.running"] == 3 and core.counts()["calls.pending"] == 2
    for work in running:
        assert work is not None
        core.has_run(work)
    assert core.counts()["calls.running"] == 0
    more = [core.next_start(), core.next_start(), core.next_start()]
    assert [work and work.session.tenant for work in more] == ["a", "b", None]


def test_a_large_choice_has_its_turn() -> None:
    """Small calls of others do not take all that becomes free."""
    driver = Driver(max_running=4, max_of_caller=4)
    core = driver.core
    fan = Program(calls=[Call([Text("x"), Output(f"o{i}")]) for i in range(6)], eager=True)
    choice = Program(calls=[Call([Text("x"), Output("o", choices=["a"] * 3)])], eager=True)
    driver.submit(driver.open("a"), fan, tenant="a")
    driver.submit(driver.open("b"), choice, tenant="b")
    while core.graph.has_work:
        core.graph.step()
    first = core.next_start()
    second = core.next_start()
    assert first is not None and second is not None
    assert (first.session.tenant, second.session.tenant) == ("a", "b")
    core.has_run(second)
    driver.submit(driver.open("b"), choice, tenant="b")
    while core.graph.has_work:
        core.graph.step()
    third = core.next_start()
    assert third is not None and third.session.tenant == "a"
    assert core.next_start() is None  # b's: 3 of the 2 that are left
    core.has_run(third)
    fourth = core.next_start()
    assert fourth is not None and fourth.session.tenant == "b"


def test_bytes_are_given_back() -> None:
    driver = Driver()
    session = driver.open()
    text = "x" * (MAX_TEXT_BYTES - 1)
    count = 0
    with pytest.raises(RequestError) as refused:
        while True:
            driver.submit(session, Program({f"v{count}": text}))
            count += 1
    assert refused.value.info.code == OVERLOADED
    assert count == int(MAX_BYTES * CALLER_SHARE / MAX_TEXT_BYTES) - 1
    driver.close(session)
    assert driver.core.counts()["bytes"] == 0
    driver.submit(driver.open(), Program({"v": text}))


def test_a_guard_is_asked_once() -> None:
    driver = Driver()
    program = Program(
        {"g": "no", "late": None},
        calls=[
            Call([Input("late"), Output("a")], when=Guard("g", equals="yes")),
            Call([Input("late"), Output("b")], when=Guard("g", equals="yes", negate=True)),
        ],
    )
    ids = driver.submit(driver.open(), program)
    get = driver.get([ids["a"], ids["b"]])
    driver.run()
    assert driver.read(ids["a"]).state == "skipped" and driver.got(get) is None
    driver.set(ids["late"], "x")
    driver.run()
    assert driver.read(ids["b"]).state in ("ready", "failed")
