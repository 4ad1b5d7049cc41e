"""Keeps a model's reasoning, as `<think>…</think>` at the start of its answer, apart from the rest.

Called by the gateway for every piece of text. The parts add up to the same however the text is
cut.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from srt.answers.partial_tags import overlap


class Tags(NamedTuple):
    """What a model writes around its reasoning."""

    begin: str
    end: str


THINK = Tags("<think>", "</think>")
MISTRAL = Tags("[THINK]", "[/THINK]")
CHANNELS = Tags("<|channel|>analysis", "<|end|>")  # gpt-oss's; see `srt.answers.channels`
_KNOWN = (THINK, MISTRAL, CHANNELS)


def reasoning_tags(chat_template: str | None) -> Tags:
    """Those of the model with this template."""
    return next((tags for tags in _KNOWN if tags.begin in (chat_template or "")), THINK)


def has_reasoning(parser: str, chat_template: str | None) -> bool:
    """Whether answers to chats begin with reasoning. `parser` is the server's choice: "think",
    "none", or "auto", which looks for an opening tag in the model's chat template."""
    if parser == "auto":
        return reasoning_tags(chat_template).begin in (chat_template or "")
    return parser == "think"


def reasons(text: str, tags: Tags) -> bool:
    """Whether `text`, the beginning of an answer, ends inside its reasoning."""
    return text.rfind(tags.begin) > text.rfind(tags.end)


# What chat templates call the switch of their reasoning: Qwen's and others', Granite's and others'.
THINKING = "enable_thinking"
SWITCHES = (THINKING, "thinking")


def is_switched_off(template_args: Mapping[str, Any]) -> bool:
    """Whether a chat's template is told that the answer has no reasoning, by what Jinja takes for
    false."""
    return any(name in template_args and not template_args[name] for name in SWITCHES)


def may_reason(begun: str, tags: Tags, template_args: Mapping[str, Any]) -> bool:
    """Whether there may be reasoning in an answer that continues the text `begun`."""
    if begun.strip():
        return reasons(begun, tags)
    return tags == CHANNELS or not is_switched_off(template_args)  # channels come in any case


class Part(NamedTuple):
    """A piece of an answer."""

    text: str
    is_reasoning: bool


class ReasoningSplitter:
    """Splits one answer. `opened`: the text begins inside the reasoning, tag or not.

    Otherwise an answer without the tag at its start has no reasoning. Blanks at both ends of the
    reasoning, and those after it, belong to neither part. If the reasoning does not end, as when
    the length runs out, there is no answer after it.
    """

    def __init__(self, *, opened: bool, tags: Tags = THINK) -> None:
        self._opened = opened
        self._tags = tags
        self._rest = ""
        self._blanks: list[str] = []  # not yet assigned to a part
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
        self._blanks.append(self._rest[: len(self._rest) - len(text)])
        self._rest, begin = text, self._tags.begin
        if not final and len(text) < len(begin) and begin.startswith(text):
            return False
        if text.startswith(begin) or self._opened:
            self._rest = text.removeprefix(begin)
            self._blanks = []
            self._step = self._at_reasoning
        else:
            self._step = self._in_answer
        return True

    def _at_reasoning(self, final: bool) -> bool:
        self._rest = self._rest.lstrip()
        if self._rest:
            self._step = self._in_reasoning
        return bool(self._rest)

    def _in_reasoning(self, final: bool) -> bool:
        before, tag, after = self._rest.partition(self._tags.end)
        held = 0 if tag or final else overlap(before, self._tags.end)
        text = before[: len(before) - held]
        kept = text.rstrip()
        if kept:
            self._give("".join(self._blanks) + kept, is_reasoning=True)
            self._blanks = []
        self._blanks.append(text[len(kept) :])
        self._rest = after if tag else before[len(before) - held :]
        if tag:
            self._blanks = []
            self._step = self._at_answer
        return bool(tag)

    def _at_answer(self, final: bool) -> bool:
        self._rest = self._rest.lstrip()
        if self._rest:
            self._step = self._in_answer
        return bool(self._rest)

    def _in_answer(self, final: bool) -> bool:
        self._give("".join(self._blanks) + self._rest, is_reasoning=False)
        self._rest, self._blanks = "", []
        return False

    def _give(self, text: str, *, is_reasoning: bool) -> None:
        if text:
            self._parts.append(Part(text, is_reasoning))
