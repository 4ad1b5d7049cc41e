"""Where messages come from: an editor with a history on a terminal, else lines of a file."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from srt.machine import cache_folder, private

if TYPE_CHECKING:
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

Messages = Callable[[], Awaitable[str | None]]

QUOTES = '"""'
# A longer paste would be laid out anew at each key; a mark stands for it.
_SHOWN_LINES, _SHOWN_CHARS = 20, 4000
_KEPT, _KEPT_CHARS = 1000, 10_000


def is_open(text: str) -> bool:
    """Whether the message goes on after this line: it ends with a backslash, or is within quotation
    marks."""
    if text.startswith(QUOTES):
        return len(text) < 2 * len(QUOTES) or not text.rstrip().endswith(QUOTES)
    return text.endswith("\\")


def whole(text: str) -> str:
    """The message that was written: without quotation marks around, or backslashes at ends of
    lines."""
    if text.startswith(QUOTES):
        return text.strip().removeprefix(QUOTES).removesuffix(QUOTES).strip("\n")
    return text.replace("\\\n", "\n")


class Pastes:
    """Long pastes, and the marks that stand for them in the editor."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def mark(self, text: str) -> str:
        """What to show for a paste: itself if it is short."""
        lines = text.count("\n") + 1
        if lines <= _SHOWN_LINES and len(text) <= _SHOWN_CHARS:
            return text
        mark = f"[paste {len(self._texts) + 1}: {lines} lines, {len(text)} characters]"
        self._texts[mark] = text
        return mark

    def filled_in(self, text: str) -> str:
        """The message with the pastes in place of their marks."""
        for mark, pasted in self._texts.items():
            text = text.replace(mark, pasted)
        return text


class Editor:
    """Messages from a terminal."""

    def __init__(self, prompt: str, write: Callable[[str], object]) -> None:
        from prompt_toolkit import PromptSession

        self._prompt, self._write = prompt, write
        self._pastes, self._interrupted = Pastes(), False
        self._session: PromptSession[str] = PromptSession(
            history=history(),
            multiline=True,
            key_bindings=self._keys(),
            prompt_continuation="... ",
            enable_open_in_editor=True,
        )

    async def __call__(self) -> str | None:
        """The next message; None at the end: Ctrl-D, or Ctrl-C twice at an empty line."""
        while True:
            try:
                text = await self._session.prompt_async(self._prompt)
            except EOFError:
                return None
            except KeyboardInterrupt:
                if self._interrupted:
                    return None
                self._interrupted = True
                self._write("(Ctrl-C again, Ctrl-D or /quit ends the chat)\n")
                continue
            self._interrupted = False
            message = self._pastes.filled_in(whole(text))
            is_paste = message != text
            # A paste that looks like a command is a message.
            return f"{message}\n" if is_paste and message.startswith("/") else message

    def _keys(self) -> "KeyBindings":
        from prompt_toolkit.key_binding import KeyBindings
        from prompt_toolkit.keys import Keys

        keys = KeyBindings()

        @keys.add("enter")
        def _(event: "KeyPressEvent") -> None:
            buffer = event.current_buffer
            if is_open(buffer.text):
                buffer.newline(copy_margin=False)
            else:
                buffer.validate_and_handle()

        @keys.add("escape", "enter")
        def _(event: "KeyPressEvent") -> None:
            event.current_buffer.newline(copy_margin=False)

        @keys.add("c-c")
        def _(event: "KeyPressEvent") -> None:
            if event.current_buffer.text:
                event.current_buffer.reset()
            else:
                event.app.exit(exception=KeyboardInterrupt)

        @keys.add(Keys.BracketedPaste)
        def _(event: "KeyPressEvent") -> None:
            text = event.data.replace("\r\n", "\n").replace("\r", "\n")
            event.current_buffer.insert_text(self._pastes.mark(text))

        return keys


def history() -> "History":
    """What was written in earlier chats, as far as this user may keep a file of it."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    class Kept(FileHistory):
        def store_string(self, string: str) -> None:
            if len(string) <= _KEPT_CHARS:
                with contextlib.suppress(OSError):
                    super().store_string(string)

    try:
        path = cache_folder() / "chat_history"
        path.parent.mkdir(parents=True, exist_ok=True)
        open(path, "ab", opener=private).close()
        _shorten(path, Kept(path).load_history_strings())
    except OSError:
        return InMemoryHistory()
    return Kept(path)


def _shorten(path: Path, newest_first: Iterable[str]) -> None:
    """Keep the newest entries only."""
    from prompt_toolkit.history import FileHistory

    entries = list(newest_first)
    if len(entries) <= _KEPT:
        return
    shorter = path.with_suffix(".new")
    open(shorter, "wb", opener=private).close()
    kept = FileHistory(shorter)
    for entry in reversed(entries[:_KEPT]):
        kept.store_string(entry)
    shorter.replace(path)


def lines_of(file: TextIO) -> Messages:
    """Messages from a file or pipe, which go on over lines as in the editor."""

    def read() -> str | None:
        text = ""
        while line := file.readline():
            text += line
            if not is_open(text.removesuffix("\n")):
                break
        return whole(text.removesuffix("\n")) if text else None

    async def next_message() -> str | None:
        loop = asyncio.get_running_loop()
        message: asyncio.Future[str | None] = loop.create_future()

        def arrived(text: str | None, error: Exception | None) -> None:
            if message.done():
                return
            if error is None:
                message.set_result(text)
            else:
                message.set_exception(error)

        def work() -> None:
            text, failure = None, None
            try:
                text = read()
            except Exception as error:
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits now
                loop.call_soon_threadsafe(arrived, text, failure)

        # An executor's thread would keep the program alive until the next line arrives.
        threading.Thread(target=work, name="reader", daemon=True).start()
        return await message

    return next_message
