"""Answers of several schedulers to one operation, made into one.

Statistics are summed; those of each replica come with the sum. An operation that some refuse is
refused, by name.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from cachetools import FIFOCache

from srt.wire.errors import ErrorInfo
from srt.wire.messages import ControlResult
from srt.wire.ring_messages import ControlReply
from srt.wire.ring_state import replica_of, scheduler_part

MAX_OPEN = 256  # operations that wait for an answer; one of a scheduler that is lost never comes

# Numbers that are not summed: they are made of two sums, or the mean or the largest counts.
_RATIOS = {
    "token_usage": ("num_used_tokens", "max_total_tokens"),
    "cache_hit_rate": ("cached_tokens_total", "prompt_tokens_total"),
}
_MEANS = ("new_token_ratio",)
_MOST = ("expert_load_max_over_mean",)


class Replies:
    """Of `replicas` schedulers."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._open: FIFOCache[tuple[bytes, str], dict[int, ControlReply]] = FIFOCache(MAX_OPEN)

    def clear(self) -> None:
        """A new epoch: nobody waits."""
        self._open.clear()

    def add(self, reply: ControlReply, epoch: int) -> ControlResult | None:
        """The result, if this was the last of the answers to an operation."""
        if self._replicas == 1:
            return ControlResult(reply.rid, epoch, reply.data, reply.error)
        name = reply.client, reply.rid
        found = self._open.setdefault(name, {})
        found[replica_of(reply.incarnation, self._replicas)] = reply
        if len(found) < reply.asked:
            return None
        del self._open[name]
        refused = {replica: one.error for replica, one in sorted(found.items()) if one.error}
        if refused:
            return ControlResult(reply.rid, epoch, error=self._refusal(refused))
        parts = {i: msgspec.json.decode(one.data) for i, one in sorted(found.items())}
        return ControlResult(reply.rid, epoch, msgspec.json.encode(_summed(parts)))

    def _refusal(self, refused: Mapping[int, ErrorInfo]) -> ErrorInfo:
        """The first one's, with the names of all."""
        names = ", ".join(scheduler_part(replica, self._replicas) for replica in refused)
        first = next(iter(refused.values()))
        return msgspec.structs.replace(first, reason=f"{names}: {first.reason}")


def _summed(parts: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
    """Numbers added up, and the parts as `replicas`; other values are the last part's."""
    total: dict[str, Any] = {}
    for part in parts.values():
        for name, value in part.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            total[name] = total[name] + value if name in total and is_number else value
    if not total:
        return total
    for name in _MEANS:
        total[name] = total.get(name, 0.0) / len(parts)
    for name in _MOST:
        total[name] = max(part.get(name, 0.0) for part in parts.values())
    for name, (part_of, whole) in _RATIOS.items():
        total[name] = total.get(part_of, 0) / max(1, total.get(whole, 0))
    return total | {"replicas": [{"replica": i} | part for i, part in parts.items()]}
