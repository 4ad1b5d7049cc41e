"""Objectives of calls: those of gets, taken backwards along random programs, against a definition
that looks at all ways to the gets."""

import math
import random
from typing import TypeVar

import pytest

from srt.programs.objectives import Group, Objective, Objectives
from srt.programs.parts import CallWork, Session, TransformWork, Variable, Work
from srt.wire.errors import RequestError
from srt.wire.hints import Hints
from srt.wire.program_messages import GetVars, OpenSession, SubmitProgram
from srt.wire.programs import Call, Concat, Input, Join, Output, Perf, Program, Text, Transform
from tests.running.profiles import seeds
from tests.srt.programs.driver import Driver

SESSION = Session("session-1", "", "", "", 60.0, 0.0)
NEUTRAL, LATENCY, THROUGHPUT = 1, 0, 2
_Work = TypeVar("_Work", bound=Work)


def call(*inputs: Variable, outputs: int = 1) -> CallWork:
    made = [Variable(f"v{i}", "", SESSION) for i in range(outputs)]
    return linked(CallWork(SESSION, made, {str(i): var for i, var in enumerate(inputs)}, None))


def joined(*inputs: Variable) -> TransformWork:
    names = {str(i): var for i, var in enumerate(inputs)}
    transform = Transform("t", Concat(list(names)))
    made = [Variable("t", "", SESSION)]
    return linked(TransformWork(SESSION, made, names, None, transform=transform))


def linked(work: _Work) -> _Work:
    for var in work.outputs:
        var.work = work
    for var in work.inputs.values():
        var.consumers.append(work)
    return work


def wanted(*works: Work, perf: Perf | None = None, now: float = 1.0) -> Objectives:
    objectives = Objectives()
    objectives.want([work.outputs[-1] for work in works], Objective.of_get(perf, now))
    return objectives


def test_a_chain_has_the_objective_of_its_end_and_is_as_deep_as_it_is_long() -> None:
    first = call()
    second = call(first.outputs[0], outputs=2)
    third = call(second.outputs[1])
    objectives = wanted(third, perf=Perf("latency"), now=7.0)
    found = [objectives.of(work) for work in (first, second, third)]
    assert found == [Objective(LATENCY, 7.0, depth=depth) for depth in (3, 1, 0)]
    assert [objectives.group_of(work) for work in (first, second, third)] == [None] * 3
    hints = [objectives.hints(second, index) for index in (0, 1)]
    assert [each and each.depth for each in hints] == [2, 1]


@pytest.mark.parametrize(
    ("perf", "objective"),
    [
        (None, Objective(NEUTRAL, 7.0)),
        (Perf("latency"), Objective(LATENCY, 7.0)),
        (Perf("throughput"), Objective(THROUGHPUT, 7.0)),
        (Perf("ttft", 500.0), Objective(LATENCY, 7.0, 7.5)),
        (Perf("tpot", 500.0), Objective(LATENCY, 7.0, tpot_ms=500.0)),
    ],
)
def test_what_a_get_wants(perf: Perf | None, objective: Objective) -> None:
    assert Objective.of_get(perf, 7.0) == objective


def test_what_feeds_one_consumer_is_a_group_also_through_transforms() -> None:
    maps = [call() for _ in range(3)]
    text = joined(*(each.outputs[0] for each in maps))
    extra = call()
    reduce = call(text.outputs[0], extra.outputs[0])
    objectives = wanted(reduce)
    groups = {objectives.group_of(each) for each in (*maps, extra)}
    (group,) = groups
    assert group is not None and (group.size, group.left) == (4, 4)
    assert objectives.group_of(reduce) is None
    objectives.forget(maps[0])
    assert (group.size, group.left) == (4, 3)
    hints = objectives.hints(maps[1], 0)
    assert hints is not None and (hints.group_size, hints.depth) == (4, 1)


def test_variables_of_one_get_are_a_group_and_so_is_what_a_wanted_join_has() -> None:
    alone, together = call(), [call(), call()]
    parts = [call() for _ in range(2)]
    text = joined(*(each.outputs[0] for each in parts))
    objectives = wanted(*together)
    for sink in (alone, text):
        objectives.want(sink.outputs, Objective.of_get(None, 2.0))
    assert objectives.group_of(alone) is None
    assert objectives.group_of(together[0]) is objectives.group_of(together[1]) is not None
    assert objectives.group_of(parts[0]) is objectives.group_of(parts[1]) is not None
    assert objectives.group_of(parts[0]) is not objectives.group_of(together[0])


def test_a_call_of_two_groups_belongs_to_the_more_urgent_one() -> None:
    shared, late, early = call(), [call(), call()], [call()]
    slow = call(shared.outputs[0], *(each.outputs[0] for each in late))
    fast = call(shared.outputs[0], *(each.outputs[0] for each in early))
    objectives = wanted(slow, perf=Perf("throughput"))
    group = objectives.group_of(shared)
    assert group is not None and group.size == 3
    objectives.want(fast.outputs, Objective.of_get(Perf("latency"), 5.0))
    assert objectives.group_of(shared) is objectives.group_of(early[0])
    assert group.size == 2
    assert objectives.of(shared) == Objective(LATENCY, 1.0, depth=1)


# ---- random programs -------------------------------------------------------------------------


def random_graph(rng: random.Random) -> list[Work]:
    works: list[Work] = []
    for _ in range(rng.randrange(1, 14)):
        before = [var for work in works for var in work.outputs]
        inputs = rng.sample(before, min(len(before), rng.randrange(4)))
        is_call = not inputs or rng.random() < 0.6
        works.append(call(*inputs, outputs=rng.randrange(1, 3)) if is_call else joined(*inputs))
    return works


def expected_of(work: Work, gets: list[tuple[list[Work], Objective]]) -> Objective | None:
    """The definition: over all ways from the work to what gets want."""
    found = [objective for works, objective in gets if work in works]
    for consumer in dict.fromkeys(c for var in work.outputs for c in var.consumers):
        later = expected_of(consumer, gets)
        if later is not None:
            steps = len(consumer.outputs) if isinstance(consumer, CallWork) else 0
            more = later.depth + steps
            tpot_ms = math.inf if steps else later.tpot_ms  # that of the calls which gets read
            found.append(Objective(later.rank, later.arrival_s, later.due_s, more, tpot_ms))
    if not found:
        return None
    return Objective(
        min(each.rank for each in found),
        min(each.arrival_s for each in found),
        min(each.due_s for each in found),
        max(each.depth for each in found),
        min(each.tpot_ms for each in found),
    )


def feeds(work: Work, gets: list[tuple[list[Work], Objective]]) -> set[object]:
    """What may wait for a work: calls, gets of several works, and transforms that are wanted."""
    found: set[object] = {
        i for i, (works, _) in enumerate(gets) if work in works and len(works) > 1
    }
    for consumer in (c for var in work.outputs for c in var.consumers):
        if expected_of(consumer, gets) is None:
            continue
        if isinstance(consumer, CallWork):
            found.add(consumer)
        else:
            found |= feeds(consumer, gets)
            if any(consumer in works for works, _ in gets):
                found.add(consumer)
    return found


@pytest.mark.parametrize("seeds_of", seeds(4))
def test_objectives_of_random_programs(seeds_of: int) -> None:
    for seed in range(50 * seeds_of, 50 * (seeds_of + 1)):
        _compare_objectives(seed)


def _compare_objectives(seed: int) -> None:
    rng = random.Random(seed)
    works = random_graph(rng)
    perfs = [None, Perf("latency"), Perf("throughput"), Perf("ttft", 100.0), Perf("tpot", 9.0)]
    objectives, gets = Objectives(), list[tuple[list[Work], Objective]]()
    for now in range(rng.randrange(1, 6)):
        sinks = rng.sample(works, min(len(works), rng.randrange(1, 4)))
        objective = Objective.of_get(rng.choice(perfs), float(now))
        gets.append((sinks, objective))
        objectives.want([work.outputs[0] for work in sinks], objective)
        for work in works:
            assert objectives.of(work) == expected_of(work, gets)
    members: dict[Group, list[Work]] = {}
    for work in works:
        group = objectives.group_of(work)
        if group is not None and isinstance(work, CallWork):
            members.setdefault(group, []).append(work)
    for group, of_group in members.items():
        assert group.size == group.left == len(of_group) > 1
        assert set.intersection(*(feeds(work, gets) for work in of_group))
    if len(gets) == 1:  # nobody has two minds: what feeds one thing only is with all of that
        alone = {w: feeds(w, gets) for w in works if isinstance(w, CallWork)}
        for work, found in alone.items():
            mates = [each for each, other in alone.items() if found and other == found]
            if len(found) == 1 and len(mates) > 1:
                assert len({objectives.group_of(each) for each in mates}) == 1
                assert objectives.group_of(work) is not None
    rng.shuffle(works)
    for work in works:
        objectives.forget(work)
    assert len(objectives) == 0
    assert all(group.left == 0 for group in members)


def test_gets_that_want_ever_more_look_again_at_so_much_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The nearest first; of what was not wanted before, all is looked at."""
    monkeypatch.setattr("srt.programs.objectives.MOST_AGAIN", 6)
    chain = [call()]
    while len(chain) < 20:
        chain.append(call(chain[-1].outputs[0]))
    objectives = wanted(chain[9], now=1.0)
    assert [objectives.of(work) for work in chain[:10]] == [
        Objective(NEUTRAL, 1.0, depth=9 - number) for number in range(10)
    ]
    objectives.want(chain[-1].outputs, Objective.of_get(Perf("latency"), 2.0))
    found = [objectives.of(work) for work in chain]
    ranks = [each and each.rank for each in found]
    assert ranks == [NEUTRAL] * 6 + [LATENCY] * 14
    assert [each and each.depth for each in found[10:]] == list(range(9, -1, -1))
    objectives.want(chain[-1].outputs, Objective.of_get(Perf("ttft", 10.0), 2.0))
    dues = [each and each.due_s for each in map(objectives.of, chain)]
    assert dues == [math.inf] * 16 + [2.01] * 4


# ---- in the core -----------------------------------------------------------------------------


def test_a_session_s_calls_have_hints_and_nothing_is_left() -> None:
    driver = Driver()
    session = driver.ask(OpenSession).session.id
    maps = [Call([Text(str(i)), Output(f"m{i}")]) for i in range(3)]
    program = Program(
        calls=[*maps, Call([Input("all"), Output("end")])],
        transforms=[Transform("all", Join([f"m{i}" for i in range(3)], " "))],
    )
    ids = driver.ask(SubmitProgram, session, program).vars
    driver.now = 3.0
    driver.post(GetVars, [ids["end"]], perf=Perf("ttft", 2000.0))
    objectives = driver.core.graph.objectives
    made = [driver.core._vars[ids[f"m{i}"]].work for i in range(3)]
    found = [objectives.hints(work, 0) for work in made if work is not None]
    assert len(found) == 3
    for hints in found:
        assert hints is not None
        assert (hints.perf, hints.depth, hints.group_size) == ("latency", 1, 3)
        assert (hints.arrival_s, hints.due_s) == (3.0, 5.0)
        assert hints.app and hints.app not in session and session not in hints.app
        hints.check()
    assert len({hints.group for hints in found if hints}) == 1
    driver.run()
    assert len(objectives) == 0


def test_what_is_eager_is_wanted_as_soon_as_it_comes() -> None:
    driver = Driver()
    session = driver.ask(OpenSession).session.id
    driver.now = 3.0
    program = Program(calls=[Call([Text("x"), Output("a")])], eager=True)
    ids = driver.ask(SubmitProgram, session, program).vars
    work = driver.core._vars[ids["a"]].work
    assert work is not None
    assert driver.core.graph.objectives.of(work) == Objective(NEUTRAL, 3.0)
    driver.close(session)
    assert len(driver.core.graph.objectives) == 0


def test_a_call_says_what_its_outputs_are_for_where_nobody_else_does() -> None:
    slow, fast = Perf("throughput"), Perf("ttft", 500.0)
    calls = [
        Call([Text("Go:"), Output(name)], perf=perf)
        for name, perf in (("a", slow), ("b", fast), ("c", None))
    ]
    for is_eager in (True, False):
        driver = Driver()
        ids = driver.submit(driver.open(), Program(calls=calls, eager=is_eager))
        if not is_eager:
            driver.get([ids[name] for name in "abc"])
        works = [driver.core._vars[ids[name]].work for name in "abc"]
        objectives = [driver.core.graph.objectives.of(work) for work in works if work]
        assert [each and each.rank for each in objectives] == [THROUGHPUT, LATENCY, NEUTRAL]
        assert objectives[1] and objectives[1].due_s == 0.5
    driver.get([ids["a"]], perf=Perf("latency"))
    first = works[0] and driver.core.graph.objectives.of(works[0])
    assert first and first.rank == LATENCY


def test_a_target_without_a_meaning_is_refused() -> None:
    driver = Driver()
    session = driver.open()
    for perf in (Perf("latency", 5.0), Perf("ttft", -1.0), Perf("tpot", math.inf)):
        program = Program(calls=[Call([Text("Go:"), Output("a")], perf=perf)])
        with pytest.raises(RequestError) as caught:
            driver.submit(session, program)
        assert caught.value.info.param == "calls[0].perf.target_ms"
    ids = driver.submit(session, Program({"x": None}))
    with pytest.raises(RequestError) as caught:
        driver.get([ids["x"]], perf=Perf("throughput", 5.0))
    assert caught.value.info.param == "perf.target_ms"


def test_hints_without_a_get_are_none() -> None:
    assert Objectives().hints(call(), 0) is None
    unbounded = wanted(call()).hints
    assert unbounded is not None
    assert Objective.of_get(None, 1.0).due_s == math.inf
    assert Hints().is_urgent is False
