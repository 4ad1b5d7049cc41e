"""Decodes the JSON of large bodies piece by piece, and bounds what a body may hold.

msgspec holds the loop and the interpreter's lock while it decodes, and takes microseconds for some
values of a few bytes. So a large body is cut at commas into pieces of about PIECE_BYTES. The values
of a piece are counted before objects are made of them; then it is decoded with the brackets that
are open where it begins and ends, and its values are added to the containers of these brackets. A
text that does not end in its piece is decoded separately, in slices, and a name replaces it in the
piece. The caller gives the loop a turn after each piece and slice.
"""

import re
import secrets
from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

import msgspec

from srt.gateway.errors import TOO_LARGE
from srt.wire.errors import RequestError

PIECE_BYTES = 4 * 1024
SLICE_BYTES = 16 * 1024  # of a long text
MAX_TEXT_BYTES = 2 * 1024 * 1024
MAX_FILE_TEXT_BYTES = 28 * 1024 * 1024  # of a file in base64
MAX_GAP_BYTES = 64 * 1024  # between two commas, without texts
_MAX_SEARCH = 4 * MAX_GAP_BYTES  # for a comma, without long texts
MAX_DEPTH = 64
MAX_ENTRIES = 2**17  # of one list
MAX_NUMBER_CHARS = 64

Data = bytes | bytearray

_CONTINUED = secrets.token_hex(16)  # the key of a container that continues from the piece before
_MARK = secrets.token_hex(16)  # ends the containers that are open where a piece ends
_OPENERS = {ord("["): b"[", ord("{"): b"{"}
_CLOSERS = {b"[": b"]", b"{": b"}"}
_MARKS = {b"[": f',"{_MARK}"'.encode(), b"{": f',"{_MARK}":"{_MARK}"'.encode()}
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_NUMBER_CHARS = b"0123456789+-.eE"
_AS_DIGITS = bytes.maketrans(_NUMBER_CHARS, b"0" * len(_NUMBER_CHARS))
_LONG_NUMBER = b"0" * (MAX_NUMBER_CHARS + 1)
_LONG_TEXT = secrets.token_hex(16)  # begins the names of long texts
# Whole characters and escapes: a pair of surrogates is one, and their values are not checked.
_CHARS = re.compile(
    rb'(?:[^"\\\x80-\xff]++|\\[^u]|\\u[dD][89abAB]..\\u.{4}|\\u(?![dD][89abAB]).{4}'
    rb"|[\xc0-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xff][\x80-\xbf]{3})*+",
    re.DOTALL,
)
_BYTE_OFFSET = re.compile(r" \(byte \d+\)$")  # of a piece, not of the body


class _Limit(NamedTuple):
    """How many of something a body may have; `what` is its name in refusals."""

    most: int
    what: str


_VALUES = _Limit(2**20, "values")
_TEXTS = _Limit(2**17, "texts")
_KEYS = _Limit(2**16, "keys")
_CONTAINERS = _Limit(2**15, "lists and objects")
_EXPONENTS = _Limit(2**14, "numbers with exponents")
LIMITS = (_VALUES, _TEXTS, _KEYS, _CONTAINERS, _EXPONENTS)


def decoded(
    data: Data, max_entries: int = MAX_ENTRIES, long_texts: list[str] | None = None
) -> Iterator[Any]:
    """Yields None after each piece of `data`, and its value at the end.

    With `long_texts`, texts may be as long as files: those above MAX_TEXT_BYTES are added to it,
    and the caller has to see that they are files.

    Raises RequestError if it is not valid JSON, has more of something than LIMITS allow, a text
    or number that is too long or a list of more than `max_entries`, or is nested too deeply.
    """
    if len(data) <= PIECE_BYTES:
        yield _value(data)
        return
    counts = dict.fromkeys(LIMITS, 0)
    document = _Document(max_entries)
    for piece in _pieces(data, long_texts):
        if piece is not None:
            _count(counts, piece.structure)
            document.add(piece)
        yield None
    yield document.value()


class _Piece(NamedTuple):
    """It begins with a comma unless it is the first. `structure` is all that is outside its texts,
    with a quote for each of them; `texts` are the long ones, by the names that replace them."""

    data: bytes
    structure: bytes
    texts: dict[str, str]


def _pieces(data: Data, long_texts: list[str] | None) -> Iterator[_Piece | None]:
    """The pieces; None after work that gave no piece but may have taken long."""
    at, size = 0, PIECE_BYTES
    head, outside, texts = b"", list[bytes](), dict[str, str]()  # of the piece, before `at`
    while at < len(data) or head:
        parts = _without_escapes(bytes(data[at : at + size])).split(b'"')
        is_last = at + size >= len(data)
        found = parts[::2] if is_last else _up_to_comma(parts, has_head=bool(head))
        if found is not None:
            inside = parts[1::2][: len(found) - (not is_last)]
            length = sum(map(len, found)) + sum(map(len, inside)) + 2 * len(inside)
            end = len(data) if is_last else at + length
            yield _Piece(head + data[at:end], b'"'.join(outside + found), texts)
            at, size, head, outside, texts = end, PIECE_BYTES, b"", [], {}
        elif len(parts) % 2 == 0:
            text_at = at + sum(len(part) + 1 for part in parts[:-1])
            name = f"{_LONG_TEXT}{len(texts)}"
            most = MAX_TEXT_BYTES if long_texts is None else MAX_FILE_TEXT_BYTES
            texts[name], end = yield from _long_text(data, text_at, most)
            if long_texts is not None and end - text_at > MAX_TEXT_BYTES:
                long_texts.append(texts[name])
            head += data[at:text_at] + name.encode() + b'"'
            outside += parts[::2]
            at, size = end, PIECE_BYTES
        else:
            if size >= _MAX_SEARCH or max(map(len, parts[::2])) > MAX_GAP_BYTES:
                raise _too_large(f"more than {MAX_GAP_BYTES} bytes between two commas")
            size *= 2
            yield None


def _long_text(data: Data, start: int, most: int) -> Generator[None, None, tuple[str, int]]:
    """The text whose first character is at `start`, and the place after its closing quote."""
    slices, at = [], start
    while data[at : at + 1] != b'"':
        end = _end_of_chars(data, at)
        if end - start > most:
            raise text_too_long(most)
        if end == at:
            raise _invalid("a text does not end, or has an invalid character")
        slices.append(_value(b'"' + data[at:end] + b'"', is_piece=True))
        at = end
        yield None
    return "".join(slices), at + 1


def text_too_long(most: int = MAX_TEXT_BYTES) -> RequestError:
    """The error of a text of more than `most` bytes."""
    return _too_large(f"a text of more than {most} bytes")


def _end_of_chars(data: Data, at: int) -> int:
    match = _CHARS.match(data, at, at + SLICE_BYTES)
    return match.end() if match else at


def _without_escapes(data: bytes) -> bytes:
    """`data`, in which every quote begins or ends a text."""
    if b"\\" not in data:
        return data
    return data.replace(b"\\\\", b"__").replace(b'\\"', b"__")


def _up_to_comma(parts: list[bytes], has_head: bool) -> list[bytes] | None:
    """The parts outside texts, every second one, up to their last comma; None if there is no
    comma, apart from one in the first byte of a piece."""
    for index in range((len(parts) - 1) // 2 * 2, -1, -2):
        comma = parts[index].rfind(b",", 0 if index or has_head else 1)
        if comma >= 0:
            return [*parts[0:index:2], parts[index][:comma]]
    return None


def _count(counts: dict[_Limit, int], structure: bytes) -> None:
    """Count what a piece of `structure` has. Raises RequestError if the total is too much."""
    keys = structure.count(b":")
    counts[_VALUES] += structure.count(b",")
    counts[_KEYS] += keys
    counts[_TEXTS] += structure.count(b'"') - keys
    counts[_CONTAINERS] += structure.count(b"[") + structure.count(b"{")
    words = structure.count(b"true") + structure.count(b"false")
    counts[_EXPONENTS] += structure.count(b"e") + structure.count(b"E") - words
    for limit, count in counts.items():
        if count > limit.most:
            raise _too_large(f"more than {limit.most} {limit.what}")
    if _LONG_NUMBER in structure.translate(_AS_DIGITS):
        raise _too_large(f"a number of more than {MAX_NUMBER_CHARS} characters")


class _Document:
    """What has been decoded so far, and the containers that the next piece continues.

    The outermost one is a list around the whole document, which no bracket closes."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._root: list[Any] = []
        self._spine: list[Any] = [self._root]
        self._open = [b"["]
        self._is_first = True

    def add(self, piece: _Piece) -> None:
        """Decode a piece and add its values."""
        before = self._open.copy()
        for bracket in piece.structure.translate(None, _NOT_BRACKETS):
            self._turn(bracket)
        if piece.data.rstrip().endswith((b"[", b"{")):
            raise _invalid("a comma comes before the first value")
        head = self._head(before) + (b"," if self._is_first else b"")
        tail = _MARKS[self._open[-1]] + b"".join(_CLOSERS[kind] for kind in reversed(self._open))
        self._is_first = False
        found = _value(head + piece.data + tail, is_piece=True)
        self._extend(_with_texts(found, piece.texts) if piece.texts else found)

    def value(self) -> Any:
        """The whole."""
        if len(self._open) > 1 or len(self._root) != 1:
            raise _invalid("it ends too early, or continues after its end")
        return self._root[0]

    def _turn(self, bracket: int) -> None:
        if bracket in _OPENERS:
            self._open.append(_OPENERS[bracket])
        elif len(self._open) > 1:
            self._open.pop()
        else:
            raise _invalid("it closes a bracket that is not open")
        if len(self._open) > MAX_DEPTH + 1:
            raise RequestError("the body is nested too deeply")

    @staticmethod
    def _head(kinds: list[bytes]) -> bytes:
        """The open brackets, each with a first value: the next bracket, or 0."""
        key = b'{"' + _CONTINUED.encode() + b'":'
        return b"".join(key if kind == b"{" else kind for kind in kinds) + b"0"

    def _extend(self, found: Any) -> None:
        for container in self._spine:
            if isinstance(container, list):
                rest, found = found[1:], found[0]
                container.extend(rest)
                self._check_length(container)
            else:
                rest, found = found, found.pop(_CONTINUED)
                for name in rest.keys() & container.keys():
                    del container[name]  # of equal keys the later one counts, and is the last
                container.update(rest)
        self._spine = [self._root]
        for _ in self._open[1:]:
            self._spine.append(_last_of(self._spine[-1]))
        self._take_mark(self._spine[-1])

    def _check_length(self, container: list[Any]) -> None:
        """Bound the length of a list now, so that passes over it are short."""
        if len(container) > self._max_entries:
            body = next(iter(self._root), None)
            name = next(reversed(body), None) if isinstance(body, dict) else None
            reason = f"{name or 'the body'} has a list of more than {self._max_entries} entries"
            raise RequestError(reason, code=TOO_LARGE, param=name)

    @staticmethod
    def _take_mark(innermost: Any) -> None:
        """Remove the mark. Where a piece has a key twice, the mark may not be its last value."""
        if _last_of(innermost) != _MARK:
            raise _invalid("an object has a key twice")
        if isinstance(innermost, list):
            innermost.pop()
        else:
            innermost.popitem()


def _with_texts(found: Any, texts: dict[str, str]) -> Any:
    """A decoded piece, its names of long texts replaced by the texts."""
    if isinstance(found, str):
        return texts.get(found, found)
    if isinstance(found, list):
        return [_with_texts(value, texts) for value in found]
    if isinstance(found, dict):
        return {texts.get(k, k): _with_texts(v, texts) for k, v in found.items()}
    return found


def _last_of(container: Any) -> Any:
    """The last value of a container; None if it is empty or not a container."""
    if not isinstance(container, list | dict):
        return None
    values = container.values() if isinstance(container, dict) else container
    return next(reversed(values), None)


def _value(data: Data, is_piece: bool = False) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise _invalid(_BYTE_OFFSET.sub("", str(exc)) if is_piece else str(exc)) from exc
    except RecursionError as exc:
        raise RequestError("the body is nested too deeply") from exc


def _invalid(reason: str) -> RequestError:
    return RequestError(f"the body is not valid JSON: {reason}")


def _too_large(what: str) -> RequestError:
    return RequestError(f"the body has {what}", code=TOO_LARGE)
