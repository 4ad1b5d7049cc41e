"""Takes tool calls out of a model's text as it arrives, in formats that have a `Reading`.

Called as `srt.answers.tool_parser` is, which reads the one other format; `call_parser` chooses. The
events add up to the same however the text is cut.
"""

import re
from collections.abc import Collection, Mapping

from srt.answers.channels import ChannelReader
from srt.answers.custom_tools import CustomCallReader, PlainText
from srt.answers.json_ends import ObjectEnd, is_object
from srt.answers.partial_tags import LineTags
from srt.answers.tool_events import EventParser
from srt.answers.tool_format import Reading, ToolFormat
from srt.answers.tool_parameters import ParameterBlocks, Parameters
from srt.answers.tool_parser import ToolCallParser

MAX_PIECE_CHARS = 256  # of the text between calls, and between a call's beginning and its arguments


def call_parser(
    form: ToolFormat,
    names: Mapping[str, str],
    *,
    constrained: bool,
    is_first: bool = False,
    forced: bool = False,
) -> EventParser:
    """The parser of one answer, in which the functions `names` may be called, each with the text of
    its parameters' schema; see `ToolCallParser` for `constrained`, `is_first` and `forced`."""
    if form.in_channels:
        return ChannelReader(names, constrained=constrained, forced=forced)
    drops_rest = constrained and is_first
    parser: EventParser
    if form.reading is None:
        parser = ToolCallParser(
            form, names, constrained=constrained, is_first=is_first, forced=forced
        )
    else:
        # An answer in JSON may begin like a call: which it is, is known only at its end.
        constrained = constrained and not (is_first and form.reading.is_first)
        parser = CallReader(
            form, form.reading, names, constrained=constrained, is_first=is_first, forced=forced
        )
    parser.drops_rest = drops_rest
    return parser


def answer_parser(
    form: ToolFormat,
    names: Mapping[str, str],
    custom: Collection[str],
    *,
    constrained: bool,
    is_first: bool = False,
    forced: bool = False,
) -> EventParser:
    """The same for an answer in which the tools `custom` may be called, too."""
    others: EventParser = PlainText(forced=forced)
    if names or form.in_channels or not custom:
        others = call_parser(form, names, constrained=constrained, is_first=is_first, forced=forced)
    if not custom:
        return others
    return CustomCallReader(custom, others, is_first=constrained and is_first)


class CallReader(EventParser):
    """The parser of one answer. Unconstrained calls are given when they are complete and valid;
    invalid ones are content, marks included."""

    def __init__(
        self,
        form: ToolFormat,
        reading: Reading,
        names: Mapping[str, str],
        *,
        constrained: bool,
        is_first: bool,
        forced: bool,
    ) -> None:
        # Constrained answers may have text before calls, where the openers are unmistakable.
        is_first = is_first or (reading.is_first and not constrained)
        super().__init__(self._outside, is_first=is_first, forced=forced)
        self._form = form
        self._reading = reading
        self._parameters: dict[str, Parameters] = {}
        self._names = names
        self._constrained = constrained
        opener = form.begin if constrained and reading.is_first else reading.opener
        bare = reading.bare_opener and not constrained and names
        tags = [reading.bare_opener.replace("NAME", name) for name in names]
        self._openers = opener, LineTags(tags) if bare else None
        self._raw = ""  # of the call that is being read
        self._name = ""
        self._written: list[str] = []  # of its arguments
        self._json: list[str] = []
        self._arguments: ObjectEnd | ParameterBlocks = ObjectEnd()

    @property
    def in_call(self) -> bool:
        return self._constrained and self._step == self._in_arguments

    # Each step takes what it can from `_rest`, and says whether the next one may go on.

    def _outside(self, final: bool) -> bool:
        found = self._finds(*self._openers, final)
        if found:
            self._step = self._at_head
        return found

    def _match(self, pattern: re.Pattern[str], final: bool) -> re.Match[str] | bool:
        """The match at the start of the rest; True if there is certainly none, False if unknown."""
        found = pattern.match(self._rest[:MAX_PIECE_CHARS])
        return found or final or len(self._rest) >= MAX_PIECE_CHARS

    def _at_head(self, final: bool) -> bool:
        found = self._match(self._reading.head, final)
        if not isinstance(found, re.Match) or found["name"] not in self._names:
            if found:
                self._raw += self._rest[:1]
                self._rest = self._rest[1:]
                self._is_none()
            return bool(found)
        self._raw += found[0]
        self._rest = self._rest[found.end() :]
        self._name, self._written, self._json = found["name"], [], []
        self._arguments = ObjectEnd()
        if self._form.blocks is not None:
            if self._name not in self._parameters:
                self._parameters[self._name] = Parameters(self._names[self._name])
            self._arguments = ParameterBlocks(
                self._form.blocks, self._parameters[self._name], constrained=self._constrained
            )
        self._step = self._in_arguments
        if self._constrained:
            self._start(self._name)
        return True

    def _in_arguments(self, final: bool) -> bool:
        taken = self._arguments.take(self._rest)
        if self._constrained:
            self._argue(taken.json)
        else:
            self._written.append(self._rest[: taken.length])
            self._json.append(taken.json)
        self._rest = self._rest[taken.length :]
        if final and self._constrained and isinstance(self._arguments, ParameterBlocks):
            self._argue(self._arguments.cut(self._rest))
        gives_up = final and not taken.is_over and not self._constrained
        if gives_up:
            self._is_none()
        elif taken.is_over:
            self._step = self._at_tail
        return taken.is_over or gives_up

    def _at_tail(self, final: bool) -> bool:
        found = self._match(self._reading.tail, final)
        if isinstance(found, re.Match) and (self._constrained or is_object("".join(self._json))):
            self._rest = self._rest[found.end() :]
            if not self._constrained:
                self._start(self._name)
                self._argue("".join(self._json))
            self._raw = ""
            self._step = self._behind
        elif found and self._constrained:
            if self._form.closing.startswith(self._rest.lstrip()):  # it was cut
                self._rest = ""
            self._step = self._outside
        elif found:
            self._is_none()
        return bool(found)

    def _behind(self, final: bool) -> bool:
        rest, reading = self._rest.lstrip(), self._reading
        if reading.end and rest.startswith(reading.end):
            self._rest = rest[len(reading.end) :]
            self._step = self._outside
            return True
        found = reading.more.match(self._rest[:MAX_PIECE_CHARS])
        if found is not None:
            self._raw = found[0]
            self._rest = self._rest[found.end() :]
            self._step = self._at_head
            return True
        may_follow = any(text.startswith(rest) or rest.startswith(text) for text in reading.follow)
        if may_follow and len(self._rest) < MAX_PIECE_CHARS:
            if not final:
                return False
            if self._constrained or any(text.startswith(rest) for text in reading.follow):
                self._rest = ""  # it was cut
        self._step = self._outside
        return True

    def _is_none(self) -> None:
        """What was taken for a call so far is content."""
        self._give(self._raw + "".join(self._written))
        self._raw, self._written = "", []
        self._step = self._outside
