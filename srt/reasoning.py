"""Keeps a model's reasoning, `<think>…</think>` at the start of its answer, apart from the rest.

Called by the gateway for every piece of text. The parts add up to the same for every way of
cutting the text.
"""

from typing import NamedTuple

from srt.partial_tags import overlap

THINK, END_THINK = "<think>", "</think>"
ANALYSIS = "<|channel|>analysis"  # gpt-oss's; see `srt.tools.channels`


def has_reasoning(parser: str, chat_template: str | None) -> bool:
    """Whether answers to chats begin with reasoning. `parser` is the server's choice: "think",
    "none", or "auto", which looks for what begins it in the model's chat template."""
    if parser == "auto":
        return any(begin in (chat_template or "") for begin in (THINK, ANALYSIS))
    return parser == "think"


def reasons(text: str) -> bool:
    """Whether `text`, the beginning of an answer, ends inside its reasoning."""
    return text.rfind(THINK) > text.rfind(END_THINK)


class Part(NamedTuple):
    """A piece of an answer."""

    text: str
    is_reasoning: bool


class ReasoningSplitter:
    """Splits one answer. `opened`: the text begins inside the reasoning, tag or not.

    Otherwise an answer without the tag at its start has no reasoning. Blanks at both ends of the
    reasoning, and those behind it, belong to neither part. Reasoning that does not end, as when
    the length runs out, is all there is.
    """

    def __init__(self, *, opened: bool) -> None:
        self._opened = opened
        self._rest = ""
        self._blanks = ""
        self._step = self._at_start
        self._parts: list[Part] = []

    def feed(self, text: str, final: bool = False) -> list[Part]:
        """The parts of `text`, the next piece; `final` says that it is the last one."""
        self._rest += text
        self._parts = []
        while self._step(final):
            pass
        return self._parts

    def _at_start(self, final: bool) -> bool:
        text = self._rest.lstrip()
        if not final and len(text) < len(THINK) and THINK.startswith(text):
            return False
        if text.startswith(THINK):
            self._rest = text.removeprefix(THINK)
            self._step = self._at_reasoning
        else:
            self._step = self._at_reasoning if self._opened else self._in_answer
        return True

    def _at_reasoning(self, final: bool) -> bool:
        self._rest = self._rest.lstrip()
        if self._rest:
            self._step = self._in_reasoning
        return bool(self._rest)

    def _in_reasoning(self, final: bool) -> bool:
        before, tag, after = self._rest.partition(END_THINK)
        held = 0 if tag or final else overlap(before, END_THINK)
        text = self._blanks + before[: len(before) - held]
        kept = text.rstrip()
        self._give(kept, is_reasoning=True)
        self._blanks = text[len(kept) :]
        self._rest = after if tag else before[len(before) - held :]
        if tag:
            self._step = self._at_answer
        return bool(tag)

    def _at_answer(self, final: bool) -> bool:
        self._rest = self._rest.lstrip()
        if self._rest:
            self._step = self._in_answer
        return bool(self._rest)

    def _in_answer(self, final: bool) -> bool:
        self._give(self._rest, is_reasoning=False)
        self._rest = ""
        return False

    def _give(self, text: str, *, is_reasoning: bool) -> None:
        if text:
            self._parts.append(Part(text, is_reasoning))
