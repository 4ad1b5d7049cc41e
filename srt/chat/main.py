"""The command: its arguments, what it shows, and the turns of a chat."""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from rich.console import Console

from srt.chat.conversation import Chat, Kind
from srt.chat.messages import Editor, Messages, lines_of
from srt.chat.server import DEFAULT_URL, place
from srt.client.face import AsyncClient
from srt.options.arguments import Parser, count, given, key, key_of_file, ring_or_url
from srt.wire.errors import ConfigError, RequestError, SrtError
from srt.wire.sampling import SamplingParams

_STYLES: dict[Kind, str] = {"answer": "", "remark": "dim", "error": "red"}


class Screen:
    """Where the chat is written, or with `is_stderr` what is no answer: plain text, or with colours
    where the terminal wants them."""

    def __init__(self, *, is_stderr: bool = False) -> None:
        self.console = Console(
            stderr=is_stderr, highlight=False, markup=False, emoji=False, soft_wrap=True
        )
        self.has_errors = False

    def write(self, text: str, kind: Kind = "answer") -> None:
        """Show a piece of text, as it is."""
        self.has_errors |= kind == "error"
        self.console.out(text, style=_STYLES[kind] or None, end="", highlight=False)
        self.console.file.flush()

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """A line that moves while something takes its time; nothing where there is no terminal."""
        with ExitStack() as stack:
            if self.console.is_terminal:
                stack.enter_context(self.console.status(text, spinner="line"))
            yield


async def converse(chat: Chat, messages: Messages, is_over: Callable[[], bool]) -> None:
    """Take messages until there are no more, one of them ends the chat, or `is_over`."""
    loop = asyncio.get_running_loop()
    while (message := await messages()) is not None:
        if not message.strip():
            continue
        answer = asyncio.ensure_future(chat.take(message))
        loop.add_signal_handler(signal.SIGINT, answer.cancel)
        try:
            if not await answer or is_over():
                return
        except asyncio.CancelledError:
            if not answer.cancelled():  # this task itself was cancelled
                raise
        finally:
            loop.remove_signal_handler(signal.SIGINT)


def make_parser(prog: str = "python -m srt.chat") -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = Parser(
        prog=prog,
        description="Chat in the terminal with a server that runs, or with one that this starts "
        "and ends.",
    )
    parser.add_argument(
        "MODEL",
        nargs="?",
        type=given,
        help="as of `srt serve`; without it, what a running server has, else the default",
    )
    add_options(parser)
    return parser


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command that asks a server: where it is, and how it answers."""
    parser.add_argument(
        "--url",
        type=ring_or_url,
        help=f"http://HOST:PORT or ipc://DIRECTORY of a server (default: {DEFAULT_URL})",
    )
    parser.add_argument("--api-key", type=key, help="bearer token of the server")
    parser.add_argument(
        "--api-key-file", dest="api_key", type=key_of_file, metavar="FILE", help="file with it"
    )
    parser.add_argument("--system", default="", type=message_text, help="system text")
    parser.add_argument("--max-tokens", type=count, default=512, help="tokens of an answer at most")
    parser.add_argument("--temperature", type=float, help="0 is greedy (default: the model's)")
    parser.add_argument(
        "--top-p", type=float, help="nucleus sampling; 1 is off (default: the model's)"
    )
    parser.add_argument("--seed", type=int, help="the same seed gives the same answers")


def message_text(argument: str) -> str:
    """What a message may hold: bytes of the command line that are no text become U+FFFD."""
    return os.fsencode(argument).decode(errors="replace")


def sampling_of(args: argparse.Namespace) -> dict[str, Any]:
    """The sampling parameters that the options ask for. Raises ConfigError."""
    sampling = {
        "max_new_tokens": args.max_tokens,
        "temperature": args.temperature,
        "top_p": args.top_p,
        "seed": args.seed,
    }
    try:
        SamplingParams(**sampling).check_values()
    except RequestError as error:
        raise ConfigError(error.info.message) from error
    return sampling


async def _main(args: argparse.Namespace) -> int:
    screen = Screen()
    sampling = sampling_of(args)
    async with place(args.url, args.MODEL, args.api_key, screen.waiting) as where:
        engine = where.engine
        async with AsyncClient(where.url, api_key=args.api_key) as client:
            chat = Chat(client, where.sampling(sampling), screen.write, args.system)
            with suppress(AttributeError):  # not the interpreter's own
                sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]
            messages: Messages = lines_of(sys.stdin)
            is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
            if is_terminal:
                own = ", a server of this chat's own" if engine else f" at {where.url}"
                screen.write(f"{where.model}{own}; /help lists the commands\n", "remark")
                messages = Editor("> ", lambda text: screen.write(text, "remark"))
            await converse(chat, messages, lambda: engine is not None and engine.has_ended)
            if engine is not None and engine.has_ended:
                raise ConfigError("the server of this chat has ended; its messages are above")
    return int(screen.has_errors and not is_terminal)


def main(argv: Sequence[str] | None = None, prog: str = "python -m srt.chat") -> int:
    """The command line of `prog`; returns the exit status: 1 if a message that came from a file or
    pipe has failed."""
    args = make_parser(prog).parse_args(argv)
    try:
        return asyncio.run(_main(args))
    except SrtError as error:
        print(f"srt.chat: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print()
        return 128 + signal.SIGINT
