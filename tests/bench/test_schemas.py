"""The search for an order of properties: as good as trying all of them."""

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from bench.schemas import OrderSearch, RefusedError, compile_ours

NAMES = ["a", "b", "c", "xa", "xb", "y"]
PATTERNS = ["^x", "b$"]
ENUM = {"enum": [{"b": 1, "a": 1}, {"a": 1, "c": {"y": None, "b": 1}}]}
LEAVES = st.sampled_from([{}, {}, {"type": "integer"}, {"type": "null"}, False, ENUM])
VALUES = st.sampled_from([1, 1, 1, None, {"a": 1, "b": 1}, {"c": {"b": 1, "y": None}, "a": 1}])


def members(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.lists(st.tuples(st.sampled_from(NAMES), values), max_size=4).map(dict)


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {"type": st.just("object"), "properties": members(inner)},
        optional={
            "required": st.lists(st.sampled_from(NAMES), max_size=1),
            "patternProperties": st.dictionaries(st.sampled_from(PATTERNS), inner, max_size=2),
            "additionalProperties": inner,
            "minProperties": st.just(1),
        },
    )


OPTIONS = st.lists(objects(st.one_of(LEAVES, objects(LEAVES))), min_size=1, max_size=2)
SCHEMAS = OPTIONS.map(lambda options: {"anyOf": options})


INTEGER = {"type": "integer"}
MIXED = {"type": "object", "patternProperties": {"^x": {}}, "additionalProperties": INTEGER}


@example({"type": "object", "properties": {"a": {}, "b": {}}}, [{"b": 1, "a": 1}])
@example({"enum": [{"b": 1, "a": {"c": 1, "y": 1}}]}, [{"a": {"y": 1, "c": 1}, "b": 1}])
@example(MIXED, [{"y": 1, "xa": 1, "b": 1, "xb": 1}])
@given(SCHEMAS, st.lists(members(st.one_of(VALUES, members(VALUES))), min_size=1, max_size=4))
def test_one_order_for_each_object_schema_is_enough(schema: Any, values: list[Any]) -> None:
    try:
        compiled = compile_ours(schema)
    except RefusedError:
        return
    assert compiled.orders is not None
    few = OrderSearch(compiled.matcher, schema, compiled.orders)
    every = OrderSearch(compiled.matcher, schema, None)
    for value in values:
        expected = every.accepts(value)
        assert expected is None or few.accepts(value) is expected, (schema, value)


def test_what_takes_too_long_in_all_orders() -> None:
    schema = {"type": "object", "additionalProperties": {"type": "integer"}, "required": ["a"]}
    compiled = compile_ours(schema)
    few = OrderSearch(compiled.matcher, schema, compiled.orders)
    value: dict[str, object] = {**{f"n{i}": i for i in range(9)}, "a": 0}
    assert few.accepts(value) is True
    value["n8"] = "wrong"
    assert OrderSearch(compiled.matcher, schema, None).accepts(value) is None
    assert few.accepts(value) is False
