"""`srt completion bash|zsh|fish`: prints what makes a shell complete our commands and options.

The script holds all words, so that no program is started at a Tab.
"""

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_FILE_METAVARS = ("FILE", "DIRECTORY")
_SHELLS = ("bash", "zsh", "fish")


class Flag(NamedTuple):
    """An option: its words, what may follow it, or that a file does, and what it is for."""

    words: tuple[str, ...]
    choices: tuple[str, ...]
    takes_file: bool
    takes_value: bool
    text: str


def flags_of(parser: argparse.ArgumentParser) -> list[Flag]:
    """The options of a parser that are shown in its help."""
    found = []
    for action in parser._actions:
        if not action.option_strings or action.help == argparse.SUPPRESS:
            continue
        name = action.option_strings[-1]
        is_file = action.metavar in _FILE_METAVARS or name.endswith(("-file", "-dir", "--model"))
        text = (action.help or "").split(" (default")[0].replace("%(default)s", "")
        takes = action.nargs != 0
        words = tuple(action.option_strings)
        choices = tuple(str(choice) for choice in action.choices or ())
        found.append(Flag(words, choices, takes and is_file, takes, text))
    return found


def bash(commands: Mapping[str, list[Flag]]) -> str:
    """A script for bash, which zsh can read too."""
    lines = [
        "_srt() {",
        '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"',
        "  COMPREPLY=()",
        '  if [ "$COMP_CWORD" -eq 1 ]; then',
        f'    COMPREPLY=($(compgen -W "{" ".join(commands)}" -- "$word")); return',
        "  fi",
        '  case "${COMP_WORDS[1]} $before" in',
    ]
    for command, flags in commands.items():
        for flag in flags:
            pattern = "|".join(f'"{command} {word}"' for word in flag.words)
            if flag.choices:
                words = " ".join(flag.choices)
                lines.append(f'    {pattern}) COMPREPLY=($(compgen -W "{words}" -- "$word"))')
                lines.append("      return;;")
            elif flag.takes_file:
                lines.append(f'    {pattern}) COMPREPLY=($(compgen -f -- "$word")); return;;')
            elif flag.takes_value:
                lines.append(f"    {pattern}) return;;")
    lines += ["  esac", '  case "${COMP_WORDS[1]}" in']
    for command, flags in commands.items():
        words = " ".join(word for flag in flags for word in flag.words)
        lines.append(f'    {command}) case "$word" in')
        lines.append(f'      -*) COMPREPLY=($(compgen -W "{words}" -- "$word"));;')
        lines.append('      *) COMPREPLY=($(compgen -f -- "$word"));;')
        lines.append("    esac;;")
    lines += ["  esac", "}", "complete -o filenames -F _srt srt"]
    return "\n".join(lines) + "\n"


def zsh(commands: Mapping[str, list[Flag]]) -> str:
    """A script for zsh: bash's, by the module that reads those."""
    return f"autoload -Uz compinit bashcompinit\ncompinit\nbashcompinit\n{bash(commands)}"


def fish(commands: Mapping[str, list[Flag]]) -> str:
    """A script for fish."""
    first = "__fish_use_subcommand"
    lines = [f"complete -c srt -n {first} -f -a {shlex.quote(' '.join(commands))}"]
    for command, flags in commands.items():
        for flag in flags:
            parts = ["complete -c srt", f"-n '__fish_seen_subcommand_from {command}'"]
            parts += [f"-l {w[2:]}" if w.startswith("--") else f"-s {w[1:]}" for w in flag.words]
            if flag.choices:
                parts.append(f"-x -a {shlex.quote(' '.join(flag.choices))}")
            elif flag.takes_file:
                parts.append("-r -F")
            elif flag.takes_value:
                parts.append("-x")
            # In fish a backslash in single quotes is one before a quote.
            text = flag.text.replace("\\", "\\\\").replace("'", "\\'")
            lines.append(f"{' '.join(parts)} -d '{text}'")
    return "\n".join(lines) + "\n"


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="srt completion",
        description="Write what makes a shell complete commands and options. For bash: "
        "`srt completion bash >> ~/.bashrc`; zsh: the same with ~/.zshrc; fish: "
        "`srt completion fish > ~/.config/fish/completions/srt.fish`.",
    )
    parser.add_argument("SHELL", choices=_SHELLS)
    return parser


def main(argv: Sequence[str], parsers: Mapping[str, argparse.ArgumentParser]) -> int:
    """The command, of those with these parsers."""
    shell = make_parser().parse_args(argv).SHELL
    commands = {name: flags_of(parser) for name, parser in parsers.items()}
    sys.stdout.write({"bash": bash, "zsh": zsh, "fish": fish}[shell](commands))
    return 0
