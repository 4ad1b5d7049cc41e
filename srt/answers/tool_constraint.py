"""The structural tag that makes a model's tool calls valid, built from the same format as the
parser.

Called by the gateway. Invariant: text that matches the tag is parsed into calls, all of it.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from srt.answers.tool_format import ToolFormat
from srt.answers.tool_parameters import blocks_format
from srt.wire.errors import RequestError
from srt.wire.messages import ToolSpec
from srt.wire.sampling import MAX_CONSTRAINT_CHARS

ToolChoice = Literal["none", "auto", "required", "named"]
_ANY_OBJECT = {"type": "object"}
_MAX_WORD_CHARS = 8  # most first tokens of a text are no longer


class OfferedTool(Struct, frozen=True):
    """A function the model may call; a `strict` one gets arguments that match its schema."""

    spec: ToolSpec
    strict: bool = False


class ToolPlan(Struct, frozen=True, kw_only=True):
    """How the tools of one request may be used. With "named", `tools` is that one function."""

    tools: Sequence[OfferedTool]
    choice: ToolChoice
    parallel: bool = True

    @property
    def functions(self) -> dict[str, str]:
        """The functions that a call may name, with the texts of their parameters' schemas."""
        return {tool.spec.name: tool.spec.parameters for tool in self.tools}

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
        if self.choice == "named":
            return _structural(_wrapped(form, tags[0]))
        return _structural(self._only_calls(form, tags))

    def functions_at(
        self, form: ToolFormat, tag: dict[str, Any], has_answer: bool
    ) -> dict[str, str]:
        """The functions whose parameters the formats in a tag of `constraint` are made of, by the
        paths of these formats."""
        path, calls = "format", tag["format"]
        if has_answer:
            path, calls = "format.elements[0]", calls["elements"][0]
        openings = {form.opening(tool.spec.name): tool.spec.name for tool in self.tools}
        return {
            inner: openings[part["begin"]]
            for at, part in _formats(path, calls)
            if part.get("begin") in openings
            for inner, _ in _formats(f"{at}.content", part["content"])
        }

    def _automatic(self, form: ToolFormat, answer: Any) -> dict[str, Any] | None:
        if answer is None and self.parallel and not any(tool.strict for tool in self.tools):
            return None
        tags = self._tags(form, all_checked=False)
        if answer is not None:
            return _structural({"type": "or", "elements": [self._only_calls(form, tags), answer]})
        return _structural(self._calls_in_text(form, tags))

    def _calls_in_text(self, form: ToolFormat, tags: list[dict[str, Any]]) -> dict[str, Any]:
        """Free text, with calls wherever the model begins one."""
        wrapped = _is_wrapped(form)
        return {
            "type": "triggered_tags",
            "triggers": [form.first or form.begin],
            "tags": [self._only_calls(form, tags)] if wrapped else tags,
            "stop_after_first": wrapped or not self.parallel,
        }

    def _tags(self, form: ToolFormat, *, all_checked: bool) -> list[dict[str, Any]]:
        """One for each tool, unless the constraint would be too long."""
        tags, size = [], 0
        for tool in self.tools:
            tags.append(_tag(form, tool, checked=all_checked or tool.strict))
            size += len(msgspec.json.encode(tags[-1]))
            if size > MAX_CONSTRAINT_CHARS:
                reason = f"takes more than {MAX_CONSTRAINT_CHARS} characters"
                raise RequestError(f": what enforces their schemas {reason}", at="tools")
        return tags

    def _only_calls(self, form: ToolFormat, tags: list[Any]) -> dict[str, Any]:
        """Calls and nothing else. The blank between two may be the end as well: models write one
        behind their last call, and would be forced to make another, again and again."""
        calls: dict[str, Any] = {
            "type": "tags_with_separator",
            "tags": tags,
            "separator": form.separator,
            "at_least_one": True,
            "stop_after_first": not self.parallel,
        }
        if self.parallel and form.separator.isspace():
            blank = {"type": "const_string", "value": form.separator}
            elements = [{"type": "or", "elements": tags}, {"type": "optional", "content": blank}]
            calls = {"type": "plus", "content": {"type": "sequence", "elements": elements}}
        if self.parallel and not _is_wrapped(form) and not form.in_channels:
            return {"type": "sequence", "elements": [calls, _word_after(form)]}
        return _wrapped(form, calls)


def _word_after(form: ToolFormat) -> dict[str, Any]:
    """What ends an answer of calls only, as the end itself does: the beginning of other text, which
    the parser drops. A model that is done with calls but goes on would otherwise repeat them, since
    it could write nothing else."""
    calls = "".join(map(re.escape, (form.begin[0], form.separator[:1])))
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
    """One call of `tool`: with arguments that match its schema, or with any object."""
    given = json.loads(tool.spec.parameters or "{}")
    if tool.strict and given:
        given = {"x-closed": True, **given}
    schema: dict[str, Any] = _ANY_OBJECT
    if checked and given:
        schema = {"type": "object", **given}
    elif checked:
        schema = {"type": "object", "properties": {}, "additionalProperties": False}
    content: dict[str, Any] = {"type": "json_schema", "json_schema": schema}
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
