"""What a chat shows, reads and keeps, without a terminal."""

import asyncio
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srt.chat import messages
from srt.chat.messages import Pastes, history, is_open, lines_of, whole
from srt.chat.text import Cleaner


def cleaned(*pieces: str) -> str:
    cleaner = Cleaner()
    return "".join(map(cleaner.of, pieces))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\nand é 猫", "plain\ttext\nand é 猫"),
        ("\x1b]0;title\x07x", "�]0;title�x"),
        ("\x1b[2J\x9b31m", "�[2J�31m"),
        ("a\r\nb\rc", "a\nb\nc"),
        ("a\x00\x7f\x85b", "a���b"),
        ("‮evil", "�evil"),
    ],
)
def test_what_could_steer_a_terminal(text: str, shown: str) -> None:
    assert cleaned(text) == shown


@given(st.text(st.characters(codec="utf-8"), max_size=60), st.integers(0, 60))
def test_pieces_are_as_the_whole(text: str, at: int) -> None:
    shown = cleaned(text)
    assert cleaned(text[:at], text[at:]) == shown
    assert not any(ord(c) < 32 and c not in "\n\t" for c in shown)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a", "a"),
        ("a\\\nb", "a\nb"),
        ('"""a\nb"""', "a\nb"),
        ('"""\na\n"""', "a"),
        ('""""""', ""),
        ("a\nb", "a\nb"),
    ],
)
def test_whole_messages(text: str, message: str) -> None:
    assert not is_open(text)
    assert whole(text) == message


@pytest.mark.parametrize("text", ["a\\", '"""', '"""a', '"""a\nb', '""""'])
def test_messages_that_go_on(text: str) -> None:
    assert is_open(text)


def test_long_pastes_have_a_mark() -> None:
    pastes = Pastes()
    assert pastes.mark("a\nb") == "a\nb"
    first, second = pastes.mark("x\n" * 30), pastes.mark("y" * 5000)
    assert first == "[paste 1: 31 lines, 60 characters]"
    assert pastes.filled_in(f"see {second} and {first}") == f"see {'y' * 5000} and " + ("x\n" * 30)


def test_messages_of_a_file() -> None:
    read = lines_of(io.StringIO('one\ntwo \\\nthree\n"""a\nb\n"""\nlast'))

    async def all_of_them() -> list[str]:
        found = []
        while (message := await read()) is not None:
            found.append(message)
        return found

    assert asyncio.run(all_of_them()) == ["one", "two \nthree", "a\nb", "last"]


def test_the_history_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(messages, "_KEPT", 3)
    kept = history()
    for i in range(5):
        kept.store_string(f"line {i}\nand more")
    kept.store_string("x" * 20_000)  # a paste
    assert list(history().load_history_strings()) == [
        *("line 4\nand more", "line 3\nand more", "line 2\nand more"),
    ]
    path = tmp_path / "srt" / "chat_history"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text().count("line") == 3
