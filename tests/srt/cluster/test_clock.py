"""Clocks of machines: what pings say of them, and that no time in a message is forgotten."""

import random
import typing
from types import UnionType
from typing import Any

import msgspec
import pytest
from msgspec import Struct
from msgspec.structs import replace

from srt.cluster.clock import NUM_PINGS, Offset, rewrite
from srt.wire import messages, ring_messages, ring_state
from srt.wire.answer_meta import AnswerMeta
from srt.wire.filled_params import FilledParams
from srt.wire.hints import Hints
from srt.wire.messages import RingMessage
from srt.wire.pause import NO_PAUSE, Pause
from srt.wire.ring_messages import (
    CacheSnapshotReq,
    PauseSet,
    ReqStart,
    TokenBatch,
    TokenizedReq,
)
from tests.running.profiles import seeds

# How long something lasts or takes, which is the same on every machine.
DURATIONS = {
    "AnswerMeta": {"queued_s", "ttft_s", "decode_s"},
    "Pause": {"before_s"},
    "Control": {"timeout_s"},
    "ControlReq": {"timeout_s"},
    "Pace": {"prompt_token_s", "request_s", "step_s", "running_s"},
    "ReplicaLoad": {"prompt_token_s", "request_s", "extend_s", "decode_s"},
    "ErrorInfo": {"retry_after_s"},
    "RingEvent": {"pause_s"},
}
# Points of time, which `rewrite` has to find.
TIMES = {
    "TokenizedReq": {"deadline_s", "arrival_s"},
    "Hints": {"arrival_s", "due_s"},
    "Pause": {"since_s"},
    "TokenBatch": {"time_s"},
    "ReqStart": {"arrival_s"},
}


def structs_in(kind: Any, found: dict[str, type[Struct]]) -> None:
    """All structs that a message of the type `kind` may have, by name."""
    if isinstance(kind, type) and issubclass(kind, Struct) and kind.__name__ not in found:
        found[kind.__name__] = kind
        for field in typing.get_type_hints(kind).values():
            structs_in(field, found)
    for part in typing.get_args(kind):
        structs_in(part, found)


def crossing() -> dict[str, type[Struct]]:
    """The structs of all messages that leave a scheduler or reach one, and of the ring's events."""
    found: dict[str, type[Struct]] = {}
    modules = (messages, ring_messages, ring_state)
    unions = [ring_messages.SchedulerMessage, ring_messages.FrontNews]
    kinds = [value for module in modules for value in vars(module).values()]
    for kind in (*unions, *kinds):
        is_message = isinstance(kind, type) and issubclass(kind, RingMessage)
        if is_message or isinstance(kind, UnionType):
            structs_in(kind, found)
    return found


def test_every_time_of_a_message_is_known_as_one_or_as_a_duration() -> None:
    """A new field of seconds fails here until it stands in one of the tables above, and a time of
    TIMES is rewritten below."""
    known = {name: TIMES.get(name, set()) | DURATIONS.get(name, set()) for name in crossing()}
    found = {
        name: {field for field in kind.__struct_fields__ if field.endswith(("_s", "_at"))}
        for name, kind in crossing().items()
    }
    assert {name: names for name, names in found.items() if names != known[name]} == {}
    assert TIMES.keys() | DURATIONS.keys() <= found.keys()
    assert len(found) > 40


def with_times(kind: type[Struct], time_s: float, **more: Any) -> Any:
    """A message of this type whose times are all `time_s`, and its durations 7."""
    of_times = dict.fromkeys(TIMES.get(kind.__name__, ()), time_s)
    return kind(**of_times, **dict.fromkeys(DURATIONS.get(kind.__name__, ()), 7.0), **more)


def messages_at(time_s: float) -> list[Any]:
    """Messages that have all times of TIMES, at `time_s`."""
    hints = with_times(Hints, time_s, app="app")
    meta = with_times(AnswerMeta, time_s)
    names = {"client": b"client", "rid": "rid"}
    start = with_times(ReqStart, time_s, handle=1, meta=meta, **names)
    sampling = FilledParams()
    request = {"incarnation": 1, "input_ids": b"0123", "sampling": sampling, **names}
    return [
        with_times(TokenizedReq, time_s, hints=hints, **request),
        with_times(TokenizedReq, time_s, **request),
        with_times(TokenBatch, time_s, incarnation=1, starts=[start, start], facts={1: meta}),
        PauseSet(1, with_times(Pause, time_s, mode="retract")),
    ]


def times_in(value: Any) -> list[tuple[str, float]]:
    """All times in a message, with their structs' names; durations have to be as they were."""
    if isinstance(value, Struct):
        name, found = type(value).__name__, []
        for field in value.__struct_fields__:
            inner = getattr(value, field)
            if field in TIMES.get(name, ()):
                found.append((name, inner))
            elif field in DURATIONS.get(name, ()):
                assert inner in (0.0, 7.0)
            found += times_in(inner)
        return found
    if isinstance(value, dict):
        value = [*value.values()]
    return [each for part in value for each in times_in(part)] if isinstance(value, list) else []


def test_all_times_move_and_come_back() -> None:
    seen = set()
    for message in messages_at(1000.0):
        moved = rewrite(message, 250.0)
        found = times_in(moved)
        assert found and all(time_s == 1250.0 for _, time_s in found)
        assert rewrite(moved, -250.0) == message
        seen |= {name for name, _ in found}
        # The rest of the message is what it was, on the wire too.
        decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(moved), type=type(message))
        assert decoded == moved
    assert seen == set(TIMES)


def test_what_is_not_set_stays_so() -> None:
    for message in messages_at(0.0):
        assert rewrite(message, 250.0) == message
    plain = CacheSnapshotReq(1)
    assert rewrite(plain, 250.0) is plain
    over = PauseSet(1, replace(NO_PAUSE, before_s=5.0))
    assert rewrite(over, 250.0) is over


def test_times_from_before_the_other_machines_start() -> None:
    """Deadlines are on a clock that pauses are taken from: it may be below 0 by itself."""
    request = rewrite(messages_at(1000.0)[0], -5000.0)
    assert request.deadline_s == request.arrival_s == -4000.0
    assert request.hints.is_urgent and request.hints.due_s <= 1e-6
    assert rewrite(request, 5000.0).arrival_s == 1000.0
    # Exactly at its start is not "not set".
    assert rewrite(messages_at(1000.0)[0], -1000.0).deadline_s != 0.0


@pytest.mark.parametrize("seed", seeds(5))
def test_the_offset_is_as_wrong_as_half_a_trip_at_most(seed: int) -> None:
    rng = random.Random(seed)
    ahead, now, offset = rng.uniform(-1e6, 1e6), 50.0, Offset()
    assert (offset.seconds, offset.error_s) == (0.0, float("inf"))
    for _ in range(100):
        there, back = (rng.choice([1e-4, 5e-3, 1.0]) * rng.random() for _ in range(2))
        offset.add(now, now + there + ahead, now + there + back)
        now += 0.5
        assert abs(offset.seconds - ahead) <= offset.error_s + 1e-9
    assert offset.error_s < 0.005


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0, 0.5])
def test_a_clock_that_jumps_is_believed_at_once(jump_s: float) -> None:
    offset = Offset()
    for second in range(NUM_PINGS):
        offset.add(second, second + 10.0, second + 1e-4)
    offset.add(20.0, 30.0 + jump_s, 20.1)  # and a worse ping than those before
    assert offset.seconds == pytest.approx(10.0 + jump_s, abs=0.06)


def test_a_slow_ping_changes_nothing_and_old_ones_are_forgotten() -> None:
    offset = Offset()
    offset.add(0.0, 10.0001, 0.0002)
    offset.add(1.0, 11.9, 2.0)
    assert offset.seconds == pytest.approx(10.0)
    for second in range(2, 2 + NUM_PINGS):
        offset.add(second, second + 10.003, second + 0.004)
    assert offset.seconds == pytest.approx(10.001)
    offset.add(30.0, 40.0, 29.0)  # back before it was sent: nonsense
    assert offset.seconds == pytest.approx(10.001)
