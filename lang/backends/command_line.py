"""Programs as commands: the options that say where the model is, and errors of one line."""

import os
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lang.backends.runtime import Runtime, RuntimeEndpoint
from srt.options.arguments import Parser, key, key_of_file, ring_or_url
from srt.wire.errors import SrtError


@contextmanager
def command_line(parser: ArgumentParser | str | None = None) -> Iterator[tuple[Any, Namespace]]:
    """The back end that this process's command line names, and all its options:

        if __name__ == "__main__":
            with sgl.command_line(__doc__) as (backend, options):
                print(tips.run("staying healthy", backend=backend)["summary"])

    `--url` is that of a running server, with `--api-key` or `--api-key-file`; without it, a server
    of `--model` starts and ends with the block. `parser` has the program's own options, or is the
    text of its help. The process ends with status 2 for options that make no sense; with 1 and one
    line for an error of the server or the language, and for a file that cannot be read; with 130
    after Ctrl-C.
    """
    if not isinstance(parser, ArgumentParser):
        parser = Parser(description=parser)
    parser.add_argument("--url", type=ring_or_url, help="a running server: http://HOST:PORT")
    parser.add_argument("--api-key", type=key, help="its key")
    parser.add_argument("--api-key-file", dest="api_key", type=key_of_file, help="file with it")
    parser.add_argument("--model", default="smollm2", help="of a server of its own, without --url")
    options = parser.parse_args()
    try:
        at = RuntimeEndpoint(options.url, options.api_key) if options.url else None
        with at or Runtime(options.model) as backend:
            yield backend, options
        sys.stdout.flush()
    except SrtError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    except BrokenPipeError:  # `| head` has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is in the buffer
        parser.exit(128 + signal.SIGPIPE)
    except OSError as error:
        if error.filename is None:
            raise
        parser.exit(1, f"{parser.prog}: {error.filename}: {error.strerror}\n")
    except KeyboardInterrupt:
        parser.exit(128 + signal.SIGINT)
