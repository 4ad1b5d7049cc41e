"""The JSON of tools on the chat route: their definitions, the choice, and calls both ways."""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType


class FunctionIn(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A function that the model may call; `parameters` is a JSON schema of type object."""

    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None
    strict: bool = False


class ToolIn(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A tool: there are functions only."""

    type: Literal["function"]
    function: FunctionIn


class FunctionName(Struct, forbid_unknown_fields=True, frozen=True):
    """The function that must be called."""

    name: str


class NamedToolChoice(Struct, forbid_unknown_fields=True, frozen=True):
    """A tool choice of one function."""

    type: Literal["function"]
    function: FunctionName


ToolChoiceIn = Literal["none", "auto", "required"] | NamedToolChoice


class FunctionCall(Struct, forbid_unknown_fields=True, frozen=True):
    """A function's name, and the JSON text of its arguments."""

    name: str
    arguments: str = ""


class ToolCallJson(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A call in an assistant's message, of the history or of an answer."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class CustomCallJson(ToolCallJson, kw_only=True, frozen=True):
    """A call of a custom tool, whose `arguments` are its raw input. Only routes with such tools
    make them of their own items."""


class FunctionDelta(Struct, kw_only=True, frozen=True):
    """What is new of a call: first the name, then pieces of the arguments."""

    name: str | UnsetType = UNSET
    arguments: str = ""


class ToolCallDelta(Struct, kw_only=True, frozen=True):
    """What is new of the call number `index`."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta
