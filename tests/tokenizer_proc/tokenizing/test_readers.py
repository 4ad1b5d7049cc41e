"""Children that read texts: whatever a template or a tokenizer does, only its own piece fails."""

import dataclasses
import os
import signal
import time
from collections.abc import Sequence

import pytest
import tokenizers
from tokenizers import Regex, models, pre_tokenizers

import tokenizer_proc.tokenizing.readers
from srt.files.gguf_tokens import byte_level_alphabet
from srt.files.tokenizer import Tokenizer
from srt.patterns import classes
from srt.ring.forked import ends_in_time
from srt.wire.errors import BAD_REQUEST, INTERNAL, UNAVAILABLE, ErrorInfo
from srt.wire.media import MediaItem
from srt.wire.messages import ChatMessage, GenerateReq, TokenizeReq
from srt.wire.sampling import SamplingParams
from tests.tokenizer_proc.admission.test_front import VOCAB, byte_tokenizer
from tests.tokenizer_proc.forking import fail_once, kill
from tokenizer_proc.children.forker import Forker
from tokenizer_proc.prompt.chat_template import ChatTemplate, load_template
from tokenizer_proc.prompt.prompt import PromptReader
from tokenizer_proc.prompt.scoring import ScoreReader
from tokenizer_proc.queueing.turns import Piece, TextReq
from tokenizer_proc.tokenizing.readers import Read, Reader
from tokenizer_proc.tokenizing.reading import Reading, ReadPrompt, TextReader, Unreadable

LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
ONE = "(messages | length)"  # Jinja cannot compute it in advance
CHAT = [ChatMessage("user", "hi")]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_proc.tokenizing.readers, "CPU_S", 0.2)


def text(rid: str = "t", content: str = "hello") -> Piece:
    return Piece(b"c", TokenizeReq(rid=rid, epoch=1, text=content), len(content), [rid])


def chat() -> Piece:
    req = GenerateReq(rid="r", epoch=1, sampling=SamplingParams(), messages=CHAT)
    return Piece(b"c", req, 2, ["r"])


def reader_of(forker: Forker, template: str) -> Reader:
    prompts = PromptReader(byte_tokenizer(), ChatTemplate(template), 258, 100_000)
    scores = ScoreReader(prompts, 100_000, 1000, 8)
    return Reader(forker, TextReader(byte_tokenizer(), prompts, scores).read)


async def read(reader: Reader, *pieces: Piece) -> list[Reading]:
    try:
        return [await reader.read(piece) for piece in pieces]
    finally:
        reader.close()


def error_of(reading: Reading) -> ErrorInfo:
    assert isinstance(reading, Unreadable), reading
    return reading.error


async def test_a_text_and_a_chat(forker: Forker) -> None:
    pieces = (text(), chat(), text(content="x" * 300_000))
    first, second, long = await read(reader_of(forker, "{{ messages[0].content }}"), *pieces)
    assert first == ReadPrompt(b"".join(bytes([c, 0, 0, 0]) for c in b"hello"), "text")
    assert isinstance(second, ReadPrompt) and second.param == "messages"
    assert isinstance(long, ReadPrompt) and len(long.ids) == 4 * 300_000


def test_no_child_reads_off_tables_of_characters() -> None:
    """The tables are made before it is forked."""
    tables = (classes._unicode_category, classes._case_variants, classes._cased_in_order)
    for table in tables:
        table.cache_clear()
    prompts = PromptReader(byte_tokenizer(), ChatTemplate(""), 258, 100_000)
    reader = TextReader(byte_tokenizer(), prompts, ScoreReader(prompts, 100_000, 1000, 8))
    known = [table.cache_info().misses for table in tables]
    sampling = SamplingParams(stop_regex=[r"(?iu)\w\W\d\sé"])
    reading = reader.read(GenerateReq(rid="r", epoch=1, sampling=sampling, text="hi"))
    assert isinstance(reading, ReadPrompt)
    assert [table.cache_info().misses for table in tables] == known


@pytest.mark.parametrize(
    "template",
    [
        LOOPS,
        "{% set nine = messages | length + 8 %}{{ nine ** (nine ** nine) }}",
    ],
)
async def test_a_template_that_does_not_end(forker: Forker, template: str) -> None:
    """Its chats are refused; texts are read as before."""
    started = time.process_time()
    pieces = (text(), chat(), text("again"))
    first, never, again = await read(reader_of(forker, template), *pieces)
    error = error_of(never)
    assert error.param == "messages" and "template" in error.message
    assert error.code in (BAD_REQUEST, INTERNAL)
    assert isinstance(first, ReadPrompt) and again == first
    assert time.process_time() - started < 2  # this process does not render it


async def test_the_deadline_is_told(forker: Forker) -> None:
    (never,) = await read(reader_of(forker, LOOPS), chat())
    assert error_of(never).message == "the chat template took too long"


@pytest.mark.parametrize(
    "template", ["{{ '%*d' % (ONE * 10 ** 9, 1) }}", "{{ 'x' * ONE * 10 ** 10 }}"]
)
async def test_a_template_that_writes_too_much(forker: Forker, template: str) -> None:
    huge, after = await read(reader_of(forker, template.replace("ONE", ONE)), chat(), text())
    assert error_of(huge).param == "messages"
    assert isinstance(after, ReadPrompt)


class PanicException(BaseException):
    pass


def panics(req: TextReq, items: Sequence[Sequence[MediaItem]]) -> Reading:
    raise PanicException("called `Result::unwrap()` on an `Err` value\nmore")


def aborts(req: TextReq, items: Sequence[Sequence[MediaItem]]) -> Reading:
    os.abort()


@pytest.mark.parametrize("work", [panics, aborts])
async def test_what_ends_a_child_ends_one_piece(forker: Forker, work: Read) -> None:
    first, second = await read(Reader(forker, work), text(), text())
    assert error_of(first).code == error_of(second).code == INTERNAL


def test_a_panic_of_the_library_is_an_error_of_its_request() -> None:
    """The library panics when a pattern takes too many steps."""
    encoder = tokenizers.Tokenizer(models.BPE(byte_level_alphabet(), []))
    pattern = pre_tokenizers.Split(Regex("(a+a+)+$"), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    encoder.pre_tokenizer = pre_tokenizers.Sequence([pattern, byte_level])
    prompts = PromptReader(Tokenizer(encoder), ChatTemplate(None), 258, 100)
    reader = TextReader(Tokenizer(encoder), prompts, ScoreReader(prompts, 100, 1000, 8))
    assert isinstance(reader.read(text().req), ReadPrompt)
    failed = error_of(reader.read(text(content="a" * 40 + "b").req))
    assert failed.code == INTERNAL and "tokenizer failed at this text" in failed.message


async def test_a_child_that_was_killed_while_it_waited_is_replaced(forker: Forker) -> None:
    reader = reader_of(forker, "")
    first = await reader.read(text())
    kill(reader.pid)
    assert await read(reader, text()) == [first]


async def test_ctrl_c_ends_no_child(forker: Forker) -> None:
    """It goes to the whole process group; the launcher lets requests in flight end."""
    reader = reader_of(forker, "x")
    await reader.read(text())
    child = reader.pid
    os.kill(child, signal.SIGINT)
    assert isinstance(await reader.read(text()), ReadPrompt)
    assert reader.pid == child
    reader.close()


async def test_a_machine_without_a_process_left(
    forker: Forker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_once(monkeypatch)
    none, reading = await read(reader_of(forker, ""), text(), text())
    error = error_of(none)
    assert (error.code, error.retryable) == (UNAVAILABLE, True)
    assert isinstance(reading, ReadPrompt)


async def test_a_child_that_stands_still_is_given_up(
    forker: Forker, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = reader_of(forker, "")
    await reader.read(text())
    monkeypatch.setattr(tokenizer_proc.tokenizing.readers, "WALL_S", -1.0)
    monkeypatch.setattr(tokenizer_proc.tokenizing.readers, "CPU_S", 0.25)
    child = reader.pid
    assert child > 0  # 0 would be this process and all that runs the tests
    os.kill(child, signal.SIGSTOP)
    error = error_of(await reader.read(text()))
    assert error.retryable and reader.pid == 0


def test_a_template_that_cannot_be_compiled_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenizer_proc.prompt.chat_template.COMPILE_CPU_S", 0.2)
    vocab = dataclasses.replace(VOCAB, chat_template="{{ 9 ** (9 ** 9) }}")
    template = load_template(vocab)
    with pytest.raises(Exception, match="cannot be compiled in time"):
        template.render(CHAT)


@pytest.mark.parametrize("source", ["(" * 3000, "{{ " + "(" * 3000, "{{ " + "-" * 9000 + "1 }}"])
def test_a_template_that_is_nested_too_deeply(source: str) -> None:
    vocab = dataclasses.replace(VOCAB, chat_template=source)
    template = load_template(vocab)
    if source.startswith("{{"):
        with pytest.raises(Exception, match="cannot be compiled"):
            template.render(CHAT)


def test_ends_in_time() -> None:
    assert ends_in_time(lambda: None, 5.0, 2**30)
    assert ends_in_time(lambda: 1 / 0, 5.0, 2**30)
    assert not ends_in_time(lambda: 9**9**9, 0.2, 2**30)
    assert not ends_in_time(os.abort, 0.2, 2**30)
