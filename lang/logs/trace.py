"""What a program asked of its model: one record per call, for `state.trace()`.

A trace is a tree: a state's calls in order, and below each fork the traces of its children.
"""

import html
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct, field, structs

from lang.logs.address import Address
from lang.logs.entries import CallKind

PROMPT_TAIL_CHARS = 80
_NOWHERE = Address(0, (), 0)


class Asked(Struct):
    """What a certificate needs of a call: the text since the call or fork before it, the
    parameters, and the answers."""

    said: str = ""
    parameters: Any = None
    answers: Any = None


class Call(Struct):
    """One call: `kind` is gen, select, score or effect. Times are in seconds.

    `at` (as text `address`) and `source` say where it stands in the run and in the program. It
    began at `began_s` (since 1970); before its first token it waited `queued_s` and took `ttft_s`
    in all, and the tokens after that `decode_s`: None where the back end does not tell. A call
    `from_log` was answered by the log; one that `is_shared` by an equal call, which has the tokens;
    one that `is_speculated` by what an earlier call wrote ahead.

    Of API speculation: `num_requests` were sent, and the API did not count the prompts of
    `num_uncounted`, which were left early. `tokens_ahead` were written after the gen's own text.
    One that took some of those (`tokens_taken`, with the literal before) would have sent
    `tokens_saved` besides.
    """

    kind: CallKind
    name: str
    prompt_chars: int
    prompt_tail: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    latency_s: float = 0.0
    finish: str | None = None
    text: str = ""
    error: str | None = None
    at: Address = _NOWHERE
    source: str = ""
    began_s: float = 0.0
    queued_s: float | None = None
    ttft_s: float | None = None
    decode_s: float | None = None
    from_log: bool = False
    is_shared: bool = False
    is_speculated: bool = False
    num_requests: int = 1
    num_uncounted: int = 0
    tokens_ahead: int = 0
    tokens_taken: int = 0
    tokens_saved: int = 0
    asked: Asked = field(default_factory=Asked)

    @property
    def address(self) -> str:
        """Where it stands in the run."""
        return str(self.at)


class Usage(Struct, frozen=True):
    """Calls that were sent, and their tokens: those of the prompts, of them those cached, and the
    new ones. By API speculation, `speculated` more were answered, without the `saved_tokens` of
    their prompts, and `wasted_tokens` of the new ones answered none; the prompts of `uncounted`
    calls, which were left early, the API did not count.
    """

    calls: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    speculated: int = 0
    saved_tokens: int = 0
    wasted_tokens: int = 0
    uncounted: int = 0


class ForkTrace(Struct):
    """The traces of a fork's children, and the text since the call or fork before it."""

    children: list["Trace"]
    said: str = ""


class Trace(Struct):
    """One state's calls and forks, in the order they were performed."""

    steps: list[Call | ForkTrace] = []

    def __copy__(self) -> "Trace":
        return Trace(self.steps.copy())

    def calls(self) -> Iterator[Call]:
        """Every call of this state and of those below it."""
        for step in self.steps:
            if isinstance(step, Call):
                yield step
            else:
                for child in step.children:
                    yield from child.calls()

    def usage(self) -> Usage:
        """The sum over all calls."""
        calls = list(self.calls())
        return Usage(
            sum(call.num_requests for call in calls),
            sum(call.prompt_tokens for call in calls),
            sum(call.cached_tokens for call in calls),
            sum(call.completion_tokens for call in calls),
            sum(call.is_speculated for call in calls),
            sum(call.tokens_saved for call in calls),
            max(0, sum(call.tokens_ahead - call.tokens_taken for call in calls)),
            sum(call.num_uncounted for call in calls),
        )

    def html_of(self, text: str) -> str:
        """The state's text, with what the model wrote in bold."""
        pieces, at = [], 0
        for call in self.steps:
            if isinstance(call, Call) and call.kind != "score":
                start, end = call.prompt_chars, call.prompt_chars + len(call.text)
                if at <= start < end and text[start:end] == call.text:
                    pieces.append(f"{html.escape(text[at:start])}<b>{html.escape(call.text)}</b>")
                    at = end
        return f"<pre>{''.join(pieces)}{html.escape(text[at:])}</pre>"

    def to_list(self) -> list[Any]:
        """The tree as JSON values: calls are objects, forks {"fork": [...]}."""
        return [
            _fields_of(step)
            if isinstance(step, Call)
            else {"fork": [child.to_list() for child in step.children]}
            for step in self.steps
        ]

    def to_json(self) -> str:
        """`to_list` as text."""
        return msgspec.json.encode(self.to_list()).decode()

    def __iter__(self) -> Iterator[Call]:
        return self.calls()

    def __len__(self) -> int:
        return sum(1 for _ in self.calls())

    def __repr__(self) -> str:
        return "\n".join(_line(call) for call in self.calls())

    def _repr_html_(self) -> str:
        return "<ul>" + "".join(_html(step) for step in self.steps) + "</ul>"


def _fields_of(call: Call) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(structs.replace(call, asked=Asked()))
    del fields["asked"], fields["at"]
    return {**fields, "address": call.address}


def _line(call: Call) -> str:
    tokens = f"{call.prompt_tokens} prompt tokens, {call.cached_tokens} cached"
    tokens += f", {call.completion_tokens} new, {call.latency_s * 1e3:.0f} ms"
    return f"{call.kind} {call.name}: {tokens}" + (f", {call.error}" if call.error else "")


def _html(step: Call | ForkTrace) -> str:
    if isinstance(step, ForkTrace):
        children = "".join(
            f"<li>fork {i}{child._repr_html_()}</li>" for i, child in enumerate(step.children)
        )
        return f"<ul>{children}</ul>"
    tail, text = html.escape(step.prompt_tail), html.escape(step.text)
    summary = html.escape(_line(step))
    return (
        f"<li><details><summary>{summary}</summary><pre>…{tail}<b>{text}</b></pre></details></li>"
    )
