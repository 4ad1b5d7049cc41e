"""What pages are told adds up to what there is."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from srt.gateway.introspection.feed import QueueChanges, TreeChanges
from tests.fakes import LOOK

NODES = st.lists(st.tuples(*[st.integers(-1, 3)] * 9), max_size=6, unique_by=lambda node: node[0])


@given(st.lists(st.tuples(NODES, st.integers(3, 9)), min_size=1, max_size=6))
def test_changes_add_up(looks: list[tuple[list[Any], int]]) -> None:
    changes, seen = TreeChanges(1), dict[int, list[int]]()
    for number, (nodes, matches) in enumerate(looks):
        event = changes.take(LOOK | {"nodes": nodes, "matches": matches})
        if event is not None:
            assert (event["type"], event["replica"]) == ("tree", 1)
            assert event["full"] is (number == 0)
            for uid in event["removed"]:
                del seen[uid]
            seen |= {node[0]: node for node in event["nodes"]}
            assert event["matches"] == matches
        expected = {}
        for node in nodes:
            last = matches - node[5] if node[5] >= 0 else -1
            expected[node[0]] = [*node[:5], last, *node[6:]]
        assert seen == expected
        whole = changes.whole()
        assert whole["full"] and sorted(whole["nodes"]) == sorted(seen.values())


def test_nothing_new_is_not_told() -> None:
    tree, queue = TreeChanges(0), QueueChanges(0)
    look = LOOK | {"nodes": [(1, 0, 0, 4, 0, 2, 3, 4, 9)], "matches": 7}
    assert tree.take(look) is not None and queue.take(look) is not None
    assert tree.take(look) is None and queue.take(look) is None
    # Another prompt has been matched elsewhere: this node's last match is the same.
    later = look | {"nodes": [(1, 0, 0, 4, 0, 3, 3, 4, 9)], "matches": 8}
    event = tree.take(later)
    assert event is not None and event["nodes"] == [] and event["matches"] == 8


def test_a_queue_is_told_as_a_whole() -> None:
    queue = QueueChanges(2)
    queue.take(LOOK)
    event = queue.take(LOOK | {"running": [{"rid": "a"}], "num_running": 1})
    assert event == queue.whole()
    assert event is not None and event["running"] == [{"rid": "a"}] and event["replica"] == 2
