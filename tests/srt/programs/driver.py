"""Drives the core of programs in tests: a client, a clock, and a model whose texts follow from its
prompts."""

import hashlib
import random
from collections.abc import Callable
from typing import Any

from srt.programs.core import Core
from srt.programs.parts import CallWork, Session, TransformWork, Variable, Work
from srt.programs.prompts import request_of
from srt.wire.errors import CONFLICT, RequestError
from srt.wire.program_messages import (
    CancelVar,
    CloseSession,
    EndGet,
    GetVars,
    OpenSession,
    ProgramsRefused,
    ReadVar,
    SetVar,
    SubmitProgram,
    VarsGrew,
    VarsTold,
)
from srt.wire.programs import OutputMeta, Program, VarInfo

WORDS = ("red", "blue", "no", "yes", '{"a": ["x", 2]}', "7", "", "ünï")
CLIENT = b"client"


def model_text(prompt: str, choices: list[str]) -> str | None:
    """What the model writes after `prompt`; None where the request fails."""
    number = int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:4], "big")
    if choices:
        return choices[number % len(choices)]
    return None if number % 9 == 0 else WORDS[number % len(WORDS)] + WORDS[number // 64 % 8]


class Running:
    """A call that has been started: its present output, and what is left to write of it."""

    def __init__(self, core: Core, work: Work) -> None:
        self.core, self.work = core, work
        self.index = -1
        self.left: list[str] = []
        self.fails = False
        self.is_over = False

    def advance(self) -> None:
        """One event of it: a piece of text, an end, or a failure."""
        graph = self.core.graph
        if self.is_over:
            return
        if self.index < 0 or self.work.outputs[self.index].has_ended:
            self.index += 1
            if self.index == len(self.work.outputs) or not graph.runs(
                self.work.outputs[self.index]
            ):
                self.end()
                return
            self._begin()
            return
        var = self.work.outputs[self.index]
        if self.left:
            graph.grow(var, self.left.pop(0))
        elif self.fails:
            if not graph.fail(var, RequestError("the model fails", code=CONFLICT).info):
                self.end()
        else:
            graph.finish(var, OutputMeta())

    def _begin(self) -> None:
        if isinstance(self.work, TransformWork):
            self.left = ["tokens"]
            return
        assert isinstance(self.work, CallWork)
        request = request_of(self.work, self.index)
        prompt = request.text if request.text is not None else repr(request.messages)
        text = model_text(prompt, self.work.asked[self.index].choices)
        self.fails = text is None
        half = len(text or "") // 2
        self.left = [] if text is None else [piece for piece in (text[:half], text[half:]) if piece]

    def end(self) -> None:
        self.is_over = True
        self.core.has_run(self.work)


class Driver:
    """A core, and one client of it. `tell` hears each message to the client."""

    def __init__(self, max_running: int = 8, max_of_caller: int = 8) -> None:
        self.core = Core(max_running, max_of_caller)
        self.now = 0.0
        self.running: list[Running] = []
        self.told: dict[str, list[Any]] = {}
        self.released: set[str] = set()  # ended when nothing needed them
        self._ended: dict[str, tuple[str, str]] = {}
        self._last = 0

    # ---- questions -----------------------------------------------------------------------------

    def ask(self, kind: Callable[..., Any], *args: Any, tenant: str = "", **fields: Any) -> Any:
        """The answer. Raises RequestError if the question is refused."""
        rid = self.post(kind, *args, tenant=tenant, **fields)
        (answer,) = self.told[rid]
        return answer

    def post(self, kind: Callable[..., Any], *args: Any, tenant: str = "", **fields: Any) -> str:
        """Ask without waiting; returns the id, under which `told` has what comes."""
        self._last += 1
        rid = str(self._last)
        self.told[rid] = []
        self.core.handle(CLIENT, kind(rid, *args, tenant=tenant, **fields), self.now)
        self.deliver()
        for answer in self.told[rid]:
            if isinstance(answer, ProgramsRefused):
                raise RequestError.from_info(answer.error)
        return rid

    def open(self, tenant: str = "", **fields: Any) -> str:
        session: str = self.ask(OpenSession, tenant=tenant, **fields).session.id
        return session

    def submit(
        self, session: str, program: Program, key: str = "", tenant: str = ""
    ) -> dict[str, str]:
        ids: dict[str, str] = self.ask(SubmitProgram, session, program, key=key, tenant=tenant).vars
        return ids

    def get(self, names: list[str], tenant: str = "", **fields: Any) -> str:
        return self.post(GetVars, names, tenant=tenant, **fields)

    def end_get(self, rid: str) -> None:
        self.core.handle(CLIENT, EndGet(rid), self.now)

    def read(self, name: str, tenant: str = "") -> VarInfo:
        told: VarsTold = self.ask(ReadVar, name, tenant=tenant)
        return told.vars[0]

    def set(self, name: str, text: str, tenant: str = "") -> VarInfo:
        told: VarsTold = self.ask(SetVar, name, text, tenant=tenant)
        return told.vars[0]

    def cancel(self, name: str, tenant: str = "") -> VarInfo:
        told: VarsTold = self.ask(CancelVar, name, tenant=tenant)
        return told.vars[0]

    def close(self, session: str, tenant: str = "") -> None:
        self.ask(CloseSession, session, tenant=tenant)

    # ---- what goes on --------------------------------------------------------------------------

    def step(self, rng: random.Random | None = None) -> bool:
        """One piece of work, of the core or of a running call; False if there is none."""
        core = self.core
        while core.stops:
            work = core.stops.popleft()
            for each in self.running:
                if each.work is work and not each.is_over:
                    each.end()
        while (started := core.next_start()) is not None:
            self.running.append(Running(core, started))
        self.running = [each for each in self.running if not each.is_over]
        if core.graph.has_work and (not self.running or rng is None or rng.random() < 0.5):
            core.graph.step()
        elif self.running:
            (rng.choice(self.running) if rng else self.running[0]).advance()
        else:
            self.deliver()
            return core.graph.has_work or bool(core.stops)
        self.check()
        self.deliver()
        return True

    def run(self, rng: random.Random | None = None) -> None:
        """Until nothing is left to do."""
        for _ in range(100_000):
            if not self.step(rng):
                return
        raise AssertionError("it does not come to an end")

    def deliver(self) -> None:
        """Take the core's answers."""
        self.core.gets.tell(self.now)
        while self.core.answers:
            answer: Any = self.core.answers.popleft()[1]
            self.told[answer.rid].append(answer)

    def text_of(self, rid: str) -> dict[str, str]:
        """What a streaming get has been told, by variable."""
        texts: dict[str, str] = {}
        for message in self.told[rid]:
            if isinstance(message, VarsGrew):
                for var, delta in message.pieces:
                    texts[var] = texts.get(var, "") + delta
        return texts

    def got(self, rid: str) -> VarsTold | None:
        """The last word of a get."""
        last = self.told[rid][-1] if self.told[rid] else None
        return last if isinstance(last, VarsTold) else None

    @property
    def sessions(self) -> list[Session]:
        return list(self.core._sessions.values())

    @property
    def variables(self) -> list[Variable]:
        return list(self.core._vars.values())

    def check(self) -> None:
        """What holds after every step."""
        seen = self._ended
        for var in self.variables:
            if var.id in seen:
                assert seen[var.id] == (var.state, var.text), "an end is final"
            elif var.has_ended:
                seen[var.id] = (var.state, var.text)
                if var.state == "cancelled" and not (var.is_wanted or var.gets):
                    if all(work.ended for work in var.consumers):
                        self.released.add(var.id)
            assert not (var.has_ended and var.gets)
            if var.work is not None and var.has_ended and var.work.ended:
                assert all(each.has_ended for each in var.work.outputs)
        active = {w for s in self.sessions for w in s.works if w.active and not w.ended}
        assert set(self.core.graph.objectives._places) == active
        for session in self.sessions:
            taken = sum(len(v.text) for v in session.vars.values() if v.text.isascii())
            assert session.size >= taken
