"""Roles as expressions: `s += sgl.user("...")`, and `s += sgl.user_begin()`.

The role `tool` is that of what a tool returned. A role takes the expression `expr` of its turn;
without one it only opens the turn, as `user_begin` does. `user_end` closes it.
"""

from functools import partial

from lang.run.ir import RoleBegin, RoleEnd, role_text

system = partial(role_text, "system")
user = partial(role_text, "user")
assistant = partial(role_text, "assistant")
tool = partial(role_text, "tool")

system_begin, system_end = partial(RoleBegin, "system"), partial(RoleEnd, "system")
user_begin, user_end = partial(RoleBegin, "user"), partial(RoleEnd, "user")
assistant_begin, assistant_end = partial(RoleBegin, "assistant"), partial(RoleEnd, "assistant")
tool_begin, tool_end = partial(RoleBegin, "tool"), partial(RoleEnd, "tool")
