"""Requests with a grammar enter the core once it is loaded, whatever happens meanwhile."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from scheduler_proc.core.invariants import check_invariants
from scheduler_proc.grammar.artefact import Artefact, write_artefact
from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.store import GrammarStore, Shared
from scheduler_proc.grammar.vocabulary import TokenVocabulary
from scheduler_proc.process.grammar_loading import MAX_RECALLS, GrammarIntake
from scheduler_proc.trace.recorded import replay
from srt.tasks import TaskSet
from srt.wire.errors import INTERNAL, TIMED_OUT_EARLY, UNAVAILABLE, ErrorInfo
from srt.wire.filled_params import FilledParams
from srt.wire.messages import Finish, pack_ids
from srt.wire.ring_messages import Abort, GrammarMade, TokenizedReq
from tests.no_files import no_files
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fake_executor import reference_output
from tests.scheduler_proc.fake_grammar import EOS, FakeGrammar
from tests.scheduler_proc.process.test_actor_steps import LoopOnly
from tests.waiting import SOON_S

PROMPT = [4, 5]


class Compiled:
    backend = "fake"
    num_bytes = 10
    narrows, fewest_tokens = True, 0

    def __init__(self, length: int) -> None:
        self.length = length

    def start(self) -> FakeGrammar:
        if self.length < 0:
            raise GrammarError("cannot start")
        return FakeGrammar(self.length)


class Intake(LoopOnly):
    """The scheduler's actor, without sockets, over a store whose loads wait for `gate`."""

    def __init__(self, directory: Path, trace: Path | None = None) -> None:
        super().__init__(Driver(max_total_tokens=500, trace=trace), overlap=True)
        self.incarnations = [0]
        self.gate = threading.Event()
        shared = Shared(TokenVocabulary.from_tokens([b"a"], [], []))
        self._grammars = GrammarStore(lambda: shared, directory, loader=self._read)
        self.recalled: list[str] = []
        self.failures: asyncio.Queue[BaseException] = asyncio.Queue()
        self._intake = GrammarIntake(
            self._grammars,
            self._entry,
            self.recalled.append,
            TaskSet(self.failures.put_nowait),
            self._blame,
        )
        for length in (9, 5):
            facts = {"length": length}
            artefact = Artefact("fake", facts, {"a": np.arange(2)})
            write_artefact(directory / f"g{length}", artefact)
        write_artefact(directory / "broken", Artefact("fake", {}, {}))
        write_artefact(directory / "stuck", Artefact("fake", {"length": -1}, {}))

    def _read(self, artefact: Artefact, vocabulary: TokenVocabulary) -> Any:
        assert self.gate.wait(10)
        return Compiled(artefact.facts["length"])

    async def until_recalled(self, *keys: str) -> None:
        """Wait until exactly these grammars have been asked for since the last call."""
        async with asyncio.timeout(SOON_S):
            while len(self.recalled) < len(keys):
                await asyncio.sleep(0.001)
        assert self.recalled == list(keys)
        self.recalled.clear()

    async def until_entered(self) -> None:
        async with asyncio.timeout(SOON_S):
            while len(self._intake):
                await asyncio.sleep(0.001)


@pytest.fixture
def actor(tmp_path: Path) -> Intake:
    return Intake(tmp_path)


def request(
    rid: str, grammar: str = "g9", client: bytes = b"c", incarnation: int = 0
) -> TokenizedReq:
    return TokenizedReq(
        client=client,
        rid=rid,
        incarnation=incarnation,
        input_ids=pack_ids(PROMPT),
        sampling=FilledParams(max_new_tokens=30, temperature=0),
        eos_ids=[EOS],
        grammar=grammar,
    )


def bound(length: int) -> list[int]:
    return reference_output(PROMPT, 30, frozenset([EOS]), grammar=FakeGrammar(length))


async def test_a_request_waits_for_its_grammar_and_nobody_else_does(actor: Intake) -> None:
    for message in (request("1"), request("free", ""), request("2"), request("3", "g5")):
        actor._on_message(message)
    assert (len(actor._intake), actor.in_flight) == (3, 4)
    await actor.serve()
    assert list(actor.driver.outputs) == ["free"]
    actor.gate.set()
    await actor.until_entered()
    actor._on_message(request("4"))  # its grammar is loaded now: no waiting
    assert len(actor._intake) == 0
    again = LoopOnly(actor.driver, overlap=True)
    await again.serve()
    expected = {"1": bound(9), "2": bound(9), "3": bound(5), "4": bound(9)}
    assert {rid: ids for rid, ids in actor.driver.outputs.items() if rid != "free"} == expected
    check_invariants(actor.driver.core)


async def test_an_abort_while_it_loads(actor: Intake) -> None:
    for rid in "12":
        actor._on_message(request(rid))
    actor._on_message(request("1", client=b"d"))
    actor._on_message(Abort(b"c", "1", 0))
    assert actor.driver.finishes == {"1": Finish("abort")} and actor.in_flight == 2
    actor._on_message(Abort(b"c", "1", 0))
    actor.gate.set()
    await actor.until_entered()
    assert len(actor._core.state.waiting) == 2


async def test_a_deadline_holds_while_it_loads(actor: Intake) -> None:
    late = replace(request("late"), deadline_s=time.monotonic() + 0.01)
    actor._on_message(late)
    actor._on_message(request("patient"))
    async with asyncio.timeout(SOON_S):
        while not actor.driver.finishes:
            await asyncio.sleep(0.001)
    assert actor.driver.finishes == {"late": Finish("abort", error=TIMED_OUT_EARLY)}
    assert len(actor._intake) == 1
    actor.gate.set()


async def test_a_new_epoch_while_it_loads(actor: Intake) -> None:
    actor._on_message(request("1"))
    actor.incarnations = [1]
    actor.new_epoch()
    actor.gate.set()
    await actor._grammars.load("g9")
    await asyncio.sleep(0)
    assert actor.in_flight == 0 and actor.driver.finishes == {}
    actor._on_message(request("1"))  # of the old epoch
    assert actor.in_flight == 0
    actor._on_message(request("1", incarnation=1))
    assert actor.in_flight == 1


@pytest.mark.parametrize(
    ("key", "reason"),
    [("broken", "cannot be loaded"), ("stuck", "cannot start")],
)
async def test_a_grammar_that_cannot_be_loaded(actor: Intake, key: str, reason: str) -> None:
    actor.gate.set()
    actor._on_message(request("1", key))
    actor._on_message(request("2"))
    await actor.until_entered()
    finish = actor.driver.finishes["1"]
    assert finish.type == "abort" and finish.error is not None
    assert finish.error.code == INTERNAL and reason in finish.error.message
    await actor.serve()
    assert actor.driver.outputs == {"2": bound(9)}


@pytest.mark.parametrize("content", [None, b"", b"damaged", b"\0" * 10_000])
async def test_a_missing_or_damaged_grammar_is_made_again(
    actor: Intake, tmp_path: Path, content: bytes | None
) -> None:
    """It is asked for once for all requests that want it; other requests do not wait."""
    artefact = tmp_path / "g9"
    whole = artefact.read_bytes()
    if content is None:
        artefact.unlink()
    else:
        artefact.write_bytes(content)
    actor.gate.set()
    for rid, key in (("1", "g9"), ("2", "g9"), ("3", "g5"), ("4", "g9")):
        actor._on_message(request(rid, key))
    await actor.until_recalled("g9")
    assert not artefact.exists()
    actor._on_message(Abort(b"c", "4", 0))
    async with asyncio.timeout(SOON_S):
        while len(actor._core.state.waiting) < 1:
            await asyncio.sleep(0.001)
    artefact.write_bytes(whole)
    actor._on_message(GrammarMade("g9", 0))
    actor._on_message(GrammarMade("other", 0))
    actor._on_message(request("5"))
    await actor.until_entered()
    await actor.serve()
    assert actor.driver.finishes["4"] == Finish("abort") and actor.recalled == []
    outputs = actor.driver.outputs
    assert {rid: outputs[rid] for rid in "1235"} == dict.fromkeys("125", bound(9)) | {"3": bound(5)}


async def test_no_file_left_is_no_fault_of_a_grammar(actor: Intake, tmp_path: Path) -> None:
    """The request may be sent again, and the grammar is not made again."""
    actor.gate.set()
    with no_files():
        actor._on_message(request("1"))
        await actor.until_entered()
    error = actor.driver.finishes["1"].error
    assert error is not None and error.code == UNAVAILABLE and error.retryable
    assert "(Too many open files)" in error.message and str(tmp_path) not in error.message
    actor._on_message(request("2"))
    await actor.until_entered()
    await actor.serve()
    assert actor.driver.outputs == {"2": bound(9)} and actor.recalled == []


async def test_a_grammar_that_cannot_be_made_again(actor: Intake) -> None:
    """Either the front says so, or it goes missing again and again."""
    error = ErrorInfo(UNAVAILABLE, "the grammar compiler does not answer", retryable=True)
    actor.gate.set()
    actor._on_message(request("1", "missing"))
    await actor.until_recalled("missing")
    actor._on_message(GrammarMade("missing", 0, error))
    await actor.until_entered()
    assert actor.driver.finishes["1"] == Finish("abort", error=error)
    actor._on_message(request("2", "missing"))
    for _ in range(MAX_RECALLS):
        await actor.until_recalled("missing")
        actor._on_message(GrammarMade("missing", 0))
    await actor.until_entered()
    finish = actor.driver.finishes["2"]
    assert finish.error is not None and "cannot be read" in finish.error.message


async def test_a_new_epoch_while_it_is_made_again(actor: Intake) -> None:
    actor.gate.set()
    actor._on_message(request("1", "missing"))
    await actor.until_recalled("missing")
    actor.incarnations = [1]
    actor.new_epoch()
    actor._on_message(request("1", "missing", incarnation=1))
    await actor.until_recalled("missing")
    actor._on_message(GrammarMade("missing", 0))  # of the old epoch
    await asyncio.sleep(0.01)
    assert actor.in_flight == 1 and actor.recalled == []


async def test_a_defect_of_the_core_is_not_swallowed(
    actor: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("of the core")

    monkeypatch.setattr(actor._core, "add", broken)
    actor.gate.set()
    actor._on_message(request("1"))
    failure = await asyncio.wait_for(actor.failures.get(), SOON_S)
    assert isinstance(failure, ZeroDivisionError)


async def test_a_trace_with_grammars_replays(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    actor = Intake(tmp_path, trace)
    for rid, key in (("1", "g9"), ("2", "g5"), ("3", "missing"), ("4", "g9"), ("5", "")):
        actor._on_message(request(rid, key))
    actor._on_message(Abort(b"c", "4", 0))
    actor.gate.set()
    await actor.until_recalled("missing")
    actor._on_message(GrammarMade("missing", 0, ErrorInfo(UNAVAILABLE, "no compiler")))
    await actor.until_entered()
    await actor.serve()
    actor.driver.close()
    assert actor.driver.outputs["1"] == bound(9) and set(actor.driver.finishes) == set("12345")
    lengths = {"g9": 9, "g5": 5}
    again = replay(trace, lambda req: FakeGrammar(lengths[req.grammar]))
    assert again.state.counters == actor._core.state.counters
    with pytest.raises(AssertionError):
        replay(trace, lambda req: FakeGrammar(lengths[req.grammar] + 1))
    with pytest.raises(ValueError, match="grammars"):
        replay(trace)
