"""The contents of one state of a program: its text, turns, images, variables and trace.

Primitives change it, one at a time; a `Worker` decides when. Nothing here waits.
"""

import base64
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from lang.backends.base import Image, Prompt, Turn
from lang.backends.sampling import derived_seed
from lang.backends.shown import in_order
from lang.errors import UnsupportedError
from lang.logs.address import Address, Path, Step
from lang.logs.reports.waits import NO_CALLS, Waits
from lang.run.program import Program
from lang.run.trace import Trace

# What a fork's child begins with: the prompt so far, in characters of `text` and in turns.
SAID = (*("text", "messages", "role", "role_start", "literal", "images", "said_default_system"),)


class Slot:
    """A variable: settled once, with a value or an error. `text` grows while it streams. What made
    it had `waits`, which `after` has of when it was settled."""

    __slots__ = ("_waits", "after", "done", "meta", "name", "text")

    def __init__(self, name: str, waits: Waits | None = None) -> None:
        self.name = name
        self._waits, self.after = waits, NO_CALLS
        self.text = ""
        self.meta: dict[str, Any] | None = None
        self.done: Future[Any] = Future()

    def settle(self, value: Any) -> None:
        """Give the variable its value."""
        self.text = value if isinstance(value, str) else self.text
        if self._waits is not None:
            self.after = self._waits.calls
        self.done.set_result(value)


class Stream:
    """One state's part of a run. `changed` is called whenever there is more to read.

    What it does is numbered in the order of the source: see `step`. `path` leads to it. `at` and
    `source` are the number, and the file and line, of what is being performed. `has_left` says that
    it has left what the run's log has.
    """

    def __init__(
        self, program: Program, changed: Callable[[], None], numbers: Iterator[int]
    ) -> None:
        self.program = program
        self.changed = changed
        self.seed = program.defaults.seed
        self.path: Path = program.place.path
        self.at, self.source, self.has_left = 0, "", False
        self._numbers = numbers
        self._copies = itertools.count()  # which change no number
        self._told = 0  # how much of the text the trace has
        self.text = ""
        self.messages: list[Turn] = []
        self.role = ""
        self.role_start = 0
        self.literal: list[tuple[int, int]] = []  # parts of the text that closed roles hold
        self.said_default_system = False
        self.images: list[tuple[int, Image]] = []  # with their places in the text
        self.start_chars = 0  # the parent's part of the text
        self.start_messages = self.start_images = 0
        self.error: BaseException | None = None
        self.waits = Waits()
        self.trace = Trace([])
        self.variables: dict[str, Slot] = {}
        self.scopes: dict[str, int] = {}  # where the open scopes begin in the text
        self._inherited: frozenset[Slot] = frozenset()
        self._unnamed: int = 0

    # ---- its place -----------------------------------------------------------------------------

    def step(self, count: int = 1) -> int:
        """The number of what comes next, which takes `count` of them."""
        first = next(self._numbers)
        for _ in range(count - 1):
            next(self._numbers)
        return first

    def address(self, number: int) -> Address:
        """The address of what has this number."""
        return Address(self.program.place.row, self.path, number)

    def seed_of(self, kind: str, number: int, *more: int) -> int | None:
        """The seed of what has this number; None in a run without one."""
        return derived_seed(self.seed, kind, number, *more)

    def seed_of_copy(self) -> int | None:
        """The seed of the next pickled copy."""
        return self.seed_of("pickled", next(self._copies))

    def _go(self, parent: "Stream", step: Step) -> None:
        self.path = (*parent.path, step)
        self.seed = parent.seed_of(step.kind, step.index, step.child)

    def take_branch(self, branch: int) -> None:
        """What is being performed has the answer `branch` of several: what follows differs."""
        self._go(self, Step("branch", self.at, branch))

    def leave_log(self, number: int) -> None:
        """From this number on, the log of the run is not followed."""
        self.has_left = True
        if self.program.place.journal is not None:
            self.program.place.journal.left(self.address(number))

    def told(self) -> str:
        """The text since the last call of this."""
        start, self._told = self._told, len(self.text)
        return self.text[start:]

    # ---- variables -----------------------------------------------------------------------------

    def declare(self, name: str | None) -> Slot:
        """A variable that will be written; without a name it gets one that programs cannot use."""
        if name is None:
            self._unnamed += 1
            name = f"<{self._unnamed}>"
        slot = self.variables[name] = Slot(name, self.waits)
        return slot

    def inherit(self, parent: "Stream") -> None:
        """Begin with the variables that `parent` has declared so far."""
        self.variables = dict(parent.variables)
        self._inherited = frozenset(self.variables.values())
        self._unnamed = parent._unnamed

    def has_inherited(self, slot: Slot) -> bool:
        """Whether the variable is its parent's."""
        return slot in self._inherited

    def new_names(self) -> list[str]:
        """The named variables that were not inherited."""
        slots = self.variables.items()
        return [name for name, slot in slots if not self.has_inherited(slot) and name[:1] != "<"]

    # ---- text and turns ------------------------------------------------------------------------

    def begin_as(self, parent: "Stream", step: Step) -> None:
        """Continue, one step from `parent`, from its contents, including its error."""
        self._go(parent, step)
        for name in SAID:
            said = getattr(parent, name)
            setattr(self, name, said.copy() if isinstance(said, list) else said)
        self.start_chars = self._told = len(self.text)
        self.start_messages, self.start_images = len(self.messages), len(self.images)
        self.error = parent.failure
        self.waits.also(parent.waits.calls)

    def append_all_of(self, child: "Stream") -> None:
        """Append all that `child` has added since it began."""
        moved, start = len(self.text) - child.start_chars, child.start_chars
        self.literal += [
            (max(begin, start) + moved, end + moved)
            for begin, end in child._literal_spans()
            if end > start
        ]
        added = child.images[child.start_images :]
        self.images += [(place + moved, image) for place, image in added]
        self.text += child.text[start:]
        self.messages += child.messages[child.start_messages :]

    def begin_role(self, role: str) -> None:
        """Open a turn. Raises ValueError inside another one."""
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

    def end_role(self, role: str) -> None:
        """Close the open turn. Raises ValueError if it is another role's."""
        template = self.program.template
        if self.role != role or template is None:
            raise ValueError(f"the role {role!r} ends, but the open one is {self.role!r}")
        content = self.text[self.role_start :].lstrip()
        start = len(self.text) - len(content)
        shown = [(place, image) for place, image in self.images if place >= self.role_start]
        places = tuple(max(0, place - start) for place, _ in shown)
        self.literal = self._literal_spans()
        self.messages.append(Turn(role, content, tuple(image for _, image in shown), places))
        self.text += template.suffix(role)
        self.role = ""

    def add_image(self, image: Image) -> None:
        """Raises UnsupportedError if the back end's models take text only."""
        backend = self.program.backend
        if not backend.capabilities.images:
            raise UnsupportedError(image.kind, f"{type(backend).__name__} takes text only")
        self.images.append((len(self.text), image))

    def grow(self, slot: Slot, text: str) -> None:
        """Append more of what the model writes into a variable."""
        if text:
            self.text += text
            slot.text += text
            self.changed()

    # ---- reading -------------------------------------------------------------------------------

    @property
    def failure(self) -> BaseException | None:
        """The first error of this stream, or the one that ended the whole run."""
        return self.error or self.program.ended_by

    def fail(self, error: BaseException) -> None:
        """Keep the first error; from here on everything is skipped."""
        if self.error is None:
            self.error = error

    def prompt(self) -> Prompt:
        """Everything so far, as a back end wants it."""
        open_text = self.text[self.role_start :] if self.role else ""
        return Prompt(
            self.text,
            tuple(self.messages),
            self.role,
            open_text,
            tuple(image for _, image in self.images),
            tuple(self._literal_spans()),
            tuple(place for place, _ in self.images),
        )

    def _literal_spans(self) -> list[tuple[int, int]]:
        """The parts of the text that roles hold, the open one among them."""
        if not self.role:
            return self.literal
        before = [span for span in self.literal if span[1] <= self.role_start]
        return [*before, (self.role_start, len(self.text))]

    def openai_messages(self) -> list[dict[str, Any]]:
        """The closed turns, as OpenAI's API has them."""
        template = self.program.template
        found: list[dict[str, Any]] = []
        if self.said_default_system and template is not None:
            found.append({"role": "system", "content": template.default_system})
        for message in self.messages:
            content: Any = message.content
            if message.images:
                parts = in_order(message.content, message.images, message.image_places)
                content = [_part(each) for each in parts]
            found.append({"role": message.role, "content": content})
        return found


def _part(part: str | Image) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    name = f"{part.kind}_url"
    file = "image/jpeg" if part.kind == "image" else "video/mp4"
    url = f"data:{file};base64,{base64.b64encode(part.data).decode()}"
    return {"type": name, name: {"url": url}}
