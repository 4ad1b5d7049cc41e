"""What route handlers share."""

import logging

import pytest

from srt.answers.tool_format import HERMES
from srt.gateway.context import _format_named


def test_an_unknown_way_to_write_calls_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """As where the tokenizer is of a later version."""
    with caplog.at_level(logging.WARNING):
        assert [_format_named("unheard-of") for _ in range(3)] == 3 * [HERMES]
    (record,) = caplog.records
    assert "'unheard-of', is unknown" in record.getMessage()
