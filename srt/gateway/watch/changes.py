"""A replica's tree and queue as pages get them: whole at first, then what has changed."""

from collections.abc import Mapping, Sequence
from typing import Any

Event = dict[str, Any]
_UNUSED = 5  # its place in a node, as /tree has it


class TreeChanges:
    """The tree of one replica, as it was last told."""

    def __init__(self, replica: int) -> None:
        self._replica = replica
        self._nodes: dict[int, list[int]] = {}
        self._facts: Event = {}

    def take(self, look: Mapping[str, Any]) -> Event | None:
        """The event that tells what `look` shows that is new; None for nothing."""
        nodes = {node[0]: _placed(node, look["matches"]) for node in look["nodes"]}
        changed = [node for uid, node in nodes.items() if self._nodes.get(uid) != node]
        removed = [uid for uid in self._nodes if uid not in nodes]
        facts = {
            "is_whole": look["nodes_are_all"],
            "cached_tokens": look["cached_tokens"],
            "evicted_tokens_total": look["evicted_tokens_total"],
            "matches": look["matches"],
        }
        is_first, is_same = not self._facts, facts == self._facts and not changed and not removed
        self._nodes, self._facts = nodes, facts
        return None if is_same else self._event(is_first, changed, removed)

    def whole(self) -> Event:
        """The event that tells all."""
        return self._event(True, [*self._nodes.values()], [])

    def _event(self, full: bool, nodes: list[list[int]], removed: list[int]) -> Event:
        about = {"type": "tree", "replica": self._replica, "full": full}
        return about | {"nodes": nodes, "removed": removed} | self._facts


def _placed(node: Sequence[int], matches: int) -> list[int]:
    """A node with the number of its last match: how many there have been since changes always."""
    unused = node[_UNUSED]
    last = matches - unused if unused >= 0 else -1
    return [*node[:_UNUSED], last, *node[_UNUSED + 1 :]]


class QueueChanges:
    """The requests of one replica, as they were last told."""

    def __init__(self, replica: int) -> None:
        self._about = {"type": "queue", "replica": replica}
        self._last: Event = {}

    def take(self, look: Mapping[str, Any]) -> Event | None:
        """The event that tells all of them, if anything has changed."""
        names = ("running", "waiting", "num_running", "num_waiting")
        found = {name: look[name] for name in names}
        is_same = found == self._last
        self._last = found
        return None if is_same else self._about | found

    def whole(self) -> Event:
        return self._about | self._last
