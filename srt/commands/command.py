"""The command `srt`: its first word says what to do, and the rest is that one's command line.

A command's module is imported when it is wanted: a server does without the others'.
"""

import argparse
import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple

from srt.options.unknown import instead_of
from srt.version import version_of


class Command(NamedTuple):
    """What follows the word in the help, what it is for, and its function and parser."""

    words: str
    text: str
    run: Callable[[list[str]], int]
    parser: Callable[[], argparse.ArgumentParser]


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status: 2 for one that makes no sense."""
    with suppress(AttributeError):  # not the interpreter's own
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        status = _run(list(sys.argv[1:] if argv is None else argv))
        with suppress(AttributeError):  # it is closed
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # `| head` has ended
        _drop_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _drop_output()
        print(f"srt: {error.strerror}", file=sys.stderr)
        return 1
    return status


def _run(words: list[str]) -> int:
    if words[:1] == ["help"] and len(words) == 2:
        words = [words[1], "--help"]
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help(), end="")
        return 0
    if words[0] in ("-V", "--version"):
        print(f"srt {version_of()}")
        return 0
    command = COMMANDS.get(words[0])
    if command is None:
        near = instead_of(words[0], COMMANDS)
        print(f"srt: {words[0]!r} is not a command{near}\n\n{_help()}", end="", file=sys.stderr)
        return 2
    return command.run(words[1:])


def _drop_output() -> None:
    """Of what is left in the buffer, which the interpreter would write at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
            "`srt COMMAND --help` lists the options of a command, `srt --version` says what runs.",
            "",
        ]
    )


def _of(module: str, function: str, *args: Any) -> Any:
    """What a function of a module gives."""
    return getattr(import_module(module), function)(*args)


def _complete(words: list[str]) -> Any:
    parsers = {name: command.parser() for name, command in COMMANDS.items()}
    return _of("srt.commands.completion", "main", words, parsers)


COMMANDS: dict[str, Command] = {
    "serve": Command(
        "[MODEL]",
        "serve a model over HTTP and ZeroMQ until Ctrl-C",
        lambda words: _of("srt.launch", "main", words, "srt serve"),
        lambda: _of("srt.options.settings", "make_parser", "srt serve"),
    ),
    "agent": Command(
        "",
        "run replicas of a server that is on another machine",
        lambda words: _of("srt.commands.agent", "main", words),
        lambda: _of("srt.commands.agent", "make_parser"),
    ),
    "chat": Command(
        "[MODEL]",
        "chat in the terminal, with a server that runs or one of the chat's own",
        lambda words: _of("srt.chat.main", "main", words, "srt chat"),
        lambda: _of("srt.chat.main", "make_parser", "srt chat"),
    ),
    "run": Command(
        "PROMPT",
        "print one answer, to a prompt and to what a pipe brings",
        lambda words: _of("srt.chat.run", "main", words),
        lambda: _of("srt.chat.run", "make_parser"),
    ),
    "models": Command(
        "[MODEL ...]",
        "list the models of this machine, whether they fit, and how fast they are",
        lambda words: _of("srt.commands.models", "main", words),
        lambda: _of("srt.commands.models", "make_parser"),
    ),
    "bench": Command(
        "",
        "measure a server that runs",
        lambda words: _of("srt.commands.bench", "main", words),
        lambda: _of("srt.commands.bench", "make_parser"),
    ),
    "doctor": Command(
        "",
        "look for what would keep a server from starting, or slow it down",
        lambda words: _of("srt.commands.doctor", "main", words),
        lambda: _of("srt.commands.doctor", "make_parser"),
    ),
    "keys": Command(
        "DIR",
        "make this machine's keys, and say whose machines may join it",
        lambda words: _of("srt.commands.keys", "main", words),
        lambda: _of("srt.commands.keys", "make_parser"),
    ),
    "completion": Command(
        "SHELL",
        "write what makes bash, zsh or fish complete all this",
        _complete,
        lambda: _of("srt.commands.completion", "make_parser"),
    ),
}
