"""Takes tool calls in the format of Hermes and Qwen out of a model's text as it arrives.

Called by the gateway for every snapshot, or once with the whole text: the events add up to the
same however the text is cut. No character is lost except the tags, the JSON around the
arguments and the blanks next to calls: what is not a call is content.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from srt.answers.json_ends import ObjectEnd, StringEnd
from srt.answers.tool_events import EventParser
from srt.answers.tool_format import ToolFormat


class _Block(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


class ToolCallParser(EventParser):
    """The parser of one answer in the format `HERMES`.

    With `constrained`, calls are known to be valid, and their arguments are given as they arrive.
    Without, a call is given when it is complete and valid; an invalid block (not JSON, an unknown
    function, arguments that are no object) is content, tags included. `is_first` and `forced`: as
    `EventParser`.
    """

    def __init__(
        self,
        form: ToolFormat,
        names: Iterable[str],
        *,
        constrained: bool,
        is_first: bool = False,
        forced: bool = False,
    ) -> None:
        super().__init__(self._outside, is_first=is_first, forced=forced)
        self._form = form
        self._names = frozenset(names)
        self._openings = {form.opening(name): name for name in names} if constrained else {}
        self._arguments = ObjectEnd()
        self._searched = 0  # how far an unconstrained block has been searched for its end
        self._quotes = StringEnd()  # the JSON up to there

    @property
    def in_call(self) -> bool:
        """Whether the text so far ends inside the arguments of a call."""
        return self._step in (self._before_arguments, self._in_arguments)

    # Each step takes what it can from `_rest`, and says whether the next one may go on.

    def _outside(self, final: bool) -> bool:
        found = self._finds(self._form.begin, None, final)
        if found:
            self._step = self._at_call if self._openings else self._in_block
        return found

    def _at_call(self, final: bool) -> bool:
        for opening, name in self._openings.items():
            if self._rest.startswith(opening):
                self._start(name)
                self._rest = self._rest[len(opening) :]
                self._step = self._before_arguments
                return True
        if not final and any(opening.startswith(self._rest) for opening in self._openings):
            return False
        self._step = self._in_block
        return True

    def _before_arguments(self, final: bool) -> bool:
        self._rest = self._rest.lstrip()
        if self._rest:
            self._arguments = ObjectEnd()
            self._step = self._in_arguments
        return bool(self._rest)

    def _in_arguments(self, final: bool) -> bool:
        length = self._arguments.feed(self._rest)
        self._argue(self._rest if length < 0 else self._rest[:length])
        self._rest = "" if length < 0 else self._rest[length:]
        if length >= 0:
            self._step = self._after_arguments
        return length >= 0

    def _after_arguments(self, final: bool) -> bool:
        rest = self._rest.lstrip()
        if self._form.closing.startswith(rest):  # complete, or not yet
            self._rest = "" if final else rest
            done = rest == self._form.closing
        else:
            done = True
        if done:
            self._rest = rest.removeprefix(self._form.closing)
            self._step = self._outside
        return done

    def _in_block(self, final: bool) -> bool:
        form, start = self._form, len(self._form.begin)
        at = self._rest.find(form.end, max(start, self._searched))
        until = at if at >= 0 else len(self._rest) - (0 if final else len(form.end) - 1)
        until = max(until, start, self._searched)
        self._quotes.feed(self._rest[max(start, self._searched) : until])
        self._searched = until
        if at < 0 and not final:
            return False
        if self._quotes.in_string and at >= 0:
            self._searched = at + len(form.end)  # a string may hold the end tag
            return True
        call = self._decoded(self._rest[start:until])
        end = until + (len(form.end) if at >= 0 else 0)
        if call is None:
            again = self._rest.rfind(form.begin, start, end)  # a call after a stray tag
            end = again if again >= 0 else end
            self._give(self._rest[:end])
        else:
            self._start(call[0])
            self._argue(call[1])
        self._rest = self._rest[end:]
        self._searched, self._quotes = 0, StringEnd()
        self._step = self._outside
        return True

    def _decoded(self, block: str) -> tuple[str, str] | None:
        """The name and the arguments (JSON text) of a block that is a call."""
        try:
            call = msgspec.json.decode(block, type=_Block)
            arguments = bytes(call.arguments).decode()
            value: Any = msgspec.json.decode(arguments)
            if isinstance(value, str):  # some models write the object as a string
                arguments, value = value, msgspec.json.decode(value)
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            return None
        if call.name not in self._names or not isinstance(value, dict):
            return None
        return call.name, arguments
