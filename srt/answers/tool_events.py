"""The events of a parser of tool calls, and what all such parsers have in common."""

from collections.abc import Callable
from typing import NamedTuple

from srt.answers.partial_tags import LineTags, overlap


class Content(NamedTuple):
    """Text for the reader."""

    text: str


class Reasoning(NamedTuple):
    """Text of the model's reasoning, in formats that mix it with calls."""

    text: str


class CallStart(NamedTuple):
    """The call number `call`, from 0 on, begins."""

    call: int
    name: str


class CallArguments(NamedTuple):
    """The new part of the JSON text of a call's arguments."""

    call: int
    text: str


ToolEvent = Content | Reasoning | CallStart | CallArguments


class EventParser:
    """A parser of one answer, as a machine of steps: each takes what it can from `_rest`, and says
    whether the next one may go on. `num_calls` have begun so far. With `is_first`, an answer that
    begins with content has no calls. In one that is `forced` to be calls there is no content: what
    is not a call is the beginning of one, which was cut, or the beginning of text after the last;
    with `drops_rest` there is no content after the first call."""

    def __init__(
        self, first_step: Callable[[bool], bool], *, is_first: bool, forced: bool = False
    ) -> None:
        self.num_calls = 0
        self._is_first = is_first
        self._forced = forced
        self.drops_rest = False
        self._step = first_step
        self._rest = ""  # text that no event has reported yet
        self._events: list[ToolEvent] = []
        self._blanks: list[str] = []  # held back: a call may follow
        self._has_content = False
        self._starts_line = True  # what follows the content so far

    @property
    def in_call(self) -> bool:
        """Whether the text so far ends inside the arguments of a call."""
        raise NotImplementedError

    @property
    def holds_marks(self) -> bool:
        """Whether the mark of another form of calls would be a part of what is being read."""
        return self.in_call

    def feed(self, text: str, final: bool = False) -> list[ToolEvent]:
        """The events of `text`, the next piece; `final` says that it is the last one. The time
        grows with the square of a piece's length, so long text must be fed in slices."""
        self._rest += text
        self._events = []
        while self._step(final):
            pass
        if final and not self.num_calls and (blanks := "".join(self._blanks)):
            self._events.append(Content(blanks))
        return self._events

    def _finds(self, opener: str, lines: LineTags | None, final: bool) -> bool:
        """Give out what is before `opener`, or before one of `lines`, as content; whether the rest
        then begins with it."""
        at = self._rest.find(opener)
        if lines is not None:
            end = at if at >= 0 else len(self._rest)
            line = lines.find(self._rest, end, starts_line=self._starts_line)
            at = line if line >= 0 else at
        found = at >= 0
        if not found:
            held = 0 if final else overlap(self._rest, opener)
            if lines is not None and not final:
                held = max(held, lines.held(self._rest, starts_line=self._starts_line))
            at = len(self._rest) - held
        self._give(self._rest[:at])
        self._rest = self._rest[at:]
        if self._is_first and self._has_content:
            self._give(self._rest)
            self._rest = ""
        return found and self._rest != ""

    def _start(self, name: str) -> None:
        self._events.append(CallStart(self.num_calls, name))
        self.num_calls += 1

    def _argue(self, text: str) -> None:
        if text:
            self._events.append(CallArguments(self.num_calls - 1, text))

    def _give(self, text: str) -> None:
        """`text` is no call."""
        if not self._forced and not (self.drops_rest and self.num_calls):
            self._tell(text)

    def _tell(self, text: str) -> None:
        """`text` is content; its trailing blanks wait for what follows."""
        if text:
            self._starts_line = text.endswith("\n")
        if not text or text.isspace():
            self._blanks.append(text)
            return
        text = "".join(self._blanks) + text
        kept = text.rstrip()
        self._blanks = [text[len(kept) :]]
        if self.num_calls and not self._has_content:
            kept = kept.lstrip()
        self._has_content = True
        self._events.append(Content(kept))
