"""Command lines as tests write them: without an environment."""

from collections.abc import Sequence

from srt.args import ServerArgs
from srt.options.settings import read_settings


def parse_args(argv: Sequence[str]) -> ServerArgs:
    """The arguments that a command line alone gives."""
    return read_settings(argv, {}).args
