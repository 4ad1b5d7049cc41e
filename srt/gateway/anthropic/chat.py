"""Turns the body of a Messages request into a chat, by way of a `ChatRequest`, so that formats,
tools and reasoning mean what they mean in chats."""

import re
from typing import Any, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from srt.gateway.anthropic.input import chat_input, continues
from srt.gateway.constraint.wire import JsonSchemaFormat, NamedSchema
from srt.gateway.context import HttpRequest, call_format, gateway_of, ignored_in, media_rules
from srt.gateway.errors import AT_CAPACITY
from srt.gateway.media.given import MediaList
from srt.gateway.openai.chat import Chat, chat_of
from srt.gateway.wire.anthropic import (
    MIN_BUDGET_TOKENS,
    CountRequest,
    MessagesPrompt,
    MessagesRequest,
    MessagesTool,
    OutputConfig,
    ThinkingConfig,
)
from srt.gateway.wire.native import shared_fields
from srt.gateway.wire.openai import ChatRequest, Thinking
from srt.gateway.wire.tools import FunctionIn, FunctionName, NamedToolChoice, ToolChoiceIn, ToolIn
from srt.wire.errors import (
    CONTEXT_LENGTH,
    OVERLOADED,
    Names,
    RequestError,
    missing,
    quoted,
    renamed,
    renaming,
)

_NAMES: dict[str | None, str] = {
    "text": "messages",
    "input_ids": "messages",
    "media": "messages",
    "max_new_tokens": "max_tokens",
    "stop": "stop_sequences",
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "response_format.json_schema": "output_config.format",
    "tool_choice.function.name": "tool_choice.name",
}
_CUSTOM = "custom"
_EFFORT = "reasoning_effort"  # as templates call it
_EFFORTS = {"xhigh": "high", "max": "high"}  # models know three
_SIZES = re.compile(r"length is (\d+) tokens\..* resulted in (?:more than )?(\d+) tokens")


class MessagesChat(NamedTuple):
    """A chat to submit, and by the ring's fields the body's, for errors."""

    chat: Chat
    names: Names


def messages_chat(
    request: HttpRequest, body: MessagesRequest | CountRequest, max_tokens: int | None
) -> MessagesChat:
    """The body as a chat whose answer has at most `max_tokens`, or all the room. Raises
    RequestError naming the body's field. What has no effect is noted as ignored."""
    gateway = gateway_of(request)
    given, media = chat_input(body), MediaList(media_rules(gateway))
    ignored_in(request).update(given.unused)
    tools, numbers = _tools(request, body)
    names = _NAMES | given.places | _tool_names(numbers)
    if continues(body.messages):
        last = f"messages[{len(body.messages) - 1}]"
        names["chat.continue_final"] = last
        if given.messages[-1].tool_calls:
            raise RequestError(" calls tools: send their results after it", at=last)
    asked = ChatRequest(
        messages=given.messages,
        max_tokens=max_tokens,
        continue_final_message=continues(body.messages),
        response_format=_format(body.output_config),
        reasoning_effort=_effort(request, body.output_config),
        thinking=_thinking(request, body),
        include_reasoning=body.thinking is None or body.thinking.display != "omitted",
        tools=tools,
        tool_choice=_choice(body, tools),
        parallel_tool_calls=not (body.tool_choice and body.tool_choice.disable_parallel_tool_use),
        **_sampling(body),
        **shared_fields(body),
    )
    with renaming(names):
        chat = chat_of(
            *(asked, gateway.info.reasoning, gateway.vocab, call_format(gateway), media),
            media_roles=("user", "tool"),
        )
    media.rename(names)
    theirs = {name: renamed(field, names) or field for name, field in chat.names.items()}
    return MessagesChat(chat, names | theirs)


def in_their_words(error: Exception) -> Exception:
    """The error as Anthropic's clients know it: that of a server at its limit, and of a prompt that
    is too long, whose conversation they then summarize."""
    if not isinstance(error, RequestError):
        return error
    info = error.info
    if info.code == OVERLOADED:
        return RequestError.from_info(replace(info, code=AT_CAPACITY))
    if info.code != CONTEXT_LENGTH or info.param == "max_tokens":
        return error
    sizes = _SIZES.search(info.message)
    reason = "{1} tokens > {0} maximum".format(*sizes.groups()) if sizes else info.message
    return RequestError(f"prompt is too long: {reason}", param=info.param, code=CONTEXT_LENGTH)


def _sampling(body: MessagesRequest | CountRequest) -> dict[str, Any]:
    if isinstance(body, CountRequest):
        return {}
    same = ("temperature", "top_p", "top_k", "seed", "stream")
    return {name: getattr(body, name) for name in same} | {"stop": body.stop_sequences}


def _tools(request: HttpRequest, body: MessagesPrompt) -> tuple[list[ToolIn], list[int]]:
    """The tools that are functions, and their places in the body."""
    tools, numbers = [], []
    chosen = body.tool_choice.name if body.tool_choice else UNSET
    refuses = gateway_of(request).info.unknown_fields == "refuse"
    for i, tool in enumerate(body.tools):
        if tool.type == _CUSTOM:
            tools.append(_tool(tool, f"tools[{i}]"))
            numbers.append(i)
            continue
        if refuses or tool.name == chosen:
            reason = f" {quoted(tool.type)} is not supported: there are tools of type custom only"
            raise RequestError(reason, at=f"tools[{i}].type")
        ignored_in(request)[f"tools[].{tool.type}"] = None
    return tools, numbers


def _tool(tool: MessagesTool, where: str) -> ToolIn:
    if not tool.name:
        raise missing(f"{where}.name")
    if tool.input_schema is UNSET:
        raise missing(f"{where}.input_schema")
    function = FunctionIn(
        name=tool.name,
        description=tool.description,
        parameters=tool.input_schema,
        strict=tool.strict,
    )
    return ToolIn(type="function", function=function)


def _tool_names(numbers: list[int]) -> dict[str | None, str]:
    names: dict[str | None, str] = {}
    for i, number in enumerate(numbers):
        at, where = f"tools[{i}].function", f"tools[{number}]"
        names |= {at: where, f"{at}.parameters": f"{where}.input_schema"}
    return names


def _choice(body: MessagesPrompt, tools: list[ToolIn]) -> ToolChoiceIn | None:
    choice = body.tool_choice
    if choice is None:
        return None
    if choice.type != "tool":
        if choice.name is not UNSET:
            raise RequestError(" goes with the type 'tool' only", at="tool_choice.name")
        if choice.type == "any" and not tools:
            raise RequestError(" 'any' needs tools", at="tool_choice.type")
        return "required" if choice.type == "any" else choice.type
    if choice.name is UNSET:
        raise missing("tool_choice.name")
    return NamedToolChoice("function", FunctionName(choice.name))


def _thinking(request: HttpRequest, body: MessagesRequest | CountRequest) -> Thinking | None:
    """How to reason, after a check of the budget, which has no effect."""
    thinking = body.thinking
    if thinking is None:
        return None
    _check_budget(thinking, body.max_tokens if isinstance(body, MessagesRequest) else None)
    ignored = ignored_in(request)
    if thinking.budget_tokens is not UNSET:
        ignored["thinking.budget_tokens"] = None
    if thinking.type != "disabled" and not gateway_of(request).info.reasoning:
        ignored["thinking"] = None
    return Thinking(type=thinking.type if thinking.type != "between_tools" else "adaptive")


def _check_budget(thinking: ThinkingConfig, max_tokens: int | None) -> None:
    """Raise RequestError for a budget that Anthropic's route does not take."""
    budget, at = thinking.budget_tokens, "thinking.budget_tokens"
    if thinking.type != "enabled":
        if budget is not UNSET:
            raise RequestError(" goes with the type 'enabled' only", at=at)
        return
    if budget is UNSET:
        raise missing(at)
    if budget < MIN_BUDGET_TOKENS:
        raise RequestError(f" must be at least {MIN_BUDGET_TOKENS}, not {budget}", at=at)
    if max_tokens is not None and budget >= max_tokens:
        raise RequestError(f" must be below max_tokens, which is {max_tokens}", at=at)


def _effort(request: HttpRequest, config: OutputConfig | None) -> str | None:
    """The effort as templates name it."""
    if config is None or config.effort is None:
        return None
    if _EFFORT not in (gateway_of(request).vocab.chat_template or ""):
        ignored_in(request)["output_config.effort"] = None
    return _EFFORTS.get(config.effort, config.effort)


def _format(config: OutputConfig | None) -> JsonSchemaFormat | None:
    if config is None or config.format is None:
        return None
    return JsonSchemaFormat(NamedSchema(schema=config.format.schema))
