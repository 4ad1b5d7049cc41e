"""Searches are bounded by counts in these tests, and not by time, of which a busy machine takes
more."""

import pytest

from scheduler_proc.grammar.closing import chain, witness


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness, "SEARCH_S", 60.0)
    monkeypatch.setattr(witness, "SEARCH_NEAR_S", 60.0)
    monkeypatch.setattr(chain, "MOST_AT_ONCE_S", 60.0)
