"""Roles as expressions: `s += sgl.user("...")`, and `s += sgl.user_begin()`."""

from lang.run.ir import Expr, Part, RoleBegin, RoleEnd, role_text


def system(expr: Part | None = None) -> Expr:
    """A turn of the system; without `expr`, only its beginning."""
    return role_text("system", expr)


def user(expr: Part | None = None) -> Expr:
    """A turn of the user; without `expr`, only its beginning."""
    return role_text("user", expr)


def assistant(expr: Part | None = None) -> Expr:
    """A turn of the assistant; without `expr`, only its beginning."""
    return role_text("assistant", expr)


def tool(expr: Part | None = None) -> Expr:
    """A turn with what a tool returned; without `expr`, only its beginning."""
    return role_text("tool", expr)


def system_begin() -> Expr:
    """Open a turn of the system."""
    return RoleBegin("system")


def system_end() -> Expr:
    """Close it."""
    return RoleEnd("system")


def user_begin() -> Expr:
    """Open a turn of the user."""
    return RoleBegin("user")


def user_end() -> Expr:
    """Close it."""
    return RoleEnd("user")


def assistant_begin() -> Expr:
    """Open a turn of the assistant."""
    return RoleBegin("assistant")


def assistant_end() -> Expr:
    """Close it."""
    return RoleEnd("assistant")


def tool_begin() -> Expr:
    """Open a turn with what a tool returned."""
    return RoleBegin("tool")


def tool_end() -> Expr:
    """Close it."""
    return RoleEnd("tool")
