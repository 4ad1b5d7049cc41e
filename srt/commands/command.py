"""`srt serve|chat|doctor`: picks the part that does it."""

import sys
from collections.abc import Callable, Sequence

from srt import chat, launch
from srt.commands import doctor, models
from srt.options.unknown import instead_of

_HELP = """usage: srt COMMAND [--OPTION VALUE ...]

commands:
  serve [MODEL]   serve a model over HTTP and ZeroMQ until Ctrl-C
  chat [MODEL]    chat in the terminal, with a server that runs or one of the chat's own
  models          list the models of this machine, whether they fit, and how fast they are
  doctor          look for what would keep a server from starting, or slow it down

`srt COMMAND --help` lists the options of a command.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status: 2 for one that makes no sense."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_HELP, end="")
        return 0
    command = _COMMANDS.get(words[0])
    if command is None:
        near = instead_of(words[0], _COMMANDS)
        print(f"srt: {words[0]!r} is not a command{near}\n\n{_HELP}", end="", file=sys.stderr)
        return 2
    return command(words[1:])


_COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "serve": lambda words: launch.main(words, prog="srt serve"),
    "chat": lambda words: chat.main(words, prog="srt chat"),
    "models": models.main,
    "doctor": doctor.main,
}
