"""Lines of a system text that move to its end."""

import pytest

from srt.args import ServerArgs
from srt.wire.errors import ConfigError
from srt.wire.messages import ChatMessage
from tokenizer_proc.prompt.lines_last import with_lines_last

TEXT = "You help.\nDate: today\nRules:\n* one\nhash=af1\n* two"


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("Date: ", "You help.\nRules:\n* one\nhash=af1\n* two\nDate: today"),
        (r"^Date: |^hash=\w+$", "You help.\nRules:\n* one\n* two\nDate: today\nhash=af1"),
        ("one$", "You help.\nDate: today\nRules:\nhash=af1\n* two\n* one"),
        ("^today", TEXT),
        ("^(You|Date|Rules|[*]|hash)", TEXT),
    ],
)
def test_lines_that_match_come_last(pattern: str, text: str) -> None:
    """In their order, and from system texts only."""
    user = ChatMessage("user", TEXT)
    chat = [ChatMessage("system", TEXT), user]
    assert with_lines_last(chat, pattern) == [ChatMessage("system", text), user]


@pytest.mark.parametrize("pattern", ["(", "a*", "x{300}"])
def test_a_bad_pattern_is_an_error_of_the_option(pattern: str) -> None:
    with pytest.raises(ConfigError, match="--system-line-last"):
        ServerArgs(system_line_last=pattern).check()


def test_a_hard_pattern_takes_no_longer() -> None:
    """It would never end in an engine that backtracks."""
    (message,) = with_lines_last([ChatMessage("system", "a" * 20_000)], "(a|aa)+b")
    assert message.content == "a" * 20_000
