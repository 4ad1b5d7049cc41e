"""Turns the tools of a chat request into the plan of their use, after checking each definition."""

import re

import msgspec

from srt.answers.tool_constraint import OfferedTool, ToolPlan
from srt.gateway.wire.tools import FunctionIn, NamedToolChoice, ToolChoiceIn, ToolIn
from srt.wire.errors import RequestError, quoted
from srt.wire.messages import ToolSpec

MAX_TOOLS = 128
MAX_TOOL_CHARS = 256 * 1024
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")


def tool_plan(
    tools: list[ToolIn], choice: ToolChoiceIn | None, parallel: bool
) -> tuple[ToolPlan | None, list[ToolSpec]]:
    """The plan (None without tools to call), and the tools to show the model.

    "none" shows none. Raises RequestError naming the definition that is wrong.
    """
    offered = _offered(tools)
    if isinstance(choice, NamedToolChoice):
        chosen = [tool for tool in offered if tool.spec.name == choice.function.name]
        if not chosen:
            param = "tool_choice.function.name"
            raise RequestError(f" {quoted(choice.function.name)} is not in tools", at=param)
        plan = ToolPlan(tools=chosen, choice="named", parallel=parallel)
        return plan, [tool.spec for tool in offered]
    if not offered:
        if choice == "required":
            raise RequestError(" 'required' needs tools", at="tool_choice")
        return None, []
    if choice == "none":
        return None, []
    plan = ToolPlan(tools=offered, choice=choice or "auto", parallel=parallel)
    return plan, [tool.spec for tool in offered]


def _offered(tools: list[ToolIn]) -> list[OfferedTool]:
    if len(tools) > MAX_TOOLS:
        raise RequestError(f" takes at most {MAX_TOOLS} functions", at="tools")
    offered: dict[str, OfferedTool] = {}
    size = 0
    for index, tool in enumerate(tools):
        where = f"tools[{index}].function"
        spec = _spec(tool.function, where)
        if spec.name in offered:
            raise RequestError(f" {quoted(spec.name)} is given twice", at=f"{where}.name")
        size += len(spec.description) + len(spec.parameters)
        offered[spec.name] = OfferedTool(spec, tool.function.strict)
    if size > MAX_TOOL_CHARS:
        raise RequestError(f" is limited to {MAX_TOOL_CHARS} characters, not {size}", at="tools")
    return list(offered.values())


def _spec(function: FunctionIn, where: str) -> ToolSpec:
    if not _NAME.fullmatch(function.name):
        rule = "must have 1 to 128 letters, digits, underscores or hyphens"
        raise RequestError(f" {rule}", at=f"{where}.name")
    parameters = function.parameters
    if parameters is None:
        return ToolSpec(function.name, function.description)
    if parameters.get("type", "object") != "object":
        raise RequestError(" must be a schema of type object", at=f"{where}.parameters")
    text = msgspec.json.encode(parameters).decode()
    return ToolSpec(function.name, function.description, text)
