"""Calls of custom tools: what the constraint allows is read as these calls, however it is cut."""

import json
import random
import re

import pytest

from scheduler_proc.grammar.base import CompiledGrammar, GrammarError
from scheduler_proc.grammar.llg.backend import compile_llguidance
from scheduler_proc.grammar.vocabulary import TokenVocabulary
from srt.answers.custom_tools import BEGIN, CLOSING, call_text, instructions, opening
from srt.answers.tool_calls import answer_parser
from srt.answers.tool_constraint import OfferedTool, ToolChoice, ToolPlan
from srt.answers.tool_events import CallArguments, CallStart, Content, Reasoning
from srt.answers.tool_format import FORMATS, HARMONY, HERMES, LLAMA3, ToolFormat
from srt.wire.constraint import Constraint
from srt.wire.messages import InputFormat, ToolCall, ToolSpec
from tests.srt.answers.test_tool_constraint import WEATHER, random_answer
from tests.tokenizer_proc.admission.test_front import VOCAB

NESTED = 'start: "(" start* ")" LF?\n%import common.LF\n'
PATTERN = r"[a-c]{2,4}(\n<[a-c]+)?"
DIG = OfferedTool(ToolSpec("dig", input=InputFormat("lark", NESTED)))
PICK = OfferedTool(ToolSpec("pick", "Picks.", input=InputFormat("regex", PATTERN)))
SAY = OfferedTool(ToolSpec("say", input=InputFormat()))
CUSTOM = (DIG, PICK, SAY)
EVERY_FORMAT = {form.begin + form.head: form for form in FORMATS.values()}


def compiled(form: ToolFormat, choice: ToolChoice, *tools: OfferedTool) -> CompiledGrammar:
    plan = ToolPlan(tools=tools, choice=choice, parallel=choice != "named")
    tag = plan.constraint(form)
    assert tag is not None
    assert {t.spec.name for t in tools} <= {*plan.functions_at(form, tag, False).values()}
    return compile_llguidance(
        Constraint("structural_tag", json.dumps(tag)), TokenVocabulary.from_vocab(VOCAB)
    )


def read(
    pieces: list[str], form: ToolFormat, tools: tuple[OfferedTool, ...], **how: bool
) -> tuple[str, list[tuple[str, str]], bool]:
    """Content, calls, and whether the last one is cut short."""
    plan = ToolPlan(tools=tools, choice="auto")
    parser = answer_parser(form, plan.functions, plan.custom, constrained=True, **how)
    events = [event for piece in pieces for event in parser.feed(piece)]
    content, calls = "", list[list[str]]()
    for event in [*events, *parser.feed("", final=True)]:
        if isinstance(event, CallStart):
            assert event.call == len(calls)
            calls.append([event.name, ""])
        elif isinstance(event, CallArguments):
            assert event.call == len(calls) - 1
            calls[-1][1] += event.text
        else:
            content += event.text
    return content, [(name, text) for name, text in calls], parser.in_call


def cut(text: str, rng: random.Random) -> list[str]:
    places = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(8)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def is_nested(text: str) -> bool:
    """Whether a text is one of `NESTED`, not read by us."""
    text, before = text.replace("\n", ""), ""
    while text != before:
        text, before = re.sub(r"\(x*\)", "x", text), text
    return text == "x"


def check(calls: list[tuple[str, str]]) -> None:
    for name, text in calls:
        if name == "dig":
            assert is_nested(text), text
        elif name == "pick":
            assert re.fullmatch(PATTERN, text), text
        elif name == "say":
            assert CLOSING not in text
        else:
            assert json.loads(text)["unit"]


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("form", EVERY_FORMAT.values(), ids=EVERY_FORMAT)
def test_what_is_allowed_is_read(form: ToolFormat, choice: ToolChoice) -> None:
    """Beside functions in every model's form; whatever the cuts."""
    tools = (WEATHER, *CUSTOM)
    grammar, names = compiled(form, choice, *tools), set()
    for seed in range(24):
        rng = random.Random(seed)
        lead = f"Well:\n{opening(rng.choice(CUSTOM).spec.name)}" if choice == "auto" else ""
        text, is_whole = random_answer(grammar, rng, BEGIN[0] + form.begin[0], lead)
        how = {"forced": choice == "required"}
        content, calls, is_cut = read([text], form, tools, **how)
        for _ in range(3):
            assert read(cut(text, rng), form, tools, **how) == (content, calls, is_cut)
        check(calls[:-1] if is_cut or not is_whole else calls)
        names |= {name for name, _ in calls}
        if is_whole and choice == "required":
            assert calls and content == ""
    assert len(names & {"dig", "pick", "say"}) > 1


@pytest.mark.parametrize("form", [HERMES, HARMONY])
@pytest.mark.parametrize("tool", CUSTOM)
def test_one_that_must_be_called(form: ToolFormat, tool: OfferedTool) -> None:
    grammar = compiled(form, "named", tool)
    for seed in range(12):
        text, is_whole = random_answer(grammar, random.Random(seed), "()ab\n")
        content, calls, is_cut = read([text], form, (tool,), forced=True)
        assert content == "" and len(calls) == 1 and is_cut != is_whole
        check(calls if is_whole else [])


def test_blocks_begin_in_the_middle_of_a_free_answer() -> None:
    place = compiled(HERMES, "auto", DIG, PICK).start()
    block = call_text(ToolCall("", "pick", "ab"))
    place.accept(list(f"Well <b>\n{block} and\n{block}\nso".encode()))
    assert place.is_accepting()
    place.accept(list(opening("dig").encode()))
    with pytest.raises(GrammarError):
        place.accept(list(b"x"))
    text = f"Well <b>\n{block} and\n{block}\nso"
    assert read([text], HERMES, (DIG, PICK)) == (
        "Well <b>\n and\n\nso",
        [("pick", "ab")] * 2,
        False,
    )


@pytest.mark.parametrize("form", EVERY_FORMAT.values(), ids=EVERY_FORMAT)
def test_a_block_in_the_arguments_of_a_function_is_none(form: ToolFormat) -> None:
    """It is a string there."""
    if form.reading is not None and form.blocks is not None:
        pytest.skip("its arguments are blocks, which hold any text")
    block = call_text(ToolCall("", "pick", "ab"))
    call = form.call_text(ToolCall("", "weather", json.dumps({"unit": opening("pick") + "ab"})))
    text = f"{form.first}{call.replace(chr(92) + 'n', ' ')}{form.last}"
    header = "" if not form.in_channels else "<|call|><|start|>assistant<|channel|>final<|message|>"
    for rest, more in (("", []), (f"{header}{block}", [("pick", "ab")])):
        _, calls, _ = read([*text, *rest], form, (WEATHER, PICK))
        assert [name for name, _ in calls] == ["weather", *(name for name, _ in more)]


def test_reasoning_in_a_channel_has_no_blocks() -> None:
    block = call_text(ToolCall("", "pick", "ab"))
    text = f"<|channel|>analysis<|message|>{block}?<|end|><|start|>assistant"
    text += f"<|channel|>final<|message|>Yes.{block}"
    parser = answer_parser(HARMONY, {}, {"pick"}, constrained=True)
    events = [event for char in text for event in parser.feed(char)] + parser.feed("", True)
    thought = "".join(e.text for e in events if isinstance(e, Reasoning))
    said = "".join(e.text for e in events if isinstance(e, Content))
    assert (thought, said, parser.num_calls) == (f"{block}?", "Yes.", 1)


@pytest.mark.parametrize("form", [HERMES, LLAMA3])
def test_an_answer_of_another_form_may_hold_a_mark(form: ToolFormat) -> None:
    """Where an answer is calls only or matches a constraint, a block cannot follow text."""
    text = json.dumps({"name": "x", "text": "y"}) + call_text(ToolCall("", "pick", "ab"))
    content, calls, _ = read([*text], form, (WEATHER, PICK), is_first=True)
    assert (content, calls) == (text, [])
    block = call_text(ToolCall("", "pick", "ab"))
    assert read([*f"{block}\n{block} so"], form, (PICK,), is_first=True) == (
        "",
        [("pick", "ab")] * 2,
        False,
    )


def test_a_cut_block_is_a_call_that_has_not_ended() -> None:
    whole = call_text(ToolCall("", "pick", "abc"))
    for length in range(len(opening("pick")), len(whole)):
        content, calls, is_cut = read([whole[:length]], HERMES, (PICK,))
        given = whole[len(opening("pick")) : length]
        assert content == "" and is_cut
        assert calls[0][1] in (given, "abc")


@pytest.mark.parametrize("form", [HERMES, LLAMA3])
def test_text_before_a_cut_block_is_not_lost(form: ToolFormat) -> None:
    """Not even if it may have been the mark of a function's call."""
    text = f"a {form.begin[:4]}{opening('pick')}ab"
    assert read([*text], form, (WEATHER, PICK)) == (f"a {form.begin[:4]}", [("pick", "ab")], True)


def test_what_the_model_is_told() -> None:
    text = instructions([DIG.spec, PICK.spec, SAY.spec])
    assert all(f'<custom_tool name="{name}">' in text for name in ("dig", "pick", "say"))
    assert NESTED.strip() in text and PATTERN in text and "Picks." in text


def test_a_call_is_written_as_it_is_read() -> None:
    for form in (HERMES, HARMONY):
        text = call_text(ToolCall("c", "say", 'a "b"\n\\c\n'))
        assert read([text], form, (SAY,)) == ("", [("say", 'a "b"\n\\c\n')], False)
