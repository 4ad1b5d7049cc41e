"""Turns chat messages into one prompt text, with the model's own Jinja template in a sandbox.

Called by the prompt reader. Templates come with models and are not trusted: they run in Jinja's
immutable sandbox, their output is bounded, and the children that render have limits of their own.
Tools are passed to templates that write them in a format that we know; for other templates
`tools_as_text` makes them part of the messages' text.
"""

import json
from collections.abc import (
    ItemsView,
    Iterator,
    KeysView,
    Mapping,
    Sequence,
    ValuesView,
)
from contextlib import suppress
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from srt.answers.reasoning import reasoning_tags
from srt.answers.tool_format import HERMES, ToolFormat, message_object, tool_object
from srt.files.chat_templates import template_advice
from srt.files.vocab import Vocab
from srt.ring.forked import ends_in_time, memory_limited
from srt.wire.errors import CONTEXT_LENGTH, RequestError
from srt.wire.messages import ChatMessage, ToolSpec
from tokenizer_proc.prompt.adapting import (
    PROBE_TOOLS,
    Habit,
    Messages,
    View,
    first_taken,
    with_all_read,
)
from tokenizer_proc.prompt.call_form import call_form_of
from tokenizer_proc.prompt.chat_contents import TEXTS, ContentForm, Contents, form_of
from tokenizer_proc.prompt.tools_as_text import with_tools_as_text

COMPILE_CPU_S, COMPILE_BYTES = 2.0, 2**28
MAX_RENDERED_CHARS = 4 * 1024 * 1024
NO_ARGS: Mapping[str, Any] = MappingProxyType({})


class _Compiled(NamedTuple):
    """A template, and its format of calls if it writes tools and calls in one that we know."""

    template: jinja2.Template
    form: ToolFormat | None

    @property
    def takes_tools(self) -> bool:
        return self.form is not None


class ChatTemplate:
    """Renders chats for one model. `source` None: the model has no template and takes no chats.

    `tool_source` is the template for chats with tools, if the model has a separate one; it is not
    used if it writes calls in a format that we do not know. `tokens` are special tokens by their
    names in templates: `bos_token`, `pad_token` and so on. `why_not` says why there are no chats,
    with `advice` for a model without a template; "" if there are.
    """

    def __init__(
        self,
        source: str | None,
        *,
        tool_source: str | None = None,
        advice: str = "send a text prompt instead",
        **tokens: str,
    ) -> None:
        self.reasoning_tags = reasoning_tags(source)
        self._names = {"bos_token": "", "eos_token": "", **tokens}
        self.why_not = "" if source is not None else f"this model has no chat template: {advice}"
        self._default = None if source is None else self._compiled(source)
        self._forms: dict[int, ContentForm] = {}  # of templates, once they are known
        self._habits: dict[tuple[Habit, int, bool], bool] = {}  # the same, with tools or without
        with_tools = None if tool_source is None else self._compiled(tool_source)
        self._with_tools = with_tools if with_tools and with_tools.takes_tools else self._default

    @classmethod
    def from_vocab(cls, vocab: Vocab) -> "ChatTemplate":
        """The template of a model, with its special tokens as template variables."""
        advice = f"send a text prompt instead; {template_advice(vocab.model_name)}"
        return cls(
            vocab.chat_template,
            tool_source=vocab.tool_template,
            advice=advice,
            **vocab.named_tokens,
        )

    @property
    def server_names(self) -> frozenset[str]:
        """The variables that a request may not set."""
        return frozenset({"messages", "add_generation_prompt", "tools", *self._names, *_FUNCTIONS})

    def _compiled(self, source: str) -> _Compiled | None:
        # A broken template must not prevent a model from serving plain prompts.
        try:
            template, takes_tools = _read(source)
            return _Compiled(template, self._form_of(template) if takes_tools else None)
        except Exception as error:  # also SyntaxError, RecursionError and MemoryError
            reason = (str(error) or type(error).__name__).splitlines()[0]
            self.why_not = f"the chat template cannot be compiled: {reason}"
            return None

    def _form_of(self, template: jinja2.Template) -> ToolFormat | None:
        def render(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
            names = {"messages": messages, "tools": tools, "add_generation_prompt": False}
            return _bounded(
                template, {"documents": None, **self._names, **names}, MAX_RENDERED_CHARS
            )

        return call_form_of(render)

    @property
    def call_format(self) -> ToolFormat:
        """How calls are written in chats with tools."""
        form = self._with_tools.form if self._with_tools else None
        return form or HERMES

    def render(
        self,
        messages: Sequence[ChatMessage],
        add_generation_prompt: bool = True,
        max_chars: int = MAX_RENDERED_CHARS,
        tools: Sequence[ToolSpec] = (),
        template_args: Mapping[str, Any] = NO_ARGS,
        contents: Contents = TEXTS,
    ) -> str:
        """The prompt for a chat that may call `tools`; `template_args` are further variables, none
        of `server_names`, and `contents` says what the parts of messages are. Raises RequestError
        when the template refuses it, and when it is longer than `max_chars`."""
        compiled = self._with_tools if tools else self._default
        if compiled is None:
            raise RequestError(self.why_not, param="messages")
        form = self._form(compiled, contents)
        variables = {
            "add_generation_prompt": add_generation_prompt,
            "documents": None,
            **self._names,
            **template_args,
        }

        def written(view: View) -> str:
            names = {**variables, **_shown(view, compiled, contents, form)}
            return _bounded(compiled.template, names, max_chars)

        if not compiled.takes_tools:
            messages, tools = with_tools_as_text(messages, tools, HERMES), ()

        def has(habit: Habit) -> bool:
            return self._has(habit, bool(tools), compiled, contents, form)

        given = [tool_object(tool) for tool in tools] or None
        return first_taken(written, View(with_all_read(messages, has), given))

    def _has(
        self,
        habit: Habit,
        with_tools: bool,
        compiled: _Compiled,
        contents: Contents,
        form: ContentForm,
    ) -> bool:
        """Whether the template has a habit; tried with the first chat to which it matters."""
        known = self._habits.get((habit, id(compiled), with_tools))
        if known is None:
            variables = {"add_generation_prompt": True, "documents": None, **self._names}

            def render(messages: Messages) -> str:
                view = View(messages, PROBE_TOOLS if with_tools else None)
                names = {**variables, **_shown(view, compiled, contents, form)}
                return _bounded(compiled.template, names, MAX_RENDERED_CHARS)

            known = self._habits[habit, id(compiled), with_tools] = habit(render)
        return known

    def _form(self, compiled: _Compiled, contents: Contents) -> ContentForm:
        """How the template takes contents; tried at first, and with models that see only."""
        if not contents.placeholders:
            return ContentForm()
        form = self._forms.get(id(compiled))
        if form is None:

            def render(content: Any) -> str:
                messages = [{"role": "user", "content": content}]
                names = {"messages": messages, "add_generation_prompt": False, "tools": None}
                return _bounded(compiled.template, {**self._names, **names}, MAX_RENDERED_CHARS)

            form = self._forms[id(compiled)] = form_of(render, contents.placeholders)
        return form


def _shown(
    view: View, compiled: _Compiled, contents: Contents, form: ContentForm
) -> dict[str, Any]:
    """The variables of a template that are the chat."""
    messages = [
        message_object(message, arguments_as_text=False, form=compiled.form)
        | {"content": contents.of(message, form)}
        for message in view.messages
    ]
    return {"messages": messages, "tools": view.tools}


def load_template(vocab: Vocab) -> ChatTemplate:
    """The template of a model; a broken one if compiling does not end: Jinja folds constants."""
    sources = [text for text in (vocab.chat_template, vocab.tool_template) if text is not None]
    if ends_in_time(lambda: _read_all(sources), COMPILE_CPU_S, COMPILE_BYTES):
        # Jinja leaves a constant that takes too much memory for later: here too, as in the child.
        with memory_limited(COMPILE_BYTES):
            return ChatTemplate.from_vocab(vocab)
    template = ChatTemplate(None)
    template.why_not = "the chat template cannot be compiled in time"
    return template


def _read(source: str) -> tuple[jinja2.Template, bool]:
    """A template, and whether it reads the variable `tools`."""
    environment = _environment()
    names = meta.find_undeclared_variables(environment.parse(source))
    return environment.from_string(source), "tools" in names


def _read_all(sources: Sequence[str]) -> None:
    for source in sources:
        with suppress(Exception):
            _read(source)


def _bounded(template: jinja2.Template, names: dict[str, Any], max_chars: int) -> str:
    parts, size = [], 0
    for part in template.generate(names):
        size += len(part)
        if size > max_chars:
            limit = f"the rendered chat exceeds {max_chars} characters, which cannot fit"
            raise RequestError(limit, param="messages", code=CONTEXT_LENGTH)
        parts.append(part)
    return "".join(parts)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(_FUNCTIONS)
    return environment


class _GenerationTag(Extension):
    """Lets `{% generation %}`, a mark for training data, through without effect."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it per instance)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as templates expect it: Jinja's own filter escapes for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_listed,
    )


def _listed(value: Any) -> list[Any]:
    """What filters such as `map` give, and the views of a dict."""
    if isinstance(value, (Iterator, KeysView, ValuesView, ItemsView)):
        return list(value)
    raise TypeError(f"a value of type {type(value).__name__} is no JSON")


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(fmt: str) -> str:
    return datetime.now().strftime(fmt)


_FUNCTIONS = {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
