"""Grammars in the form that llguidance takes: a main part and named parts that it refers to.

Built by the schema front, the EBNF and tag converters; compiled by the llguidance back end. In
Lark text, `@name` refers to a part.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from srt.patterns.lark import LarkWriter, body_of, terminal
from srt.patterns.tree import Chars, Literal, choice
from srt.patterns.write import FREE_TEXT, regex


@dataclass(frozen=True)
class LLGrammar:
    """`body` is {"json_schema": ...} or {"lark_grammar": ...}; `parts` are bodies by name."""

    body: dict[str, Any]
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def lark(cls, text: str) -> "LLGrammar":
        return cls({"lark_grammar": text})

    @classmethod
    def regex(cls, rust: str) -> "LLGrammar":
        """Text that a regex, in the syntax of Rust's regex crate, matches as a whole."""
        return cls.lark(f"start: {terminal(rust)}")

    @classmethod
    def literals(cls, texts: list[str]) -> "LLGrammar":
        """One of `texts`."""
        return cls.regex(regex(choice(map(Literal, texts))))

    def text(self) -> str:
        """What LLMatcher takes."""
        named = [{"name": name, **body} for name, body in self.parts.items()]
        return json.dumps({"grammars": [self.body, *named]}, ensure_ascii=False)


class LarkBuilder(LarkWriter):
    """Collects rules in Lark, and the grammars that they refer to, under fresh names."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: dict[str, dict[str, Any]] = {}

    def embed(self, grammar: LLGrammar) -> str:
        """A reference to the whole of another grammar."""
        number = len(self._parts)
        names = {name: f"part_{number}_{i}" for i, name in enumerate(grammar.parts, start=1)}
        self._parts[f"part_{number}"] = _renamed(grammar.body, names)
        for name, body in grammar.parts.items():
            self._parts[names[name]] = _renamed(body, names)
        return f"@part_{number}"

    def build(self, start: str) -> LLGrammar:
        """The grammar that begins with a rule of the body `start`."""
        return LLGrammar({"lark_grammar": self.text(start)}, self._parts)


def _renamed(body: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    text = body.get("lark_grammar")
    if text is None or not names:
        return body
    pattern = re.compile("@(" + "|".join(map(re.escape, names)) + r")\b")
    return {"lark_grammar": pattern.sub(lambda found: "@" + names[found[1]], text)}


def free_until(after: str, grammar: LLGrammar, opener: str = "") -> LLGrammar:
    """Free text up to and including the first `after`, then `grammar`. With `opener`, `grammar` or,
    behind that text, the same. A terminal of `grammar` that goes on as the opener begins keeps it
    out: what `grammar` allows is never lost."""
    builder = LarkBuilder()
    head = builder.rule("head", terminal(FREE_TEXT + regex(Literal(after))), "[lazy]")
    if opener:  # in characters: a longer terminal could hide what begins alike
        opening = body_of(Literal(opener), lambda ranges: terminal(regex(Chars(ranges))))
        head = f"({opening} {head})?"
    return builder.build(f"{head} {builder.embed(grammar)}")


def text_first(before: str, grammar: LLGrammar) -> LLGrammar:
    """`before`, then `grammar`."""
    builder = LarkBuilder()
    head = builder.rule("head", terminal(regex(Literal(before))))
    return builder.build(f"{head} {builder.embed(grammar)}")
