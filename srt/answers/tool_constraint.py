"""The structural tag that makes a model's tool calls valid, built from the same format as the
parser.

Called by the gateway. Invariant: text that matches the tag is parsed into calls, all of it.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct

from srt.answers import custom_tools
from srt.answers.tool_format import ToolFormat
from srt.answers.tool_parameters import blocks_format
from srt.wire.errors import RequestError
from srt.wire.messages import ToolSpec
from srt.wire.sampling import MAX_CONSTRAINT_CHARS

ToolChoice = Literal["none", "auto", "required", "named"]
_ANY_OBJECT = {"type": "object"}
_MAX_WORD_CHARS = 8  # most first tokens of a text are no longer
_COMMENTARY = "<|channel|>commentary<|message|>"  # before a block of a format with channels


class OfferedTool(Struct, frozen=True):
    """A tool the model may call; a `strict` function gets arguments that match its schema, and a
    custom tool always an input of its format."""

    spec: ToolSpec
    strict: bool = False

    @property
    def is_custom(self) -> bool:
        """Whether its input is a text."""
        return self.spec.input is not None

    def opening(self, form: ToolFormat) -> str:
        """A call of it up to its arguments or its input."""
        name = self.spec.name
        return custom_tools.opening(name) if self.is_custom else form.opening(name)


class ToolPlan(Struct, frozen=True, kw_only=True):
    """How the tools of one request may be used. With "named", `tools` is that one."""

    tools: Sequence[OfferedTool]
    choice: ToolChoice
    parallel: bool = True

    @property
    def functions(self) -> dict[str, str]:
        """The functions that a call may name, with the texts of their parameters' schemas."""
        return {tool.spec.name: tool.spec.parameters for tool in self.tools if not tool.is_custom}

    @property
    def custom(self) -> frozenset[str]:
        """The custom tools that a call may name."""
        return frozenset(tool.spec.name for tool in self.tools if tool.is_custom)

    def constraint(self, form: ToolFormat, answer: Any = None) -> dict[str, Any] | None:
        """The structural tag (a JSON object) that enforces the plan; None if there is nothing to
        enforce.

        `answer` is the format (a structural tag's) that an answer without calls must match; only
        "auto" has such answers.
        """
        if self.choice == "none":
            return None
        if self.choice == "auto":
            return self._automatic(form, answer)
        tags = self._tags(form, all_checked=True)
        if self.choice == "named" and not self.custom:
            return _structural(_wrapped(form, tags.functions[0]))
        if self.choice == "named":
            return _structural(_block(form, tags.blocks[0]))
        return _structural(self._only_calls(form, tags))

    def functions_at(
        self, form: ToolFormat, tag: dict[str, Any], has_answer: bool
    ) -> dict[str, str]:
        """The tools whose parameters, or inputs, the formats in a tag of `constraint` are made of,
        by the paths of these formats."""
        path, calls = "format", tag["format"]
        if has_answer:
            path, calls = "format.elements[0]", calls["elements"][0]
        openings = {tool.opening(form): tool.spec.name for tool in self.tools}
        return {
            inner: openings[part["begin"]]
            for at, part in _formats(path, calls)
            if part.get("begin") in openings
            for inner, _ in _formats(f"{at}.content", part["content"])
        }

    def _automatic(self, form: ToolFormat, answer: Any) -> dict[str, Any] | None:
        is_free = self.parallel and not self.custom and not any(t.strict for t in self.tools)
        if answer is None and is_free:
            return None
        tags = self._tags(form, all_checked=False)
        if answer is not None:
            return _structural({"type": "or", "elements": [self._only_calls(form, tags), answer]})
        return _structural(self._calls_in_text(form, tags))

    def _calls_in_text(self, form: ToolFormat, tags: "_Tags") -> dict[str, Any]:
        """Free text, with calls wherever the model begins one."""
        wrapped = _is_wrapped(form) and bool(tags.functions)
        calls = tags.functions
        if wrapped:
            calls = [self._only_calls(form, _Tags(tags.functions, []))]
        triggers = [form.first or form.begin] if tags.functions else []
        return {
            "type": "triggered_tags",
            "triggers": [*triggers, *([custom_tools.BEGIN] if tags.blocks else [])],
            "tags": [*calls, *tags.blocks],
            "stop_after_first": wrapped or not self.parallel,
        }

    def _tags(self, form: ToolFormat, *, all_checked: bool) -> "_Tags":
        """One for each tool, unless the constraint would be too long."""
        tags, size = _Tags([], []), 0
        for tool in self.tools:
            made = _tag(form, tool, checked=all_checked or tool.strict)
            (tags.blocks if tool.is_custom else tags.functions).append(made)
            size += len(msgspec.json.encode(made))
            if size > MAX_CONSTRAINT_CHARS:
                reason = f"takes more than {MAX_CONSTRAINT_CHARS} characters"
                raise RequestError(f": what enforces their schemas {reason}", at="tools")
        return tags

    def _only_calls(self, form: ToolFormat, tags: "_Tags") -> dict[str, Any]:
        """Calls and nothing else: all of functions, or all of custom tools."""
        if not tags.blocks:
            return self._only_functions(form, tags.functions)
        blocks = _block(form, self._in_a_row(tags.blocks, "\n"))
        if self.parallel and not form.in_channels:
            word = _word_after(custom_tools.BEGIN[0])
            blocks = {"type": "sequence", "elements": [blocks, word]}
        if not tags.functions:
            return blocks
        functions = self._only_functions(form, tags.functions)
        return {"type": "or", "elements": [functions, blocks]}

    def _only_functions(self, form: ToolFormat, tags: list[dict[str, Any]]) -> dict[str, Any]:
        calls = self._in_a_row(tags, form.separator)
        if self.parallel and not _is_wrapped(form) and not form.in_channels:
            word = _word_after(form.begin[0] + form.separator[:1])
            return {"type": "sequence", "elements": [calls, word]}
        return _wrapped(form, calls)

    def _in_a_row(self, tags: list[dict[str, Any]], separator: str) -> dict[str, Any]:
        """One call or, where they may be parallel, several. The blank between two may be the end as
        well: models write one behind their last call, and would be forced to make another, again
        and again."""
        if self.parallel and separator.isspace():
            blank = {"type": "const_string", "value": separator}
            elements = [{"type": "or", "elements": tags}, {"type": "optional", "content": blank}]
            return {"type": "plus", "content": {"type": "sequence", "elements": elements}}
        return {
            "type": "tags_with_separator",
            "tags": tags,
            "separator": separator,
            "at_least_one": True,
            "stop_after_first": not self.parallel,
        }


class _Tags(NamedTuple):
    """The tags of calls: of functions, and of custom tools."""

    functions: list[dict[str, Any]]
    blocks: list[dict[str, Any]]


def _block(form: ToolFormat, calls: dict[str, Any]) -> dict[str, Any]:
    """Calls of custom tools at the beginning of an answer."""
    if not form.in_channels:
        return calls
    return {"type": "tag", "begin": _COMMENTARY, "content": calls, "end": ""}


def _word_after(begins: str) -> dict[str, Any]:
    """What ends an answer of calls only, as the end itself does: the beginning of other text, which
    the parser drops, with none of the characters `begins` of calls and separators. A model that is
    done with calls but goes on would otherwise repeat them: it could write nothing else."""
    calls = "".join(map(re.escape, begins))
    word = {"type": "regex", "pattern": rf"[^\s{calls}]\S{{0,{_MAX_WORD_CHARS - 1}}}"}
    return {"type": "optional", "content": word}


def _formats(path: str, part: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """A format and all that are in it, with their paths."""
    yield path, part
    if "content" in part:
        yield from _formats(f"{path}.content", part["content"])
    for name in ("elements", "tags"):
        for i, each in enumerate(part.get(name, ())):
            yield from _formats(f"{path}.{name}[{i}]", each)


def _is_wrapped(form: ToolFormat) -> bool:
    """Whether there is something around all calls of an answer."""
    return bool(form.first or form.last)


def _wrapped(form: ToolFormat, calls: dict[str, Any]) -> dict[str, Any]:
    if not _is_wrapped(form):
        return calls
    return {"type": "tag", "begin": form.first, "content": calls, "end": form.last}


def _tag(form: ToolFormat, tool: OfferedTool, *, checked: bool) -> dict[str, Any]:
    """One call of `tool`: with arguments that match its schema, or with any object; of a custom one
    with an input of its format."""
    if tool.is_custom:
        content = custom_tools.input_format(tool.spec)
        return {
            "type": "tag",
            "begin": tool.opening(form),
            "content": content,
            "end": custom_tools.CLOSING,
        }
    given = json.loads(tool.spec.parameters or "{}")
    if tool.strict and given:
        given = {"x-closed": True, **given}
    schema: dict[str, Any] = _ANY_OBJECT
    if checked and given:
        schema = {"type": "object", **given}
    elif checked:
        schema = {"type": "object", "properties": {}, "additionalProperties": False}
    content = {"type": "json_schema", "json_schema": schema}
    if form.blocks is not None:
        content = blocks_format(form.blocks, given, checked=checked)
    return {
        "type": "tag",
        "begin": form.opening(tool.spec.name),
        "content": content,
        "end": form.closing,
    }


def _structural(form: dict[str, Any]) -> dict[str, Any]:
    return {"type": "structural_tag", "format": form}
