"""Tools: what the signatures of Python functions tell a model, and a constraint, about them."""

import inspect
import re
import typing
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from lang.run.source import closed_over
from lang.values.structured import schema_of
from lang.values.type_schemas import schema_of_model, schema_of_type
from lang.values.types import form_of

MAX_THOUGHT_CHARS = 400  # a weak model would go on to the end of its tokens
# Not of Callable: mypy takes a list of different functions for a list of objects.
Functions = Sequence[Any]
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_LEFT_OUT = object()
_PLAIN = (type(None), bool, int, float, str)
_HOW = (
    "You can use tools. They are listed here, one JSON object per line:\n{tools}\n"
    'To use one, write {{"tool": <its name>, "arguments": <object of arguments>}}; '
    "what it returns follows. "
    'To end, write {{"answer": <your answer>}}.'
)
_THOUGHTS = ' Each object begins with "thought": <why you write it>.'


class Tool:
    """A function that a model may call. Raises TypeError for one whose arguments are not known."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        name = getattr(function, "__name__", "")
        if not callable(function) or not _NAME.fullmatch(name):
            raise TypeError(f"tools must be functions with names, not {function!r}")
        self.name: str = name
        self.is_async = inspect.iscoroutinefunction(function)
        self.description = inspect.getdoc(function) or ""
        self.parameters = [*inspect.signature(function).parameters.values()]
        self.arguments = self._arguments()

    def _arguments(self) -> Any:
        """The type of the object of arguments."""
        hints = self._hints()
        fields: list[tuple[str, Any, Any]] = []
        for each in self.parameters:
            self._check(each, hints)
            field = msgspec.field()
            if each.default is not each.empty:
                field = msgspec.field(default_factory=lambda: _LEFT_OUT)
            fields.append((each.name, hints[each.name], field))
        return msgspec.defstruct(f"{self.name}_arguments", fields, forbid_unknown_fields=True)

    def _hints(self) -> dict[str, Any]:
        """The annotations; names in them are looked up where the function is defined."""
        inner = inspect.unwrap(getattr(self.function, "__func__", self.function))
        try:
            known = closed_over(inner) or None
            return typing.get_type_hints(inner, localns=known, include_extras=True)
        except Exception as error:
            raise TypeError(f"tool {self.name}: its annotations cannot be read: {error}") from error

    def _check(self, parameter: inspect.Parameter, hints: dict[str, Any]) -> None:
        where = f"tool {self.name}: parameter {parameter.name!r}"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"{where} has no schema: *args and **kwargs cannot be described")
        if parameter.name not in hints:
            raise TypeError(f"{where} has no annotation, of which its schema is made")
        try:
            schema_of_type(hints[parameter.name])
            msgspec.json.Decoder(hints[parameter.name])
        except TypeError as error:
            reason = str(error).rpartition("\n")[2]
            raise TypeError(f"{where}: JSON cannot have its type: {reason}") from error

    def bound(self, arguments: msgspec.Raw) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a call, of their types. Raises ValueError for others, and whatever the
        types' own checks raise."""
        given = msgspec.json.decode(arguments, type=self.arguments)
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for each in self.parameters:
            value = getattr(given, each.name)
            value = each.default if value is _LEFT_OUT else value
            if each.kind is each.POSITIONAL_ONLY:
                args.append(value)
            else:
                kwargs[each.name] = value
        return args, kwargs

    def described(self) -> dict[str, Any]:
        """Its name, its docstring and the schema of its arguments."""
        made = schema_of_type(self.arguments)
        defs = made["$defs"]
        own = defs.pop(f"{self.name}_arguments")
        del own["title"]
        for each in self.parameters:
            if each.default is not each.empty and type(each.default) in _PLAIN:
                own["properties"][each.name]["default"] = each.default
        found: dict[str, Any] = {"name": self.name}
        if self.description:
            found["description"] = self.description
        found["parameters"] = own | ({"$defs": defs} if defs else {})
        return found


def tools_of(functions: Functions) -> dict[str, Tool]:
    """The tools by their names. Raises TypeError for what is no list of functions with annotations,
    ValueError for two of one name, and for none."""
    if not isinstance(functions, list | tuple):
        raise TypeError(f"tools must be a list of functions, not {functions!r}")
    if not functions:
        raise ValueError("tools must hold at least one function: without tools, use gen(type=...)")
    found: dict[str, Tool] = {}
    for each in functions:
        tool = Tool(each)
        if tool.name in found:
            raise ValueError(f"tools: two of them are called {tool.name!r}")
        found[tool.name] = tool
    return found


def describe(tools: Functions, *, thoughts: bool = False) -> str:
    """What to tell a model about its tools: their names, docstrings and the schemas of their
    arguments, and how they are used, with `thoughts` or without. It is meant for the turn of the
    system.

    Raises what `agent` raises for tools that cannot be used.
    """
    found = [tool.described() for tool in tools_of(tools).values()]
    lines = "\n".join(msgspec.json.encode(each).decode() for each in found)
    return _HOW.format(tools=lines) + (_THOUGHTS if thoughts else "")


class Forms:
    """What the model may write in one round: a call of one of the tools, or an answer of `kind`."""

    def __init__(self, tools: dict[str, Tool], kind: Any, thoughts: bool) -> None:
        form_of(kind)  # refuses what is no type
        self._thoughts = thoughts
        arguments = [tool.arguments for tool in tools.values()]
        _, self.read_answer = schema_of(kind)
        if hasattr(kind, "model_json_schema"):
            made = schema_of_type(tuple.__class_getitem__(tuple(arguments)))
            answer = schema_of_model(kind)
            own = answer.pop("$defs", {})
            if shared := sorted(own.keys() & made["$defs"].keys()):
                raise ValueError(f"type: {shared[0]!r} is a type of the tools and of the answer")
            self._defs = made["$defs"] | own
            schemas = made["prefixItems"]
        else:
            made = schema_of_type(tuple.__class_getitem__((*arguments, kind)))
            self._defs = made["$defs"]
            *schemas, answer = made["prefixItems"]
        self._calls = [
            self._object(tool={"const": name}, arguments=schema)
            for name, schema in zip(tools, schemas, strict=True)
        ]
        self._answer = self._object(answer=answer)

    def _object(self, **members: Any) -> dict[str, Any]:
        if self._thoughts:
            thought = {"type": "string", "minLength": 1, "maxLength": MAX_THOUGHT_CHARS}
            members = {"thought": thought} | members
        return {
            "type": "object",
            "properties": members,
            "required": [*members],
            "additionalProperties": False,
        }

    def schema(self, may_call: bool, may_answer: bool) -> str:
        """The JSON Schema of a round, in which one of both is possible at least."""
        ways = [*(self._calls if may_call else ()), *([self._answer] if may_answer else ())]
        made = {"anyOf": ways} if len(ways) > 1 else ways[0]
        return msgspec.json.encode(made | {"$defs": self._defs}).decode()
