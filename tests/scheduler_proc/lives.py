"""Schedulers that die, one after the other, and the front that judges what they leave."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from scheduler_proc.batch import ForwardBatch, StepResult
from scheduler_proc.core.steps.step import Row, Step
from scheduler_proc.crash.journal import Blame
from srt.ring.crash_file import Left, Name, left_by
from srt.wire.filled_params import FilledParams
from srt.wire.messages import pack_ids
from srt.wire.ring_messages import Progress, Reported, TokenizedReq
from tests.scheduler_proc.driver import Driver
from tests.scheduler_proc.fake_executor import FakeExecutor
from tests.tokenizer_proc.dispatch.test_relay import OneRelay, opened

CLIENT = b"c"


class Deadly(Exception):
    """The process dies, at once."""


Kills = Callable[[Row], bool]


class Process:
    """A scheduler that leaves what it is at, and whose executor dies of rows that `kills` tells."""

    def __init__(
        self,
        directory: Path,
        incarnation: int = 1,
        lag: int = 0,
        kills: Kills = lambda row: False,
        crashes: bool = True,
    ) -> None:
        process = self

        class Executor(FakeExecutor):
            def run(self, batch: ForwardBatch) -> StepResult:
                assert process.step is not None
                rows = process.step.rows
                process.blame.begin(process.step)
                process.batches.append([row.req.key[1] for row in rows])
                if any(map(kills, rows)):
                    if crashes:
                        process.blame.own_up("crashed")
                    raise Deadly
                return super().run(batch)

        self.driver = Driver(lag, executor=Executor(4000, 4096), max_total_tokens=4000)
        core = self.driver.core
        self.blame = Blame(directory, incarnation, core, is_wary=incarnation > 1)
        self.batches: list[list[str]] = []
        self.step: Step | None = None
        seal, commit = core.seal, core.commit

        def sealed(plan: Any) -> Any:
            self.step = seal(plan)
            return self.step

        def committed(step: Step, result: StepResult) -> None:
            commit(step, result)
            self.blame.end(step)

        core.seal, core.commit = sealed, committed  # type: ignore[method-assign]

    def add(self, wire: TokenizedReq) -> bool:
        """Whether it is let in."""
        if self.blame.takes(wire):
            return False
        self.driver.core.add(wire, self.driver.now)
        return True


def request(rid: str, prompt: list[int], max_new: int = 6) -> TokenizedReq:
    sampling = FilledParams(max_new_tokens=max_new, temperature=0)
    return TokenizedReq(CLIENT, rid, 0, pack_ids(prompt), sampling)


class Lives:
    """Of the requests `told`: their outputs so far. `ended` are those that were found guilty."""

    def __init__(self, directory: Path, prompts: dict[str, list[int]], max_new: int = 6) -> None:
        self.directory, self.incarnation = directory, 1
        self.told: dict[str, list[int]] = {rid: [] for rid in prompts}
        self.ended: list[str] = []
        self.relay: OneRelay = opened()
        self.relay.sends(*(request(rid, prompt, max_new) for rid, prompt in prompts.items()))

    @property
    def open(self) -> list[str]:
        return [kept.req.rid for kept in self.relay.requests]

    def live(self, process: Process) -> None:
        """Let the process have all requests, and take what it tells of them until it dies."""
        for wire in self.relay.requests_taken():
            if not process.add(wire):
                self.ended.append(wire.rid)
                self.relay.credit((CLIENT, wire.rid))
        with suppress(Deadly):
            process.driver.run()
        self.take(process)

    def take(self, process: Process) -> None:
        """Take what a process has told."""
        for rid, ids in process.driver.outputs.items():
            self.told[rid] += ids
        for rid in process.driver.finishes:
            self.relay.credit((CLIENT, rid))

    def next(self) -> tuple[Left, list[Name]]:
        """The process is lost: what it has left, and who is guilty. The next one may come."""
        left = left_by(self.directory, self.incarnation)
        self.incarnation += 1
        guilty = self.relay.loses(self.incarnation, left)
        progress = [Progress(CLIENT, rid, Reported(pack_ids(self.told[rid]))) for rid in self.open]
        self.relay.next_one(self.incarnation, progress)
        return left, guilty


class Outcome(NamedTuple):
    """What became of requests: their outputs, who was ended as guilty, and how many schedulers
    died."""

    outputs: dict[str, list[int]]
    ended: list[str]
    deaths: int


def live(
    directory: Path,
    prompts: dict[str, list[int]],
    kills: Kills,
    lag: int,
    max_new: int = 6,
    crashes: bool = True,
) -> Outcome:
    """One scheduler after the other, each with all requests that have not ended, until all have."""
    lives = Lives(directory, prompts, max_new)
    for deaths in range(50):
        lives.live(Process(directory, lives.incarnation, lag, kills, crashes))
        if not lives.open:
            outputs = {rid: ids for rid, ids in lives.told.items() if rid not in lives.ended}
            return Outcome(outputs, lives.ended, deaths)
        lives.next()
    raise AssertionError("the processes die for ever")
