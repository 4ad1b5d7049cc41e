"""The detailed log-probabilities of one request's tokens, on their way into its Outputs."""

from srt.wire.messages import LogprobDetail
from srt.wire.packing import packed_size


class DetailRows:
    """Rows that are collected until they are sent: per token the `num_top` most likely tokens,
    and `num_ids` named ones."""

    def __init__(self, num_top: int, num_ids: int) -> None:
        self._top_size, self._id_size = packed_size(num_top), packed_size(num_ids)
        self._top_ids, self._top_values = bytearray(), bytearray()
        self._id_values = bytearray()

    def add(self, detail: LogprobDetail, count: int) -> None:
        """Append the first `count` rows."""
        self._top_ids += detail.top_ids[: self._top_size * count]
        self._top_values += detail.top_values[: self._top_size * count]
        self._id_values += detail.id_values[: self._id_size * count]

    def keep(self, count: int) -> None:
        """Drop all but the first `count` rows."""
        del self._top_ids[self._top_size * count :]
        del self._top_values[self._top_size * count :]
        del self._id_values[self._id_size * count :]

    def packed(self) -> LogprobDetail | None:
        """All rows; None if there are none."""
        if not (self._top_ids or self._id_values):
            return None
        return LogprobDetail(bytes(self._top_ids), bytes(self._top_values), bytes(self._id_values))
