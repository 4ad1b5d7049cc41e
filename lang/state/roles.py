"""Roles as expressions: `s += sgl.user("...")`, and `s += sgl.user_begin()`.

The role `tool` is that of what a tool returned.
"""

from collections.abc import Callable

from lang.run.ir import Expr, Part, RoleBegin, RoleEnd, role_text


def _turn(role: str) -> Callable[..., Expr]:
    def turn(expr: Part | None = None) -> Expr:
        return role_text(role, expr)

    says = f"A turn of the role {role!r} with `expr`; without one it only opens the turn."
    return _named(turn, role, says)


def _begin(role: str) -> Callable[[], Expr]:
    return _named(lambda: RoleBegin(role), f"{role}_begin", f"Opens a turn of the role {role!r}.")


def _end(role: str) -> Callable[[], Expr]:
    return _named(lambda: RoleEnd(role), f"{role}_end", f"Closes the turn of the role {role!r}.")


def _named(made: Callable[..., Expr], name: str, says: str) -> Callable[..., Expr]:
    """The function with what `help` shows of it."""
    made.__name__ = made.__qualname__ = name
    made.__doc__ = says
    return made


system, user, assistant, tool = map(_turn, ("system", "user", "assistant", "tool"))
system_begin, system_end = _begin("system"), _end("system")
user_begin, user_end = _begin("user"), _end("user")
assistant_begin, assistant_end = _begin("assistant"), _end("assistant")
tool_begin, tool_end = _begin("tool"), _end("tool")
