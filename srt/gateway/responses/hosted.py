"""Leaves tools of OpenAI's own servers, and their items, out of a body of /v1/responses.

Agents declare them to every server. They are named in the answer's header; a request that needs one
is refused. Called with the decoded JSON, before the fields of its objects are looked at.
"""

from collections.abc import Callable
from typing import Any

from srt.gateway.wire.fields import Notes
from srt.wire.errors import RequestError, quoted

_TOOLS = frozenset(
    {
        "apply_patch",
        "code_interpreter",
        "file_search",
        "image_generation",
        "local_shell",
        "mcp",
        "programmatic_tool_calling",
        "shell",
        "tool_search",
    }
)
_FAMILIES = ("web_search", "computer")  # with the dates of versions
_ITEMS = frozenset(
    {
        "additional_tools",
        "apply_patch_call",
        "apply_patch_call_output",
        "code_interpreter_call",
        "compaction",
        "compaction_trigger",
        "computer_call",
        "computer_call_output",
        "file_search_call",
        "image_generation_call",
        "local_shell_call",
        "local_shell_call_output",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "mcp_list_tools",
        "program",
        "program_output",
        "shell_call",
        "shell_call_output",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    }
)
_OURS = ("function", "custom", "namespace", "allowed_tools")


def is_hosted(kind: Any) -> bool:
    """Whether tools of this type run on OpenAI's servers."""
    return isinstance(kind, str) and (kind in _TOOLS or kind.startswith(_FAMILIES))


def without_hosted(body: Any, notes: Notes | None) -> Any:
    """A decoded body without what is hosted, which `notes` names. Raises RequestError if a tool
    must be called that is not there, or if unknown fields are refused."""
    if not isinstance(body, dict):
        return body
    made = dict(body)
    made["tools"] = _rest(body.get("tools"), is_hosted, ("tools",), notes)
    made["input"] = _rest(body.get("input"), _ITEMS.__contains__, ("input",), notes)
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        if isinstance(choice.get("type"), str) and choice["type"] not in _OURS:
            what = quoted(choice["type"])
            raise RequestError(f" asks for {what}, which this server does not have", at=_CHOICE)
        path = (_CHOICE, "tools")
        made[_CHOICE] = choice | {"tools": _rest(choice.get("tools"), is_hosted, path, notes)}
    return {name: value for name, value in made.items() if name in body}


_CHOICE = "tool_choice"


def _rest(
    given: Any, leaves_out: Callable[[Any], bool], path: tuple[str, ...], notes: Notes | None
) -> Any:
    """The objects of a list, without those of the types that are left out. Errors about the others
    have their places in the list as it was given."""
    if not isinstance(given, list):
        return given
    kept: list[Any] = []
    name = ".".join(path)
    for i, each in enumerate(given):
        kind = each.get("type") if isinstance(each, dict) else None
        if isinstance(kind, str) and leaves_out(kind):
            if notes is None or not notes.may_ignore((*path, i, kind)):
                raise RequestError(f" of type {quoted(kind)} is not supported", at=f"{name}[{i}]")
            continue
        if notes is not None and len(kept) < i:
            notes.renamed[f"{name}[{len(kept)}]"] = f"{name}[{i}]"
        kept.append(each)
    return kept
