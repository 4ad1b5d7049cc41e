"""Programs of templates, and the names of fields that are refused in them."""

import pytest

from srt.gateway.parrot.templates import MAX_PIECES, program_of
from srt.gateway.parrot.wire import ParrotCall, ParrotParameter
from srt.wire.errors import RequestError, renamed
from srt.wire.programs import Perf


def _call(template: str, *inputs: ParrotParameter) -> ParrotCall:
    output = ParrotParameter(name="out", is_output=True)
    return ParrotCall(session_id=1, template=template, parameters=[*inputs, output])


def test_criteria_of_a_call_are_those_of_its_outputs_which_begin_at_once() -> None:
    body = _call("Go: {{out}}")
    program = program_of(body, Perf("latency")).program
    assert program.eager and program.calls[0].perf == Perf("latency")
    program = program_of(body).program
    assert not program.eager and program.calls[0].perf is None


def test_pieces_are_bounded() -> None:
    """Also those behind the last output, which no call has."""
    given = ParrotParameter(name="a", value="x")
    most = program_of(_call("{{out}}" + "{{a}}" * (MAX_PIECES - 1), given))
    assert len(most.program.calls[0].segments) == 1
    with pytest.raises(RequestError, match=f"template has more than {MAX_PIECES} "):
        program_of(_call("{{out}}" + "{{a}}" * MAX_PIECES, given))


def test_each_reference_to_a_variable_has_its_own_name() -> None:
    same = [ParrotParameter(name=name, var_id="var-1") for name in ("a", "b")]
    names = program_of(_call("{{b}} {{a}}{{out}}", *same)).names
    fields = [renamed(f"calls[0].segments[{i}].input", names) for i in (0, 2)]
    assert fields == ["parameters[1].var_id", "parameters[0].var_id"]
