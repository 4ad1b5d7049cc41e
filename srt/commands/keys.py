"""`srt keys`: makes the keys of a machine that serves with others, and lists who may join it."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from srt.cluster.keys import allow, make_keys, remove, set_head_key
from srt.options.arguments import Parser
from srt.wire.errors import ConfigError


def make_parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = Parser(
        prog="srt keys",
        description="Make the key pair of this machine in DIR, unless it has one there, and print "
        "its public key. A node's public key is allowed on the head, and the head's is written "
        "down on each node.",
    )
    parser.add_argument("DIR", help="folder of this machine's keys")
    text = "on the head: let the node with this public key join"
    parser.add_argument("--allow", metavar="KEY", default="", help=text)
    text = "a name for the key of --allow, for the log and --remove (default: one made of the key)"
    parser.add_argument("--name", default="", help=text)
    text = "on the head: let the node with this name no longer join, and end its work here"
    parser.add_argument("--remove", metavar="NAME", default="", help=text)
    text = "on a node: join only the head with this public key"
    parser.add_argument("--head", metavar="KEY", default="", help=text)
    return parser


def main(words: Sequence[str]) -> int:
    """Run the command; returns the exit status."""
    given = make_parser().parse_args(words)
    directory = Path(given.DIR).expanduser()
    try:
        if given.name and not given.allow:
            raise ConfigError("--name is the name of a key of --allow, and there is none")
        keys = make_keys(directory)
        if given.allow:
            allow(directory, given.allow, given.name)
        if given.remove:
            remove(directory, given.remove)
        if given.head:
            set_head_key(directory, given.head)
    except ConfigError as error:
        print(f"srt: {error}", file=sys.stderr)
        return 2
    print(keys.public)
    return 0
