"""The parser reads whatever the constraint allows: random legal answers, byte by byte."""

import json
import random
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from scheduler_proc.grammar.base import CompiledGrammar, GrammarError
from scheduler_proc.grammar.llg.backend import compile_llguidance
from scheduler_proc.grammar.vocabulary import TokenVocabulary
from srt.answers.tool_calls import call_parser
from srt.answers.tool_constraint import OfferedTool, ToolChoice, ToolPlan
from srt.answers.tool_events import CallArguments, CallStart, Content
from srt.answers.tool_format import (
    FORMATS,
    HARMONY,
    HARMONY_NEXT,
    HERMES,
    QWEN3_CODER,
    ToolFormat,
    name_of,
)
from srt.wire.constraint import Constraint
from srt.wire.messages import ToolCall, ToolSpec
from tests.tokenizer_proc.admission.test_front import EOS, VOCAB

UNIT = '{"type":"object","properties":{"unit":{"enum":["</tool_call>","{\\"<tool_call>"]}},'
UNIT += '"required":["unit"],"additionalProperties":false}'
WEATHER = OfferedTool(ToolSpec("weather", "", UNIT), strict=True)
CLOCK = OfferedTool(ToolSpec("now"), strict=True)
YES = {"type": "const_string", "value": "yes"}
MAX_BYTES = 400
EVERY_FORMAT = {form.begin + form.head: form for form in FORMATS.values()}


def compiled(
    choice: ToolChoice, parallel: bool, answer: Any = None, form: ToolFormat = HERMES
) -> CompiledGrammar:
    tools = [WEATHER] if choice == "named" else [WEATHER, CLOCK]
    plan = ToolPlan(tools=tools, choice=choice, parallel=parallel)
    tag = plan.constraint(form, answer)
    assert tag is not None
    found = plan.functions_at(form, tag, answer is not None)
    for tool in tools:
        path = next(path for path, name in found.items() if name == tool.spec.name)
        part: Any = tag
        for name, number in re.findall(r"(\w+)(?:\[(\d+)\])?", path.removesuffix(".content")):
            part = part[name][int(number)] if number else part[name]
        assert part["begin"] == form.opening(tool.spec.name)
    constraint = Constraint("structural_tag", json.dumps(tag))
    return compile_llguidance(constraint, TokenVocabulary.from_vocab(VOCAB))


def random_answer(
    grammar: CompiledGrammar, rng: random.Random, likely: str = "<", lead: str = ""
) -> tuple[str, bool]:
    """A legal text that begins with `lead`, and whether it is complete. The characters `likely` are
    preferred: by chance, there would hardly ever be a tag."""
    place, text = grammar.start(), bytearray(lead.encode())
    place.accept([*text])
    row = np.zeros(-(-VOCAB.vocab_size // 32), dtype=np.uint32)
    while len(text) < MAX_BYTES:
        place.fill(row)
        legal = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
        ends = EOS in legal
        if ends and (len(legal) == 1 or rng.random() < 0.3):
            return text.decode(), True
        known = [byte for byte in likely.encode() if byte in legal]
        pick = rng.choice(known) if known and rng.random() < 0.5 else None
        ascii_only = [token for token in legal if token < 128]
        byte = pick or rng.choice([t for t in legal if t < 256] if len(legal) <= 4 else ascii_only)
        place.accept([byte])
        text.append(byte)
    return text.decode(errors="ignore"), False


def read(
    text: str, form: ToolFormat = HERMES, **how: bool
) -> tuple[str, list[tuple[str, Any]], bool]:
    """Content, calls, and whether the last call is cut short."""
    parser = call_parser(form, {"weather": UNIT, "now": ""}, constrained=True, **how)
    content, calls = "", []
    for event in parser.feed(text, final=True):
        if isinstance(event, Content):
            content += event.text
        elif isinstance(event, CallStart):
            calls.append([event.name, ""])
        elif isinstance(event, CallArguments):
            calls[event.call][1] += event.text
    return content, [(name, arguments) for name, arguments in calls], parser.in_call


def check_arguments(name: str, arguments: str) -> None:
    value = json.loads(arguments)
    if name == "now":
        assert value == {}
    else:
        assert value["unit"] in ("</tool_call>", '{"<tool_call>') and len(value) == 1


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("choice", ["named", "required"])
@pytest.mark.parametrize("form", EVERY_FORMAT.values(), ids=EVERY_FORMAT)
def test_calls_that_must_be_made(choice: ToolChoice, parallel: bool, form: ToolFormat) -> None:
    grammar, numbers = compiled(choice, parallel, form=form), set()
    likely = form.begin[0] + form.separator[:1]
    for seed in range(20):
        text, is_whole = random_answer(grammar, random.Random(seed), likely)
        content, calls, is_cut = read(text, form, forced=True)
        assert is_whole or parallel
        assert text.startswith(form.first or form.begin)
        for name, arguments in calls if not is_cut else calls[:-1]:
            check_arguments(name, arguments)
        if is_whole:
            assert len(calls) >= 1 and content == ""
            numbers.add(len(calls))
    assert numbers == {1} if choice == "named" or not parallel else len(numbers) > 1


@pytest.mark.parametrize("form", EVERY_FORMAT.values(), ids=EVERY_FORMAT)
def test_a_blank_behind_a_call_forces_nothing(form: ToolFormat) -> None:
    """Models write one behind their last call, too. Other text ends the answer."""
    place = compiled("required", True, form=form).start()
    blank = form.separator if form.separator.isspace() else ""
    place.accept(list((form.first + form.call_text(ToolCall("", "now", "{}")) + blank).encode()))
    place.accept(list(form.last.encode()))
    assert place.is_accepting()
    with pytest.raises(GrammarError):
        place.accept(list(b"It is"))


def test_auto_begins_only_what_it_can_end() -> None:
    """In free text, every call that begins is valid, and nothing follows the first one."""
    grammar, found = compiled("auto", parallel=False), 0
    for seed in range(20):
        text, _ = random_answer(grammar, random.Random(seed))
        _, calls, is_cut = read(text)
        assert len(calls) <= 1
        for name, arguments in calls if not is_cut else []:
            check_arguments(name, arguments)
            assert text.endswith(HERMES.end)
            found += 1
    place = grammar.start()
    place.accept(list(b"Hm. <tool_call>"))
    with pytest.raises(GrammarError):
        place.accept(list(b" nonsense"))


def test_calls_or_an_answer() -> None:
    grammar = compiled("auto", parallel=True, answer=YES)
    for seed in range(10):
        text, is_whole = random_answer(grammar, random.Random(seed))
        content, calls, _ = read(text, is_first=True)
        assert not is_whole or (content == "yes") != bool(calls)
    for text, legal in (("yes", True), ("no", False), ("yes<tool_call>", False)):
        place = grammar.start()
        try:
            place.accept(list(text.encode()))
        except GrammarError:
            assert not legal
        else:
            assert legal and place.is_accepting()


def test_blocks_match_their_parameters() -> None:
    """Required parameters are there, and each has a value that its schema allows."""
    schema = {
        "type": "object",
        "$defs": {"Size": {"enum": ["small", 2]}},
        "properties": {
            "count": {"type": "integer", "minimum": 1, "maximum": 40},
            "size": {"$ref": "#/$defs/Size"},
            "flag": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        },
        "required": ["size", "count"],
    }
    tool = OfferedTool(ToolSpec("set", "", json.dumps(schema)), strict=True)
    plan = ToolPlan(tools=[tool], choice="named")
    constraint = Constraint("structural_tag", json.dumps(plan.constraint(QWEN3_CODER)))
    grammar = compile_llguidance(constraint, TokenVocabulary.from_vocab(VOCAB))
    seen = set()
    for seed in range(30):
        text, is_whole = random_answer(grammar, random.Random(seed))
        parser = call_parser(QWEN3_CODER, plan.functions, constrained=True)
        start, *pieces = parser.feed(text, final=True)
        assert is_whole and start == CallStart(0, "set")
        value = json.loads("".join(p.text for p in pieces if isinstance(p, CallArguments)))
        assert 1 <= value["count"] <= 40 and value["size"] in ("small", 2)
        assert value.get("flag") in (None, False, True)
        seen.add(("flag" in value, value["size"]))
    assert len(seen) == 4


def test_the_model_reasons_before_a_call_with_the_tokens_that_it_knows() -> None:
    """Control tokens around messages are text to the constraint, which also demands them."""
    size = len(VOCAB.token_bytes)
    marks = {mark: size + i for i, mark in enumerate(HARMONY.marks)}
    vocab = replace(
        VOCAB,
        token_bytes=[*VOCAB.token_bytes, *(mark.encode() for mark in marks)],
        special_ids=VOCAB.special_ids | frozenset(marks.values()),
        chat_template="{% if tools %}<|start|>assistant<|channel|>analysis<|message|>{% endif %}",
    )
    tag = ToolPlan(tools=[CLOCK], choice="required").constraint(HARMONY)
    constraint = Constraint("structural_tag", json.dumps(tag), after=HARMONY_NEXT)
    place = compile_llguidance(constraint, TokenVocabulary.from_vocab(vocab)).start()
    row = np.zeros(-(-vocab.vocab_size // 32), dtype=np.uint32)

    def write(text: str) -> None:
        for part in re.split(r"(<\|\w+\|>)", text):
            for token in [marks[part]] if part in marks else list(part.encode()):
                place.fill(row)
                assert row[token // 32] >> (token % 32) & 1, (part, token)
                place.accept([token])

    write("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant")
    assert not place.is_accepting()
    write("<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}")
    assert place.is_accepting()


@pytest.mark.parametrize("form", [f for f in EVERY_FORMAT.values() if f.blocks], ids=name_of)
def test_listed_values_may_hold_what_ends_a_block(form: ToolFormat) -> None:
    """The constraint allows them as they are, and the parser reads them back."""
    assert form.blocks
    values = {"old": f"a{form.blocks.end} b", "new": f" {form.blocks.closing}\n", "more": "x"}
    schema = {
        "type": "object",
        "properties": {name: {"const": value} for name, value in values.items()},
        "required": [*values],
    }
    schema["properties"]["more"] = {"type": "string"}  # type: ignore[index]
    tool = OfferedTool(ToolSpec("edit", "", json.dumps(schema)), strict=True)
    plan = ToolPlan(tools=[tool], choice="named")
    text = form.call_text(ToolCall("", "edit", json.dumps(values)))
    constraint = Constraint("structural_tag", json.dumps(plan.constraint(form)))
    place = compile_llguidance(constraint, TokenVocabulary.from_vocab(VOCAB)).start()
    place.accept(list(text.encode()))
    assert place.is_accepting()
    start, *pieces = call_parser(form, plan.functions, constrained=True).feed(text, final=True)
    assert start == CallStart(0, "edit")
    assert json.loads("".join(p.text for p in pieces if isinstance(p, CallArguments))) == values
