"""Takes reasoning, answer and calls out of a text in gpt-oss's format, which has channels.

    <|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.

An answer is a sequence of such messages: those of the channel `analysis` are reasoning, and one
that is sent to a function is a call. Called as `srt.answers.tool_parser` is. The events add up to
the same however the text is cut.
"""

import re
from collections.abc import Mapping

from srt.answers.json_ends import ObjectEnd, is_object
from srt.answers.partial_tags import overlap
from srt.answers.tool_events import EventParser, Reasoning

_CLOSERS = ("<|end|>", "<|call|>", "<|return|>")
_OPENERS = ("<|start|>", "<|channel|>")
_MARKS = (*_CLOSERS, *_OPENERS)
_MARK = re.compile("|".join(map(re.escape, _MARKS)))
_CLOSER = re.compile(rf"\s*(?:{'|'.join(map(re.escape, _CLOSERS))})")
_MAX_HEADER_CHARS = 256
# The recipient comes before the channel or after it.
_HEADER = re.compile(
    r"\s*(?:<\|start\|>|<\|channel\|>|to=)(?:[^<]|<\|(?:channel|constrain)\|>)*<\|message\|>"
)
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([\w.-]+)")


class ChannelReader(EventParser):
    """The parser of one answer, in which the functions `names` may be called. With `constrained`,
    calls are known to be valid, and their arguments are given as they arrive. Without, a call is
    given when it is complete and valid; any other is content, marks included, but for the beginning
    of one that is `forced`."""

    def __init__(
        self, names: Mapping[str, str], *, constrained: bool, forced: bool = False
    ) -> None:
        super().__init__(self._between, is_first=False, forced=forced)
        self._names = names
        self._constrained = constrained
        self._header = ""  # of the call that is being read
        self._name = ""
        self._written: list[str] = []  # of its arguments
        self._arguments = ObjectEnd()
        self._is_reasoning = self._has_reasoning = False

    @property
    def in_call(self) -> bool:
        return self._constrained and self._step == self._in_arguments

    @property
    def holds_marks(self) -> bool:
        return self.in_call or (self._is_reasoning and self._step == self._in_text)

    # Each step takes what it can from `_rest`, and says whether the next one may go on.

    def _between(self, final: bool) -> bool:
        if closer := _CLOSER.match(self._rest):
            self._rest = self._rest[closer.end() :]
            return True
        header = _HEADER.match(self._rest[:_MAX_HEADER_CHARS])
        if header is not None:
            self._rest = self._rest[header.end() :]
            self._open(header[0])
            return True
        rest = self._rest.lstrip()
        may_come = any(
            text.startswith(rest) or (rest.startswith(text) and text not in _CLOSERS)
            for text in (*_MARKS, "to=")
        )
        if may_come and not final and len(self._rest) < _MAX_HEADER_CHARS:
            return False
        self._is_reasoning = False
        self._step = self._in_text
        if may_come and final:  # the header was cut
            self._give(self._rest)
            self._rest = ""
        self._tell(self._rest[:1])  # no header begins here
        self._rest = self._rest[1:]
        return bool(self._rest)

    def _open(self, header: str) -> None:
        """A message begins."""
        channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
        name = recipient[1].removeprefix("functions.") if recipient else ""
        self._is_reasoning = not recipient and channel is not None and channel[1] == "analysis"
        self._step = self._in_text
        if name in self._names:
            self._header, self._name, self._written = header, name, []
            self._step = self._at_arguments
        elif recipient:
            self._tell(header)
        elif self._has_reasoning if self._is_reasoning else self._has_content:
            self._tell("\n")  # between two messages

    def _in_text(self, final: bool) -> bool:
        mark = _MARK.search(self._rest)
        held = 0 if mark or final else max(overlap(self._rest, text) for text in _MARKS)
        end = mark.start() if mark else len(self._rest) - held
        self._tell(self._rest[:end])
        self._rest = self._rest[end:]
        if mark:
            self._step = self._between
        return mark is not None

    def _at_arguments(self, final: bool) -> bool:
        rest = self._rest.lstrip()
        if rest and (rest[0] == "{" or self._constrained):
            self._rest = rest
            self._arguments = ObjectEnd()
            self._step = self._in_arguments
            if self._constrained:
                self._start(self._name)
        elif rest or final:
            self._give(self._header)
            self._step = self._in_text
        return bool(rest) or final

    def _in_arguments(self, final: bool) -> bool:
        taken = self._arguments.take(self._rest)
        self._rest = self._rest[taken.length :]
        if self._constrained:
            self._argue(taken.json)
        else:
            self._written.append(taken.json)
        if taken.is_over:
            self._step = self._between
        if not self._constrained and (taken.is_over or final):
            self._end()
        return taken.is_over

    def _end(self) -> None:
        """A message to a function has ended: it becomes a call, or content."""
        written = "".join(self._written)
        if is_object(written):
            self._start(self._name)
            self._argue(written)
        else:
            self._give(self._header + written)
            self._step = self._in_text

    def _tell(self, text: str) -> None:
        """`text` is reasoning or content."""
        if not self._is_reasoning:
            super()._tell(text)
        elif text:
            self._has_reasoning = True
            self._events.append(Reasoning(text))
