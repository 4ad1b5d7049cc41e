"""`python -m bench.peers NAME`: prints how to set a peer up, or becomes it."""

import argparse
import os
import sys
from pathlib import Path

from bench.peers.catalogue import DEFAULT_HOME, NAMES, peers
from srt.files.model_files import DEFAULT_MODEL, resolve_model


def parse_args(argv: list[str] | None = None) -> tuple[argparse.Namespace, list[str]]:
    """The command line, and the options in it that the peer gets."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="as for srt.launch")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--home", type=Path, default=DEFAULT_HOME, help="where peers are installed")
    parser.add_argument("--setup", action="store_true", help="print the set-up as a shell script")
    return parser.parse_known_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Does not return when it starts the peer."""
    args, extra = parse_args(argv)
    peer = peers(args.home.absolute())[args.name]
    model = resolve_model(args.model).path
    if args.setup:
        sys.stdout.write("set -e\n" + peer.install() + peer.prepare(model))
        return
    command = [*peer.command(model, args.port), *extra]
    os.execvpe(command[0], command, os.environ | peer.environment())


if __name__ == "__main__":
    main()
