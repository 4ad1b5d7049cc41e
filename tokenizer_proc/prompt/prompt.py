"""Reads a request's prompt, given as text, token ids or chat messages, into token ids.

Called in the tokenizer's children for each request; the front has called `check_size`. Invariant:
the work is bounded by the context length, whatever the size of the request.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from srt.answers.reasoning import SWITCHES, is_switched_off, reasons
from srt.files.control_tokens import ControlTokens
from srt.files.tokenizer import Tokenizer
from srt.wire.errors import CONTEXT_LENGTH, RequestError
from srt.wire.media import MediaSpan
from srt.wire.messages import (
    ChatMessage,
    ChatOptions,
    GenerateReq,
    TokenizeReq,
    ToolSpec,
)
from srt.wire.packing import ITEM_BYTES, unpack_ids
from tokenizer_proc.media.showing import NOTHING, Showing, Shown
from tokenizer_proc.prompt.chat_contents import Contents, text_of
from tokenizer_proc.prompt.chat_template import ChatTemplate
from tokenizer_proc.prompt.continuation import render_open
from tokenizer_proc.prompt.custom_as_text import with_custom_as_text
from tokenizer_proc.prompt.lines_last import with_lines_last
from tokenizer_proc.prompt.marking import Chat, marked_chat, marked_text

# Longer text cannot fit: hardly any token is longer on average, in any language or code.
MAX_CHARS_PER_TOKEN = 16
# Text above this many characters per token of the limit usually does not fit: its head is encoded
# first. At its end, the head may have a few more tokens than the whole text has there.
_HEAD_CHARS_PER_TOKEN = 4
_HEAD_SPARE_TOKENS = 256


class Prompt(NamedTuple):
    """A prompt's ids (int32 [n], n >= 1) and the field of the request that it came from.

    The prompt of a chat may end inside the model's reasoning (`opens_reasoning`), or with the tag
    that ends it (`closes_reasoning`). `media` are the spans that stand for pictures.
    """

    ids: np.ndarray
    param: str
    opens_reasoning: bool = False
    closes_reasoning: bool = False
    media: list[MediaSpan] = []  # noqa: RUF012 (never changed)


class PromptReader:
    """Turns requests into prompts for one model whose requests hold at most `limit` tokens.

    Control tokens in the texts of a chat are text, unless `special_in_content`; in requests with
    media they always are. `showing` is for a model that sees. Lines of system texts with a match of
    `system_line_last` move to the end of their text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        vocab_size: int,
        limit: int,
        special_in_content: bool = False,
        showing: Showing | None = None,
        system_line_last: str = "",
    ) -> None:
        self._showing = showing
        self._line_last = system_line_last
        self._control = None if special_in_content else tokenizer.control
        self._tokenizer = tokenizer
        self._template = template
        self.vocab_size = vocab_size
        self._limit = limit

    def check_size(self, req: GenerateReq | TokenizeReq) -> None:
        """Raise RequestError for a request that is too long to be read at all."""
        self.check_chars(len(req.text or ""), "text")
        self.check_chars(_chars(req.messages or []), "messages")
        self.check_chars(sum(map(_tool_chars, req.tools)), "tools")
        self.check_chars(len(req.chat.template_args), "chat.template_args")
        if isinstance(req, GenerateReq):
            self.check_chars(len(req.prediction), "prediction")

    def read(self, req: GenerateReq, shown: Shown = NOTHING) -> Prompt:
        """The prompt of `req`, which shows these media. Raises RequestError naming the field."""
        given = [
            name for name in ("text", "input_ids", "messages") if getattr(req, name) is not None
        ]
        if len(given) != 1:
            raise RequestError(
                f"exactly one of text, input_ids and messages must be given, not {len(given)}",
                param=given[1] if given else "text",
            )
        _check_chat_only(req)
        if req.literal_spans and req.text is None:
            raise RequestError(" need text", at="literal_spans")
        if shown.num_tokens > self._limit:
            raise far_too_long(self._limit, given[0])
        if given[0] == "messages":
            prompt = self._chat(req, shown)
        else:
            prompt = Prompt(self._ids(req, shown), given[0])
        if len(prompt.ids) == 0:
            raise RequestError(" must hold at least one token", at=prompt.param)
        return prompt._replace(media=self.spans(prompt.ids, shown, prompt.param))

    def _ids(self, req: GenerateReq, shown: Shown) -> np.ndarray:
        if req.text is not None:
            self._check_fits(req.text, "text")
            return self.encode(req.text, "text", literal_spans=req.literal_spans, shown=shown)
        return self.given_ids(req.input_ids or b"", shown)

    def given_ids(self, data: bytes, shown: Shown) -> np.ndarray:
        """The ids (int32 [n]) of the field `input_ids`, with all that stands for media."""
        param = "input_ids"
        ids = self.checked_ids(data, param)
        if self._showing is None:
            return ids
        return self._showing.expanded_ids(ids, shown, self._tokenizer.encode_inside, param)

    def spans(self, ids: np.ndarray, shown: Shown, param: str) -> list[MediaSpan]:
        """The spans of the media in `ids` (int32 [n]), which the field `param` holds."""
        return [] if self._showing is None else self._showing.spans(ids, shown, param)

    def tokenize(self, req: TokenizeReq) -> Prompt:
        """A text or a chat, of any number of tokens. Raises RequestError naming the field."""
        if (req.text is None) == (req.messages is None):
            raise RequestError("exactly one of text and messages must be given", param="text")
        _check_chat_only(req)
        if req.text is not None:
            return Prompt(self.encode(req.text, "text", req.add_special_tokens), "text")
        return self._chat(req, NOTHING)

    def _chat(self, req: GenerateReq | TokenizeReq, shown: Shown) -> Prompt:
        messages = req.messages or []
        if not messages:
            raise RequestError(" must not be empty", at="messages")
        if not all(message.role for message in messages):
            raise RequestError("every message must have a role", param="messages")
        self.check_size(req)
        for i, tool in enumerate(req.tools):
            _object(tool.parameters, f"tools[{i}].parameters")
        _check_parts(messages, len(shown.refs))
        plain, tools = with_custom_as_text(messages, req.tools)
        if self._line_last:
            plain = with_lines_last(plain, self._line_last)
        chat = self._marked(plain, tools, req.chat, self._control_in(shown))
        rendered = self._render(chat, req.chat, shown)
        tags = self._template.reasoning_tags
        begins = _opens_turn(req.chat) and rendered.rstrip().endswith(tags.begin)
        if begins and is_switched_off(chat.args):
            # As templates with a switch write it: reasoning that is over, with nothing in it.
            rendered = f"{rendered.rstrip()}\n\n{tags.end}\n\n"
        text = rendered.replace(chat.mark, "") if chat.mark else rendered
        self.check_chars(len(text), "messages")
        if isinstance(req, GenerateReq):
            self._check_fits(text, "messages")
            rendered = self._expanded(rendered, shown, "messages")
        # The template writes all that belongs at the start, BOS included.
        if chat.mark:
            ids = self._tokenizer.encode_marked(rendered, chat.mark, add_special_tokens=False)
        else:
            ids = self._tokenizer.encode(rendered, add_special_tokens=False)
        end = text.rstrip()
        opens = req.chat.continue_final and reasons(text_of(messages[-1]), tags)
        return Prompt(ids, "messages", opens or end.endswith(tags.begin), end.endswith(tags.end))

    def _marked(
        self,
        messages: list[ChatMessage],
        tools: list[ToolSpec],
        options: ChatOptions,
        control: ControlTokens | None,
    ) -> Chat:
        args = _object(options.template_args, "chat.template_args")
        for name in sorted(self._template.server_names & args.keys()):
            reason = f": {name!r} is set by the server"
            raise RequestError(reason, at="chat.template_args")
        for name in SWITCHES:
            if isinstance(args.get(name), str):  # which Jinja takes for true, "false" included
                reason = f": {name!r} must be true or false, not a text"
                raise RequestError(reason, at="chat.template_args")
        chat = Chat(messages, tools, args)
        return chat if control is None else marked_chat(chat, control)

    def _control_in(self, shown: Shown) -> ControlTokens | None:
        """The control tokens that are text where users write them."""
        return self._tokenizer.control if shown.refs else self._control

    def _expanded(self, text: str, shown: Shown, param: str) -> str:
        return text if self._showing is None else self._showing.expanded(text, shown, param)

    def _render(self, chat: Chat, options: ChatOptions, shown: Shown) -> str:
        """The text of a chat, marks included."""

        def render(messages: Sequence[ChatMessage]) -> str:
            opens_turn = _opens_turn(options)
            limit = MAX_CHARS_PER_TOKEN * self._limit
            placeholders = self._showing.placeholders if self._showing else {}
            made = Contents(shown.kinds, placeholders)
            return self._template.render(messages, opens_turn, limit, chat.tools, chat.args, made)

        try:
            if options.continue_final:
                return render_open(render, chat.messages)
            return render(chat.messages)
        except RequestError as error:
            if not chat.mark:
                raise
            info = error.info
            raise RequestError.from_info(
                replace(info, reason=info.reason.replace(chat.mark, ""))
            ) from None

    def encode(
        self,
        text: str,
        param: str,
        add_special_tokens: bool = True,
        literal_spans: Sequence[tuple[int, int]] = (),
        shown: Shown | None = None,
    ) -> np.ndarray:
        """The ids (int32 [n]) of `text`, which the field `param` holds; control tokens in its parts
        `literal_spans` are text. Placeholders in the others stand for the media that are shown, or
        for themselves if that is None."""
        self.check_chars(len(text), param)
        mark, control = "", self._control_in(shown or NOTHING)
        if literal_spans and control is not None:
            text, mark = marked_text(text, literal_spans, control)
        if shown is not None:
            if shown.num_tokens > self._limit:
                raise far_too_long(self._limit, param)
            text = self._expanded(text, shown, param)
        if mark:
            return self._tokenizer.encode_marked(text, mark, add_special_tokens)
        return self._tokenizer.encode(text, add_special_tokens)

    def encode_inside(self, text: str, param: str) -> np.ndarray:
        """The same where `text` continues other text."""
        self.check_chars(len(text), param)
        return self._tokenizer.encode_inside(text)

    def checked_ids(self, data: bytes, param: str) -> np.ndarray:
        """The ids (int32 [n]) that the field `param` holds."""
        if len(data) % ITEM_BYTES:
            raise RequestError(" must be packed int32", at=param)
        ids = unpack_ids(data)
        if len(ids) and not (ids.min() >= 0 and ids.max() < self.vocab_size):
            raise RequestError(f" must be in [0, {self.vocab_size})", at=param)
        return ids

    def _check_fits(self, text: str, param: str) -> None:
        """Refuse a prompt that is much too long without encoding all of it."""
        head = text[: _HEAD_CHARS_PER_TOKEN * self._limit]
        if len(head) == len(text):
            return
        if len(self._tokenizer.encode(head)) > self._limit + _HEAD_SPARE_TOKENS:
            raise far_too_long(self._limit, param)

    def check_chars(self, num_chars: int, param: str) -> None:
        if num_chars > MAX_CHARS_PER_TOKEN * self._limit:
            raise RequestError(
                f"This model's maximum context length is {self._limit} tokens. However, your "
                f"{param} has {num_chars} characters, which cannot fit. Please reduce its length.",
                param=param,
                code=CONTEXT_LENGTH,
            )


def _opens_turn(options: ChatOptions) -> bool:
    """Whether the prompt ends with the head of the assistant's turn."""
    return options.add_generation_prompt and not options.continue_final


def _check_chat_only(req: GenerateReq | TokenizeReq) -> None:
    """Refuse fields that only requests with messages may have."""
    if req.messages is not None:
        return
    if req.tools:
        raise RequestError(" need messages", at="tools")
    if req.chat != ChatOptions():
        raise RequestError(" needs messages", at="chat")


def _chars(messages: list[ChatMessage]) -> int:
    """The characters of a chat without its reasoning, which templates may leave out, or those of
    the reasoning if they are more.

    Every message costs at least one token, so more messages than tokens cannot fit.
    """
    size = sum(len(m.role + text_of(m) + m.tool_call_id + m.name) for m in messages)
    calls = (call for message in messages for call in message.tool_calls)
    size += sum(len(call.id + call.name + call.arguments) for call in calls)
    reasoning = sum(len(message.reasoning) for message in messages)
    return max(size, reasoning, MAX_CHARS_PER_TOKEN * len(messages))


def _tool_chars(tool: ToolSpec) -> int:
    """The characters of a tool's description."""
    definition = tool.input.definition if tool.input else ""
    return len(tool.name) + len(tool.description) + len(tool.parameters) + len(definition)


def _check_parts(messages: list[ChatMessage], count: int) -> None:
    """Refuse messages that do not show each of `count` media, in their order."""
    shown = [part for m in messages for part in m.parts if isinstance(part, int)]
    if shown != list(range(count)):
        reason = f"the messages must show each of the {count} pictures and videos once, in order"
        raise RequestError(reason, param="messages")


def _object(text: str, param: str) -> dict[str, Any]:
    """The object of a JSON text; "" is an empty one."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise RequestError(" must be the text of a JSON object", at=param)
    return value


def too_long(limit: int, prompt: Prompt, max_new_tokens: int | None = None) -> RequestError:
    """The error, worded as OpenAI's, for a prompt that does not fit, alone or with its completion.

    Clients search the text for the limit, so its first sentence must not change.
    """
    size = len(prompt.ids)
    if max_new_tokens is None:
        return _longer(limit, prompt.param, f"{size}")
    what, limit_words = _what(prompt.param), _limit_words(limit)
    return RequestError(
        f"{limit_words}you requested {size + max_new_tokens} tokens ({size} in the {what}, "
        f"{max_new_tokens} in the completion). "
        f"Please reduce the length of the {what} or of the completion.",
        param="max_new_tokens",
        code=CONTEXT_LENGTH,
    )


def far_too_long(limit: int, param: str) -> RequestError:
    """The same for one whose tokens were not all counted."""
    return _longer(limit, param, f"more than {limit}")


def _longer(limit: int, param: str, size: str) -> RequestError:
    what = _what(param)
    return RequestError(
        f"{_limit_words(limit)}your {what} resulted in {size} tokens. "
        f"Please reduce the length of the {what}.",
        param=param,
        code=CONTEXT_LENGTH,
    )


def _what(param: str) -> str:
    return "messages" if param == "messages" else "prompt"


def _limit_words(limit: int) -> str:
    return f"This model's maximum context length is {limit} tokens. However, "
