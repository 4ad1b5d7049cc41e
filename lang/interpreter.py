"""Performs one state's primitives, in order, without a thread of its own.

`submit` never waits. Text is appended at once, in the caller's thread, if nothing is before it;
what must wait (gens, selects, joins) is done by one task on the background loop, which exists only
while there is work. `_owned` says that somebody performs the queue; only the owner changes the
state. The queue of a fork's child opens when the fork has been performed.

After an error everything later is skipped: its variables fail with the first error, and barriers
pass. So every variable is settled in the end, whatever happens, and no wait can hang.
"""

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from lang import calls, loop, marks
from lang.backends.base import Image, Message, Prompt
from lang.errors import CancelledError, UnsupportedError
from lang.ir import (
    Expr,
    ExprList,
    Gen,
    Media,
    Part,
    RoleBegin,
    RoleEnd,
    Score,
    Select,
    SeparateReasoning,
    VarScopeBegin,
    VarScopeEnd,
)
from lang.program import Program
from lang.sampling import derived_seed
from lang.trace import Fork as ForkTrace
from lang.trace import Trace
from lang.work import Barrier, Fork, Join, Primitive, Slot


class Interpreter:
    """The state of one stream of a program. A child begins closed, until its fork opens it.

    The seeds of its calls follow from `seed` and their numbers; a child has one of its own.
    """

    def __init__(
        self, program: Program, parent: "Interpreter | None" = None, seed: int | None = None
    ) -> None:
        self.program = program
        self.seed = program.defaults.seed if parent is None else seed
        self.calls = itertools.count()
        self.copies = itertools.count()  # that were pickled: each has a seed of its own
        self.text = ""
        self.messages: list[Message] = []
        self.role = ""
        self.role_start = 0
        self.literal: list[tuple[int, int]] = []  # of the text, what closed roles hold
        self.said_default_system = False
        self.images: list[Image] = []
        self.role_images: list[Image] = []
        self.start_chars = 0  # of the text, the parent's
        self.start_messages = 0
        self.error: BaseException | None = None
        self.trace = Trace([])
        self.variables: dict[str, Slot] = {} if parent is None else dict(parent.variables)
        self.inherited = frozenset(self.variables.values())
        self._scopes: dict[str, int] = {}
        self._unnamed: int = 0 if parent is None else parent._unnamed
        self._forks = itertools.count()
        self.children: list[Interpreter] = []  # of streaming runs, whose forks can be watched
        self._watched_by = parent if program.streaming else None
        self._lock = threading.Lock()
        self._queue: deque[Primitive] = deque()
        self._owned = False
        self._opened = parent is None
        self._task: asyncio.Task[None] | None = None
        self._waiting = False
        self._watchers: list[Future[None]] = []

    # ---- submission ----------------------------------------------------------------------------

    def submit(self, part: Part) -> None:
        """Queue `part`; what it will write can be waited for from now on."""
        if isinstance(part, str) and marks.has_mark(part):
            part = ExprList([part])
        if isinstance(part, ExprList):
            for each in part.parts:
                self.submit(each)
            return
        slots = () if isinstance(part, str) else tuple(map(self._declare, part.names))
        self._push(Primitive(part, slots))

    def ask(self, part: Expr) -> Slot:
        """Submit `part`, which writes one variable, under no name that anyone else could read."""
        slot = Slot(type(part).__name__.lower())
        self._push(Primitive(part, (slot,)))
        return slot

    def new_names(self) -> list[str]:
        """The named variables that this child was given by its own primitives."""
        slots = self.variables.items()
        return [name for name, slot in slots if slot not in self.inherited and name[:1] != "<"]

    def barrier(self) -> "Future[Any]":
        """Done when everything submitted so far has been performed or skipped."""
        slot = Slot("")
        self._push(Primitive(Barrier(), (slot,)))
        return slot.done

    def write(self, name: str, value: Any) -> None:
        """Set a variable. It is there at once, and later gens of that name still replace it."""
        slot = Slot(name)
        slot.text = value if isinstance(value, str) else ""
        slot.done.set_result(value)
        self.variables[name] = slot
        self.notify()

    def fork(self, size: int) -> "list[Interpreter]":
        """`size` children that go on from here, each on its own."""
        fork = next(self._forks)
        seeds = [derived_seed(self.seed, "fork", fork, i) for i in range(size)]
        children = [Interpreter(self.program, self, seed) for seed in seeds]
        if self.program.streaming:
            self.children += children
        self._push(Primitive(Fork(children)))
        return children

    def _declare(self, name: str | None) -> Slot:
        if name is None:
            self._unnamed += 1
            name = f"<{self._unnamed}>"
        slot = self.variables[name] = Slot(name)
        return slot

    def _push(self, primitive: Primitive) -> None:
        with self._lock:
            self._queue.append(primitive)
            if self._owned or not self._opened:
                return
            self._owned = True
        self._go()

    def _go(self) -> None:
        """The owner's work, up to where it must wait; the rest is the loop's."""
        if not self._perform_immediate():
            self.program.begin_work(self)
            loop.soon(self._start)
        self.notify()

    def _start(self) -> None:
        self._task = asyncio.ensure_future(self._work())

    # ---- watching ------------------------------------------------------------------------------

    @property
    def failure(self) -> BaseException | None:
        """The first error of this state, or what ended the whole run."""
        return self.error or self.program.ended_by

    @property
    def is_open(self) -> bool:
        """Whether a fork's state has what it begins with."""
        return self._opened

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to perform."""
        return self._opened and not self._owned

    def change(self) -> "Future[None]":
        """Done when there is more text, another variable, or an end, of this state or of its forks
        if the run streams. Ask before looking."""
        future: Future[None] = Future()
        with self._lock:
            self._watchers.append(future)
        return future

    def notify(self) -> None:
        """Wake those who watch."""
        if self._watchers:
            with self._lock:
                watchers, self._watchers = self._watchers, []
            for watcher in watchers:
                watcher.set_result(None)
        if self._watched_by is not None:
            self._watched_by.notify()

    # ---- the owner's side ----------------------------------------------------------------------

    def _perform_immediate(self) -> bool:
        """Perform all that need not wait; False when something has to. True gives the queue up."""
        while True:
            with self._lock:
                if not self._queue:
                    self._owned = False
                    return True
                primitive = self._queue[0]
                if self._must_wait(primitive.expr):
                    return False
                self._queue.popleft()
            self._perform(primitive)

    def _must_wait(self, part: Part) -> bool:
        if self.failure is not None:
            return False
        if isinstance(part, RoleBegin):
            return self.program.template is None
        return isinstance(part, Gen | Select | Score | Join | SeparateReasoning)

    async def _work(self) -> None:
        try:
            while True:
                await self._perform_waiting(self._queue.popleft())
                if self._perform_immediate():
                    break
        finally:
            self.program.end_work(self)
            self.notify()

    async def _perform_waiting(self, primitive: Primitive) -> None:
        """One primitive that may wait. Whatever happens, its variables are settled."""
        part = primitive.expr
        self._waiting = True
        try:
            if self.failure is None:
                await self._await(part, primitive.slots)
                self._perform(primitive)
        except asyncio.CancelledError:
            self.fail(self.program.ended_by or CancelledError("the program was cancelled"))
        except Exception as error:
            self.fail(error)
        self._waiting = False
        self._settle(primitive)

    async def _await(self, part: Part, slots: Sequence[Slot]) -> None:
        if isinstance(part, RoleBegin):
            await self.program.find_template()
        elif isinstance(part, Gen):
            await calls.generate(self, part, slots[0])
        elif isinstance(part, Select):
            await calls.select(self, part, slots[0])
        elif isinstance(part, Score):
            await calls.score(self, part, slots[0])
        elif isinstance(part, SeparateReasoning):
            await calls.separate_reasoning(self, part, slots)
        elif isinstance(part, Join):
            for child in part.children:
                await loop.arrival(child.barrier())
            self._gather(part, slots)

    def _perform(self, primitive: Primitive) -> None:
        """What needs no waiting, or what is left when it has been waited for."""
        part = primitive.expr
        if isinstance(part, Fork):
            self._open(part.children)
        elif self.failure is None:
            try:
                self._append(part, primitive.slots)
            except Exception as error:
                self.fail(error)
        self._settle(primitive)

    def _settle(self, primitive: Primitive) -> None:
        failure = self.failure
        if isinstance(primitive.expr, Fork) and failure is not None:
            self._open(primitive.expr.children)
        for slot in primitive.slots:
            if slot.done.done():
                continue
            if isinstance(primitive.expr, Barrier):
                slot.done.set_result(None)
            else:
                slot.done.set_exception(failure or CancelledError("the value was never written"))
        self.notify()

    def _append(self, part: Part, slots: Sequence[Slot]) -> None:
        if isinstance(part, str):
            self.text += part
        elif isinstance(part, RoleBegin):
            self._begin_role(part.role)
        elif isinstance(part, RoleEnd):
            self._end_role(part.role)
        elif isinstance(part, VarScopeBegin):
            self._scopes[part.name] = len(self.text)
        elif isinstance(part, VarScopeEnd):
            self.settle(slots[0], self.text[self._scopes.pop(part.name) :])
        elif isinstance(part, Media):
            self._add_media(part.image)

    def _begin_role(self, role: str) -> None:
        template = self.program.template
        assert template is not None, "roles wait for the template"
        if self.role:
            raise ValueError(f"Nested roles are not allowed: {role!r} inside of {self.role!r}")
        default = template.default_system
        if not self.messages and role != "system" and default is not None:
            self.text += template.prefix("system") + default + template.suffix("system")
            self.said_default_system = True
        self.text += template.prefix(role)
        self.role, self.role_start = role, len(self.text)

    def _end_role(self, role: str) -> None:
        template = self.program.template
        if self.role != role or template is None:
            raise ValueError(f"the role {role!r} ends, but the open one is {self.role!r}")
        content = self.text[self.role_start :].lstrip()
        self.literal = self._literal_spans()
        self.messages.append(Message(role, content, tuple(self.role_images)))
        self.text += template.suffix(role)
        self.role, self.role_images = "", []

    def _add_media(self, image: Image) -> None:
        backend = self.program.backend
        if not backend.capabilities.images:
            raise UnsupportedError(image.kind, f"{type(backend).__name__} takes text only")
        self.images.append(image)
        self.role_images.append(image)

    # ---- forks ---------------------------------------------------------------------------------

    def _open(self, children: "Sequence[Interpreter]") -> None:
        """Give every child this state as it is, its error included."""
        unopened = [child for child in children if not child._opened]
        if unopened:
            self.trace.steps.append(ForkTrace([child.trace for child in children]))
        for child in unopened:
            child.text, child.messages = self.text, list(self.messages)
            child.role, child.role_start = self.role, self.role_start
            child.literal = list(self.literal)
            child.said_default_system = self.said_default_system
            child.images, child.role_images = list(self.images), list(self.role_images)
            child.start_chars, child.start_messages = len(self.text), len(self.messages)
            child.error = self.failure
            with child._lock:
                child._opened = child._owned = True
            child._go()

    def _gather(self, join: Join, slots: Sequence[Slot]) -> None:
        for child in join.children:
            if child.failure is not None:
                raise child.failure
        if join.texts:
            for child in join.children:
                moved, start = len(self.text) - child.start_chars, child.start_chars
                self.literal += [
                    (max(begin, start) + moved, end + moved)
                    for begin, end in child._literal_spans()
                    if end > start
                ]
                self.text += child.text[child.start_chars :]
                self.messages += child.messages[child.start_messages :]
        for slot in slots:
            found = [child.variables.get(slot.name) for child in join.children]
            values = [each.done.result() if each and each.done.done() else None for each in found]
            self.settle(slot, values)

    # ---- for `calls` ---------------------------------------------------------------------------

    def prompt(self) -> Prompt:
        """Everything so far, as a back end wants it."""
        open_text = self.text[self.role_start :] if self.role else ""
        images, spans = tuple(self.images), tuple(self._literal_spans())
        return Prompt(self.text, tuple(self.messages), self.role, open_text, images, spans)

    def _literal_spans(self) -> list[tuple[int, int]]:
        """The parts of the text that roles hold, the open one among them."""
        if not self.role:
            return self.literal
        before = [span for span in self.literal if span[1] <= self.role_start]
        return [*before, (self.role_start, len(self.text))]

    def new_slot(self, name: str | None) -> Slot:
        """A variable that no name leads to."""
        return Slot(name or "")

    async def perform_inner(self, part: Part) -> None:
        """A part of another primitive: what would be queued is performed here and now."""
        names = () if isinstance(part, str) else part.names
        slots = tuple(map(self._declare, names))
        await self._await(part, slots)
        self._append(part, slots)

    def grow(self, slot: Slot, text: str) -> None:
        """More of a gen's text."""
        if text:
            self.text += text
            slot.text += text
            self.notify()

    def settle(self, slot: Slot, value: Any) -> None:
        """A variable has its value."""
        slot.text = value if isinstance(value, str) else slot.text
        slot.done.set_result(value)

    def fail(self, error: BaseException) -> None:
        """Keep the first error; from here on everything is skipped."""
        if self.error is None:
            self.error = error

    def cancel(self, error: BaseException) -> None:
        """End what is being performed (on the loop's thread)."""
        self.fail(error)
        # A task that was cancelled before its first step would never settle anything.
        if self._waiting and self._task is not None:
            self._task.cancel()
