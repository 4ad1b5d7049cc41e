"""The text that stands for tool calls, in one table: `HERMES`.

The constraint, the parser and the prompt are made from it, so they cannot disagree. It is the
format that Hermes and Qwen models are trained on: a JSON object between two tags.
"""

import json
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from srt.messages import ChatMessage, ToolCall, ToolSpec

_INSTRUCTIONS = """\
You can call functions. They are listed between the tags, one JSON object per line:
{tools_begin}
{tools}
{tools_end}
To call a function, write a JSON object with its name and its arguments between these tags:
{begin}
{{"name": <function name>, "arguments": <object of arguments>}}
{end}
Write one such block for every call. The results come back in {result_begin} tags."""


class ToolFormat(Struct, frozen=True, kw_only=True):
    """The pieces of a call: `begin`, a JSON object, `end`; and the tags around tools and results.

    Names hold no character that JSON would escape, so a call's head is the same text everywhere.
    """

    begin: str
    end: str
    separator: str
    tools_begin: str
    tools_end: str
    result_begin: str
    result_end: str

    def opening(self, name: str) -> str:
        """A call of function `name` up to its arguments."""
        return f'{self.begin}\n{{"name": "{name}", "arguments": '

    @property
    def closing(self) -> str:
        """What follows the arguments of a call."""
        return f"}}\n{self.end}"

    def call_text(self, call: ToolCall) -> str:
        """A past call, as the model would have written it."""
        return f"{self.opening(call.name)}{call.arguments or '{}'}{self.closing}"

    def calls_text(self, content: str, calls: Sequence[ToolCall]) -> str:
        """An assistant's message with its calls."""
        parts = [content] if content else []
        return self.separator.join([*parts, *map(self.call_text, calls)])

    def result_text(self, content: str) -> str:
        """The result of a call."""
        return f"{self.result_begin}\n{content}\n{self.result_end}"

    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        """The system text that describes `tools` to a model whose template does not."""
        return _INSTRUCTIONS.format(
            tools="\n".join(json.dumps(tool_object(t), ensure_ascii=False) for t in tools),
            tools_begin=self.tools_begin,
            tools_end=self.tools_end,
            begin=self.begin,
            end=self.end,
            result_begin=self.result_begin,
        )


def tool_object(tool: ToolSpec) -> dict[str, Any]:
    """A tool as chat templates and models know it: OpenAI's JSON, without what was left out."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    if tool.parameters:
        function["parameters"] = json.loads(tool.parameters)
    return {"type": "function", "function": function}


def _call_object(call: ToolCall, arguments_as_text: bool) -> dict[str, Any]:
    arguments = call.arguments if arguments_as_text else json.loads(call.arguments or "{}")
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def message_object(message: ChatMessage, *, arguments_as_text: bool) -> dict[str, Any]:
    """A message as OpenAI's JSON (arguments as text), or as chat templates know it (as objects).

    What it has not is left out.
    """
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        made["tool_calls"] = [_call_object(call, arguments_as_text) for call in message.tool_calls]
    extras = {
        "tool_call_id": message.tool_call_id,
        "name": message.name,
        "reasoning_content": message.reasoning,
    }
    return made | {name: value for name, value in extras.items() if value}


HERMES = ToolFormat(
    begin="<tool_call>",
    end="</tool_call>",
    separator="\n",
    tools_begin="<tools>",
    tools_end="</tools>",
    result_begin="<tool_response>",
    result_end="</tool_response>",
)
