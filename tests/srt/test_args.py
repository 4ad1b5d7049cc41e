"""The options about constrained output: their bounds, and what stands when none is given."""

import pytest

from srt.args import parse_args
from srt.errors import ConfigError


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--grammar-compile-timeout", "0"),
        ("--grammar-compile-timeout", "12.5"),  # the client would have given up before
        ("--grammar-compile-timeout", "nan"),
        ("--grammar-compile-memory", "15"),
    ],
)
def test_bounds_name_their_option(option: str, value: str) -> None:
    with pytest.raises(ConfigError, match=option):
        parse_args([option, value])


def test_defaults() -> None:
    args = parse_args(["--grammar-compile-timeout", "12", "--grammar-cache-dir", ""])
    assert (args.grammar_backend, args.grammar_compile_memory) == ("fsm", 1024)
    assert (args.grammar_compile_timeout, args.grammar_cache_dir) == (12.0, "")


def test_an_unknown_back_end_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_args(["--grammar-backend", "outlines"])
    assert "fsm" in capsys.readouterr().err
