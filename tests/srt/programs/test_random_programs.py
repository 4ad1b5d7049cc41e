"""Random programs on the core: whatever the order of events, each variable is what its inputs make
it, every get ends, and nothing is left."""

import random
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from srt.programs import core as core_module
from srt.programs.parts import OBJECT_BYTES, CallWork, TransformWork, Variable, Work
from srt.programs.prompts import request_of
from srt.programs.transforms import apply, holds
from srt.wire.errors import RequestError
from srt.wire.programs import (
    Call,
    Concat,
    Extract,
    First,
    Format,
    Guard,
    Input,
    Join,
    JsonPointer,
    Majority,
    Op,
    Output,
    Program,
    Segment,
    Split,
    Strip,
    Text,
    Transform,
    Truncate,
    Turn,
)
from tests.running.profiles import examples
from tests.srt.programs import driver as driver_module
from tests.srt.programs.driver import WORDS, Driver, model_text

GATHERING = (Concat, Join, Majority, First)


def random_program(rng: random.Random, known: list[str], at: int) -> Program:
    """A program whose parts use each other's variables, and those of earlier ones."""
    names = [f"s{at}.{i}" for i in range(rng.randrange(1, 3))]
    values = {name: rng.choice([None, *WORDS]) for name in names}
    usable, calls, transforms = [*known, *names], [], []
    for i in range(rng.randrange(1, 8)):
        name = f"p{at}.{i}"
        guard = random_guard(rng, usable) if rng.random() < 0.3 else None
        default = rng.choice([None, None, "default"])
        if rng.random() < 0.5:
            call, outputs = random_call(rng, usable, name, guard, default)
            calls.append(call)
            usable += outputs
        else:
            transforms.append(Transform(name, random_op(rng, usable), guard, default))
            usable.append(name)
    rng.shuffle(calls)
    return Program(values, calls, transforms, eager=rng.random() < 0.2)


def random_call(
    rng: random.Random, usable: list[str], name: str, guard: Guard | None, default: str | None
) -> tuple[Call, list[str]]:
    segments: list[Segment] = [Text(f"{name}: ")]
    outputs = []
    for i in range(rng.randrange(1, 3)):
        segments += [Input(rng.choice(usable)) for _ in range(rng.randrange(3))]
        outputs.append(f"{name}.{i}")
        choices = ["one", "two"] if rng.random() < 0.2 else []
        segments.append(Output(outputs[-1], choices=choices, default=default))
    if rng.random() < 0.3 and len(outputs) == 1:
        *before, output = segments
        turns = [Turn("user", before), Turn("assistant", [output])]
        return Call(turns=turns, when=guard), outputs
    return Call(segments, when=guard), outputs


def random_op(rng: random.Random, usable: list[str]) -> Op:
    several = [rng.choice(usable) for _ in range(rng.randrange(1, 5))]
    one, leaves = several[0], rng.random() < 0.5
    ops: list[Op] = [
        Concat(several, leaves),
        Join(several, ", ", leaves),
        Majority(several, leaves),
        First(several),
        Format("<{a}> {b}", {"a": one, "b": several[-1]}),
        Strip(one),
        Split(one, "e", rng.randrange(-2, 2)),
        JsonPointer(one, "/a/0"),
        Extract(one, "[a-z]+(?P<x>e)", rng.choice(["", "x"])),
        Truncate(one, chars=3, keep="end"),
        Truncate(one, tokens=3),
    ]
    return rng.choice(ops)


def random_guard(rng: random.Random, usable: list[str]) -> Guard:
    var, negate = rng.choice(usable), rng.random() < 0.5
    kinds = [Guard(var, equals="red"), Guard(var, matches="e"), Guard(var, non_empty=True)]
    guard = rng.choice(kinds)
    return Guard(var, guard.equals, guard.matches, guard.non_empty, negate)


def expected_states(work: Work) -> set[str]:
    """How its first output may have ended, by how its inputs did: the first input without a text
    decides, so there may be several."""
    guard = work.guard_var
    if guard is not None and work.guard is not None:
        if guard.state != "ready":
            return {guard.state}
        if not holds(work.guard, guard.text):
            return {"skipped"}
    if isinstance(work, TransformWork) and isinstance(work.transform.op, GATHERING):
        return gathered_states(work)
    lacking = {var.state for var in work.inputs.values() if var.state != "ready"}
    return {*lacking} or {"run"}


def gathered_states(work: TransformWork) -> set[str]:
    op = work.transform.op
    assert isinstance(op, GATHERING)
    states = [work.inputs[name].state for name in op.inputs]
    bad = {state for state in states if state in ("failed", "cancelled")}
    if bad and not isinstance(op, First) and not op.leave_out_failed:
        return {*bad}
    if "ready" in states:
        return {"run"}
    return {*bad} or {"skipped"}


def check_work(work: Work, cancelled: set[str]) -> None:
    """Each output is what the inputs make it."""
    expected = expected_states(work)
    for index, var in enumerate(work.outputs):
        if var.state == "cancelled" and "cancelled" not in expected:
            assert any(v.id in cancelled for v in work.outputs[: index + 1])
            return
        default = default_of(work, index)
        if "run" not in expected:
            states = expected - {"failed", "cancelled"} if default is not None else expected
            if default is not None and states != expected and var.state == "ready":
                assert var.text == default
            else:
                assert var.state in expected, (var.name, var.state, expected)
                assert var.state == "skipped" or default is None or var.cause is None
            continue
        text = made_by(work, index)
        if text is None and default is None:
            assert var.state == "failed" and var.error is not None
            assert all(
                each.state in ("failed", "ready", "cancelled") for each in work.outputs[index:]
            )
            return
        assert (var.state, var.text) == ("ready", default if text is None else text), var.name


def made_by(work: Work, index: int) -> str | None:
    """The text of an output whose work was done; None where that failed."""
    if isinstance(work, CallWork):
        request = request_of(work, index)
        prompt = request.text if request.text is not None else repr(request.messages)
        return model_text(prompt, work.asked[index].choices)
    assert isinstance(work, TransformWork)
    op = work.transform.op
    if isinstance(op, Truncate) and op.tokens is not None:
        return "tokens"
    texts = {n: v.text if v.state == "ready" else None for n, v in work.inputs.items()}
    if isinstance(op, First):
        found = {text for name in op.inputs if (text := texts[name]) is not None}
        assert work.outputs[0].text in found
        return work.outputs[0].text
    try:
        return apply(op, texts)
    except RequestError:
        return None


def default_of(work: Work, index: int) -> str | None:
    if isinstance(work, CallWork):
        return work.asked[index].default
    assert isinstance(work, TransformWork)
    return work.transform.default


def is_needed(var: Variable) -> bool:
    return var.work is None or var.work.active


class Session:
    """One of the sessions of a run, and what its client does."""

    def __init__(self, driver: Driver, rng: random.Random, tenant: str) -> None:
        self.driver, self.rng, self.tenant = driver, rng, tenant
        self.id = driver.open(tenant)
        self.ids: dict[str, str] = {}
        self.gets: list[tuple[str, list[str], bool]] = []
        self.cancelled: set[str] = set()
        self.count = 0

    def act(self) -> None:
        """Something that a client may do at any moment."""
        rng, driver = self.rng, self.driver
        what = rng.randrange(10)
        if what < 3 or not self.ids:
            known = list(self.ids.values())
            program = random_program(rng, known, self.count)
            self.count += 1
            self.ids |= driver.submit(self.id, program, tenant=self.tenant)
        elif what < 6:
            names = [rng.choice([*self.ids.values()]) for _ in range(rng.randrange(1, 4))]
            stream = rng.random() < 0.5
            self.gets.append((driver.get(names, self.tenant, stream=stream), names, stream))
        elif what < 8:
            self.set_one()
        elif what == 8:
            var = rng.choice([*self.ids.values()])
            if driver.cancel(var, self.tenant).state == "cancelled":
                self.cancelled.add(var)
        else:
            driver.read(rng.choice([*self.ids.values()]), self.tenant)

    def unset(self) -> list[str]:
        of_clients = [i for name, i in self.ids.items() if name.startswith("s")]
        return [i for i in of_clients if self.driver.read(i, self.tenant).state == "pending"]

    def set_one(self) -> None:
        unset = self.unset()
        if unset:
            self.driver.set(self.rng.choice(unset), self.rng.choice(WORDS), self.tenant)


@settings(max_examples=examples(60))
@given(st.integers(0, 2**32))
def test_random_programs(seed: int) -> None:
    rng = random.Random(seed)
    driver = Driver(max_running=rng.choice([1, 3, 8]), max_of_caller=rng.choice([1, 8]))
    sessions = [Session(driver, rng, tenant) for tenant in ("", "b")]
    for _ in range(rng.randrange(4, 40)):
        rng.choice(sessions).act()
        for _ in range(rng.randrange(8)):
            driver.step(rng)
    for session in sessions:
        while session.unset():
            session.set_one()
    driver.run(rng)
    cancelled = set.union(driver.released, *(session.cancelled for session in sessions))
    works = {id(v.work): v.work for v in driver.variables if v.work is not None}
    for work in works.values():
        if work.active:
            assert work.ended, [var.name for var in work.outputs]
            check_work(work, cancelled)
    for session in sessions:
        for rid, names, stream in session.gets:
            got = driver.got(rid)
            assert got is not None and got.done and [var.id for var in got.vars] == names
            if stream:
                told = driver.text_of(rid)
                assert all(told.get(var.id, "") == var.text for var in got.vars)
        driver.close(session.id, session.tenant)
    driver.run(rng)
    left = {k: v for k, v in driver.core.counts().items() if not k.endswith(".total")}
    assert not any(left.values()), left


@given(st.integers(0, 2**32))
def test_sessions_end_at_any_moment(seed: int) -> None:
    """Whatever runs in them: nothing is left, and gets are refused."""
    rng = random.Random(seed)
    driver = Driver(max_running=3)
    sessions = [Session(driver, rng, tenant) for tenant in ("", "b")]
    for _ in range(rng.randrange(4, 30)):
        rng.choice(sessions).act()
        for _ in range(rng.randrange(6)):
            driver.step(rng)
    for session in sessions:
        driver.close(session.id, session.tenant)
        assert all(driver.told[rid] for rid, _, _ in session.gets)
    driver.run(rng)
    left = {k: v for k, v in driver.core.counts().items() if not k.endswith(".total")}
    assert not any(left.values()), left


@settings(max_examples=examples(60))
@given(st.integers(0, 2**32))
def test_sessions_give_way_at_any_moment(seed: int) -> None:
    """Also while a text of another one grows: all that is counted is there, and nothing is left."""
    rng = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core_module, "MAX_BYTES", OBJECT_BYTES * rng.choice((150, 400)))
        patch.setattr(driver_module, "WORDS", (*WORDS, "a" * 3000))
        driver = Driver(max_running=rng.choice([1, 3, 8]), max_of_caller=4)
        core, sessions = driver.core, list[Session]()
        for _ in range(rng.randrange(20, 100)):
            with suppress(RequestError):
                if len(sessions) < 4 or rng.random() < 0.15:
                    sessions.append(Session(driver, rng, rng.choice("aaabbcde")))
                rng.choice(sessions[-8:]).act()
            for _ in range(rng.randrange(6)):
                driver.step(rng)
            assert (
                core._bytes.total == sum(one.size for one in driver.sessions) <= core._bytes._bound
            )
            assert set(driver.sessions) == set(core._open_sessions._holders)
        driver.run(rng)
    assert not core._calls._taken
    for session in driver.sessions:
        driver.close(session.id, session.tenant)
    driver.run(rng)
    left = {k: v for k, v in core.counts().items() if not k.endswith(".total")}
    assert not any(left.values()), left
