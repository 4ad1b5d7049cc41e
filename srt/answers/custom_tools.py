"""Calls of custom tools, whose input is a text as it is: one form for all models.

A call is a block of its own: a mark with the tool's name, the raw text, an end. In the form of a
model's other calls, the text would be a string of JSON, and a grammar of it would have to hold
through the escapes. The tokenizer describes the tools and renders past calls with these texts, the
gateway constrains and reads answers with them. The form is that of `srt.answers.tool_events`:
events add up to the same however the text is cut.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from srt.answers.partial_tags import overlap
from srt.answers.tool_events import CallArguments, CallStart, Content, EventParser, ToolEvent
from srt.wire.messages import InputFormat, ToolCall, ToolSpec

BEGIN = '<custom_call name="'
CLOSING = "\n</custom_call>"
_INSTRUCTIONS = """\
You can call the tools below. Their input is a text, which you write as it is: no JSON, no quotes, \
no escapes.
{tools}
To call such a tool, write its input between these tags, each on a line of its own:
<custom_call name="TOOL_NAME">
INPUT
</custom_call>
Write one such block for every call. The results come back in <custom_result> tags."""
_NAMES = {"regex": "regular expression", "lark": "Lark grammar"}


def opening(name: str) -> str:
    """A call of the custom tool `name` up to its input."""
    return f'{BEGIN}{name}">\n'


def call_text(call: ToolCall) -> str:
    """A past call, as the model would have written it."""
    return f"{opening(call.name)}{call.arguments}{CLOSING}"


def result_text(name: str, content: str) -> str:
    """The result of a call of the custom tool `name`."""
    return f'<custom_result name="{name}">\n{content}\n</custom_result>'


def instructions(tools: Sequence[ToolSpec]) -> str:
    """The system text that describes custom tools to the model."""
    return _INSTRUCTIONS.format(tools="\n".join(map(_description, tools)))


def _description(tool: ToolSpec) -> str:
    given = tool.input or InputFormat()
    lines = [f'<custom_tool name="{tool.name}">']
    lines += [tool.description.strip()] if tool.description.strip() else []
    if given.kind != "text":
        lines += [f"The input must match this {_NAMES[given.kind]}:", given.definition.strip()]
    return "\n".join([*lines, "</custom_tool>"])


def input_format(tool: ToolSpec) -> dict[str, Any]:
    """What the input must be, as a format of a structural tag."""
    given = tool.input or InputFormat()
    if given.kind == "regex":
        return {"type": "regex", "pattern": given.definition}
    if given.kind == "lark":
        return {"type": "grammar", "grammar": given.definition}
    return {"type": "any_text"}


class PlainText(EventParser):
    """The parser of answers without other calls."""

    def __init__(self, *, forced: bool = False) -> None:
        super().__init__(self._all, is_first=False, forced=forced)

    @property
    def in_call(self) -> bool:
        return False

    def _all(self, final: bool) -> bool:
        self._give(self._rest)
        self._rest = ""
        return False


class CustomCallReader(EventParser):
    """Takes the calls of the custom tools `names` out of an answer, and has the rest read by
    `others`. A block inside the arguments of another call is a part of these. With `is_first`, an
    answer that begins with text, or with a call of the others, has no blocks, and there is no text
    behind one."""

    def __init__(self, names: Collection[str], others: EventParser, *, is_first: bool) -> None:
        super().__init__(self._outside, is_first=is_first)
        self._others = others
        self._openings = {opening(name): name for name in names}
        self._opening = re.compile("|".join(map(re.escape, self._openings)))
        self._numbers: list[int] = []  # of the others' calls, among all
        self._num_blocks = 0
        self._is_text = False  # whether a block would be a part of the text

    @property
    def in_call(self) -> bool:
        return self._step == self._in_block or self._others.in_call

    # Each step takes what it can from `_rest`, and says whether the next one may go on.

    def _outside(self, final: bool) -> bool:
        found = None if self._is_text else self._opening.search(self._rest)
        if found is None:
            held = 0 if final or self._is_text else self._held()
            self._pass_on(len(self._rest) - held, final)
            return False
        self._pass_on(found.start(), False)
        if self._others.holds_marks or self._is_text:
            self._pass_on(1, False)  # the rest of the opening holds no other
            return True
        self._rest = self._rest[found.end() - found.start() :]
        self._start(self._openings[found[0]])
        self._num_blocks += 1
        self._step = self._in_block
        return True

    def _in_block(self, final: bool) -> bool:
        at = self._rest.find(CLOSING)
        end = at if at >= 0 else len(self._rest) - overlap(self._rest, CLOSING)
        self._argue(self._rest[:end])
        self._rest = self._rest[at + len(CLOSING) :] if at >= 0 else self._rest[end:]
        if at >= 0:
            self._step = self._outside
        elif final:
            self._pass_on(0, True)  # what they hold back is before the block
        return at >= 0

    def _held(self) -> int:
        """The length of the rest's end in which an opening may have begun."""
        at = self._rest.rfind(BEGIN[0])
        tail = self._rest[at:] if at >= 0 else ""
        return len(tail) if tail and any(each.startswith(tail) for each in self._openings) else 0

    def _pass_on(self, length: int, final: bool) -> None:
        """Have the first characters of the rest read as text and other calls."""
        text, self._rest = self._rest[:length], self._rest[length:]
        if self._is_first and not self._num_blocks and text.strip():
            self._is_text = True
        if text or final:
            self._events += self._renumbered(self._others.feed(text, final))

    def _renumbered(self, events: Iterable[ToolEvent]) -> Iterable[ToolEvent]:
        for event in events:
            if isinstance(event, CallStart):
                self._numbers.append(self.num_calls)
                self.num_calls += 1
                yield event._replace(call=self._numbers[event.call])
            elif isinstance(event, CallArguments):
                yield event._replace(call=self._numbers[event.call])
            elif not (isinstance(event, Content) and self._num_blocks and self._drops(event)):
                yield event

    def _drops(self, event: Content) -> bool:
        """Whether text behind a block is none: blanks at the end, and all of it in an answer that
        has calls only."""
        return self._is_first or event.text.isspace()
