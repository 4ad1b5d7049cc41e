"""TextStream: the pieces join to the full text; stops are compared with a brute-force search."""

import codecs
import random
import re
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detokenizer_proc.text_stream import StopMatch, Stops, TextStream
from srt.files.model_files import resolve_model
from srt.files.tokenizer import Tokenizer, load_tokenizer
from srt.files.vocab import Vocab, load_vocab
from tests.running.profiles import examples

SCRIPTS = [
    "abc XYZ 019 ,.!\n\t",
    "éüñçß ŒœŽ",
    "中文日本語한국어",
    "مرحبا שלום",
    "नमस्ते ไทย",
    "👨\u200d👩\u200d👧🏳️\u200d🌈👍🏽🇩🇪",
    "e\u0301\u0308\ufffd\u00a0\u2028",
]
# Tokens that end inside characters, overlap in text, or have no text (0: special, skipped).
PIECES = [b"", b"a", b"b", b"ab", b"aab", b"\xc3", b"\xa9", b"a\xc3", "éb".encode(), b"\xf0\x9f"]


@pytest.fixture(scope="module")
def vocab() -> Vocab:
    return load_vocab(resolve_model("smollm2"))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(resolve_model("smollm2"))


def random_splits(rng: random.Random, ids: list[int]) -> Iterator[list[int]]:
    while ids:
        count = rng.choice([1, 1, 2, 5])
        yield ids[:count]
        ids = ids[count:]


def test_pieces_joined_are_the_text(vocab: Vocab, tokenizer: Tokenizer) -> None:
    rng = random.Random(0)
    pieces = vocab.pieces(skip_special_tokens=True)
    for _ in range(200):
        text = "".join(rng.choice(rng.choice(SCRIPTS)) for _ in range(rng.randrange(60)))
        stops = Stops(["never seen"], ["never (ever )?seen"]) if rng.random() < 0.5 else Stops()
        stream = TextStream(pieces, stops)
        ids = tokenizer.encode(text).tolist()
        sent = [stream.push(part) for part in random_splits(rng, ids)]
        assert "".join(sent) + stream.finish() == text
        assert stream.num_tokens == len(ids)


def test_random_ids_decode_as_a_whole(vocab: Vocab) -> None:
    rng = random.Random(1)
    for skip in (True, False):
        pieces = vocab.pieces(skip)
        for _ in range(50):
            ids = [rng.randrange(400) for _ in range(30)]
            stream = TextStream(pieces)
            sent = [stream.push(part) for part in random_splits(rng, ids)]
            assert "".join(sent) + stream.finish() == vocab.decode(ids, skip)


def decode(ids: list[int], final: bool) -> str:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    return decoder.decode(b"".join(PIECES[i] for i in ids), final)


def brute_force(ids: list[int], stops: Stops) -> tuple[str, StopMatch | None]:
    """The whole text and the stop, by searching all of the text again at each token."""
    for count in range(1, len(ids) + 1):
        before, text = decode(ids[: count - 1], False), decode(ids[:count], False)
        ends = range(len(before) + 1, len(text) + 1)
        found = [
            (start, start + len(stop), stop)
            for stop in stops.strings
            for start in range(len(text))
            if text.startswith(stop, start) and start + len(stop) in ends
        ]
        found += [find for end in ends if (find := first_match(stops.patterns, text, end))]
        if found and count >= stops.min_new_tokens:
            start, end, stop = min(found)
            return text[: end if stops.kept else start], StopMatch(stop, count)
    return decode(ids, True), None


def first_match(patterns: Sequence[str], text: str, end: int) -> tuple[int, int, str] | None:
    """The match ending at `end` that begins first; of equal ones, that of the first pattern."""
    found = [
        (start, number)
        for number, pattern in enumerate(patterns)
        for start in range(end)
        if re.compile(pattern, re.ASCII).fullmatch(text, start, end)
    ]
    if not found:
        return None
    start, number = min(found)
    return start, end, patterns[number]


def longest_open_stop(text: str, stops: list[str]) -> int:
    return max(n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n]))


@settings(max_examples=examples(40))
@given(
    ids=st.lists(st.integers(0, len(PIECES) - 1), max_size=25),
    stops=st.lists(st.text(alphabet="abé\ufffd", min_size=1, max_size=5), max_size=4),
    min_new_tokens=st.integers(0, 6),
    seed=st.integers(0, 1000),
)
def test_stop_strings(ids: list[int], stops: list[str], min_new_tokens: int, seed: int) -> None:
    text, stopped = brute_force(ids, Stops(stops, (), min_new_tokens))
    stream = TextStream(PIECES, Stops(stops, (), min_new_tokens))
    sent = "".join(stream.push(part) for part in random_splits(random.Random(seed), ids))
    assert sent + stream.finish() == text
    assert stream.stopped == stopped
    assert stream.num_tokens == (stopped.num_tokens if stopped else len(ids))
    if stops and not stopped:
        so_far = decode(ids, False)
        assert sent == so_far[: len(so_far) - longest_open_stop(so_far, stops)]


PATTERNS = ["b", "a+b", "[^b]é", "aa|ab", "(?m)^a", "^b.", "b.*a", "a{2,3}", "\ufffd", "(?i)AÉ?b"]


@settings(max_examples=examples(40))
@given(
    ids=st.lists(st.integers(0, len(PIECES) - 1), max_size=25),
    stops=st.builds(
        Stops,
        strings=st.lists(st.text(alphabet="abé", min_size=1, max_size=4), max_size=2),
        patterns=st.lists(st.sampled_from(PATTERNS), max_size=3),
        min_new_tokens=st.integers(0, 6),
        kept=st.booleans(),
    ),
    seed=st.integers(0, 1000),
)
def test_stop_patterns(ids: list[int], stops: Stops, seed: int) -> None:
    """With stop strings too. What has been sent is always a beginning of the whole text."""
    text, stopped = brute_force(ids, stops)
    stream = TextStream(PIECES, stops)
    sent = ""
    for part in random_splits(random.Random(seed), ids):
        sent += stream.push(part)
        assert text.startswith(sent)
    assert sent + stream.finish() == text
    assert stream.stopped == stopped
    assert stream.num_tokens == (stopped.num_tokens if stopped else len(ids))


def push_text(stream: TextStream, text: str) -> list[str]:
    return [stream.push([byte]) for byte in text.encode()]


BYTES = [bytes([byte]) for byte in range(256)]


def test_text_is_held_only_while_it_may_become_a_stop() -> None:
    stream = TextStream(BYTES, Stops(["\n\nUser:"]))
    assert push_text(stream, "a\n\n\nUs.") == ["a", "", "", "\n", "", "", "\n\nUs."]
    assert push_text(stream, "\n\nUser:more")[-1] == ""
    assert stream.stopped == StopMatch("\n\nUser:", 14)
    assert stream.finish() == ""


def test_one_token_may_hold_several_stops() -> None:
    stream = TextStream([b"x one two three"], Stops(["two", "one two", "one"]))
    assert stream.push([0, 0]) == "x "
    assert stream.stopped == StopMatch("one", 1)


def test_a_held_prefix_is_flushed_at_the_end() -> None:
    stream = TextStream(BYTES, Stops(["stop"]))
    assert push_text(stream, "no sto")[-3:] == ["", "", ""]
    assert stream.finish() == "sto"


def test_an_incomplete_character_is_replaced_at_the_end() -> None:
    stream = TextStream(BYTES)
    assert stream.push([0x61, 0xE2, 0x82]) == "a"
    assert stream.finish() == "\ufffd"


@pytest.mark.parametrize(
    ("begun", "ids", "text"),
    [
        (b"\xe2", [0x82, 0xAC, 0x21], "€!"),
        (b"\xf0\x9f\x8c", [0xB6], "🌶"),
        (b"\xe2", [0x21], "!"),
        (b"\xe2", [0x82, 0x21], "!"),
        (b"\xe2", [], ""),
        (b"\xe2", [0xEF, 0xBF, 0xBD], "\ufffd"),
        (b"\xef\xbf", [0xBD, 0x21], "\ufffd!"),
        (b"\xc3", [0xA9, 0xFF], "é\ufffd"),
    ],
)
@pytest.mark.parametrize("step", [1, 9])
def test_a_character_that_the_prompt_has_begun(
    begun: bytes, ids: list[int], text: str, step: int
) -> None:
    stream = TextStream(BYTES, Stops(["?"]), begun=begun)
    sent = [stream.push(ids[i : i + step]) for i in range(0, len(ids), step)]
    assert "".join(sent) + stream.finish() == text


def test_a_character_that_a_limit_cuts_is_left_out() -> None:
    stream = TextStream(BYTES, Stops(["stop"]))
    assert stream.push([*b"a st", 0xE2, 0x82]) == "a "
    assert stream.finish(is_cut=True) == "st"


def test_stops_before_min_new_tokens_are_text() -> None:
    stream = TextStream(BYTES, Stops(["ab"], min_new_tokens=4))
    assert "".join(push_text(stream, "abxab")) == "abx"
    assert stream.stopped == StopMatch("ab", 5)


def test_a_stop_may_overlap_one_that_came_too_early() -> None:
    stream = TextStream(BYTES, Stops(["aba"], min_new_tokens=5))
    assert push_text(stream, "ababa") == ["", "", "ab", "", ""]
    assert stream.stopped == StopMatch("aba", 5)


@pytest.mark.parametrize("kept", [False, True])
def test_the_stop_token(kept: bool) -> None:
    """It is counted; its text is shown if stops are kept, but never searched."""
    stream = TextStream(BYTES, Stops(["b", "ab"], kept=kept))
    assert stream.push([0x61]) == ""
    stream.push_stop_token(0x62)
    assert (stream.num_tokens, stream.stopped) == (2, None)
    assert stream.finish() == ("ab" if kept else "a")


def test_kept_stops_end_the_text() -> None:
    """The text ends right after the stop, even inside a token."""
    for stops in (Stops(["two"], kept=True), Stops((), ["t[a-z]o"], kept=True)):
        stream = TextStream([b"x one t", b"wo three"], stops)
        assert (stream.push([0]), stream.push([1]), stream.finish()) == ("x one ", "two", "")
        assert stream.stopped is not None and stream.stopped.num_tokens == 2


WORDS = [b"foo", b"d", b" ", b"bar", b"\xc3"]
FOO, D, SPACE, BAR, HALF = range(5)


@pytest.mark.parametrize("is_complete", [True, False])
def test_an_end_that_is_none_makes_no_stop(is_complete: bool) -> None:
    """After an abort it is unknown what would have followed."""
    stream = TextStream(WORDS, Stops((), [r"foo\b"]))
    assert stream.push([SPACE, FOO]) == " "
    assert stream.finish(is_complete) == ("" if is_complete else "foo")
    assert stream.stopped == (StopMatch(r"foo\b", 2) if is_complete else None)


def test_an_incomplete_character_is_not_the_end() -> None:
    for pattern, text in (("(?m)foo$", "foo\ufffd"), (r"foo\b", ""), (r"foo\B", "foo\ufffd")):
        stream = TextStream(WORDS, Stops((), [pattern]))
        assert stream.push([SPACE, FOO, HALF]) + stream.finish() == " " + text
        assert (stream.stopped is None) == bool(text)


@pytest.mark.parametrize(("kept", "text"), [(True, " foobar"), (False, " ")])
def test_a_stop_token_that_is_shown_goes_on_with_the_text(kept: bool, text: str) -> None:
    """If it is not shown, the text ends before it, and there the pattern matches."""
    stream = TextStream(WORDS, Stops((), [r"foo\b"], kept=kept))
    sent = stream.push([SPACE, FOO])
    stream.push_stop_token(BAR)
    assert sent + stream.finish() == text
    assert stream.stopped == (None if kept else StopMatch(r"foo\b", 2))


@pytest.mark.parametrize("more", [[SPACE], [HALF, SPACE], []])
def test_a_match_counts_where_it_ends_not_where_that_is_known(more: list[int]) -> None:
    for min_new_tokens in (2, 3):
        stream = TextStream(WORDS, Stops((), [r"foo\b"], min_new_tokens))
        text = stream.push([SPACE, FOO, *more]) + stream.finish()
        assert stream.stopped == (StopMatch(r"foo\b", 2) if min_new_tokens == 2 else None)
        assert text.startswith(" foo") == (min_new_tokens == 3)


def test_a_pattern_stops_at_its_shortest_match() -> None:
    stream = TextStream([b"a12", b"345"], Stops((), [r"\d\d+"], kept=True))
    assert stream.push([0, 1]) == "a12"
    assert stream.stopped == StopMatch(r"\d\d+", 1)


def test_work_per_token_does_not_grow() -> None:
    """A long text that could always become a stop string is not searched again and again."""
    stop = "a" * 1000 + "b"
    stream = TextStream(BYTES, Stops([stop]))
    sent = "".join(push_text(stream, "a" * 50_000))
    assert len(sent) == 50_000 - 1000
    assert "".join(push_text(stream, "b")) == ""
    assert stream.stopped == StopMatch(stop, 50_001)
