"""CPU time and memory of the server's processes."""

import os
import time
from pathlib import Path

from srt.gateway.introspection.feed import Parts
from srt.wire.ring_state import RingEvent

STATE = {"scheduler": "ready", "gateway": "dead"}


def test_what_this_process_uses() -> None:
    losses = [("scheduler", "signal", 2), ("scheduler", "hang", 1)]
    ring = RingEvent(1, True, False, STATE, losses=losses, pids={"scheduler": os.getpid()})
    parts = Parts()
    first = {part["name"]: part for part in parts.look(ring)}
    assert [*first] == ["launcher", "scheduler", "gateway"]
    assert first["scheduler"]["cpu"] is None and first["scheduler"]["rss"] > 1 << 20
    assert first["scheduler"]["losses"] == 3
    assert (first["gateway"]["state"], first["gateway"]["rss"]) == ("dead", None)
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    second = {part["name"]: part for part in parts.look(ring)}
    assert 0 < second["scheduler"]["cpu"] <= 64


def test_names_with_spaces_and_brackets(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    numbers = " ".join(map(str, range(3, 60)))
    (tmp_path / "7" / "stat").write_text(f"7 (a ) b) S {numbers}\n")
    ring = RingEvent(1, True, False, {"gateway": "ready"}, pids={"gateway": 7})
    found = {part["name"]: part for part in Parts(tmp_path).look(ring)}
    assert found["gateway"]["rss"] == 23 * os.sysconf("SC_PAGE_SIZE")
