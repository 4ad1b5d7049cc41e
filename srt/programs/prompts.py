"""The requests of a call: for each output, what is before it as one prompt.

Text is joined first and encoded as a whole then, so that a program gives token for token what the
same calls give one by one.
"""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from msgspec.structs import replace

from srt.answers.reasoning import Tags
from srt.client.generation import Request, ScoreRequest, TokenizeRequest
from srt.programs.limits import MAX_PROMPT_CHARS
from srt.programs.parts import CallWork, segments_of
from srt.wire.errors import CONTEXT_LENGTH, RequestError
from srt.wire.hints import Hints
from srt.wire.messages import ChatMessage
from srt.wire.programs import Input, Output, Segment, Text


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
    texts = {asked.var: var.text for asked, var in zip(work.asked, work.outputs, strict=True)}
    texts |= {name: var.text for name, var in work.inputs.items()}
    return prompt_with(work, index, texts)


def prompt_with(work: CallWork, index: int, texts: Mapping[str, str]) -> dict[str, Any]:
    """The fields of the prompt that output `index` has with these texts of variables."""
    output, call = work.asked[index], work.call
    _check_length(work, output, texts)
    if call.segments:
        return text_prompt(_before(output, call.segments), texts)
    messages: list[ChatMessage] = []
    for turn in call.turns:
        before = _before(output, turn.content)
        content = "".join(text_of(segment, texts) for segment in before)
        if len(before) == len(turn.content):
            messages.append(ChatMessage(turn.role, content))
            continue
        if content:
            messages.append(ChatMessage(turn.role, content))
        return {"messages": messages, "chat": replace(call.chat, continue_final=bool(content))}
    raise AssertionError("the output is one of the call's")


def _check_length(work: CallWork, output: Output, texts: Mapping[str, str]) -> None:
    """Raise RequestError for a prompt that is too long to be built."""
    length = sum(len(text_of(each, texts)) for each in _before(output, segments_of(work.call)))
    if length > MAX_PROMPT_CHARS:
        reason = f"the prompt has {length} characters, above {MAX_PROMPT_CHARS}"
        raise RequestError(reason, code=CONTEXT_LENGTH)


def _before(output: Output, segments: Sequence[Segment]) -> list[Segment]:
    return list(takewhile(lambda segment: segment is not output, segments))


def text_prompt(segments: Sequence[Segment], texts: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a prompt that is one text."""
    parts, length = [], 0
    spans: list[tuple[int, int]] = []
    for segment in segments:
        text = text_of(segment, texts)
        if segment.literal and text:  # one span with the one before: a token may be in both
            begins = spans.pop()[0] if spans and spans[-1][1] == length else length
            spans.append((begins, length + len(text)))
        parts.append(text)
        length += len(text)
    return {"text": "".join(parts), "literal_spans": spans}


def text_of(segment: Segment, texts: Mapping[str, str]) -> str:
    """The text of a segment; those of variables are in `texts`, by reference."""
    if isinstance(segment, Text):
        return segment.text
    assert isinstance(segment, Input | Output)
    return texts[segment.var]
