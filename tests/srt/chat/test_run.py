"""`srt run` without a server: its command line, its prompt, and what it writes where."""

import io
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from srt.chat.main import Screen
from srt.chat.run import main, parse_args, piped_text, prompt_of, show
from srt.client.generation import GenerateOutput
from srt.wire.errors import ConfigError, RingError
from srt.wire.messages import Finish


class Pipe(io.TextIOWrapper):
    """Standard input, or output."""

    def __init__(self, data: bytes = b"", *, is_terminal: bool = False) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "there is no prompt: give it as an argument, or pipe it in"),
        (["  "], "there is no prompt"),
        (["smollm2", "Hello"], "put it in quotes (--model names the model)"),
        (["Hello", "--raw", "--system", "x"], "--raw and --system exclude each other"),
        (["Hello", "--regex", "a", "--json-schema", "{}"], "not allowed with argument --regex"),
        (["Hello", "--regex", ""], "--regex: must not be empty"),
        (["Hello", "--max-tokens", "0"], "--max-tokens: must be a whole number"),
        (["Hello", "--modle", "x"], "did you mean --model?"),
    ],
)
def test_command_lines_that_make_no_sense(
    words: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", Pipe(is_terminal=True))
    with pytest.raises(SystemExit) as end:
        parse_args(words)
    assert end.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("data", "prompt", "asked"),
    [
        (b"", "Hello", "Hello"),
        (b"a\nb\r\n\n", "Sum it up.", "a\nb\n\nSum it up."),
        (b"only this\n", "", "only this"),
        (b"\xffa", " ", "\ufffda"),
        (b"text", "smollm2", "text\n\nsmollm2"),
        (b"", "https://example.com/a", "https://example.com/a"),
    ],
)
def test_what_a_pipe_brings_goes_first(
    data: bytes, prompt: str, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Pipe(data))
    assert prompt_of(piped_text(), prompt) == asked


@pytest.mark.parametrize(
    ("data", "words", "message"),
    [
        (b" \n", [], "there is no prompt: standard input is empty"),
        (b"", ["x", "--temperature", "-1"], "temperature"),
        (b"", ["x", "--json-schema", "/no/such"], "--json-schema /no/such: No such file"),
        (b"", ["x", "--json-schema", "/dev/zero"], "it has more than 1048576 bytes"),
        (b"", ["smollm2"], "smollm2 is the name of a model, and no prompt: `srt chat MODEL`"),
        (b" ", ["org/name:Q4_K_M"], "is the name of a model"),
        (b"", ["x", "--url", "http://127.0.0.1:9"], "no server of models answers at"),
    ],
)
def test_what_cannot_be_answered(
    data: bytes,
    words: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", Pipe(data))
    assert main(words) == 1
    written = capsys.readouterr()
    assert written.err.startswith("srt run: ") and message in written.err and not written.out


def test_a_pipe_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/zero").open() as zero:
        monkeypatch.setattr(sys, "stdin", zero)
        with pytest.raises(ConfigError, match="more than 67108864 bytes"):
            piped_text()
    monkeypatch.setattr(sys, "stdin", None)  # it is closed
    assert piped_text() == ""


class Answer:
    """An answer that comes in these pieces."""

    def __init__(self, *pieces: str, opens_reasoning: bool = False) -> None:
        self._pieces, self.opens_reasoning = pieces, opens_reasoning

    async def __aiter__(self) -> AsyncIterator[GenerateOutput]:
        for number, piece in enumerate(self._pieces, start=1):
            finish = Finish("stop") if number == len(self._pieces) else None
            yield GenerateOutput(rid="r", delta=piece, finish=finish)


async def shown(
    answer: Any, monkeypatch: pytest.MonkeyPatch, *, out_is_terminal: bool, err_is_terminal: bool
) -> tuple[str, str]:
    """What standard output and standard error get."""
    out, err = Pipe(is_terminal=out_is_terminal), Pipe(is_terminal=err_is_terminal)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("TERM", "dumb")
    assert (await show(answer, Screen(is_stderr=True))).type == "stop"
    texts = []
    for each in (out, err):
        each.flush()
        texts.append(each.buffer.getvalue().decode())  # type: ignore[attr-defined]
    return texts[0], texts[1]


@pytest.mark.parametrize(
    ("answer", "out_is_terminal", "err_is_terminal", "out", "err"),
    [
        (("Hel", "lo"), True, True, "Hello\n", ""),
        (("Hello\n",), False, False, "Hello\n", ""),
        (("",), False, False, "\n", ""),
        (("\x1b[2J", "a\u2028b"), False, False, "\x1b[2Ja\u2028b\n", ""),
        (("\x1b[2J", "a\u2028b"), True, False, "\ufffd[2Ja\ufffdb\n", ""),
        (("<thi", "nk>\nWhy?\n</th", "ink>\n\nSo."), False, False, "So.\n", ""),
        (("<thi", "nk>\nWhy\x1b?\n</th", "ink>\n\nSo."), False, True, "So.\n", "Why\ufffd?\n\n"),
    ],
)
async def test_only_the_answer_goes_to_standard_output(
    answer: tuple[str, ...],
    out_is_terminal: bool,
    err_is_terminal: bool,
    out: str,
    err: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = await shown(
        Answer(*answer),
        monkeypatch,
        out_is_terminal=out_is_terminal,
        err_is_terminal=err_is_terminal,
    )
    assert written == (out, err)


async def test_an_answer_that_breaks_off_ends_its_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(Answer):
        async def __aiter__(self) -> AsyncIterator[GenerateOutput]:
            yield GenerateOutput(rid="r", delta="Hel")
            raise RingError("it is lost")

    with pytest.raises(RingError):
        await show(cast(Any, Broken()), Screen(is_stderr=True))
    assert capsys.readouterr().out == "Hel\n"


async def test_reasoning_that_the_prompt_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Answer("Why?", "</think>So.", opens_reasoning=True)
    written = await shown(answer, monkeypatch, out_is_terminal=False, err_is_terminal=False)
    assert written == ("So.\n", "")
