"""The texts that stand for tool calls: a `ToolFormat` for each form that models are trained on.

The constraint, the parser and the prompt are made from it, so they cannot disagree. A model's own
is found by its chat template, which writes a call that is read back; where none is, `HERMES` is
described as text.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from srt.answers.tool_parameters import ARG_LINES, ARG_PAIRS, PARAMETERS, BlockForm
from srt.wire.messages import ChatMessage, ToolCall, ToolSpec

_INSTRUCTIONS = """\
You can call functions. They are listed between the tags, one JSON object per line:
{tools_begin}
{tools}
{tools_end}
To call a function, write a JSON object with its name and its arguments between these tags:
{begin}
{{"name": <function name>, "arguments": <object of arguments>}}
{end}
Write one such block for every call. The results come back in {result_begin} tags."""


class Reading(NamedTuple):
    """How calls are found, in unconstrained answers too. Calls begin at `opener`: each is
    `head`, a JSON object, `tail`, and then one of `follow`: `more` before
    another call, or `end`. With `is_first` they begin the answer. Where nothing is enforced, they
    also begin at `bare_opener`, with a function's name in place of NAME, at a line's start."""

    opener: str
    head: re.Pattern[str]  # from the opener or from after `more`, with the group "name"
    tail: re.Pattern[str]
    follow: tuple[str, ...]
    more: re.Pattern[str]
    end: str = ""
    is_first: bool = False
    bare_opener: str = ""


class ToolFormat(Struct, frozen=True, kw_only=True):
    """The pieces of calls: `first`, then for each `begin`, `head` with the name in place of NAME,
    a JSON object, `closing`; `separator` between two, `last` after all.

    Names hold no character that JSON would escape, so a call's head is the same text everywhere.
    `marks` are the control tokens in these pieces, and in what the model writes around its
    reasoning: wherever the model writes them they are text, if its chat template mentions the
    first of them. With `short_ids`, templates take ids of nine characters only; with `blocks` there
    is a block of text for each argument, in place of an object (see
    `srt.answers.tool_parameters`); with `in_channels` reasoning, answer and
    calls are messages of channels (see `srt.answers.channels`). `reading` is for the others except
    `HERMES`, whose `end` tag marks the end of a call, and which alone has tags for prompts.
    """

    begin: str
    head: str
    closing: str
    separator: str
    first: str = ""
    last: str = ""
    marks: tuple[str, ...] = ()
    short_ids: bool = False
    blocks: BlockForm | None = None
    in_channels: bool = False
    reading: Reading | None = None
    end: str = ""
    tools_begin: str = ""
    tools_end: str = ""
    result_begin: str = ""
    result_end: str = ""

    def opening(self, name: str) -> str:
        """A call of function `name` up to its arguments."""
        return self.begin + self.head.replace("NAME", name)

    def call_text(self, call: ToolCall) -> str:
        """A past call, as the model would have written it."""
        arguments = call.arguments or "{}"
        if self.blocks is not None:
            arguments = self.blocks.text_of(json.loads(arguments))
        return f"{self.opening(call.name)}{arguments}{self.closing}"

    def calls_text(self, content: str, calls: Sequence[ToolCall]) -> str:
        """An assistant's message with its calls."""
        parts = [content] if content else []
        return self.separator.join([*parts, *map(self.call_text, calls)])

    def result_text(self, content: str) -> str:
        """The result of a call."""
        return f"{self.result_begin}\n{content}\n{self.result_end}"

    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        """The system text that describes `tools` to a model whose template does not."""
        return _INSTRUCTIONS.format(
            tools="\n".join(json.dumps(tool_object(t), ensure_ascii=False) for t in tools),
            tools_begin=self.tools_begin,
            tools_end=self.tools_end,
            begin=self.begin,
            end=self.end,
            result_begin=self.result_begin,
        )


def tool_object(tool: ToolSpec) -> dict[str, Any]:
    """A tool as chat templates and models know it: OpenAI's JSON, without fields not given."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    if tool.parameters:
        function["parameters"] = json.loads(tool.parameters)
    return {"type": "function", "function": function}


def _short_id(call_id: str) -> str:
    """Nine letters and digits, as Mistral's templates require."""
    return re.sub("[^a-zA-Z0-9]", "", call_id)[-9:].rjust(9, "0")


def arguments_of(call: ToolCall) -> dict[str, Any] | str:
    """The object of a call's arguments; their text if it is not that of a JSON object, as where a
    limit has cut the call."""
    try:
        value = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return call.arguments
    return value if isinstance(value, dict) else call.arguments


def _call_object(call: ToolCall, arguments_as_text: bool, call_id: str) -> dict[str, Any]:
    arguments = call.arguments if arguments_as_text else arguments_of(call)
    function = {"name": call.name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def message_object(
    message: ChatMessage, *, arguments_as_text: bool, form: ToolFormat | None = None
) -> dict[str, Any]:
    """A message as OpenAI's JSON (arguments as text), or as chat templates know it (as objects).

    Fields that are not set are left out. `form` says which ids of calls its templates take.
    """
    to_id = _short_id if form is not None and form.short_ids else str
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        made["tool_calls"] = [
            _call_object(call, arguments_as_text, to_id(call.id)) for call in message.tool_calls
        ]
    extras = {
        "tool_call_id": message.tool_call_id and to_id(message.tool_call_id),
        "name": message.name,
        "reasoning_content": message.reasoning,
        "thinking": message.reasoning if form is not None and form.in_channels else "",
    }
    return made | {name: value for name, value in extras.items() if value}


HERMES = ToolFormat(
    begin="<tool_call>",
    head='\n{"name": "NAME", "arguments": ',
    closing="}\n</tool_call>",
    separator="\n",
    end="</tool_call>",
    tools_begin="<tools>",
    tools_end="</tools>",
    result_begin="<tool_response>",
    result_end="</tool_response>",
)

_NAME = r"(?P<name>[\w-]{1,128})"
_NAMED = rf'"name"\s*:\s*"{_NAME}"\s*,\s*'
_ID = r'(?:\s*,\s*"id"\s*:\s*"[^"]*")?'  # some write one after the arguments

LLAMA3 = ToolFormat(
    begin='{"name": "',
    head='NAME", "parameters": ',
    closing="}",
    separator="; ",
    reading=Reading(
        opener="{",
        head=re.compile(
            rf'\{{\s*(?:"type"\s*:\s*"function"\s*,\s*)?{_NAMED}'
            r'"(?:parameters|arguments)"\s*:\s*(?=\{)'
        ),
        tail=re.compile(r"\s*\}"),
        follow=(";",),
        more=re.compile(r"\s*;\s*(?=\{)"),
        is_first=True,
    ),
)

MISTRAL = ToolFormat(
    first="[TOOL_CALLS] [",
    begin='{"name": "',
    head='NAME", "arguments": ',
    closing="}",
    separator=", ",
    last="]",
    marks=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    short_ids=True,
    reading=Reading(
        opener="[TOOL_CALLS]",
        head=re.compile(rf'(?:\[TOOL_CALLS\]\s*\[\s*)?\{{\s*{_NAMED}"arguments"\s*:\s*(?=\{{)'),
        tail=re.compile(_ID + r"\s*\}"),
        follow=(",", "]"),
        more=re.compile(r"\s*,\s*(?=\{)"),
        end="]",
    ),
)

MISTRAL_ARGS = replace(
    MISTRAL,
    first="",
    begin="[TOOL_CALLS]",
    head="NAME[ARGS]",
    closing="",
    separator="",
    last="",
    reading=Reading(
        opener="[TOOL_CALLS]",
        head=re.compile(rf"\[TOOL_CALLS\]\s*{_NAME}\s*(?:\[CALL_ID\]\w+)?\[ARGS\]\s*(?=\{{)"),
        tail=re.compile(""),
        follow=("[TOOL_CALLS]",),
        more=re.compile(r"\s*(?=\[TOOL_CALLS\])"),
    ),
)

# Calls that the model begins with the function, as it often does, are found at a line's start.
QWEN3_CODER = ToolFormat(
    begin="<tool_call>",
    head="\n<function=NAME>\n",
    closing="</function>\n</tool_call>",
    separator="\n",
    blocks=PARAMETERS,
    reading=Reading(
        opener="<tool_call>",
        bare_opener="<function=NAME>",
        head=re.compile(rf"(?:<tool_call>\s*)?<function={_NAME}>"),
        tail=re.compile(r"</function>"),
        follow=("<tool_call>", "<function=", "</tool_call>"),
        more=re.compile(r"\s*(?=<tool_call>|<function=)"),
        end="</tool_call>",
    ),
)

GLM = ToolFormat(
    begin="<tool_call>",
    head="NAME\n",
    closing="</tool_call>",
    separator="\n",
    blocks=ARG_LINES,
    marks=("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<tool_call>", "</tool_call>"),
    reading=Reading(
        opener="<tool_call>",
        head=re.compile(rf"<tool_call>\s*{_NAME}\s*(?=<arg_key>|</tool_call>)"),
        tail=re.compile(r"</tool_call>"),
        follow=("<tool_call>",),
        more=re.compile(r"\s*(?=<tool_call>)"),
    ),
)
GLM47 = replace(GLM, head="NAME", separator="", blocks=ARG_PAIRS)  # without line ends

_DEEPSEEK = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"
_DEEPSEEK_ENDS = "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"


def _deepseek(head: str, closing: str, separator: str) -> ToolFormat:
    calls, call, _ = _DEEPSEEK
    call_end, calls_end = _DEEPSEEK_ENDS
    spaced = re.escape(head).replace("NAME", _NAME).replace("\\\n", r"\s*")
    return ToolFormat(
        first=calls,
        begin=call,
        head=head,
        closing=closing + call_end,
        separator=separator,
        last=calls_end,
        marks=(*_DEEPSEEK, *_DEEPSEEK_ENDS),
        reading=Reading(
            opener=calls,
            head=re.compile(rf"(?:{calls}\s*)?{call}{spaced}\s*(?=\{{)"),
            tail=re.compile(r"\s*" + re.escape(closing.strip()) + r"\s*" + call_end),
            follow=(call, calls_end),
            more=re.compile(rf"\s*(?={call})"),
            end=calls_end,
        ),
    )


DEEPSEEK_V3 = _deepseek(f"function{_DEEPSEEK[2]}NAME\n```json\n", "\n```", "\n")
DEEPSEEK_V31 = _deepseek(f"NAME{_DEEPSEEK[2]}", "", "")

# The beginning of an answer, and the text between two messages.
HARMONY_FINAL, HARMONY_NEXT = "<|channel|>final<|message|>", "<|end|><|start|>assistant"
HARMONY = ToolFormat(
    begin="<|channel|>commentary to=functions.",
    head="NAME <|constrain|>json<|message|>",
    closing="",  # the token that ends a call ends the answer
    separator="<|call|><|start|>assistant",
    marks=("<|channel|>", "<|start|>", "<|end|>", "<|constrain|>", "<|message|>"),
    in_channels=True,
)

# By the names that other servers give their parsers of the same formats.
FORMATS = {
    **dict.fromkeys(("hermes", "qwen", "qwen25"), HERMES),
    **dict.fromkeys(("qwen3_coder", "qwen3_xml"), QWEN3_CODER),
    **dict.fromkeys(("glm", "glm45"), GLM),
    "glm47": GLM47,
    **dict.fromkeys(("llama3", "llama3_json"), LLAMA3),
    **dict.fromkeys(("gpt-oss", "gpt_oss", "harmony"), HARMONY),
    "mistral": MISTRAL,
    "mistral_args": MISTRAL_ARGS,
    **dict.fromkeys(("deepseekv3", "deepseek_v3"), DEEPSEEK_V3),
    **dict.fromkeys(("deepseekv31", "deepseek_v31"), DEEPSEEK_V31),
}


def name_of(form: ToolFormat) -> str:
    """The first name of a format in `FORMATS`."""
    return next(name for name, each in FORMATS.items() if each is form)


def text_marks(template: str | None) -> frozenset[str]:
    """The control tokens that are text where the model of this chat template writes them: those of
    the formats of calls whose first mark it mentions."""
    marks = (form.marks for form in FORMATS.values() if form.marks)
    return frozenset(m for each in marks if each[0] in (template or "") for m in each)
