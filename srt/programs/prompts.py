"""The requests of a call: for each output, what is before it as one prompt.

Text is joined first and encoded as a whole then, so that a program gives token for token what the
same calls give one by one.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from msgspec.structs import replace

from srt.answers.reasoning import Tags
from srt.client.generation import Request, ScoreRequest, TokenizeRequest
from srt.programs.limits import MAX_PROMPT_CHARS
from srt.programs.parts import CallWork, segments_of
from srt.wire.errors import CONTEXT_LENGTH, RequestError
from srt.wire.hints import Hints
from srt.wire.messages import ChatMessage
from srt.wire.programs import Input, Output, Segment, Text

MAX_BLANKS = 256  # that are looked at for the end of a word


def request_of(
    work: CallWork, index: int, reasoning: Tags | None = None, hints: Hints | None = None
) -> Request:
    """The request for output `index`. Its constraint, if it has one and does not say otherwise,
    holds after `reasoning` in these tags. RequestError if its prompt is too long; so do the others
    here."""
    sampling = work.asked[index].sampling
    if reasoning and sampling.constraint is not None and not sampling.constraint_after:
        sampling = replace(
            sampling, constraint_after=reasoning.end, constraint_opener=reasoning.begin
        )
    session = work.session
    return Request(
        sampling=sampling,
        stream=True,
        joined=True,  # the program was taken: its calls wait for their turn
        cache_salt=session.cache_salt,
        tenant=session.caller,
        hints=hints,
        **_prompt(work, index),
    )


def score_of(work: CallWork, index: int, ids: Sequence[int] | None) -> ScoreRequest:
    """The request for an output with choices; `ids` are a chat's prompt."""
    session = work.session
    prompt = {"input_ids": ids} if ids is not None else _prompt(work, index)
    return ScoreRequest(
        continuations=work.asked[index].choices,
        cache_salt=session.cache_salt,
        tenant=session.caller,
        **prompt,
    )


def tokenize_of(work: CallWork, index: int) -> TokenizeRequest:
    """Asks for a chat's prompt."""
    return TokenizeRequest(tenant=work.session.caller, **_prompt(work, index))


def begun_turn(work: CallWork, index: int) -> str:
    """What output `index` of a chat goes on: the text that its message has already."""
    prompt = _prompt(work, index)
    begun: str = prompt["messages"][-1].content if prompt["chat"].continue_final else ""
    return begun


def _prompt(work: CallWork, index: int) -> dict[str, Any]:
    """The fields of a prompt."""
    output, call = work.asked[index], work.call
    texts = {asked.var: var.text for asked, var in zip(work.asked, work.outputs, strict=True)}
    texts |= {name: var.text for name, var in work.inputs.items()}
    _check_length(work, output, texts)
    if call.segments:
        return _text_prompt(_before(output, call.segments), texts)
    messages: list[ChatMessage] = []
    for turn in call.turns:
        before = _before(output, turn.content)
        content = "".join(_text_of(segment, texts) for segment in before)
        if len(before) == len(turn.content):
            messages.append(ChatMessage(turn.role, content))
            continue
        if content:
            messages.append(ChatMessage(turn.role, content))
        return {"messages": messages, "chat": replace(call.chat, continue_final=bool(content))}
    raise AssertionError("the output is one of the call's")


class Beginning(NamedTuple):
    """What is certain of a prompt whose inputs are not all there: a text, and its parts in which
    control tokens are text."""

    text: str
    literal_spans: list[tuple[int, int]]


def beginning_of(work: CallWork) -> Beginning | None:
    """What is known of the prompt of a call's first output, up to the end of a word: the tokens of
    this are the first of the whole prompt's. None of a chat, whose template is not applied here, or
    if nothing is known."""
    if known_chars(work) > MAX_PROMPT_CHARS:
        return None
    texts = {name: var.text for name, var in work.inputs.items()}
    prompt = _text_prompt(list(_known_segments(work)), texts)
    stop = _last_word(prompt["text"])
    spans = [(start, min(end, stop)) for start, end in prompt["literal_spans"] if start < stop]
    return Beginning(prompt["text"][:stop], spans) if stop else None


def known_chars(work: CallWork) -> int:
    """How many characters are known of the prompt of a call's first output."""
    texts = {name: var.text for name, var in work.inputs.items()}
    return sum(len(_text_of(each, texts)) for each in _known_segments(work))


def _known_segments(work: CallWork) -> Iterator[Segment]:
    """The segments of a text up to the first input that is not ready, with that one."""
    for segment in work.call.segments:
        if isinstance(segment, Output):
            return
        yield segment
        if isinstance(segment, Input) and work.inputs[segment.var].state != "ready":
            return


def _last_word(text: str) -> int:
    """Where the last word of a text begins, with the blank before it: what comes may go on in this
    word, and so change its tokens, but not in those before it. 0 if nothing is before it."""
    stop = len(text)
    for _ in range(MAX_BLANKS):
        stop = text.rfind(" ", 0, stop)
        if stop <= 0:
            return 0
        if text[stop - 1].isalnum():  # punctuation and blanks may be one token with what follows
            return stop
    return 0


def _check_length(work: CallWork, output: Output, texts: Mapping[str, str]) -> None:
    """Raise RequestError for a prompt that is too long to be built."""
    length = sum(len(_text_of(each, texts)) for each in _before(output, segments_of(work.call)))
    if length > MAX_PROMPT_CHARS:
        reason = f"the prompt has {length} characters, above {MAX_PROMPT_CHARS}"
        raise RequestError(reason, code=CONTEXT_LENGTH)


def _before(output: Output, segments: Sequence[Segment]) -> list[Segment]:
    return list(takewhile(lambda segment: segment is not output, segments))


def _text_prompt(segments: Sequence[Segment], texts: Mapping[str, str]) -> dict[str, Any]:
    parts, length = [], 0
    spans: list[tuple[int, int]] = []
    for segment in segments:
        text = _text_of(segment, texts)
        if segment.literal and text:  # one span with the one before: a token may be in both
            begins = spans.pop()[0] if spans and spans[-1][1] == length else length
            spans.append((begins, length + len(text)))
        parts.append(text)
        length += len(text)
    return {"text": "".join(parts), "literal_spans": spans}


def _text_of(segment: Segment, texts: Mapping[str, str]) -> str:
    if isinstance(segment, Text):
        return segment.text
    assert isinstance(segment, Input | Output)
    return texts[segment.var]
