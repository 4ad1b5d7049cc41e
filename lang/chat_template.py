"""How roles become text: prefixes and suffixes by role, found by a model's name.

A program interleaves text and gens inside roles, so the prompt grows piece by piece and cannot
be rendered by the server's template. Invariant: for ordinary chats of a known family the text is
byte for byte what the server's template makes of the same messages. What a tool returned is a turn
as the family writes it, of the user's in tags where it has no role for it. Several in a row, which
Qwen's templates put into one turn, are turns of their own here: text only grows.
"""

import re
from collections.abc import Callable

from msgspec import Struct, field

_ROLES = ("system", "user", "assistant", "tool")
_PLAIN = {role: (f"{role.upper()}:", "\n") for role in _ROLES}


class ChatTemplate(Struct, frozen=True):
    """A role's text is `prefix + content + suffix`. `default_system`, if there is one, comes
    first in chats that do not begin with a system message. `stop` ends gens inside roles."""

    name: str = "default"
    marks: dict[str, tuple[str, str]] = field(default_factory=lambda: dict(_PLAIN))
    default_system: str | None = None
    stop: tuple[str, ...] = ()

    def prefix(self, role: str) -> str:
        """What opens a turn of `role`. Raises ValueError for a role that the model lacks."""
        return self._of(role)[0]

    def suffix(self, role: str) -> str:
        """What closes a turn of `role`."""
        return self._of(role)[1]

    def _of(self, role: str) -> tuple[str, str]:
        if role not in self.marks:
            raise ValueError(f"role {role!r} is not one of the chat template {self.name!r}")
        return self.marks[role]


def _marks(prefix: str, suffix: str, **named: str) -> dict[str, tuple[str, str]]:
    """Marks that differ between roles only in the role's name, `{}` in `prefix`, which is the role
    itself, or what `named` has for it."""
    return {role: (prefix.format(named.get(role, role)), suffix) for role in _ROLES}


_CHATML = _marks("<|im_start|>{}\n", "<|im_end|>\n") | {
    "tool": ("<|im_start|>user\n<tool_response>\n", "\n</tool_response><|im_end|>\n")
}
_CHATML_STOP = ("<|im_end|>",)
_BUILT_IN = (
    ChatTemplate(),
    ChatTemplate("chatml", _CHATML, stop=_CHATML_STOP),
    ChatTemplate(
        "smollm2",
        _CHATML,
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
        _CHATML_STOP,
    ),
    ChatTemplate(
        "qwen2.5",
        _CHATML,
        "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
        _CHATML_STOP,
    ),
    ChatTemplate("qwen2-vl", _CHATML, "You are a helpful assistant.", _CHATML_STOP),
    ChatTemplate(
        "llama-3-instruct",
        _marks("<|start_header_id|>{}<|end_header_id|>\n\n", "<|eot_id|>", tool="ipython"),
        stop=("<|eot_id|>",),
    ),
)
_FAMILIES = (
    (r"smollm2", "smollm2"),
    (r"qwen2(\.?5)?-?vl", "qwen2-vl"),
    (r"qwen2\.?5.*instruct", "qwen2.5"),
    (r"qwen.*(chat|instruct)|qwen3(?!.*base)|chatml|hermes", "chatml"),
    (r"llama-?3.*instruct", "llama-3-instruct"),
)


def _match_family(model: str) -> str | None:
    found = (name for pattern, name in _FAMILIES if re.search(pattern, model, re.IGNORECASE))
    return next(found, None)


_TEMPLATES = {template.name: template for template in _BUILT_IN}
_MATCHERS: list[Callable[[str], str | None]] = [_match_family]


def register_chat_template(template: ChatTemplate) -> None:
    """Register `template` under its name."""
    _TEMPLATES[template.name] = template


def register_chat_template_matching_function(match: Callable[[str], str | None]) -> None:
    """Ask `match(model)` for a template's name before the built-in families are tried."""
    _MATCHERS.insert(0, match)


def chat_template_named(name: str) -> ChatTemplate:
    """A registered template. Raises ValueError for an unknown name."""
    if name not in _TEMPLATES:
        raise ValueError(f"chat_template {name!r} is unknown; there are {sorted(_TEMPLATES)}")
    return _TEMPLATES[name]


def chat_template_of_model(model: str) -> ChatTemplate:
    """The template for a model's name or path; "default" for unknown families."""
    for match in _MATCHERS:
        name = match(model)
        if name is not None:
            return chat_template_named(name)
    return _TEMPLATES["default"]
