"""One state of a program: its transcript, variables, trace and place in the run.

Primitives change it, one at a time; a `Worker` decides when. Nothing here waits.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

from lang.backends.base import Image
from lang.errors import UnsupportedError
from lang.logs.address import Step
from lang.logs.entries import CallKind
from lang.logs.reports.report import begun
from lang.logs.reports.waits import Waits
from lang.logs.trace import PROMPT_TAIL_CHARS, Asked, Call, Trace
from lang.run.position import Position
from lang.run.program import Program
from lang.run.transcript import Transcript
from lang.run.variables import Slot, Variables


class Stream:
    """One state's part of a run. `changed` is called whenever there is more to read."""

    def __init__(
        self, program: Program, changed: Callable[[], None], numbers: Iterator[int]
    ) -> None:
        self.program = program
        self.changed = changed
        self.position = Position(program, numbers)
        self.transcript = Transcript()
        self.waits = Waits()
        self.variables = Variables(self.waits)
        self.scopes: dict[str, int] = {}  # where the open scopes begin in the text
        self.trace = Trace([])
        self.num_traced = 0  # characters of the text that the trace has
        self.error: BaseException | None = None

    def begin_as(self, parent: "Stream", step: Step) -> None:
        """Continue, one step from `parent`, from its contents, including its error."""
        self.position.go(parent.position, step)
        self.transcript = parent.transcript.fork()
        self.num_traced = len(self.transcript.text)
        self.error = parent.failure
        self.waits.also(parent.waits.calls)

    def untraced(self) -> str:
        """The text since the last call of this, for the trace."""
        start, self.num_traced = self.num_traced, len(self.transcript.text)
        return self.transcript.text[start:]

    def begin_call(
        self, kind: CallKind, name: str, number: int, source: str, parameters: Any
    ) -> tuple[Call, Callable[[], None]]:
        """The record of a call that begins now, and what is called when it has ended."""
        text = self.transcript.text
        call = Call(
            kind,
            name,
            len(text),
            "" if kind == "effect" else text[-PROMPT_TAIL_CHARS:],
            at=self.position.address(number),
            source=source,
            began_s=time.time(),
            asked=Asked(self.untraced(), parameters),
        )
        self.trace.steps.append(call)
        return call, begun(self.program, call, self.waits)

    # ---- text and turns ------------------------------------------------------------------------

    def begin_role(self, role: str) -> None:
        """Open a turn. Raises ValueError inside another one."""
        template = self.program.template
        assert template is not None, "roles wait for the template"
        self.transcript.begin_role(role, template)

    def end_role(self, role: str) -> None:
        """Close the open turn. Raises ValueError if it is another role's."""
        self.transcript.end_role(role, self.program.template)

    def add_image(self, image: Image) -> None:
        """Raises UnsupportedError if the back end's models take text only."""
        backend = self.program.backend
        if not backend.capabilities.images:
            raise UnsupportedError(image.kind, f"{type(backend).__name__} takes text only")
        self.transcript.images.append((len(self.transcript.text), image))

    def grow(self, slot: Slot, text: str) -> None:
        """Append more of what the model writes into a variable."""
        if text:
            self.transcript.text += text
            slot.text += text
            self.changed()

    # ---- errors --------------------------------------------------------------------------------

    @property
    def failure(self) -> BaseException | None:
        """The first error of this stream, or the one that ended the whole run."""
        return self.error or self.program.ended_by

    def fail(self, error: BaseException) -> None:
        """Keep the first error; from here on everything is skipped."""
        if self.error is None:
            self.error = error
