"""The tools of /v1/responses as those of a chat: functions and custom tools, each with one name.

Tools of a namespace are flattened on the way in, and named back on the way out.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from srt.gateway.openai.tool_plan import CustomTools
from srt.gateway.wire.responses import (
    CustomTool,
    FunctionTool,
    NamespaceTool,
    ResponsesRequest,
    ToolChoice,
    ToolName,
)
from srt.gateway.wire.tools import FunctionIn, FunctionName, NamedToolChoice, ToolChoiceIn, ToolIn
from srt.wire.errors import RequestError, missing, quoted
from srt.wire.messages import InputFormat, ToolSpec

_BETWEEN = "__"


def flat_name(namespace: str | UnsetType, name: str) -> str:
    """The name by which the model knows a tool of a namespace ("" and UNSET: of none)."""
    if not namespace:
        return name
    return f"{namespace.removesuffix(_BETWEEN)}{_BETWEEN}{name}"


class Origin(NamedTuple):
    """A tool as the body has it: its namespace ("": none), its name there, and its place."""

    namespace: str
    name: str
    place: str


@contextmanager
def naming_tools(tools: "FlatTools") -> Iterator[None]:
    """Errors of the block that are about a tool say its name, too."""
    try:
        yield
    except RequestError as error:
        param = error.info.param or ""
        for name, origin in tools.origins.items():
            if error.info.follows_param and param.startswith(f"{origin.place}."):
                info = replace(error.info, reason=f" (the tool {quoted(name)}){error.info.reason}")
                raise RequestError.from_info(info) from error
        raise


class FlatTools(NamedTuple):
    """The functions of a request, its custom tools, the choice among them, and by the name of each
    where it is from."""

    functions: list[ToolIn]
    custom: CustomTools
    choice: ToolChoiceIn
    origins: dict[str, Origin]

    @property
    def places(self) -> dict[str | None, str]:
        """The body's fields by those of a chat."""
        return {
            f"tools[{i}].function": origin.place for i, origin in enumerate(self.origins.values())
        }


def flat_tools(body: ResponsesRequest) -> FlatTools:
    """The tools of a body. Raises RequestError naming the one that is wrong."""
    functions: list[ToolIn] = []
    custom: dict[int, ToolSpec] = {}
    origins: dict[str, Origin] = {}
    for number, (tool, origin) in enumerate(_each(body)):
        name = flat_name(origin.namespace, origin.name)
        if name in origins:
            reason = f" {quoted(name)} is given twice"
            raise RequestError(reason, at=f"{origin.place}.name")
        origins[name] = origin
        if isinstance(tool, CustomTool):
            custom[number] = ToolSpec(name, tool.description, input=_format(tool, origin.place))
        else:
            given = {field: getattr(tool, field) for field in FunctionIn.__struct_fields__}
            functions.append(ToolIn(type="function", function=FunctionIn(**given | {"name": name})))
    choice, allowed = _choice(body.tool_choice, origins)
    return FlatTools(functions, CustomTools(custom, allowed), choice, origins)


def _each(body: ResponsesRequest) -> Iterator[tuple[FunctionTool | CustomTool, Origin]]:
    for i, tool in enumerate(body.tools):
        if not isinstance(tool, NamespaceTool):
            yield tool, Origin("", tool.name, f"tools[{i}]")
            continue
        if not tool.name:
            raise RequestError(" must not be empty", at=f"tools[{i}].name")
        for j, inner in enumerate(tool.tools):
            if j == 0 and tool.description:  # said once, for all of them
                text = f"{tool.name}: {tool.description}\n{inner.description}".rstrip()
                inner = replace(inner, description=text)
            yield inner, Origin(tool.name, inner.name, f"tools[{i}].tools[{j}]")


def _format(tool: CustomTool, place: str) -> InputFormat:
    given, where = tool.format, f"{place}.format"
    if given.type == "text":
        if (given.syntax, given.definition) != (UNSET, UNSET):
            raise RequestError(" of type 'text' takes no other fields", at=where)
        return InputFormat()
    if isinstance(given.syntax, UnsetType):
        raise missing(f"{where}.syntax")
    if isinstance(given.definition, UnsetType):
        raise missing(f"{where}.definition")
    if not given.definition.strip():
        raise RequestError(f" of the tool {quoted(tool.name)} is empty", at=f"{where}.definition")
    return InputFormat(given.syntax, given.definition.replace("\r\n", "\n"))


def _choice(
    given: str | ToolChoice, origins: dict[str, Origin]
) -> tuple[ToolChoiceIn, list[str] | None]:
    """The choice as a chat's, and which tools may be called, if that is said."""
    if isinstance(given, str):
        return given, None  # type: ignore[return-value]
    if given.type == "allowed_tools":
        return _allowed(given, origins)
    for field in ("mode", "tools"):
        if getattr(given, field) is not UNSET:
            raise RequestError(
                f" goes with type 'allowed_tools', not {quoted(given.type)}",
                at=f"tool_choice.{field}",
            )
    name = _named(
        ToolName(type=given.type, name=given.name, namespace=given.namespace),
        origins,
        "tool_choice",
    )
    return NamedToolChoice("function", FunctionName(name)), None


def _allowed(given: ToolChoice, origins: dict[str, Origin]) -> tuple[ToolChoiceIn, list[str]]:
    if isinstance(given.mode, UnsetType):
        raise missing("tool_choice.mode")
    if isinstance(given.tools, UnsetType):
        raise missing("tool_choice.tools")
    places = enumerate(given.tools)
    names = [_named(tool, origins, f"tool_choice.tools[{i}]") for i, tool in places]
    if not names and given.mode == "required":
        raise RequestError(" 'required' needs a tool that this server has", at="tool_choice.mode")
    return given.mode, names


def _named(tool: ToolName, origins: dict[str, Origin], where: str) -> str:
    """The flat name of a tool that a choice names."""
    if tool.type not in ("function", "custom"):
        raise RequestError(
            f" must be function or custom, not {quoted(tool.type)}", at=f"{where}.type"
        )
    if isinstance(tool.name, UnsetType):
        raise missing(f"{where}.name")
    name = flat_name(tool.namespace, tool.name)
    if name not in origins:
        raise RequestError(f" {quoted(name)} is not in tools", at=f"{where}.name")
    return name
