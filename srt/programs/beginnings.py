"""What is known of a prompt while its inputs grow.

The text of a variable that is being made is known as far as it has come, and that of a transform
as far as more of its inputs only appends to it. What is known may still turn out otherwise (an
input fails and is made again, or is left out): it serves to compute ahead, and never as a prompt.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from srt.client.generation import TokenizeRequest
from srt.programs.limits import MAX_PROMPT_CHARS
from srt.programs.parts import CallWork, TransformWork, Variable, Work, segments_of
from srt.programs.prompts import prompt_with, text_of, text_prompt
from srt.programs.transforms import pieces_of
from srt.wire.programs import (
    Concat,
    First,
    Format,
    Input,
    Join,
    Output,
    Segment,
    Split,
    Strip,
    Truncate,
)

MAX_BLANKS = 256  # that are looked at for the end of a word
MAX_IN_A_ROW = 16  # transforms between a text that grows and a prompt
MAX_LOOKED_AT = 64  # variables and works around a text
# What may follow a text that ends with a word, and what one may begin with: tokens that are the
# same before both ends are those of any other text, too. Templates that write its length first show
# themselves.
_AFTER_WORD = (" a", " 1, and more")
_AT_START = ("a", "\n1, and more")


class Beginning(NamedTuple):
    """What is certain of a prompt whose inputs are not all there: a text, and its parts in which
    control tokens are text."""

    text: str
    literal_spans: list[tuple[int, int]]


def beginning_of(work: CallWork) -> Beginning | None:
    """What is known of the text before a call's first output, up to the end of a word: the tokens
    of this are the first of the whole prompt's. None of a chat, which has `probes_of`, or if
    nothing is known."""
    segments, texts = _known(work)
    if sum(len(text_of(each, texts)) for each in segments) > MAX_PROMPT_CHARS:
        return None
    prompt = text_prompt(segments, texts)
    stop = _last_word(prompt["text"])
    spans = [(start, min(end, stop)) for start, end in prompt["literal_spans"] if start < stop]
    return Beginning(prompt["text"][:stop], spans) if stop else None


def probes_of(work: CallWork) -> list[TokenizeRequest]:
    """Two prompts of a chat's first output, with all that is known of its inputs, that go on in
    different ways where something is not known: the tokens that both begin with are the first of
    the whole prompt's, if the template writes what is known in the same way whatever follows.
    RequestError if the prompt is too long."""
    prompts = []
    for number in range(2):
        texts = dict(_probe_texts(work, number))
        prompts.append(TokenizeRequest(tenant=work.session.caller, **prompt_with(work, 0, texts)))
    return prompts


def known_chars(work: CallWork) -> int:
    """How many characters are known of the prompt of a call's first output."""
    segments, texts = _known(work)
    return sum(len(text_of(each, texts)) for each in segments)


def known_text(var: Variable) -> str:
    """What the text of a variable begins with, as far as that is known."""
    return _known_text(var, 0)


def waiting_for(var: Variable) -> Iterator[CallWork]:
    """Some of the calls that wait for a text, also through transforms that may be known before
    their inputs end."""
    found, left = deque([var]), MAX_LOOKED_AT
    while found:
        for work in found.popleft().consumers:
            left -= 1
            if left < 0:
                return
            if isinstance(work, CallWork):
                if waits(work):
                    yield work
            elif isinstance(work, TransformWork) and _may_grow(work):
                found.append(work.outputs[0])


def is_near(work: CallWork) -> bool:
    """Whether a call waits for a text that is being made, or that a client is to set."""
    found, left = deque(work.inputs.values()), MAX_LOOKED_AT
    while found and left > 0:
        var, left = found.popleft(), left - 1
        if var.has_ended:
            continue
        if isinstance(var.work, TransformWork):
            found.extend(var.work.inputs.values())
        elif var.work is None or var.work.started:
            return True
    return False


def waits(work: CallWork) -> bool:
    """Whether the call is to run as soon as its inputs are there. One with a guard that is not
    known yet may be skipped."""
    is_open = not (work.started or work.ended or work.session.closed)
    return work.active and _is_asked(work) and is_open


# ---- texts that grow -------------------------------------------------------------------------


def _known_text(var: Variable, depth: int) -> str:
    work = var.work
    if var.state == "ready" or not isinstance(work, TransformWork):
        return var.text
    if depth == MAX_IN_A_ROW or not _may_grow(work):
        return ""
    op, inputs = work.transform.op, work.inputs
    if isinstance(op, Format):
        return _formatted(op, inputs, depth + 1)
    if isinstance(op, Concat | Join | First):
        return _listed(work, [inputs[name] for name in op.inputs], depth + 1)
    assert isinstance(op, Strip | Split | Truncate)
    text = _known_text(inputs[op.input], depth + 1)
    if isinstance(op, Strip):
        return text.strip(op.chars)  # blanks at the end may be followed by more
    return text[: op.chars] if isinstance(op, Truncate) else _piece(op, text)


def _may_grow(work: TransformWork) -> bool:
    """Whether a transform will be made, of which more inputs only append to what is known."""
    if work.ended or not work.active or not _is_asked(work):
        return False
    op = work.transform.op
    if isinstance(op, Truncate):
        return op.chars is not None and op.keep == "start"
    if isinstance(op, Split):
        return op.index >= 0
    return isinstance(op, Concat | Join | Format | Strip | First)


def _is_asked(work: Work) -> bool:
    return work.is_asked or work.guard is None


def _formatted(op: Format, inputs: dict[str, Variable], depth: int) -> str:
    parts = []
    for text, name in pieces_of(op.template):
        parts.append(text)
        if name is not None:
            var = inputs[op.inputs[name]]
            parts.append(_known_text(var, depth))
            if var.state != "ready":
                break
    return "".join(parts)


def _listed(work: TransformWork, inputs: Sequence[Variable], depth: int) -> str:
    """The inputs one after the other, up to the first that grows. Of `first` the only one that may
    still have a text."""
    op, parts = work.transform.op, list[str]()
    if isinstance(op, First):
        inputs = [var for var in inputs if not (var.has_no_text or var.state == "skipped")]
        return _known_text(inputs[0], depth) if len(inputs) == 1 else ""
    for var in inputs:
        if var.has_no_text and not work.leaves_out_failed:
            return ""  # it fails
        if var.has_no_text or var.state == "skipped":
            continue
        text = _known_text(var, depth)
        if var.state == "ready" or text:  # else it may be skipped, and no separator comes
            parts.append(text)
        if var.state != "ready":
            break
    return (op.separator if isinstance(op, Join) else "").join(parts)


def _piece(op: Split, text: str) -> str:
    """What a piece of a text begins with. The end of the text may be the start of a separator."""
    pieces = text.split(op.separator)
    if op.index >= len(pieces):
        return ""
    piece = pieces[op.index]
    is_last = op.index == len(pieces) - 1
    return piece[: max(0, len(piece) - len(op.separator) + 1)] if is_last else piece


# ---- prompts that are known in part ----------------------------------------------------------


def _known(work: CallWork) -> tuple[list[Segment], dict[str, str]]:
    """The segments up to the first input that is not ready, with that one, and the texts of those
    that are inputs. Of a chat, those of its messages in a row."""
    segments, texts = list[Segment](), dict[str, str]()
    for segment in segments_of(work.call):
        if isinstance(segment, Output):
            break
        segments.append(segment)
        if isinstance(segment, Input):
            var = work.inputs[segment.var]
            texts[segment.var] = known_text(var)
            if var.state != "ready":
                break
    return segments, texts


def _probe_texts(work: CallWork, number: int) -> Iterator[tuple[str, str]]:
    """The texts of a call's inputs, with an end of their own for this probe where one is not
    known: the first of them after what is known of it, and the others in place of a text."""
    for name, var in work.inputs.items():
        if var.state == "ready":
            yield name, var.text
        else:
            text = known_text(var)
            stop = _last_word(text)
            yield name, text[:stop] + (_AFTER_WORD if stop else _AT_START)[number]


def _last_word(text: str) -> int:
    """Where the last word of a text begins, with the blank before it: what comes may go on in this
    word, and so change its tokens, but not in those before it. 0 if nothing is before it."""
    stop = len(text)
    for _ in range(MAX_BLANKS):
        stop = text.rfind(" ", 0, stop)
        if stop <= 0:
            return 0
        if not (text[stop - 1].isspace() or text[stop + 1 : stop + 2].isspace()):
            return stop  # several blanks may be one token
    return 0
