"""`srt completion bash|zsh|fish`: prints what makes a shell complete our commands and options.

The script holds all words, so that no program is started at a Tab.
"""

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

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
        text = (action.help or "").split(" (default")[0]
        takes = action.nargs != 0
        words = tuple(action.option_strings)
        choices = tuple(str(choice) for choice in action.choices or ())
        found.append(Flag(words, choices, takes and name in _PATH_METAVARS, takes, text))
    return found


def bash(commands: Mapping[str, list[Flag]]) -> str:
    """A script for bash, which zsh can read too."""
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
        '  local found; found="$(compgen "${listed[@]}" -- "$word")"',
        "  IFS=$'\\n'  # names of files may have blanks",
        "  COMPREPLY=($found)",
        '  if [[ "${listed[0]}" == -f ]]; then compopt -o filenames 2>/dev/null; fi',
        "}",
        _OF_BASH,
    ]
    return "\n".join(lines) + "\n"


_OF_BASH, _OF_ZSH = "complete -F _srt srt", "complete -o filenames -F _srt srt"


def zsh(commands: Mapping[str, list[Flag]]) -> str:
    """A script for zsh: bash's, by the module that reads those."""
    head = "whence compdef >/dev/null || { autoload -Uz compinit && compinit; }\n"
    script = bash(commands).replace(_OF_BASH, _OF_ZSH)  # which has no compopt
    return f"{head}autoload -Uz bashcompinit && bashcompinit\n{script}"


def fish(commands: Mapping[str, list[Flag]]) -> str:
    """A script for fish."""
    lines = ["complete -c srt -f"]
    lines.append(f"complete -c srt -n __fish_use_subcommand -a {shlex.quote(' '.join(commands))}")
    for command, flags in commands.items():
        for flag in flags:
            parts = ["complete -c srt", f"-n '__fish_seen_subcommand_from {command}'"]
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
