"""`srt run`: one answer, to a prompt, to what a pipe brings, or to both.

Standard output gets the answer and nothing else, so that it may go on in a pipe; all else is
written to standard error.
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any

from srt.answers.reasoning import ReasoningSplitter
from srt.chat.main import Screen, add_options, message_text, sampling_of
from srt.chat.server import place
from srt.chat.text import Cleaner
from srt.client.face import AsyncClient
from srt.client.generation import Generation
from srt.files.model_files import DEFAULT_MODEL
from srt.hub.names import parse_name, shown_model
from srt.options.arguments import Parser, given
from srt.wire.errors import ConfigError, SrtError
from srt.wire.messages import Finish

_MAX_PIPED_BYTES, _MAX_SCHEMA_BYTES = 2**26, 2**20


def make_parser(prog: str = "srt run") -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = Parser(
        prog=prog,
        description="Answer one prompt, from a server that runs or from one that this starts and "
        "ends. What a pipe brings goes before the prompt: `cat notes.txt | srt run 'Sum this up.'`",
        epilog="Exit status: 0 with an answer, 1 if there is none or it broke off, 2 for a command "
        "line that makes no sense, 130 after Ctrl-C.",
    )
    parser.add_argument(
        "PROMPT", nargs="*", type=message_text, help="one argument: put it in quotes"
    )
    parser.add_argument(
        "--model",
        type=given,
        metavar="MODEL",
        help="as of `srt serve`; without it, what a running server has, else the default",
    )
    add_options(parser)
    parser.add_argument(
        "--raw",
        action="store_true",
        help="go on with the text as it is, without the model's chat template",
    )
    constraint = parser.add_mutually_exclusive_group()
    constraint.add_argument("--regex", type=given, help="pattern that the whole answer must match")
    constraint.add_argument(
        "--json-schema",
        type=given,
        metavar="FILE",
        help="file with the answer's JSON schema, or the schema",
    )
    return parser


def parse_args(argv: Sequence[str] | None = None, prog: str = "srt run") -> argparse.Namespace:
    """The command line; ends the process where it makes no sense."""
    parser = make_parser(prog)
    args = parser.parse_args(argv)
    if len(args.PROMPT) > 1:
        parser.error("the prompt is one argument: put it in quotes (--model names the model)")
    args.PROMPT = "".join(args.PROMPT)
    if args.raw and args.system:
        parser.error("--raw and --system exclude each other: only a chat has a system text")
    if not args.PROMPT.strip() and (sys.stdin is None or sys.stdin.isatty()):
        parser.error("there is no prompt: give it as an argument, or pipe it in")
    return args


def piped_text() -> str:
    """What comes on standard input, without line ends at its end; "" from a terminal. Bytes that
    are no UTF-8 become U+FFFD. Raises ConfigError for more than any context holds."""
    if sys.stdin is None or sys.stdin.isatty():
        return ""
    data = sys.stdin.buffer.read(_MAX_PIPED_BYTES + 1)
    if len(data) > _MAX_PIPED_BYTES:
        raise ConfigError(f"standard input has more than {_MAX_PIPED_BYTES} bytes")
    return data.decode(errors="replace").rstrip("\r\n")


def prompt_of(piped: str, prompt: str) -> str:
    """The prompt after the piped text: questions about one text have a beginning in common, which
    the server has cached from the second one on. Raises ConfigError if there is no text, or no more
    than the name of a model, as other programs of this name take it first."""
    texts = [text for text in (piped, prompt) if text.strip()]
    if not texts:
        raise ConfigError("there is no prompt: standard input is empty")
    if texts == [prompt] and _names_model(prompt):
        raise ConfigError(
            f"{shown_model(prompt)} is the name of a model, and no prompt: `srt chat MODEL` chats "
            "with it, and --model asks it"
        )
    return "\n\n".join(texts)


def _names_model(text: str) -> bool:
    try:
        return text == DEFAULT_MODEL or parse_name(text) is not None
    except ConfigError:  # an address of something else
        return False


def _constraint(args: argparse.Namespace) -> dict[str, str]:
    """What the answer must match. Raises ConfigError for a file that cannot be read."""
    if args.json_schema is None:
        return {} if args.regex is None else {"regex": args.regex}
    if args.json_schema.lstrip().startswith("{"):
        return {"json_schema": args.json_schema}
    try:
        with open(args.json_schema, "rb") as file:
            data = file.read(_MAX_SCHEMA_BYTES + 1)
        if len(data) <= _MAX_SCHEMA_BYTES:
            return {"json_schema": data.decode()}
        reason = f"it has more than {_MAX_SCHEMA_BYTES} bytes"
    except OSError as error:
        reason = str(error.strerror)
    except ValueError:
        reason = "it is no UTF-8"
    raise ConfigError(f"--json-schema {args.json_schema}: {reason}")


async def _main(args: argparse.Namespace, prompt: str) -> int:
    screen = Screen(is_stderr=True)
    sampling, constraint = sampling_of(args), _constraint(args)
    asked: dict[str, Any] = {"text": prompt}
    if not args.raw:
        system = [{"role": "system", "content": args.system}] if args.system else []
        asked = {"messages": [*system, {"role": "user", "content": prompt}]}
    async with (
        place(args.url, args.model, args.api_key, screen.waiting) as where,
        AsyncClient(where.url, api_key=args.api_key) as client,
        aclosing(
            await client.submit(
                stream=True, sampling=where.sampling(sampling) | constraint, **asked
            )
        ) as answer,
    ):
        finish = await show(answer, screen)
    if finish.type == "length":
        screen.write(f"[cut after {args.max_tokens} tokens, see --max-tokens]\n", "remark")
    elif finish.type != "stop":
        raise ConfigError(f"the server has ended the answer ({finish.type})")
    return 0


async def show(answer: Generation, screen: Screen) -> Finish:
    """Write the answer to standard output as it grows, and to the screen, if that is a terminal,
    the reasoning before it. Returns how it ended."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    clean_answer: Callable[[str], str] = Cleaner().of if is_terminal else str
    clean_reasoning = Cleaner().of
    splitter = ReasoningSplitter(opened=answer.opens_reasoning)
    has_reasoning, text, finish = False, "", None
    try:
        async for output in answer:
            finish = output.finish
            for piece, is_reasoning in splitter.feed(output.delta, final=finish is not None):
                if not is_reasoning:
                    if has_reasoning:
                        screen.write("\n\n", "remark")
                        has_reasoning = False
                    text = clean_answer(piece)
                    print(text, end="", flush=True)
                elif screen.console.is_terminal:
                    screen.write(clean_reasoning(piece), "remark")
                    has_reasoning = True
    except SrtError:  # it broke off: what is said of it begins a line
        if text and not text.endswith("\n"):
            print(flush=True)
        raise
    if not text.endswith("\n"):
        print(flush=True)
    assert finish is not None  # the last snapshot has it
    return finish


def main(argv: Sequence[str] | None = None, prog: str = "srt run") -> int:
    """The command; returns the exit status."""
    args = parse_args(argv, prog)
    try:
        return asyncio.run(_main(args, prompt_of(piped_text(), args.PROMPT)))
    except SrtError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(file=sys.stderr)  # after ^C, or what there is of the answer
        return 128 + signal.SIGINT
