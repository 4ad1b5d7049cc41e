"""Turns the body of a chat request into the ring's request, and into how its answer is read.

The one place where response formats, tools and reasoning meet.
"""

from collections.abc import Collection, Mapping
from itertools import count
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from srt.answers.reasoning import (
    CHANNELS,
    SWITCHES,
    THINK,
    THINKING,
    Tags,
    may_reason,
    reasoning_tags,
)
from srt.answers.tool_constraint import ToolPlan
from srt.answers.tool_format import HARMONY_FINAL, HARMONY_NEXT, HERMES, ToolFormat
from srt.client.generation import Generation, Request
from srt.files.vocab import Vocab
from srt.gateway.constraint.fields import Given, json_text, openai_constraint
from srt.gateway.media.given import MediaList
from srt.gateway.openai.chat_messages import chat_messages, decoded_json
from srt.gateway.openai.tool_plan import NO_CUSTOM, CustomTools, tool_plan
from srt.gateway.wire.chat import ChatFields
from srt.gateway.wire.native import shared_fields
from srt.gateway.wire.openai import ChatReasoning, ChatRequest, order_fields
from srt.wire.constraint import ConstraintKind
from srt.wire.errors import Names, RequestError
from srt.wire.messages import ChatOptions
from srt.wire.sampling import SamplingParams, Scoring

_TOOLS = "tools"
_NO_CHAT = ChatFields()
_SWITCHED = {"enabled": True, "disabled": False}  # the other types leave it to the model


class AnswerReading(Struct, frozen=True, kw_only=True):
    """What to look for in an answer.

    `functions` are the tools that may be called in the format `form` (empty: none), by name, with
    the texts of their parameters' schemas, and `custom` those that take a text. `constrained` says
    that all text except the reasoning is constrained, so that calls are known to be valid;
    `calls_first` that an answer is calls only, or has none, and `forced` that it is calls.
    `reasoning` says that what is between `tags`
    is split off, and `hides_reasoning` that nobody gets it; `opened` that the answer begins inside
    it unless the prompt has its end.
    """

    functions: Mapping[str, str] = MappingProxyType({})
    custom: frozenset[str] = frozenset()
    form: ToolFormat = HERMES
    constrained: bool = False
    calls_first: bool = False
    forced: bool = False
    reasoning: bool = False
    hides_reasoning: bool = False
    tags: Tags = THINK
    opened: bool = False

    def begins_inside(self, generation: Generation) -> bool:
        """Whether the answer begins inside the reasoning."""
        return generation.opens_reasoning or (self.opened and not generation.closes_reasoning)


class Chat(NamedTuple):
    """A chat to submit. For errors, `names` are the body's fields by the ring's, and by the paths
    in the structural tag that was made of them. `media` are the pictures and videos that it
    shows."""

    request: Request
    reading: AnswerReading
    names: dict[str | None, str]
    media: MediaList


def chat_of(
    body: ChatRequest,
    reasoning: bool,
    vocab: Vocab,
    form: ToolFormat,
    media: MediaList,
    media_roles: Collection[str] = ("user",),
    custom: CustomTools = NO_CUSTOM,
) -> Chat:
    """Check the body and make a chat of it for the model of `vocab`, which writes calls in `form`.
    `reasoning`: the model's answers begin with reasoning. Messages of `media_roles` may show
    pictures and videos, which are added to `media`. `custom` are tools that the body has no field
    for."""
    tags = reasoning_tags(vocab.chat_template)
    messages = chat_messages(body.messages, media, media_roles)
    plan, shown = tool_plan(body.tools, body.tool_choice, body.parallel_tool_calls, custom)
    _check_raw(body, plan, reasoning)
    own = openai_constraint(body)
    given = _constraint(body, plan, own, form)
    effort, thinks, hides = _asked_reasoning(body)
    variables = _template_variables(body, vocab.chat_template or "", effort, thinks)
    begun = messages[-1].content if body.continue_final_message else ""
    waits = reasoning and given is not None and may_reason(begun, tags, variables)
    reasoned = _end_of_reasoning(tags, plan) if waits else ""
    after = reasoned if body.constraint_after is None else body.constraint_after
    limit, names = _limit(body)
    scoring = _scoring(body)
    reads_tools = plan is not None and body.parse_tool_calls
    sampling = _with_opener(body, body.to_params(given, after, limit), tags, reasoned)
    if plan is not None and sampling.close is None and _must_be_whole(plan, own, given):
        sampling = msgspec.structs.replace(sampling, close=True)
    request = Request(
        stream=body.stream,
        sampling=sampling,
        messages=messages,
        tools=shown,
        chat=_chat_options(body, variables),
        scoring=scoring,
        prediction="" if body.prediction is None else body.prediction.text,
        **shared_fields(body),
        **order_fields(body),
    )
    constrained = plan is not None and given is not None and after in ("", reasoned)
    reading = AnswerReading(
        form=form,
        functions=plan.functions if plan is not None and reads_tools else {},
        custom=plan.custom if plan is not None and reads_tools else frozenset(),
        constrained=constrained,
        forced=constrained and plan is not None and plan.choice != "auto",
        calls_first=own is not None and after in ("", reasoned),
        reasoning=reasoning and (body.separate_reasoning or hides),
        hides_reasoning=hides,
        # The constraint waits for the reasoning's end: text before that is not part of the answer.
        tags=tags,
        opened=given is not None and after == tags.end and not sampling.constraint_opener,
    )
    if given is not None:
        names |= {given.kind: given.path}
        if plan is not None and given is not own:
            names |= _paths(body, custom, plan, own, form, given.value)
    return Chat(request, reading, names, media)


def _scoring(body: ChatRequest) -> Scoring | None:
    """The log-probabilities that the body asks for."""
    if body.top_logprobs and not body.logprobs:
        raise RequestError(" needs logprobs: true", at="top_logprobs")
    if not body.logprobs and body.prompt_logprobs is None:
        return None
    start = -1 if body.prompt_logprobs is None else 0
    return Scoring(start, max(body.top_logprobs, body.prompt_logprobs or 0))


def _with_opener(
    body: ChatRequest, sampling: SamplingParams, tags: Tags, reasoned: str
) -> SamplingParams:
    """The parameters, which say how reasoning begins if the constraint waits for its end: whether
    there is any shows at the prompt's end, or at the answer's beginning."""
    if body.constraint_opener and body.constraint_after is None:
        raise RequestError(" needs constraint_after", at="constraint_opener")
    if body.constraint_after is not None or reasoned != tags.end:
        return sampling
    return msgspec.structs.replace(sampling, constraint_opener=tags.begin)


def _end_of_reasoning(tags: Tags, plan: ToolPlan | None) -> str:
    """The text that the model writes before a constraint applies."""
    if tags != CHANNELS:
        return tags.end
    return HARMONY_FINAL if plan is None else HARMONY_NEXT


# The body's names of the options for how the template writes messages.
OPTION_NAMES: Names = {
    "chat.template_args": "chat_template_kwargs",
    "chat.continue_final": "continue_final_message",
}


def chat_prompt(
    body: ChatFields, template: str, media: MediaList | None = None, roles: Collection[str] = ()
) -> dict[str, Any]:
    """The fields of the ring's requests that are the chat of `body`. Messages of `roles` may show
    pictures and videos, which are added to `media`. Raises RequestError naming the field."""
    if body.messages is None:
        for name in ChatFields.__struct_fields__:
            if getattr(body, name) != getattr(_NO_CHAT, name):
                raise RequestError(" goes with messages only", at=name)
        return {}
    _, shown = tool_plan(body.tools, None, True)
    variables = _template_variables(body, template, body.reasoning_effort)
    chat = _chat_options(body, variables)
    return {"messages": chat_messages(body.messages, media, roles), "tools": shown, "chat": chat}


def _asked_reasoning(body: ChatRequest) -> tuple[str | None, bool | None, bool]:
    """What the body's fields of several servers say together: the effort, whether to reason (None:
    as the template does), and whether the answer is to be without the reasoning."""
    asked = body.reasoning or ChatReasoning()
    effort = asked.effort if body.reasoning_effort is None else body.reasoning_effort
    thinking = None if body.thinking is None else _SWITCHED.get(body.thinking.type)
    switches = (body.enable_thinking, thinking, asked.enabled)
    thinks = next((switch for switch in switches if switch is not None), None)
    return effort, thinks, asked.exclude or not body.include_reasoning


def _template_variables(
    body: ChatRequest | ChatFields, template: str, effort: str | None, thinks: bool | None = None
) -> dict[str, Any]:
    """The body's further variables of the template. That there is no reasoning is always said: if
    the template begins some all the same, the prompt ends it."""
    hints: dict[str, Any] = {"reasoning_effort": effort, "verbosity": body.verbosity}
    if thinks:
        hints |= dict.fromkeys(SWITCHES, True)
    known = {name: hint for name, hint in hints.items() if hint is not None and name in template}
    if thinks is False or (thinks is None and effort == "none"):
        known[THINKING] = False
    given = body.chat_template_kwargs
    return given | {name: hint for name, hint in known.items() if name not in given}


def _chat_options(body: ChatRequest | ChatFields, variables: dict[str, Any]) -> ChatOptions:
    """The options for how the template writes the messages."""
    begins = body.add_generation_prompt
    if begins and body.continue_final_message:
        reason = " cannot be combined with continue_final_message"
        raise RequestError(reason, at="add_generation_prompt")
    return ChatOptions(
        template_args=json_text(variables) if variables else "",
        continue_final=body.continue_final_message,
        add_generation_prompt=not body.continue_final_message if begins is None else begins,
    )


def _limit(body: ChatRequest) -> tuple[int | None, dict[str | None, str]]:
    if body.max_completion_tokens is not None:
        return body.max_completion_tokens, {"max_new_tokens": "max_completion_tokens"}
    return body.max_tokens, {"max_new_tokens": "max_tokens"}


def _check_raw(body: ChatRequest, plan: ToolPlan | None, reasoning: bool) -> None:
    if plan and body.parse_tool_calls and reasoning and not body.separate_reasoning:
        raise RequestError(
            " false cannot be combined with tools, whose calls are read after "
            "the reasoning; parse_tool_calls false leaves both in the content",
            at="separate_reasoning",
        )


def _constraint(
    body: ChatRequest, plan: ToolPlan | None, own: Given | None, form: ToolFormat
) -> Given | None:
    """What the answer must match: the body's own constraint, its tools, or either of the two.

    If the text is not searched for calls, only the body's own constraint holds.
    """
    if plan is None:
        return own
    if own is not None and plan.choice == "auto" and not body.parse_tool_calls:
        return own
    return _with_tools(own, plan, form)


def _must_be_whole(plan: ToolPlan, own: Given | None, given: Given | None) -> bool:
    """Whether the constraint of a body with tools is closed by default: calls must be made, or its
    own is a JSON Schema, which the tag for both no longer shows."""
    is_schema = own is not None and own.kind == "json_schema"
    return given is not None and (plan.choice != "auto" or is_schema)


def _with_tools(own: Given | None, plan: ToolPlan, form: ToolFormat) -> Given | None:
    """The constraint that makes the answer either call tools or match the body's own constraint."""
    if plan.choice != "auto":
        if own is not None:
            reason = " cannot be combined with tool_choice: the answer is calls only"
            raise RequestError(reason, at=own.path)
        return _tools(plan.constraint(form))
    answer = None if own is None else _as_format(own)
    if answer is not None and form.in_channels:
        answer = {"type": "tag", "begin": HARMONY_FINAL, "content": answer, "end": ""}
    return _tools(plan.constraint(form, answer))


def _tools(tag: dict[str, Any] | None) -> Given | None:
    return None if tag is None else Given("structural_tag", tag, _TOOLS)


def _paths(
    body: ChatRequest,
    custom: CustomTools,
    plan: ToolPlan,
    own: Given | None,
    form: ToolFormat,
    tag: dict[str, Any],
) -> dict[str | None, str]:
    """The body's fields by the paths of what `_with_tools` made of them."""
    free = (i for i in count() if i not in custom.tools)
    places = {
        tool.function.name: f"tools[{i}].function.parameters"
        for tool, i in zip(body.tools, free, strict=False)
    }
    places |= {spec.name: f"tools[{i}].function.format" for i, spec in custom.tools.items()}
    paths: dict[str | None, str] = {
        f"structural_tag.{path}": places[name]
        for path, name in plan.functions_at(form, tag, own is not None).items()
    }
    if own is not None:
        answer = "structural_tag.format.elements[1]" + (".content" if form.in_channels else "")
        paths[answer] = f"{own.path}.format" if own.kind == "structural_tag" else own.path
    return paths


def _as_format(own: Given) -> dict[str, object]:
    """A constraint as part of a structural tag."""
    kind: ConstraintKind = own.kind
    if kind == "choices":
        if not own.value:
            raise RequestError(" must not be empty", at=own.path)
        return {
            "type": "or",
            "elements": [{"type": "const_string", "value": text} for text in own.value],
        }
    if kind == "regex":
        return {"type": "regex", "pattern": own.value}
    if kind == "ebnf":
        return {"type": "grammar", "grammar": own.value}
    value = decoded_json(own.value, own.path) if isinstance(own.value, str) else own.value
    if kind == "json_schema":
        return {"type": "json_schema", "json_schema": value}
    form = value.get("format") if isinstance(value, dict) else None
    if not isinstance(form, dict):
        raise RequestError(" beside tools must be an object with a format", at=own.path)
    return form
