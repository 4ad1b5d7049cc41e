"""`python -m srt.chat`: a chat in the terminal with a running server.

Lines that begin with a slash are commands (`/help` lists them); a line that ends with a backslash
continues. After each answer come its tokens, their rate, and how much of the prompt was cached.
Ctrl-C ends an answer; at the prompt it ends the chat.
"""

import argparse
import asyncio
import contextlib
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec

from srt.client.face import AsyncClient
from srt.client.generation import GenerateOutput
from srt.wire.errors import RequestError, SrtError

HELP = """/system [TEXT]  set the system text and begin anew; without TEXT show it
/reset          begin anew, with the same system text
/save FILE      write the chat as JSON, as messages of the OpenAI routes
/help           this
/quit           the end, as Ctrl-D"""


class Chat:
    """One conversation. `write` is called with the text to show, in pieces."""

    def __init__(
        self,
        client: AsyncClient,
        sampling: dict[str, Any],
        write: Callable[[str], Any],
        system: str = "",
    ) -> None:
        self._client = client
        self._sampling = sampling
        self._write = write
        self._system = system
        self._turns: list[dict[str, str]] = []

    @property
    def messages(self) -> list[dict[str, str]]:
        """The chat so far, as messages of the OpenAI routes."""
        system = [{"role": "system", "content": self._system}] if self._system else []
        return [*system, *self._turns]

    async def take(self, line: str) -> bool:
        """Obey a command or answer a message. False when the chat is to end."""
        if not line.startswith("/"):
            await self._answer(line)
            return True
        name, _, rest = line[1:].partition(" ")
        if name == "quit":
            return False
        command = getattr(self, f"_do_{name}", None)
        if command is None:
            self._write(f"there is no command /{name}; /help lists them\n")
        else:
            command(rest.strip())
        return True

    def _do_help(self, rest: str) -> None:
        self._write(HELP + "\n")

    def _do_system(self, text: str) -> None:
        if text:
            self._system = text
            self._turns.clear()
        self._write(f"system: {self._system or '(none)'}\n")

    def _do_reset(self, rest: str) -> None:
        self._turns.clear()
        self._write("a new chat\n")

    def _do_save(self, file: str) -> None:
        if not file:
            self._write("/save needs a file's name\n")
            return
        data = msgspec.json.format(msgspec.json.encode(self.messages), indent=2)
        try:
            Path(file).expanduser().write_bytes(data + b"\n")
        except OSError as error:
            self._write(f"not saved: {error}\n")
        else:
            self._write(f"saved {len(self.messages)} messages to {file}\n")

    async def _answer(self, text: str) -> None:
        """Stream an answer. If it fails, the chat is unchanged; if it is cancelled, the text so far
        stays in the chat."""
        asked = [*self.messages, {"role": "user", "content": text}]
        began = time.monotonic()
        first_s, last = 0.0, None
        try:
            stream = self._client.stream(messages=asked, sampling=self._sampling)
            async with contextlib.aclosing(stream):
                async for last in stream:
                    first_s = first_s or time.monotonic() - began
                    self._write(last.delta)
        except RequestError as error:
            self._write(f"\nerror: {error.info.message}\n")
            return
        except asyncio.CancelledError:
            self._write(" [stopped]")
        if last is None:
            return
        self._turns += [asked[-1], {"role": "assistant", "content": last.text}]
        self._write(f"\n{_figures(last, first_s, time.monotonic() - began)}\n")


def _figures(output: GenerateOutput, first_s: float, took_s: float) -> str:
    """What the answer cost; the rate is that of the tokens after the first."""
    rate = (output.completion_tokens - 1) / max(took_s - first_s, 1e-9)
    rate_text = f", {rate:.0f} tokens/s" if output.completion_tokens > 1 else ""
    return (
        f"[{output.completion_tokens} tokens{rate_text}, first after {1000 * first_s:.0f} ms, "
        f"{output.cached_tokens} of {output.prompt_tokens} prompt tokens cached]"
    )


async def converse(chat: Chat, lines: Callable[[], Awaitable[str | None]]) -> None:
    """Take lines until there are no more, or one of them ends the chat."""
    loop = asyncio.get_running_loop()
    while (line := await lines()) is not None:
        if not line.strip():
            continue
        answer = asyncio.ensure_future(chat.take(line))
        loop.add_signal_handler(signal.SIGINT, answer.cancel)
        try:
            if not await answer:
                return
        except asyncio.CancelledError:
            if not answer.cancelled():  # this task itself was cancelled
                raise
        finally:
            loop.remove_signal_handler(signal.SIGINT)


def _reader(file: TextIO, prompt: str) -> Callable[[], Awaitable[str | None]]:
    """Messages from the terminal or a file: lines; one that ends with a backslash continues."""

    def read() -> str | None:
        parts: list[str] = []
        while True:
            if prompt:
                print("... " if parts else prompt, end="", flush=True)
            line = file.readline()
            if not line:
                return "\n".join(parts) if parts else None
            parts.append(line.rstrip("\n").removesuffix("\\"))
            if not line.rstrip("\n").endswith("\\"):
                return "\n".join(parts)

    async def next_message() -> str | None:
        loop = asyncio.get_running_loop()
        message: asyncio.Future[str | None] = loop.create_future()

        def arrived(text: str | None) -> None:
            if not message.done():
                message.set_result(text)

        def work() -> None:
            text = read()
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits now
                loop.call_soon_threadsafe(arrived, text)

        # An executor's thread would keep the program alive until the next line arrives.
        threading.Thread(target=work, name="reader", daemon=True).start()
        return await message

    return next_message


def _write(text: str) -> None:
    print(text, end="", flush=True)


def parse_args(
    argv: Sequence[str] | None = None, prog: str = "python -m srt.chat"
) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog=prog, description="Chat with a running server in the terminal."
    )
    parser.add_argument(
        "--url", default="http://127.0.0.1:30000", help="http://HOST:PORT or ipc://DIRECTORY"
    )
    parser.add_argument("--api-key", help="bearer token of the server")
    parser.add_argument("--system", default="", help="system text")
    parser.add_argument("--max-tokens", type=int, default=512, help="tokens of an answer at most")
    parser.add_argument("--temperature", type=float, default=0.7, help="0 is greedy")
    parser.add_argument("--top-p", type=float, default=0.95, help="nucleus sampling; 1 is off")
    parser.add_argument("--seed", type=int, help="the same seed gives the same answers")
    return parser.parse_args(argv)


async def _main(args: argparse.Namespace) -> None:
    sampling = {
        "max_new_tokens": args.max_tokens,
        "temperature": args.temperature,
        "top_p": args.top_p,
        "seed": args.seed,
    }
    async with AsyncClient(args.url, api_key=args.api_key) as client:
        chat = Chat(client, sampling, _write, args.system)
        is_terminal = sys.stdin.isatty()
        if is_terminal:
            _write("/help lists the commands\n")
        await converse(chat, _reader(sys.stdin, "> " if is_terminal else ""))


def main(argv: Sequence[str] | None = None, prog: str = "python -m srt.chat") -> int:
    """The command line of `prog`; returns the exit status."""
    args = parse_args(argv, prog)
    try:
        asyncio.run(_main(args))
    except SrtError as error:
        print(f"srt.chat: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
