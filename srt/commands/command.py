"""The command `srt`: its first word says what to do, and the rest is that one's command line."""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from srt import launch
from srt.chat import main as chat
from srt.commands import bench, completion, doctor, models
from srt.options.settings import make_parser
from srt.options.unknown import instead_of


class Command(NamedTuple):
    """What follows the word in the help, what it is for, and its function and parser."""

    words: str
    text: str
    run: Callable[[list[str]], int]
    parser: Callable[[], argparse.ArgumentParser]


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status: 2 for one that makes no sense."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help(), end="")
        return 0
    command = COMMANDS.get(words[0])
    if command is None:
        near = instead_of(words[0], COMMANDS)
        print(f"srt: {words[0]!r} is not a command{near}\n\n{_help()}", end="", file=sys.stderr)
        return 2
    return command.run(words[1:])


def _help() -> str:
    heads = {name: f"{name} {command.words}".strip() for name, command in COMMANDS.items()}
    width = max(map(len, heads.values()))
    lines = [f"  {heads[name]:{width}}   {command.text}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: srt COMMAND [--OPTION VALUE ...]",
            "",
            "commands:",
            *lines,
            "",
            "`srt COMMAND --help` lists the options of a command.",
            "",
        ]
    )


def _complete(words: list[str]) -> int:
    return completion.main(words, {name: command.parser() for name, command in COMMANDS.items()})


COMMANDS: dict[str, Command] = {
    "serve": Command(
        "[MODEL]",
        "serve a model over HTTP and ZeroMQ until Ctrl-C",
        lambda words: launch.main(words, prog="srt serve"),
        lambda: make_parser("srt serve"),
    ),
    "chat": Command(
        "[MODEL]",
        "chat in the terminal, with a server that runs or one of the chat's own",
        lambda words: chat.main(words, prog="srt chat"),
        lambda: chat.make_parser("srt chat"),
    ),
    "models": Command(
        "[MODEL ...]",
        "list the models of this machine, whether they fit, and how fast they are",
        models.main,
        models.make_parser,
    ),
    "bench": Command("", "measure a server that runs", bench.main, bench.make_parser),
    "doctor": Command(
        "",
        "look for what would keep a server from starting, or slow it down",
        doctor.main,
        doctor.make_parser,
    ),
    "completion": Command(
        "SHELL",
        "write what makes bash, zsh or fish complete all this",
        _complete,
        completion.make_parser,
    ),
}
