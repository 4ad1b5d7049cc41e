"""From the template of a semantic call to a program, and back from the program's names of fields to
those of the call."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from srt.gateway.parrot.wire import ParrotCall, ParrotParameter, ParrotSampling
from srt.wire.errors import RequestError, quoted
from srt.wire.programs import (
    VAR_PREFIX,
    Call,
    Input,
    Output,
    Perf,
    Program,
    Segment,
    Text,
)
from srt.wire.sampling import SamplingParams

# Parrot's own: any other text in braces is text.
_PLACEHOLDER = re.compile(r"\{\{([a-zA-Z_][a-zA-Z0-9_]*)\}\}")
_CALL = "calls[0]"
# More than a call takes before its last output. They are looked at in one go, in which the gateway
# does nothing else: some 20 ms.
MAX_PIECES = 4096
# Our names of the parameters whose names in a `sampling_config` are others.
_THEIR_NAMES = {
    "max_new_tokens": "max_gen_length",
    "ignore_eos": "ignore_tokenizer_eos",
    "stop": "stop_str",
}


class TemplateProgram(NamedTuple):
    """A call as a program. `parameters` are those whose placeholders it has, in the order of their
    first places; `names` the call's names of the program's fields, for errors (see `renaming`)."""

    program: Program
    parameters: list[ParrotParameter]
    names: dict[str | None, str]


def program_of(body: ParrotCall, perf: Perf | None = None) -> TemplateProgram:
    """The program of a semantic call, whose outputs are for `perf`: then it begins at once.
    RequestError names the parameter that is wrong."""
    places = {each.name: f"parameters[{i}]" for i, each in enumerate(body.parameters)}
    if len(places) < len(body.parameters):
        raise RequestError(" must not repeat a name", at="parameters")
    for each in body.parameters:
        _check(each, places[each.name])
    parameters = {each.name: each for each in body.parameters}
    pieces = list(islice(_pieces(body.template, parameters), MAX_PIECES + 1))
    if len(pieces) > MAX_PIECES:
        reason = f" has more than {MAX_PIECES} placeholders and texts between them"
        raise RequestError(reason, at="template")
    found = {each.name: each for each in pieces if isinstance(each, ParrotParameter)}
    for each in body.parameters:
        # Parrot's client has cut the text after the last output, and names its inputs all the same.
        if each.name not in found and (each.is_output or _is_set_later(each)):
            reason = f": the template has no placeholder {quoted('{{' + each.name + '}}')}"
            raise RequestError(reason, at=places[each.name])
    if not any(each.is_output for each in found.values()):
        raise RequestError(": it has no placeholder of an output", at="template")
    if body.remove_pure_fill:
        while isinstance(pieces[-1], str) or not pieces[-1].is_output:
            pieces.pop()
        found = {each.name: each for each in pieces if isinstance(each, ParrotParameter)}
    segments = [_segment(piece) for piece in pieces]
    program = Program(
        {each.name: each.value for each in found.values() if _is_new_input(each)},
        [Call(segments, name=body.func_name, perf=perf)],
        eager=perf is not None,
    )
    return TemplateProgram(program, list(found.values()), _names(pieces, found, places))


def _pieces(
    template: str, parameters: Mapping[str, ParrotParameter]
) -> Iterator[str | ParrotParameter]:
    """The texts of a template, and the parameters in their places."""
    end = 0
    for found in _PLACEHOLDER.finditer(template):
        if found.start() > end:
            yield template[end : found.start()]
        end, name = found.end(), found[1]
        if name not in parameters:
            raise RequestError(f": there is no parameter {quoted(name)}", at="template")
        yield parameters[name]
    if template[end:]:
        yield template[end:]


def _segment(piece: str | ParrotParameter) -> Segment:
    if isinstance(piece, str):
        return Text(piece)
    if piece.is_output:
        return Output(piece.name, _sampling(piece.sampling_config or ParrotSampling()))
    return Input(piece.var_id or piece.name)


def _is_new_input(each: ParrotParameter) -> bool:
    return not each.is_output and each.var_id is None


def _is_set_later(each: ParrotParameter) -> bool:
    return _is_new_input(each) and each.value is None


def _check(each: ParrotParameter, at: str) -> None:
    if each.is_output and each.var_id is not None:
        raise RequestError(" is not for outputs: they are new variables", at=f"{at}.var_id")
    if each.is_output and each.value is not None:
        raise RequestError(" is not for outputs", at=f"{at}.value")
    if each.var_id is not None and each.value is not None:
        raise RequestError(" and var_id exclude each other", at=f"{at}.value")
    if each.var_id is not None and not each.var_id.startswith(VAR_PREFIX):
        raise RequestError(f": {quoted(each.var_id)} is no variable's id", at=f"{at}.var_id")
    if not each.is_output and each.sampling_config is not None:
        raise RequestError(" is for outputs only", at=f"{at}.sampling_config")


def _sampling(given: ParrotSampling) -> SamplingParams:
    return SamplingParams(
        temperature=given.temperature,
        top_p=given.top_p,
        max_new_tokens=given.max_gen_length,
        ignore_eos=given.ignore_tokenizer_eos,
        stop_token_ids=given.stop_token_ids,
        stop=[given.stop_str] if isinstance(given.stop_str, str) else given.stop_str,
        presence_penalty=given.presence_penalty,
        frequency_penalty=given.frequency_penalty,
        repetition_penalty=1.0 if given.repetition_penalty == 0 else given.repetition_penalty,
    )


def _names(
    pieces: Sequence[str | ParrotParameter],
    found: Mapping[str, ParrotParameter],
    places: Mapping[str, str],
) -> dict[str | None, str]:
    """The call's names of the fields that may be refused in its program."""
    names: dict[str | None, str] = {
        "session": "session_id",
        "vars": "parameters",
        _CALL: "template",
        f"{_CALL}.name": "func_name",
    }
    names |= {f"vars[{name!r}]": f"{places[name]}.value" for name in found}
    for i, piece in enumerate(pieces):
        at = f"{_CALL}.segments[{i}]"
        if isinstance(piece, str):
            names[f"{at}.text"] = "template"
            continue
        place = places[piece.name]
        names |= {f"{at}.input": f"{place}.var_id", f"{at}.output": f"{place}.name"}
        config = f"{place}.sampling_config"
        names[f"{at}.sampling_params"] = config
        for ours, theirs in _THEIR_NAMES.items():
            names[f"{at}.sampling_params.{ours}"] = f"{config}.{theirs}"
    return names
