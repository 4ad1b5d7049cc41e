"""The turns of a chat as methods of a state: `with s.user(): ...`, `s.user_begin()`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Self

from lang.run.ir import Expr, Part, RoleBegin, RoleEnd, VarScopeBegin, VarScopeEnd


def _adding(mark: type[RoleBegin | RoleEnd], role: str) -> Callable[["Turns"], None]:
    """A method that adds a mark of a turn."""

    def add(self: "Turns") -> None:
        self += mark(role)

    add.__name__ = f"{role}_{'begin' if mark is RoleBegin else 'end'}"
    add.__qualname__ = f"Turns.{add.__name__}"
    add.__doc__ = f"{'Open' if mark is RoleBegin else 'Close'} a turn of the role {role!r}."
    return add


class Turns(ABC):
    """The methods for turns of a state that can be extended."""

    @abstractmethod
    def __iadd__(self, other: Part) -> Self: ...

    def system(self, expr: Part | None = None) -> AbstractContextManager[None]:
        """`with s.system(): ...`: a turn of the system."""
        return self._role("system", expr)

    def user(self, expr: Part | None = None) -> AbstractContextManager[None]:
        """`with s.user(): ...`: a turn of the user."""
        return self._role("user", expr)

    def assistant(self, expr: Part | None = None) -> AbstractContextManager[None]:
        """`with s.assistant(): ...`: a turn of the assistant."""
        return self._role("assistant", expr)

    def tool(self, expr: Part | None = None) -> AbstractContextManager[None]:
        """`with s.tool(): ...`: a turn with what a tool returned."""
        return self._role("tool", expr)

    # Each opens a turn of its role, or closes it.
    system_begin, system_end = _adding(RoleBegin, "system"), _adding(RoleEnd, "system")
    user_begin, user_end = _adding(RoleBegin, "user"), _adding(RoleEnd, "user")
    assistant_begin, assistant_end = _adding(RoleBegin, "assistant"), _adding(RoleEnd, "assistant")
    tool_begin, tool_end = _adding(RoleBegin, "tool"), _adding(RoleEnd, "tool")

    def var_scope(self, name: str) -> AbstractContextManager[None]:
        """`with s.var_scope("v"): ...`: all text of the block becomes the variable `v`."""
        return self._between(VarScopeBegin(name), VarScopeEnd(name))

    def _role(self, role: str, expr: Part | None) -> AbstractContextManager[None]:
        if expr is not None:
            self += RoleBegin(role)
            self += expr
            self += RoleEnd(role)
            return nullcontext()
        return self._between(RoleBegin(role), RoleEnd(role))

    @contextmanager
    def _between(self, begin: Expr, end: Expr) -> Iterator[None]:
        self += begin
        try:
            yield
        finally:
            self += end
