"""The command line of the server, and what the environment and a file add to it."""

import argparse
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from srt.args import ServerArgs
from srt.files.model_files import DEFAULT_MODEL, find_tokenizer, resolve_model
from srt.hub.names import parse_name, shown_model
from srt.options.arguments import Parser
from srt.options.environment import CONFIG_VARIABLE, read_environment
from srt.options.file import read_file
from srt.options.table import GROUPS, Option, Value, all_options
from srt.wire.errors import ConfigError, quoted

LATER = {
    **dict.fromkeys(("--tp", "-tp", "--tp-size", "--tensor-parallel-size"), "tensor parallelism"),
    "--ring-tcp": "a ring over TCP (other machines join by --remote-replicas)",
}
PROGRAM = "python -m srt.launch"
_FLAG = re.compile(r"--([a-z][a-z-]*)")


class Settings(Struct, frozen=True):
    """Checked arguments. `sources` says of each field that was set what set it: a flag, a variable,
    a file."""

    args: ServerArgs
    sources: dict[str, str]
    warnings: list[str]
    print_config: bool = False

    def sourced(self, error: ConfigError, field: str = "") -> str:
        """What `error` says, with what has set the option that it names, or else `field`, if that
        was no flag."""
        named = _FLAG.search(str(error))
        source = self.sources.get(named[1].replace("-", "_") if named else field, "")
        return f"{error} (set by {source})" if source and source[:2] != "--" else str(error)


def read_settings(
    argv: Sequence[str],
    environ: Mapping[str, str],
    prog: str = PROGRAM,
    *,
    find_model: bool = True,
) -> Settings:
    """Read the command line of `prog`, the environment and the file that one of them names.
    `find_model`: a model of this machine must be there; one of the hub is not looked for.

    Raises ConfigError, or SystemExit on --help.
    """
    for name in (arg.partition("=")[0] for arg in argv):
        if what := LATER.get(name.replace("_", "-")):
            raise ConfigError(f"{name}: {what} is not supported yet")
    flags = vars(make_parser(prog).parse_args(argv))
    if (word := flags.pop("MODEL", None)) is not None:
        if "model" in flags:
            raise ConfigError(f"{shown_model(word)!r} and --model name two models")
        flags["model"] = word
    print_config = flags.pop("print_config")
    path = flags.pop("config", None)
    if path is None:
        path = environ.get(CONFIG_VARIABLE) or None
    variables, warnings = read_environment(environ)
    in_file = {} if path is None else read_file(path)
    if names := flags.get("served_model_name"):
        is_named = "model" in flags or "model" in variables or "model" in in_file
        if prog != PROGRAM and not is_named and len(names) > 1 and _is_model(names[-1]):
            raise ConfigError(
                f"--served-model-name takes all words that follow, and {quoted(names[-1])} looks "
                "like a model: put the model first"
            )
        flags["served_model_name"] = ",".join(names)
    options = {option.field: option for option in all_options()}
    sources = {
        **dict.fromkeys(in_file, path),
        **{field: options[field].variable for field in variables},
        **{field: options[field].flag for field in flags},
    }
    settings = Settings(
        ServerArgs(**_expanded({**in_file, **variables, **flags})), sources, warnings, print_config
    )
    _check(settings, find_model)
    return settings


def _is_model(word: str) -> bool:
    return "/" in word or word == DEFAULT_MODEL or os.path.exists(word)


def _expanded(values: dict[str, Any]) -> dict[str, Any]:
    """With the home in place of `~`, which a shell leaves in --flag=~/file and a TOML file has."""
    paths = {option.field for option in all_options() if option.is_path}
    return {k: os.path.expanduser(v) if k in paths else v for k, v in values.items()}


def _check(settings: Settings, find_model: bool) -> None:
    """Raises ConfigError, which says where the option was set if that was not a flag."""
    try:
        settings.args.check()
        if find_model:
            find_tokenizer(settings.args.tokenizer)
            if parse_name(settings.args.model) is None:
                resolve_model(settings.args.model, settings.args.tokenizer)
    except ConfigError as error:
        raise ConfigError(settings.sourced(error, "model")) from error


def make_parser(prog: str = PROGRAM) -> argparse.ArgumentParser:
    """The parser of the launcher. What is not on the command line is not in its result.

    The command `srt serve` takes the model as a word too."""
    takes_word = prog != PROGRAM
    parser = Parser(
        prog=prog,
        usage=f"%(prog)s{' [MODEL]' if takes_word else ''} [--OPTION VALUE ...]",
        description="Serve a language model over HTTP and ZeroMQ.",
        epilog="Each option may also be set by a variable (SRT_MAX_TOTAL_TOKENS for "
        "--max-total-tokens) or a key of the file (max-total-tokens). A flag goes before a "
        "variable, and that before the file.",
        argument_default=argparse.SUPPRESS,
    )
    if takes_word:
        parser.add_argument("MODEL", nargs="?", help="as --model")
    group = parser.add_argument_group("Options from elsewhere")
    group.add_argument("--config", metavar="FILE", help="TOML file of options")
    text = "write all options as such a file, without keys, and end"
    group.add_argument("--print-config", action="store_true", default=False, help=text)
    for title, options in GROUPS.items():
        group = parser.add_argument_group(title)
        for option in options:
            _add(group, option)
    return parser


def _add(group: Any, option: Option) -> None:
    if option.default is False:
        group.add_argument(option.flag, action="store_true", help=option.text)
        # To take back what a variable or a file sets.
        for text, action in (("=true", "store_true"), ("=false", "store_false")):
            names = {"dest": option.field, "action": action, "help": argparse.SUPPRESS}
            group.add_argument(option.flag + text, **names)
        return
    shown = "" if option.default == "" else f" (default: {option.default})"
    more: dict[str, Any] = {"choices": option.choices} if option.choices else {}
    if option.field == "served_model_name":
        more = {"nargs": "+", "metavar": "NAME"}
    elif option.is_path:
        more = {"metavar": "PATH"}
    kind = type(option.default)
    group.add_argument(option.flag, type=kind, help=option.text + shown, **more)


def as_toml(settings: Settings) -> str:
    """All options as a file for `--config`, with what set them, and without keys. Those that are
    not set are comments."""
    lines = []
    for title, options in GROUPS.items():
        lines += ["", f"# {title}"]
        for option in options:
            value: Value = getattr(settings.args, option.field)
            source = settings.sources.get(option.field, "")
            if option.is_secret:
                shown = f"set by {source}, not shown" if value else "not set"
                lines.append(f"# {option.name}: {shown}")
                continue
            # A path may have line ends, which would end the comment.
            origin = f"  # {source}" if source.isprintable() and source else ""
            if option.field == "model":
                value = shown_model(str(value))
            is_set = source or value != option.default
            lines.append(f"{'' if is_set else '# '}{option.name} = {_toml(value)}{origin}")
    return "\n".join(lines[1:]) + "\n"


def _toml(value: Value) -> str:
    """As TOML has it: as JSON, but for numbers that are not finite, and DEL."""
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
