"""Transforms and guards, against Python's own functions; their bounds and their time."""

import json
import re
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from srt.programs.limits import MAX_PATTERN_NODES, MAX_PATTERN_WORK, MAX_TEXT_BYTES
from srt.programs.transforms import _compiled, apply, check_guard, check_op, holds, inputs_of
from srt.wire.errors import RequestError
from srt.wire.programs import (
    Concat,
    Extract,
    First,
    Format,
    Guard,
    Join,
    JsonPointer,
    Majority,
    Op,
    Split,
    Strip,
    Truncate,
)
from tests.running.profiles import examples

TEXT = st.text("ab,.1 é\n", max_size=12)


@given(st.lists(st.one_of(st.none(), TEXT), min_size=1, max_size=6), TEXT)
def test_of_lists(texts: list[str | None], separator: str) -> None:
    names = [f"v{i}" for i in range(len(texts))]
    values = dict(zip(names, texts, strict=True))
    there = [text for text in texts if text is not None]
    assert apply(Concat(names), values) == "".join(there)
    assert apply(Join(names, separator), values) == separator.join(there)
    if there:
        assert apply(First(names), values) == there[0]
        best = apply(Majority(names), values)
        assert there.count(best) == max(map(there.count, there))
        assert best == next(text for text in there if there.count(text) == there.count(best))


@given(TEXT, TEXT, st.integers(-5, 5), st.integers(0, 5))
def test_of_one_text(text: str, other: str, index: int, count: int) -> None:
    values = {"v": text}
    assert apply(Strip("v"), values) == text.strip()
    assert apply(Strip("v", other or None), values) == text.strip(other or None)
    assert apply(Truncate("v", chars=count), values) == text[:count]
    end = text[len(text) - min(count, len(text)) :]
    assert apply(Truncate("v", chars=count, keep="end"), values) == end
    if other:
        pieces = text.split(other)
        try:
            assert apply(Split("v", other, index), values) == pieces[index]
        except RequestError:
            assert not -len(pieces) <= index < len(pieces)


@given(st.text("a{}b", max_size=10), TEXT, TEXT)
def test_format_is_pythons(template: str, a: str, b: str) -> None:
    op = Format(template, {"a": "x", "b": "y"})
    try:
        check_op(op, "op")
    except RequestError:
        return
    assert apply(op, {"x": a, "y": b}) == template.format(a=a, b=b)


ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "a*", "b+?", "(?:a|b)", "(?P<g>a)", "^a"])
PATTERNS = st.lists(ATOMS, min_size=1, max_size=5).map("".join)


@settings(max_examples=examples(50))
@given(PATTERNS, st.text("abc\n", max_size=12))
def test_patterns_are_pythons(pattern: str, text: str) -> None:
    """The first match, and its group: those of `re.search`."""
    try:
        expected = re.compile(pattern).search(text)
    except re.error:  # a group's name twice
        return
    assert holds(Guard("v", matches=pattern), text) == (expected is not None)
    for group in ("", "g") if "?P<g>" in pattern else ("",):
        check_op(Extract("v", pattern, group), "op")
        found = None if expected is None else expected.group(group or 0)
        if found is None:
            with pytest.raises(RequestError, match="matches nothing"):
                apply(Extract("v", pattern, group), {"v": text})
        else:
            assert apply(Extract("v", pattern, group), {"v": text}) == found


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("a/~0", max_size=2), inner),
    max_leaves=8,
)


@given(JSON, st.data())
def test_json_pointers(value: Any, data: st.DataObject) -> None:
    path: list[str] = []
    found = value
    while isinstance(found, dict | list) and found and data.draw(st.booleans()):
        keys = [*found] if isinstance(found, dict) else [*range(len(found))]
        key = data.draw(st.sampled_from(keys))
        found = found[key]
        path.append(str(key).replace("~", "~0").replace("/", "~1"))
    pointer = "".join(f"/{each}" for each in path)
    check_op(JsonPointer("v", pointer), "op")
    text = apply(JsonPointer("v", pointer), {"v": json.dumps(value)})
    assert text == found if isinstance(found, str) else json.loads(text) == found
    with pytest.raises(RequestError, match="nothing at"):
        apply(JsonPointer("v", f"{pointer}/nowhere"), {"v": json.dumps(value)})


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '"' + "\\ud800" + '"x'])
def test_what_is_not_json(text: str) -> None:
    with pytest.raises(RequestError, match="not JSON"):
        apply(JsonPointer("v", ""), {"v": text})


BAD: list[tuple[Op, str]] = [
    (Concat([]), "op.inputs"),
    (Split("v", "", 0), "op.separator"),
    (JsonPointer("v", "a"), "op.pointer"),
    (JsonPointer("v", "/~2"), "op.pointer"),
    (Extract("v", "(a"), "op.pattern"),
    (Extract("v", "a" * 300), "op.pattern"),
    (Extract("v", f"a{{{MAX_PATTERN_NODES}}}"), "op.pattern"),
    (Extract("v", "a", "g"), "op.group"),
    (Truncate("v"), "op"),
    (Truncate("v", 1, 1), "op"),
    (Truncate("v", chars=-1), "op.chars"),
    (Format("{", {}), "op.template"),
    (Format("{a!r}", {"a": "v"}), "op.template"),
    (Format("{a:>9999999999}", {"a": "v"}), "op.template"),
    (Format("{}", {"a": "v"}), "op.template"),
    (Format("{a}", {}), "op.inputs"),
    (Format("", {"a": "v"}), "op.inputs"),
    (Join(["v"], "x" * (MAX_TEXT_BYTES + 1)), "op.separator"),
]


@pytest.mark.parametrize(("op", "param"), BAD)
def test_bad_transforms_are_named(op: Op, param: str) -> None:
    with pytest.raises(RequestError) as refused:
        check_op(op, "op")
    assert refused.value.info.param == param


BAD_GUARDS = [Guard("v"), Guard("v", "a", "b"), Guard("v", "a", non_empty=True)]


@pytest.mark.parametrize("guard", [*BAD_GUARDS, Guard("v", matches="(")])
def test_bad_guards_are_named(guard: Guard) -> None:
    with pytest.raises(RequestError, match="when"):
        check_guard(guard, "when")


def test_results_are_bounded_before_they_are_built() -> None:
    half = "x" * (MAX_TEXT_BYTES // 2 + 1)
    began = time.process_time()
    for op in (
        Concat(["v", "v"]),
        Join(["v"] * 1000),
        Format("{a}" * 10_000, {"a": "v"}),
    ):
        with pytest.raises(RequestError, match="more than"):
            apply(op, {"v": half})
    assert time.process_time() - began < 1  # thousands of texts of half a MiB would take longer
    assert inputs_of(Join(["v"] * 3)) == ["v"] * 3


@pytest.mark.parametrize("pattern", ["a{250}", "(a|b)*c", "(a?){80}b", ".*x.*y", "(?P<g>[^ ]+)z"])
def test_a_long_text_is_refused_by_its_pattern(pattern: str) -> None:
    """The time of a search is bounded by the text's length times the pattern's size."""
    most = MAX_PATTERN_WORK // _compiled(pattern).num_nodes
    assert not holds(Guard("v", matches=pattern), "d" * most)
    with pytest.raises(RequestError, match="searches at most"):
        holds(Guard("v", matches=pattern), "d" * (most + 1))
