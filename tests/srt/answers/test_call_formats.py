"""Calls in the formats of several models: what is a call and what is content, however the text is
cut, with a constraint and without."""

import json
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from srt.answers.tool_calls import call_parser
from srt.answers.tool_constraint import OfferedTool, ToolChoice, ToolPlan
from srt.answers.tool_events import CallArguments, CallStart, Content
from srt.answers.tool_format import (
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    GLM,
    GLM47,
    HARMONY,
    HERMES,
    LLAMA3,
    MISTRAL,
    MISTRAL_ARGS,
    QWEN3_CODER,
    ToolFormat,
    name_of,
)
from srt.answers.tool_parameters import PARAMETERS, BlockForm, blocks_format
from srt.wire.errors import RequestError
from srt.wire.messages import ToolCall, ToolSpec

ANYTHING = json.dumps({"properties": {"a": {"type": "integer"}, "city": {}, "b": {}}})
NAMES = {"add": ANYTHING, "get_weather": ANYTHING}
AS_JSON = [HERMES, LLAMA3, MISTRAL, MISTRAL_ARGS, DEEPSEEK_V3, DEEPSEEK_V31]
IN_BLOCKS = [QWEN3_CODER, GLM, GLM47]
EVERY = [*AS_JSON, HARMONY, *IN_BLOCKS]
ARGUMENTS = ['{"a": 1}', "{}", '{"city": "}\\"{", "b": [{"x": "é"}]}']
B, C, S = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"
CE, E = "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"

Facts = tuple[str, list[tuple[str, str]]]


def facts(form: ToolFormat, pieces: list[str], **options: bool) -> Facts:
    """Content and calls: what the events add up to."""
    parser = call_parser(form, NAMES, **{"constrained": False, **options})
    content, calls = "", list[list[str]]()
    events = [event for piece in pieces for event in parser.feed(piece)]
    for event in events + parser.feed("", final=True):
        if isinstance(event, Content):
            content += event.text
        elif isinstance(event, CallStart):
            calls.append([event.name, ""])
        elif isinstance(event, CallArguments):
            calls[event.call][1] += event.text
    return content, [(name, arguments) for name, arguments in calls]


def as_blocks(form: BlockForm, arguments: str) -> str:
    """Arguments as models write them in blocks."""
    values = {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in json.loads(arguments).items()
    }
    return "".join(form.head_of(name) + text + form.end for name, text in values.items())


def written(form: ToolFormat, calls: list[tuple[str, str]]) -> str:
    """Calls as the constraint wants them."""
    written: Callable[[str], str] = partial(as_blocks, form.blocks) if form.blocks else str
    texts = [form.opening(name) + written(arguments) + form.closing for name, arguments in calls]
    return form.first + form.separator.join(texts) + form.last if calls else ""


ONE = '{"name": "add", "parameters": {"a": 1}'
TWO = '[{"name": "add", "arguments": {}}, {"name": "add", "arguments": {"a": 1}}]'
V3 = f'{B}{C}function{S}add\n```json\n{{"a": 1}}\n```{CE}'
V3 += f"\n{C}function{S}add\n```json\n{{}}\n```{CE}{E}"
V31 = f'{B}{C}add{S}{{"a": 1}}{CE}{C}add{S}{{}}{CE}{E}'
CODER = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
TWICE = CODER.replace("</function>", "<parameter=a>2</parameter></function>")
A1, A = ("add", '{"a": 1}'), ("add", "{}")
AS_MODELS_WRITE = [
    (LLAMA3, ONE + "}", "", [A1]),
    (LLAMA3, '\n{"type": "function", "name": "add", "parameters": {}}', "", [A]),
    (LLAMA3, '{"name":"add","arguments":{}};{"name":"add","parameters":{}} ', "", [A, A]),
    (LLAMA3, '{"city": "Rome"}', '{"city": "Rome"}', []),
    (LLAMA3, f"See: {ONE}}}", f"See: {ONE}}}", []),
    (LLAMA3, '{"name": "sub", "parameters": {}}', '{"name": "sub", "parameters": {}}', []),
    (LLAMA3, ONE, ONE, []),
    (MISTRAL, '[TOOL_CALLS][{"name":"add","arguments":{},"id":"a1b2c3d4e"}]', "", [A]),
    (MISTRAL, f"Well. [TOOL_CALLS] {TWO}", "Well.", [A, A1]),
    (MISTRAL, "[TOOL_CALLS] hm", "[TOOL_CALLS] hm", []),
    (MISTRAL_ARGS, '[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]add[CALL_ID]x[ARGS]{}', "", [A1, A]),
    (DEEPSEEK_V3, f"Hm.{V3}", "Hm.", [A1, A]),
    (DEEPSEEK_V31, f"{V31} Done.", "Done.", [A1, A]),
    (DEEPSEEK_V31, V31.replace("1", ""), V31.replace("1", ""), []),
    (QWEN3_CODER, f"Well.\n{CODER}\n{CODER}", "Well.", [A1, A1]),
    (QWEN3_CODER, CODER.replace("\n", ""), "", [A1]),
    (QWEN3_CODER, CODER.replace("add", "sub"), CODER.replace("add", "sub"), []),
    (QWEN3_CODER, CODER[:-30], CODER[:-30], []),
    (QWEN3_CODER, TWICE, "", [("add", '{"a": 2}')]),
    (QWEN3_CODER, "<tool_call><function=add></function></tool_call>", "", [A]),
]


@pytest.mark.parametrize(("form", "text", "content", "calls"), AS_MODELS_WRITE)
def test_calls_as_models_write_them(
    form: ToolFormat, text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    assert facts(form, [text]) == facts(form, list(text)) == (content, calls)


NESTED = '{"tool": {"name": "add", "parameters": {}}, "note": "[TOOL_CALLS]<tool_call>"}'


@pytest.mark.parametrize("form", [*AS_JSON, *IN_BLOCKS])
@pytest.mark.parametrize("constrained", [False, True])
def test_where_calls_come_first_an_answer_has_none(form: ToolFormat, constrained: bool) -> None:
    """So with a response format: the answer is calls, or it is JSON that may look like calls."""
    options = {"constrained": constrained, "is_first": True}
    answers = [NESTED, '{"name": "sub", "parameters": {}}', '{"name": "add", "parameters": {"a']
    for answer in [*answers, "See: " + written(form, [A1])]:
        assert facts(form, [answer], **options) == facts(form, list(answer), **options)
        assert facts(form, [answer], **options) == (answer, [])
    text = written(form, [A1, A])
    assert facts(form, [text], **options) == facts(form, list(text), **options) == ("", [A1, A])


def test_only_the_functions_of_the_request_are_called() -> None:
    """Even with a constraint, which may allow other JSON."""
    for form in EVERY:
        text = written(form, [("sub", "{}")])
        for constrained in (False, True):
            assert facts(form, [text], constrained=constrained) == (text, [])


def test_blanks_are_not_read_again() -> None:
    """The time for an answer of blanks grows with its length, not with the square of it."""
    for form in EVERY:
        parser = call_parser(form, NAMES, constrained=False)
        begin = [event for _ in range(1000) for event in parser.feed(" ")]
        assert begin == [] and len(parser._rest) <= 256
        assert parser.feed("x", final=True) == [Content(" " * 1000 + "x")]


CALLS = st.lists(
    st.tuples(st.sampled_from(sorted(NAMES)), st.sampled_from(ARGUMENTS)), min_size=1, max_size=3
)


@given(st.sampled_from(EVERY), CALLS, st.booleans(), st.randoms(use_true_random=False))
def test_what_the_constraint_allows_is_read(
    form: ToolFormat, calls: list[tuple[str, str]], constrained: bool, rng: random.Random
) -> None:
    text = written(form, calls)
    for pieces in ([text], list(text), cut(text, rng)):
        assert facts(form, pieces, constrained=constrained) == ("", calls)


@given(
    st.sampled_from(EVERY), CALLS, st.integers(0, 200), st.booleans(),
    st.randoms(use_true_random=False),
)  # fmt: skip
def test_cuts_make_no_difference(
    form: ToolFormat, calls: list[tuple[str, str]], kept: int, spoilt: bool, rng: random.Random
) -> None:
    """Also if calls are cut short, have text after them, or have one wrong character."""
    text = written(form, calls)[:kept] + " more"
    if spoilt:
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice('{"x,] ') + text[at + 1 :]
    for constrained in (False, True):
        whole = facts(form, [text], constrained=constrained)
        assert whole == facts(form, list(text), constrained=constrained)
        assert whole == facts(form, cut(text, rng), constrained=constrained)


def cut(text: str, rng: random.Random) -> list[str]:
    places = sorted(rng.choices(range(len(text) + 1), k=4))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def test_arguments_of_constrained_calls_come_as_they_are_written() -> None:
    parser = call_parser(QWEN3_CODER, NAMES, constrained=True)
    parser.feed(QWEN3_CODER.opening("add"))
    begun = parser.feed("<parameter=a>\nso far\n</parameter>\n<parameter=b>\nand ")
    assert begun == [CallArguments(0, '{"a": "so far", "b": ')]
    assert parser.feed("on\n</", final=True) == [CallArguments(0, '"and on')] and parser.in_call
    for form in [*AS_JSON, HARMONY]:
        parser = call_parser(form, NAMES, constrained=True)
        parser.feed(form.first + form.opening("add"))
        assert parser.feed('{"a": "so fa') and parser.in_call
        assert parser.feed('r"}' + form.closing + form.last) and not parser.in_call


def test_json_of_another_kind_is_not_held_for_long() -> None:
    parser = call_parser(LLAMA3, NAMES, constrained=False)
    answer = json.dumps({"numbers": list(range(200))})
    given = [event.text for char in answer for event in parser.feed(char) if event]  # type: ignore[union-attr]
    assert len("".join(given)) > len(answer) - 300


TYPED = {
    "type": "object",
    "$defs": {"Size": {"enum": ["1", "2"]}, "Point": {"type": "object"}},
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"type": ["number", "null"]},
        "flag": {"type": "boolean"},
        "size": {"$ref": "#/$defs/Size"},
        "point": {"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "any": {},
    },
}
VALUES = [
    ("text", "5", "5"),
    ("text", " a\n<b>\n", " a\n<b>\n"),
    ("text", "", ""),
    ("count", "5", 5),
    ("count", "five", "five"),
    ("count", "true", "true"),
    ("ratio", "None", None),
    ("ratio", "1", 1),
    ("flag", "True", True),
    ("size", "1", "1"),
    ("point", '{"x":\n 1}', {"x": 1}),
    ("point", "[1]", "[1]"),
    ("note", '"as it is"', '"as it is"'),
    ("note", "null", None),
    ("any", "[1]", [1]),
    ("any", "None", "None"),
    ("other", "1.5", 1.5),
]


@pytest.mark.parametrize(("name", "text", "value"), VALUES)
def test_the_schema_says_what_the_text_of_a_block_is(name: str, text: str, value: Any) -> None:
    block = f"<parameter={name}>\n{text}\n</parameter>\n"
    answer = QWEN3_CODER.opening("add") + block + QWEN3_CODER.closing
    for pieces in ([answer], list(answer)):
        parser = call_parser(QWEN3_CODER, {"add": json.dumps(TYPED)}, constrained=False)
        events = [event for piece in pieces for event in parser.feed(piece)]
        assert events[0] == CallStart(0, "add")
        assert json.loads("".join(event.text for event in events[1:])) == {name: value}  # type: ignore[union-attr]


LOOP: dict[str, Any] = {"anyOf": [{"$ref": "#/$defs/A"}] * 3}
ODD: list[dict[str, Any]] = [
    {"properties": [], "required": "a"},
    {"properties": {"a": {"type": 5, "enum": 5, "anyOf": {}}}, "required": ["a", "b"]},
    {"properties": {"a": {"$ref": "#/properties/a"}}},
    {"properties": {"a": {"$ref": "#/$defs/B/C"}, "b": True}, "$defs": {"B": []}},
    {"properties": {"a": LOOP}, "$defs": {"A": LOOP}},
    {"required": [["a"], {}, 5, "b"]},
    {"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"a": {}}}}},
]


@pytest.mark.parametrize("schema", ODD)
def test_odd_schemas_are_read_as_far_as_they_go(schema: dict[str, Any]) -> None:
    """They say nothing about a text; the constraint's compiler may still refuse them."""
    answer = QWEN3_CODER.opening("add") + "<parameter=a>[1]</parameter>" + QWEN3_CODER.closing
    parser = call_parser(QWEN3_CODER, {"add": json.dumps(schema)}, constrained=False)
    assert parser.feed(answer)[1:] == [CallArguments(0, '{"a": [1]}')]
    for checked in (False, True):
        assert blocks_format(PARAMETERS, schema, checked=checked)["elements"]


def test_what_references_multiply_is_bounded() -> None:
    """References and definitions are written again for each parameter."""
    names = [f"p{i}" for i in range(2000)]
    large = {"$defs": {"A": {"type": "integer", "description": "x" * 100_000}}}
    many = {"$defs": {"A": {"anyOf": [{"type": "integer", "minimum": i} for i in range(1000)]}}}
    refers = {"properties": {name: {"$ref": "#/$defs/A"} for name in names}}
    for schema in (large | refers, many | refers):
        with pytest.raises(RequestError, match=r"^tools: ") as caught:
            blocks_format(PARAMETERS, schema, checked=True)
        assert caught.value.info.param == "tools"
        assert len(blocks_format(PARAMETERS, schema, checked=False)["elements"]) == len(names)
    parser = call_parser(QWEN3_CODER, {"add": json.dumps(many | refers)}, constrained=False)
    answer = QWEN3_CODER.opening("add") + "<parameter=p1>[1]</parameter>" + QWEN3_CODER.closing
    assert parser.feed(answer)[1:] == [CallArguments(0, '{"p1": [1]}')]


@pytest.mark.parametrize("form", [HERMES, QWEN3_CODER], ids=["hermes", "blocks"])
def test_what_enforces_all_schemas_is_bounded(form: ToolFormat) -> None:
    schema = {"type": "object", "properties": {"a": {"const": "x" * 100_000}}}
    tools = [OfferedTool(ToolSpec(f"f{i}", "", json.dumps(schema)), True) for i in range(6)]
    assert ToolPlan(tools=tools[:5], choice="required").constraint(form)
    choices: list[ToolChoice] = ["required", "auto"]
    for choice in choices:
        with pytest.raises(RequestError, match=r"^tools: .* 524288 characters") as caught:
            ToolPlan(tools=tools, choice=choice).constraint(form)
        assert caught.value.info.param == "tools"


@pytest.mark.parametrize("name", ["", "a>b", "a\nb", "a" * 201])
def test_names_that_no_block_can_have_are_refused(name: str) -> None:
    with pytest.raises(RequestError, match="names of parameters"):
        blocks_format(PARAMETERS, {"properties": {name: {}}}, checked=True)


MARKS = ["</parameter>", "</function>", "</tool_call>", "<parameter=new>", "<parameter=old>", "\n"]
MARKS += [
    "</arg_value>",
    "<arg_key>new</arg_key>",
    "<arg_value>",
    "<tool_call>",
    " ",
    "x",
    '"',
    "<",
]
TEXTS = st.lists(st.sampled_from(MARKS), max_size=6).map("".join)
OLD_AND_NEW = {"old": {"type": "string"}, "new": {"type": "string"}}
EDIT = {"properties": OLD_AND_NEW | {"all": {"type": "array"}}}


@pytest.mark.parametrize("form", IN_BLOCKS, ids=name_of)
@given(old=TEXTS, new=TEXTS, rng=st.randoms(use_true_random=False))
@example(old="", new="</arg_value><arg_key>new</arg_key>", rng=random.Random(1))
def test_a_value_may_hold_the_text_that_ends_it(
    form: ToolFormat, old: str, new: str, rng: random.Random
) -> None:
    """Unless what follows it there could follow the value: that is no value of a constraint."""
    assert form.blocks
    values = {"old": old, "new": new, "all": [old]}
    listed = {name: {"const": value} for name, value in values.items() if name != "all"}
    order = {name: i for i, name in enumerate(values)}
    if any(form.blocks.splits(str(values[name]), order, name) for name in listed):
        with pytest.raises(RequestError, match=r"^tools: a value of parameter '(old|new)' holds"):
            blocks_format(form.blocks, {"properties": listed}, checked=True)
        return
    assert blocks_format(form.blocks, {"properties": listed}, checked=True)
    text = form.call_text(ToolCall("", "edit", json.dumps(values)))
    for pieces in ([text], list(text), cut(text, rng)):
        parser = call_parser(form, {"edit": json.dumps(EDIT)}, constrained=True)
        events = [event for piece in pieces for event in parser.feed(piece)]
        events += parser.feed("", final=True)
        assert events[0] == CallStart(0, "edit") and not parser.in_call
        assert json.loads("".join(e.text for e in events[1:] if isinstance(e, CallArguments))) == (
            values
        )
        assert all(isinstance(event, CallArguments) for event in events[1:])


@pytest.mark.parametrize("value", ["</parameter>", "a\n</parameter> b", "</parameter>x", " a\n\n"])
def test_values_of_free_calls_end_where_the_next_block_does(value: str) -> None:
    """Where a model leaves out the line ends, too."""
    block = f"<parameter=a>\n{value}\n</parameter>\n"
    answer = CODER.replace("<parameter=a>\n1\n</parameter>\n", block + "<parameter=b>2</parameter>")
    expected = [("add", json.dumps({"a": value, "b": 2}))]
    assert facts(QWEN3_CODER, [answer]) == facts(QWEN3_CODER, list(answer)) == ("", expected)


@pytest.mark.parametrize("form", [QWEN3_CODER, GLM], ids=name_of)
def test_a_value_that_nothing_checks_may_be_no_json(form: ToolFormat) -> None:
    """A constraint that only orders the blocks leaves the quotes in them to the model."""
    assert form.blocks
    values = {"a": '{"b', "b": 2}
    text = form.opening("add") + form.blocks.text_of(values) + form.closing
    for pieces in ([text], list(text)):
        assert facts(form, pieces, constrained=True) == ("", [("add", json.dumps(values))])


def test_lines_that_begin_like_calls_of_many_functions_are_content() -> None:
    names = {f"f{i}": ANYTHING for i in range(100)}
    text = "\n<function=f0>\n<function=f99> <function=f1>\n<function=f"
    for pieces in ([text], list(text)):
        parser = call_parser(QWEN3_CODER, names, constrained=False)
        events = [event for piece in pieces for event in parser.feed(piece)]
        events += parser.feed("", final=True)
        assert "".join(event.text for event in events if isinstance(event, Content)) == text
        assert parser.num_calls == 0


BARE = CODER.removeprefix("<tool_call>\n")
BARE_END = BARE.removesuffix("\n</tool_call>")


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"Well.\n{BARE}", "Well.", [A1]),
        (f"{BARE_END}\nDone.", "Done.", [A1]),
        (f"{BARE_END}\n{BARE} {CODER}", "", [A1, A1, A1]),
        (f"<tool_call>\n{BARE_END}{BARE}", "", [A1, A1]),  # both in one tag
        (f"See {BARE_END}", f"See {BARE_END}", []),  # not at a line's start
        (BARE.replace("add", "sub"), BARE.replace("add", "sub"), []),
        (BARE[:-30], BARE[:-30], []),
        ('{"name": "add", "arguments": {}}', '{"name": "add", "arguments": {}}', []),
    ],
)
def test_a_block_that_names_a_function_is_a_call_without_its_tag(
    text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    assert facts(QWEN3_CODER, [text]) == facts(QWEN3_CODER, list(text)) == (content, calls)
    pieces = cut(text, random.Random(len(text)))
    assert facts(QWEN3_CODER, pieces) == (content, calls)


@pytest.mark.parametrize("form", EVERY, ids=name_of)
def test_of_a_forced_call_nothing_is_content(form: ToolFormat) -> None:
    """Wherever a limit, a stop string or an abort cuts it, the second call too."""
    text = written(form, [A1, A1])
    for end in range(len(text)):
        for pieces in ([text[:end]], list(text[:end])):
            content, calls = facts(form, pieces, constrained=True, forced=True)
            assert content == "" and all(name == "add" for name, _ in calls)
            assert all('{"a": 1}'.startswith(arguments) for _, arguments in calls)
