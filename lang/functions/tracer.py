"""Finds the text that every prompt of a function begins with, without running the function.

The function's source is read from its first statement on, as long as it extends its state by
constants: text, and roles around text. Anything else ends the prefix, so no code of the program
runs here; a function whose source cannot be read has no prefix.
"""

import ast
import contextlib
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lang.backends.base import Backend
from lang.backends.sampling import PLAIN
from lang.run import marks
from lang.run.ir import Part, RoleBegin, RoleEnd
from lang.run.program import Program
from lang.run.worker import Worker
from lang.state import roles

_NAMES = ("system", "user", "assistant", "tool")
_ROLES: dict[Any, str] = {getattr(roles, name): name for name in _NAMES}
_MARKS: dict[Any, Part] = {getattr(roles, f"{name}_begin"): RoleBegin(name) for name in _NAMES}
_MARKS |= {getattr(roles, f"{name}_end"): RoleEnd(name) for name in _NAMES}


class _End(Exception):
    """The constant prefix ends here."""


def constant_prefix(function: Callable[..., Any], bound: Mapping[str, Any]) -> list[Part]:
    """The constant primitives that `function` begins with, as its source shows or, of a compiled
    one, its graph; `bound` are arguments with a value."""
    recorded: Sequence[Part] | None = getattr(function, "constant_parts", None)
    if recorded is not None:
        return [*recorded]
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        closure = inspect.getclosurevars(function)
    except (OSError, TypeError, SyntaxError, ValueError):
        return []
    definition = tree.body[0] if tree.body else None
    if not isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef):
        return []
    names = {**closure.globals, **closure.nonlocals}
    state, *others = inspect.signature(function).parameters
    for name in (state, *others):
        names.pop(name, None)
    reader = _SourceReader(state, {**names, **bound})
    with contextlib.suppress(_End):
        reader.read(definition.body)
    return reader.parts


class _SourceReader:
    def __init__(self, state: str, names: Mapping[str, Any]) -> None:
        self._state = state
        self._names = dict(names)
        self.parts: list[Part] = []

    def read(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return  # a docstring
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            if not self._is_state(node.target):
                raise _End
            self._extend(node.value)
        elif isinstance(node, ast.With) and len(node.items) == 1:
            role = self._role_of_state(node.items[0].context_expr)
            self.parts.append(RoleBegin(role))
            self.read(node.body)
            self.parts.append(RoleEnd(role))
        else:
            raise _End

    def _role_of_state(self, node: ast.expr) -> str:
        """`user` of `s.user()`."""
        if isinstance(node, ast.Call) and not node.args and not node.keywords:
            method = node.func
            if isinstance(method, ast.Attribute) and self._is_state(method.value):
                if method.attr in _NAMES:
                    return method.attr
        raise _End

    def _extend(self, node: ast.expr) -> None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            self.parts.append(node.value)
        elif isinstance(node, ast.JoinedStr):
            for value in node.values:
                self._extend(value)
        elif isinstance(node, ast.FormattedValue) and node.format_spec is None:
            if node.conversion != -1:
                raise _End
            self._extend(node.value)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            self._extend(node.left)
            self._extend(node.right)
        elif isinstance(node, ast.Call) and not node.keywords:
            self._call(self._value(node.func), node.args)
        else:
            value = self._value(node)
            if not isinstance(value, str) or marks.has_mark(value):
                raise _End
            self.parts.append(value)

    def _call(self, called: Any, args: Sequence[ast.expr]) -> None:
        try:
            if called in _MARKS and not args:
                self.parts.append(_MARKS[called])
                return
            role = _ROLES.get(called)
        except TypeError:  # not hashable
            raise _End from None
        if role is None or len(args) != 1:
            raise _End
        self.parts.append(RoleBegin(role))
        self._extend(args[0])
        self.parts.append(RoleEnd(role))

    def _is_state(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id == self._state

    def _value(self, node: ast.expr) -> Any:
        """The value of a name, or of a module's attribute; nothing else is evaluated."""
        if isinstance(node, ast.Name) and node.id in self._names:
            return self._names[node.id]
        if isinstance(node, ast.Attribute):
            owner = self._value(node.value)
            if inspect.ismodule(owner) and node.attr in vars(owner):
                return vars(owner)[node.attr]
        raise _End


async def text_of(parts: Sequence[Part], backend: Backend) -> str:
    """The parts as the text that a state would have."""
    program = Program(backend, PLAIN)
    if any(not isinstance(part, str) for part in parts):
        await program.find_template()
    worker = Worker(program)
    for part in parts:
        worker.submit(part)
    return "" if worker.stream.error is not None else worker.stream.transcript.text
