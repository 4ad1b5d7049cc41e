"""One conversation with a model: what was said, the commands, and how an answer is shown."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from srt.chat.text import Cleaner
from srt.client.face import AsyncClient
from srt.client.generation import GenerateOutput
from srt.machine import private
from srt.wire.errors import RequestError, RingError

HELP = """/system [TEXT]  set the system text and begin anew; without TEXT show it
/retry          answer the last message anew
/reset          begin anew, with the same system text
/save FILE      write the chat as JSON, as messages of the OpenAI routes
/load FILE      go on with a chat that was saved
/help           this
/quit           the end, as Ctrl-D
A line that ends with a backslash continues; so does all between lines of three quotation marks."""

_MOST_BYTES = 2**26  # of a saved chat

# How a piece of output is meant: the model's own text, a remark of ours, an error.
Kind = Literal["answer", "remark", "error"]
Write = Callable[[str, Kind], object]


class _Turn(msgspec.Struct):
    role: Literal["system", "user", "assistant"]
    content: str


class Chat:
    """One conversation. `write` is called with the text to show, in pieces."""

    def __init__(
        self, client: AsyncClient, sampling: dict[str, Any], write: Write, system: str = ""
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

    async def take(self, text: str) -> bool:
        """Obey a command, a single line that begins with a slash, or answer a message. False when
        the chat is to end."""
        if not text.startswith("/") or "\n" in text:
            await self._answer(text)
            return True
        name, _, rest = text[1:].partition(" ")
        if name == "quit":
            return False
        if name == "retry":
            await self._retry()
            return True
        command = getattr(self, f"_do_{name}", None)
        if command is None:
            self._write(f"there is no command /{name}; /help lists them\n", "error")
        else:
            command(rest.strip())
        return True

    def _do_help(self, rest: str) -> None:
        self._write(HELP + "\n", "remark")

    def _do_system(self, text: str) -> None:
        if text:
            self._system = text
            self._turns.clear()
        self._write(f"system: {self._system or '(none)'}\n", "remark")

    def _do_reset(self, rest: str) -> None:
        self._turns.clear()
        self._write("a new chat\n", "remark")

    def _do_save(self, file: str) -> None:
        if not file:
            self._write("/save needs a file's name\n", "error")
            return
        try:
            data = msgspec.json.format(msgspec.json.encode(self.messages), indent=2)
            with open(Path(file).expanduser(), "wb", opener=private) as saved:
                saved.write(data + b"\n")
        except (OSError, RuntimeError, ValueError) as error:
            self._write(f"not saved: {error}\n", "error")
        else:
            self._write(f"saved {len(self.messages)} messages to {file}\n", "remark")

    def _do_load(self, file: str) -> None:
        try:
            turns = msgspec.json.decode(_content_of(file), type=list[_Turn])
        except (OSError, RuntimeError, ValueError) as error:  # msgspec's are of the last kind
            self._write(f"not loaded: {error}\n", "error")
            return
        has_system = bool(turns) and turns[0].role == "system"
        self._system = turns[0].content if has_system else ""
        rest = turns[1:] if has_system else turns
        self._turns = [{"role": turn.role, "content": turn.content} for turn in rest]
        self._write(f"loaded {len(turns)} messages from {file}\n", "remark")

    async def _retry(self) -> None:
        last = next((i for i, t in reversed([*enumerate(self._turns)]) if t["role"] == "user"), -1)
        if last < 0:
            self._write("there is no message to answer anew\n", "error")
            return
        before, self._turns = self._turns, self._turns[:last]
        if not await self._answer(before[last]["content"]):
            self._turns = before

    async def _answer(self, text: str) -> bool:
        """Stream an answer; whether there is one. If it fails, the chat is unchanged; if it is
        cancelled, the text so far stays in the chat."""
        asked = [*self.messages, {"role": "user", "content": text}]
        began = time.monotonic()
        first_s, last, shown = 0.0, None, Cleaner()
        try:
            stream = self._client.stream(messages=asked, sampling=self._sampling)
            async with contextlib.aclosing(stream):
                async for last in stream:
                    first_s = first_s or time.monotonic() - began
                    self._write(shown.of(last.delta), "answer")
        except RequestError as error:
            self._write(f"\nerror: {error.info.message}\n", "error")
            return False
        except RingError as error:
            self._write(f"\nthe server does not answer: {error}\n", "error")
            return False
        except asyncio.CancelledError:
            self._write(" [stopped]", "remark")
        if last is None:
            self._write("\n", "answer")
            return False
        self._turns += [asked[-1], {"role": "assistant", "content": last.text}]
        self._write("\n", "answer")
        self._write(f"{_figures(last, first_s, time.monotonic() - began)}\n", "remark")
        return True


def _content_of(file: str) -> bytes:
    if not file:
        raise ValueError("/load needs a file's name")
    path = Path(file).expanduser()
    if not path.is_file():  # a pipe would be waited for, and a device may have no end
        what = "is not a regular file" if path.exists() else "does not exist"
        raise ValueError(f"{file} {what}")
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{file} has more than {_MOST_BYTES} bytes")
    return path.read_bytes()


def _figures(output: GenerateOutput, first_s: float, took_s: float) -> str:
    """What the answer cost; the rate is that of the tokens after the first."""
    rate = (output.completion_tokens - 1) / max(took_s - first_s, 1e-9)
    rate_text = f", {rate:.0f} tokens/s" if output.completion_tokens > 1 else ""
    return (
        f"[{output.completion_tokens} tokens{rate_text}, first after {1000 * first_s:.0f} ms, "
        f"{output.cached_tokens} of {output.prompt_tokens} prompt tokens cached]"
    )
