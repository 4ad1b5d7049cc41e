"""`srt completion bash|zsh|fish`: prints what makes a shell complete our commands and options.

The script holds all words, so that no program is started at a Tab. shtab writes such scripts from
parsers too, but theirs complete no value of `--option=VALUE` in bash and zsh, as ours do.
"""

import argparse
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from srt.options.arguments import Parser

_PATH_METAVARS = ("FILE", "PATH", "MODEL")
_SHELLS = ("bash", "zsh", "fish")


class Flag(NamedTuple):
    """An option: its words, what may follow it, or that a path does, and what it is for. What a
    command takes without an option is one that has no words."""

    words: tuple[str, ...]
    choices: tuple[str, ...]
    takes_path: bool
    takes_value: bool
    text: str

    @property
    def candidates(self) -> str:
        """What bash's compgen lists for it."""
        if self.choices:
            return f'-W "{" ".join(self.choices)}"'
        return "-f" if self.takes_path else '-W ""'


def flags_of(parser: argparse.ArgumentParser) -> list[Flag]:
    """The options of a parser that are shown in its help."""
    found = []
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        name = action.metavar if action.option_strings else action.dest
        text = re.split(r" ?\(default", action.help or "")[0]
        takes = action.nargs != 0
        words = tuple(action.option_strings)
        choices = tuple(str(choice) for choice in action.choices or ())
        found.append(Flag(words, choices, takes and name in _PATH_METAVARS, takes, text))
    return found


def bash(commands: Mapping[str, list[Flag]]) -> str:
    """A script for bash."""
    lines = [
        "_srt() {",
        '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"',
        "  # --option=value comes as three words",
        '  if [ "$word" = "=" ]; then word=""; fi',
        '  if [ "$before" = "=" ]; then before="${COMP_WORDS[COMP_CWORD-2]}"; fi',
        "  local -a listed",
        '  if [ "$COMP_CWORD" -eq 1 ]; then',
        f'    listed=(-W "{" ".join(commands)}")',
        '  else case "${COMP_WORDS[1]} $before" in',
    ]
    for command, flags in commands.items():
        for flag in flags:
            if flag.words and flag.takes_value:
                pattern = "|".join(f'"{command} {word}"' for word in flag.words)
                lines.append(f"    {pattern}) listed=({flag.candidates});;")
    lines.append('    *) case "${COMP_WORDS[1]} $word" in')
    for command, flags in commands.items():
        words = " ".join(word for flag in flags for word in flag.words)
        own = next((flag.candidates for flag in flags if not flag.words), '-W ""')
        lines.append(f'      "{command} -"*) listed=(-W "{words}");;')
        lines.append(f'      "{command} "*) listed=({own});;')
    lines += [
        "    esac;;",
        "  esac; fi",
        "  local IFS=$' \\t\\n'",
        "  local each",
        "  COMPREPLY=()",
        "  # Not by a list of words: names of files may have blanks and stars.",
        "  while IFS= read -r each; do",
        '    COMPREPLY+=("$each")',
        '  done < <(compgen "${listed[@]}" -- "$word")',
        '  if [[ "${listed[0]}" == -f ]]; then compopt -o filenames 2>/dev/null; fi',
        "}",
        "complete -F _srt srt",
    ]
    return "\n".join(lines) + "\n"


def zsh(commands: Mapping[str, list[Flag]]) -> str:
    """A script for zsh."""
    lines = [
        "whence compdef >/dev/null || { autoload -Uz compinit && compinit; }",
        "_srt() {",
        f"  if (( CURRENT == 2 )); then compadd -- {' '.join(commands)}; return; fi",
        "  local command=$words[2]",
        "  shift words; (( CURRENT-- ))",
        "  case $command in",
    ]
    for command, flags in commands.items():
        specs = [shlex.quote(spec) for flag in flags for spec in _zsh_specs(flag)]
        lines.append(f"    {command}) _arguments {' '.join(specs)};;")
    return "\n".join([*lines, "  esac", "}", "compdef _srt srt"]) + "\n"


def _zsh_specs(flag: Flag) -> Iterator[str]:
    """What `_arguments` takes for it: one for each of its words."""
    value = ""
    if flag.takes_value:
        value = f":value:({' '.join(flag.choices)})" if flag.choices else ":value: "
        value = ":file:_files" if flag.takes_path else value
    text = re.sub(r"([\\\[\]:])", r"\\\1", flag.text)
    for word in flag.words:
        may_have_equals = "=" if flag.takes_value and word.startswith("--") else ""
        yield f"{word}{may_have_equals}[{text}]{value}"
    if not flag.words:
        yield f"*{value}"


def fish(commands: Mapping[str, list[Flag]]) -> str:
    """A script for fish."""
    lines = [
        "function __srt_is",  # the first word; a later one may be a model of that name
        "    set -l words (commandline -opc)",
        '    test (count $words) -gt 1; and test "$words[2]" = "$argv[1]"',
        "end",
        "complete -c srt -f",
        "complete -c srt -n 'test (count (commandline -opc)) -eq 1' -a "
        + shlex.quote(" ".join(commands)),
    ]
    for command, flags in commands.items():
        for flag in flags:
            parts = ["complete -c srt", f"-n '__srt_is {command}'"]
            parts += [f"-l {w[2:]}" if w.startswith("--") else f"-s {w[1:]}" for w in flag.words]
            if flag.choices:
                only = "-x" if flag.words else "-f"
                parts.append(f"{only} -a {shlex.quote(' '.join(flag.choices))}")
            elif flag.takes_path:
                parts.append("-r -F" if flag.words else "-F")
            elif flag.takes_value:
                parts.append("-x")
            # In fish a backslash in single quotes is one before a quote.
            text = flag.text.replace("\\", "\\\\").replace("'", "\\'")
            lines.append(f"{' '.join(parts)} -d '{text}'")
    return "\n".join(lines) + "\n"


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = Parser(
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
    commands["help"] = [Flag((), tuple(parsers), False, True, "")]
    sys.stdout.write({"bash": bash, "zsh": zsh, "fish": fish}[shell](commands))
    return 0
