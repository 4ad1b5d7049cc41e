"""Decoding of large bodies in pieces: the same values as in one go, and the bounds."""

import json
import random
from typing import Any

import msgspec
import pytest

from srt.gateway.errors import TOO_LARGE
from srt.gateway.http import json_pieces
from srt.gateway.http.json_pieces import MAX_DEPTH, decoded
from srt.wire.errors import RequestError


def decode(data: bytes) -> Any:
    *pieces, value = decoded(data)
    assert not any(pieces)
    return value


def random_value(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(8 if depth else 5)
    if kind < 5:
        text = "".join(rng.choice('ab,:[]{}"\\\n ä\U0001f600') for _ in range(rng.randrange(9)))
        return (text, rng.random(), rng.randrange(-9, 10**9), None, rng.random() < 0.5)[kind]
    values = [random_value(rng, depth - 1) for _ in range(rng.randrange(5))]
    if kind == 7:
        return {f'{rng.choice("xy{")},"{i}\\': value for i, value in enumerate(values)}
    return values


@pytest.mark.parametrize("size", [1, 7, 40])
def test_pieces_of_any_size_give_the_same_value(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_pieces, "PIECE_BYTES", size)
    monkeypatch.setattr(json_pieces, "SLICE_BYTES", 12)  # a pair of surrogates
    rng = random.Random(size)
    for _ in range(300):
        value = {"a": random_value(rng, 5), "b": [random_value(rng, 4) for _ in range(3)]}
        for options in ({}, {"ensure_ascii": False}, {"indent": 1}):
            text = json.dumps(value, **options)
            assert decode(text.encode()) == value


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"b":[5,6],"a":[1,2,3],"c":0}',
        '{"k":{"a":1,"b":[],"a":[7,8,9]}}',
        '{"a":1,"b":{"x":0},"a":{"y":1,"z":2,"t":3}}',
    ],
)
def test_a_key_that_comes_twice_puts_nothing_elsewhere(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With any pieces, the value is the same as in one go, or the body is refused."""
    for size in range(1, len(text)):
        monkeypatch.setattr(json_pieces, "PIECE_BYTES", size)
        try:
            assert decode(text.encode()) == json.loads(text)
        except RequestError as error:
            assert "an object has a key twice" in str(error)


@pytest.mark.parametrize("size", [1, 3, 2**14])
def test_what_is_no_json_is_refused_in_pieces_too(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body damaged in one place is accepted if msgspec accepts it, with the same value."""
    monkeypatch.setattr(json_pieces, "PIECE_BYTES", size)
    monkeypatch.setattr(json_pieces, "SLICE_BYTES", 16)
    rng = random.Random(size)
    for _ in range(3000):
        data = bytearray(json.dumps([random_value(rng, 3), {"k": random_value(rng, 3)}]).encode())
        data[rng.randrange(len(data))] = rng.choice(b'[]{},:"\\1 e')
        try:
            expected = msgspec.json.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            with pytest.raises(RequestError, match="the body is not valid JSON"):
                decode(bytes(data))
        else:
            assert decode(bytes(data)) == expected


@pytest.mark.parametrize(
    "text",
    [
        rb"\ud83d\ude00" * 40,
        rb"\ud83d" * 40,
        rb"\ude00" * 40,
        rb"\u00e" * 40,
        rb"\\\"\/\b\x" * 20,
        rb"\\\"\/\b\t\u0000" * 20,
        b"\xf0\x9f\x98\x80\xc3\xa4" * 40,
        b"a" * 40 + b"\x9f\x98",
        b"a" * 40 + b"\xf0\x9f",
        b"a" * 40 + b"\n",
        b"a" * 40 + b'\\"',
        b"a" * 40 + b"\\",
    ],
)
@pytest.mark.parametrize(
    "around", [b'["%s"]', b'{"%s":1}', b'{"a":["b","%s",2]}', b'"%s"', b'["%s']
)
def test_a_long_text(text: bytes, around: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cut between characters, wherever it is, and refused if it is not a text."""
    monkeypatch.setattr(json_pieces, "PIECE_BYTES", 4)
    data = around % text
    for size in range(12, 40):
        monkeypatch.setattr(json_pieces, "SLICE_BYTES", size)
        try:
            expected = msgspec.json.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            with pytest.raises(RequestError, match="the body is not valid JSON"):
                decode(data)
        else:
            assert decode(data) == expected


def test_long_texts_in_one_piece_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_pieces, "PIECE_BYTES", 8)
    value = {"k" * 30: {"l" * 30: "m" * 30}, "k" * 29: ["n" * 30, {"o" * 30: "o" * 31}]}
    assert decode(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    "data",
    [b"[1,]", b"[1,,2]", b'{"a":1,}', b"[1],[2]", b"[1]]", b"[[1]", b"", b",1", b"1,", b'[1,"a]'],
)
def test_malformed(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_pieces, "PIECE_BYTES", 2)
    with pytest.raises(RequestError, match="the body is not valid JSON"):
        decode(data)


def test_of_a_key_that_comes_twice_the_last_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_pieces, "PIECE_BYTES", 4)
    assert decode(b'{"a":[1,2,3],"b":4,"a":[5,6,7]}') == {"a": [5, 6, 7], "b": 4}


BIG = json_pieces.PIECE_BYTES * 2
TOO_MUCH = {
    "more than 32768 lists and objects": b"[" + b"[]," * 5_000_000 + b"[]]",
    "more than 65536 keys": b"{" + b",".join(b'"k%d":1' % i for i in range(10**5)) + b"}",
    "more than 131072 texts": b"[" + b'"",' * 5_000_000 + b'""]',
    "more than 1048576 values": b"[" + b",".join([b"[" + b"0," * 99_999 + b"0]"] * 80) + b"]",
    "a list of more than 131072 entries": b"[" + b"0," * 8_000_000 + b"0]",
    "more than 16384 numbers with exponents": b"[" + b"1.1e300," * 500_000 + b"0]",
    "a text of more than 2097152 bytes": b'"' + b"a" * 9_000_000 + b'"',
    "a text of more than 2097152 bytes ": b'{"'
    + b"a" * (2**21 + 1)
    + b'":"'
    + b"a" * 2**20
    + b'"}',
    "more than 65536 bytes between two commas": b" " * 9_000_000 + b"1",
    "a number of more than 64 characters": b"[" + b"1" * 65 + b" " * BIG + b"]",
}


@pytest.mark.parametrize("what", TOO_MUCH)
def test_more_than_a_body_may_have(what: str) -> None:
    """It is refused early, when few pieces have been decoded."""
    pieces = decoded(TOO_MUCH[what])
    with pytest.raises(RequestError) as caught:
        list(pieces)
    assert caught.value.info.message == f"the body has {what.strip()}"
    assert caught.value.info.code == TOO_LARGE


def test_a_list_that_is_too_long_is_named() -> None:
    data = b'{"a":1,"input_ids":[[' + b"7," * 30_000 + b"7]]}"
    assert decode(data)["a"] == 1
    with pytest.raises(RequestError) as caught:
        list(decoded(data, max_entries=30_000))
    assert caught.value.info.param == "input_ids"
    reason = "input_ids has a list of more than 30000 entries"
    assert caught.value.info.message == reason


@pytest.mark.parametrize("bracket", [b"[", b'{"a":'])
def test_nested_too_deeply(bracket: bytes) -> None:
    with pytest.raises(RequestError, match="nested too deeply"):
        decode(bracket * (MAX_DEPTH + 1) + b"1" + b" " * BIG)


def test_what_clients_send_in_earnest_passes() -> None:
    """A million ids in prompts of a long context, long texts, large schemas, biased tokens."""
    rng = random.Random(0)
    prompts = [[rng.randrange(150_000) for _ in range(8192)] for _ in range(60)]
    values: list[Any] = [
        {"input_ids": prompts},
        {"input_ids": prompts[0] * 16},
        {"text": ["word, " * 1000] * 512},
        {"text": "ä" * 300_000},
        {"text": "a" * BIG, "k" * BIG: {"l" * BIG: 1}},
        {"logit_bias": {str(i): rng.random() for i in range(4096)}, "text": "a" * BIG},
        {"messages": [{"role": "user", "content": "a, b"}] * 16_000},
        {"choices": [f"{i:x}" for i in range(100_000)]},
    ]
    for value in values:
        assert decode(json.dumps(value).encode()) == value
