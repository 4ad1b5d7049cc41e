"""Turns the tools of a chat request into the plan of their use, after checking each definition."""

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from srt.answers.tool_constraint import OfferedTool, ToolPlan
from srt.gateway.wire.tools import FunctionIn, NamedToolChoice, ToolChoiceIn, ToolIn
from srt.wire.errors import RequestError, quoted
from srt.wire.messages import ToolSpec

MAX_TOOLS = 128
MAX_TOOL_CHARS = 256 * 1024
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")


class CustomTools(NamedTuple):
    """The custom tools of a request, by their places among all of its tools; and, if not all of its
    tools may be called, the names of those that may."""

    tools: Mapping[int, ToolSpec] = MappingProxyType({})
    allowed: Collection[str] | None = None


NO_CUSTOM = CustomTools()


def tool_plan(
    tools: list[ToolIn],
    choice: ToolChoiceIn | None,
    parallel: bool,
    custom: CustomTools = NO_CUSTOM,
) -> tuple[ToolPlan | None, list[ToolSpec]]:
    """The plan (None without tools to call), and the tools to show the model: the functions
    `tools`, in the places that `custom` leaves them, and these.

    "none" shows none. Raises RequestError naming the definition that is wrong.
    """
    offered = _offered(tools, custom.tools)
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
    shown = [tool.spec for tool in offered]
    if custom.allowed is not None:
        offered = [tool for tool in offered if tool.spec.name in custom.allowed]
        if not offered:
            return None, shown
    return ToolPlan(tools=offered, choice=choice or "auto", parallel=parallel), shown


def _offered(tools: list[ToolIn], custom: Mapping[int, ToolSpec]) -> list[OfferedTool]:
    if len(tools) + len(custom) > MAX_TOOLS:
        raise RequestError(f" takes at most {MAX_TOOLS} tools", at="tools")
    offered: dict[str, OfferedTool] = {}
    size = 0
    functions = iter(tools)
    for index in range(len(tools) + len(custom)):
        where = f"tools[{index}].function"
        if index in custom:
            _check_name(custom[index].name, where)
            tool = OfferedTool(custom[index])
        else:
            function = next(functions).function
            tool = OfferedTool(_spec(function, where), function.strict)
        spec = tool.spec
        if spec.name in offered:
            raise RequestError(f" {quoted(spec.name)} is given twice", at=f"{where}.name")
        size += len(spec.description) + len(spec.parameters)
        size += len(spec.input.definition) if spec.input else 0
        offered[spec.name] = tool
    if size > MAX_TOOL_CHARS:
        raise RequestError(f" is limited to {MAX_TOOL_CHARS} characters, not {size}", at="tools")
    return list(offered.values())


def _spec(function: FunctionIn, where: str) -> ToolSpec:
    _check_name(function.name, where)
    parameters = function.parameters
    if parameters is None:
        return ToolSpec(function.name, function.description)
    if parameters.get("type", "object") != "object":
        raise RequestError(" must be a schema of type object", at=f"{where}.parameters")
    text = msgspec.json.encode(parameters).decode()
    return ToolSpec(function.name, function.description, text)


def _check_name(name: str, where: str) -> None:
    if not _NAME.fullmatch(name):
        rule = "must have 1 to 128 letters, digits, underscores or hyphens"
        raise RequestError(f" {rule}", at=f"{where}.name")
