"""How far a download or a load is."""

import logging

import pytest

from srt.progress import Progress, shown


def test_sizes() -> None:
    assert [shown(size) for size in (0, 1_500_000, 2**30)] == ["0.0 MiB", "1.4 MiB", "1.0 GiB"]


def test_lines_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    with caplog.at_level(logging.INFO), Progress("model", 2**24, lambda: now) as progress:
        progress.have(2**22)
        assert caplog.messages == []
        now = 106.0
        progress.add(2**22)
        progress.add(2**20)
        assert len(caplog.messages) == 1
        now = 112.0
        progress.have(-(2**22))
    assert caplog.messages == [
        "model: 8.0 MiB of 16.0 MiB (50 %), 0.7 MiB/s, 12 s left",
        "model: 5.0 MiB of 16.0 MiB (31 %), 0.4 MiB/s, 26 s left",
    ]


def test_the_time_that_is_left_is_not_guessed_at_the_beginning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    with caplog.at_level(logging.INFO), Progress("model", 2**24, lambda: now) as progress:
        now = 106.0
        progress.add(2**19)
    assert caplog.messages == ["model: 0.5 MiB of 16.0 MiB (3 %), 0.1 MiB/s"]
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Progress("model", 100) as progress:
        progress.add(4)
        assert "<" not in str(progress._bar)
        progress.add(2)
        assert "<" in str(progress._bar)


def test_a_size_that_nobody_knows(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    with caplog.at_level(logging.INFO), Progress("model", -1, lambda: now) as progress:
        now = 108.0
        progress.add(2**23)
    assert caplog.messages == ["model: 8.0 MiB, 1.0 MiB/s"]


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Progress("model", 100) as progress:
        progress.have(10)
        progress.add(90)
        bar = progress._bar
        assert bar.n == bar.total == 100
