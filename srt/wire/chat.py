"""What a chat on the ring is made of: messages, tools, and how a template writes them.

Parts of the messages in `srt.wire.messages`, array-like as these are: fields are only ever
appended.
"""

from typing import Literal

from msgspec import Struct


class ToolCall(Struct, frozen=True, array_like=True, omit_defaults=True):
    """A call of a tool in an assistant's message; `arguments` is the JSON text of an object, or the
    raw input of a custom tool (`is_raw`)."""

    id: str
    name: str
    arguments: str
    is_raw: bool = False


class InputFormat(Struct, frozen=True, array_like=True, omit_defaults=True):
    """What the input of a custom tool is: any text, or one that the `definition` matches, a regular
    expression or a grammar in Lark."""

    kind: Literal["text", "regex", "lark"] = "text"
    definition: str = ""


class ToolSpec(Struct, frozen=True, array_like=True, omit_defaults=True):
    """A tool that the model may call. `parameters` is the JSON text of an object schema; ""
    takes no arguments. A custom tool, whose input is a text, has an `input` instead."""

    name: str
    description: str = ""
    parameters: str = ""
    input: InputFormat | None = None


class ChatMessage(Struct, frozen=True, array_like=True, omit_defaults=True):
    """One turn of a chat; `content` is plain text. In a turn that shows media, `parts` are its
    texts and media in their order, each of these by its number in the request, and content is "".

    Assistants' messages may have `tool_calls` and their `reasoning`; one of role "tool" is the
    result of the call `tool_call_id` of the function `name`.
    """

    role: str
    content: str
    tool_calls: list[ToolCall] = []
    tool_call_id: str = ""
    name: str = ""
    reasoning: str = ""
    parts: list[str | int] = []


class ChatOptions(Struct, frozen=True, array_like=True, omit_defaults=True):
    """How a template writes messages as a prompt.

    `template_args` is the JSON text of an object of further variables. With `continue_final` the
    prompt ends inside the last message, which the output continues; `add_generation_prompt` false
    leaves out the head of the assistant's turn.
    """

    template_args: str = ""
    continue_final: bool = False
    add_generation_prompt: bool = True
