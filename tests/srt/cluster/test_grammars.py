"""Messages that wait for grammars."""

import hashlib
import os
from pathlib import Path

from srt.cluster.grammars import GrammarFiles, HeldMessages


def test_what_follows_a_request_that_waits_waits_too() -> None:
    asked: list[str] = []
    sent: list[tuple[int, bytes]] = []
    held = HeldMessages(asked.append, lambda place, frames: sent.append((place, bytes(frames[0]))))
    held.add(1, [b"first"], "", 0.0)
    held.add(1, [b"constrained"], "k", 0.0)
    held.add(1, [b"its abort"], "", 0.0)
    held.add(1, [b"another"], "l", 1.0)
    held.add(2, [b"elsewhere"], "", 1.0)
    held.add(2, [b"the same"], "k", 1.0)
    assert asked == ["k", "l"] and sent == [(1, b"first"), (2, b"elsewhere")]
    held.came("k")
    assert sent[2:] == [(1, b"constrained"), (1, b"its abort"), (2, b"the same")]
    held.expire(5.5)
    assert len(sent) == 5
    held.expire(6.5)
    assert sent[5:] == [(1, b"another")]
    held.add(1, [b"lost"], "m", 7.0)
    held.drop(1)
    held.came("m")
    assert len(sent) == 6


def test_files_are_whole_and_bounded(tmp_path: Path) -> None:
    files = GrammarFiles(tmp_path / "grammars", limit=250)
    for number, key in enumerate("abc"):
        data = key.encode() * 100
        files.add(key, data, hashlib.sha256(data).digest())
        if number < 2:
            os.utime(tmp_path / "grammars" / key, (number, number))
    assert [files.has(key) for key in "abc"] == [False, True, True]
    files.add("d", b"damaged", bytes(32))
    assert not files.has("d")
    files.remove("c")
    assert not files.has("c") and len(list((tmp_path / "grammars").iterdir())) == 1
