"""Prompts of real texts with requests about them: from a built-in set, or from a user's files.

Random words have no answer, and a small model soon repeats itself on them. What is asked here has
one, as users' prompts have.
"""

import random
import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import count
from math import gcd
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from srt.wire.errors import ConfigError

# By the name of a field; those of the built-in set are among them.
_KINDS = {
    **dict.fromkeys(("text", "passage", "context", "ctx", "article", "document"), "text"),
    **dict.fromkeys(("question", "questions", "prompt", "instruction", "query"), "request"),
    **dict.fromkeys(("turns", "problem", "claim"), "request"),
    **dict.fromkeys(("answer", "answers", "output", "response", "completion"), "answer"),
}
# By who says a message of a chat, in the names of OpenAI's, ShareGPT's and other data sets.
_SAID = {
    **dict.fromkeys(("user", "human", "prompter"), "request"),
    **dict.fromkeys(("assistant", "gpt", "model", "bot"), "answer"),
    "system": "text",
}
_MAX_REQUEST = 96  # pieces; a longer one is a text
_READ_BYTES = 2**20
MAX_DATA_BYTES = 2**30  # of all files: they are held in memory
MAX_TEXT_CHARS = 2**16  # a longer one would hold up the client each time that a part is taken
_GENERAL = (
    "Summarize the text above in three sentences.",
    "What is the most important point of this, and why?",
    "Write three questions that this text answers, with their answers.",
    "Explain the text above to somebody who knows nothing of the subject.",
    "Go on with the text above.",
    "What would you object to in this text?",
)
_JSON = (".jsonl", ".json")
_SUFFIXES = (*_JSON, ".txt", ".md")
_MIN_PART = 8  # pieces of a text that is put in front to fill a prompt
_ANSWER = "\nAnswer:"

# A word or a sign, with the space in front: tokens follow these more closely than words, above all
# in code. What is longer than a word is several pieces: not all languages have spaces.
_PIECE = re.compile(r"\s*(?:\w{1,16}|[^\w\s])")


class Item(Struct):
    """A request about a text, and an answer; any of them may be empty, but not all."""

    text: str = ""
    request: str = ""
    answer: str = ""

    @property
    def body(self) -> str:
        """What can stand in front of another request."""
        return self.text or f"{self.request}\n{self.answer}".strip()


class Corpus:
    """Items, those of them with an answer (all, if there are none), and all different bodies."""

    def __init__(self, items: Iterable[Item]) -> None:
        self.items = list(items)
        self.answered = [item for item in self.items if item.answer and item.request] or self.items
        self.bodies = list(dict.fromkeys(item.body for item in self.items))


@cache
def built_in() -> Corpus:
    """Texts of many kinds (facts, code, chats, mail, tables, stories), each with three requests."""
    return read_corpus(Path(__file__).with_name("texts.jsonl"))


def read_corpus(path: Path) -> Corpus:
    """A file, or those in a directory that end in .jsonl, .json, .txt or .md.

    JSON is searched for fields with names that are usual for texts, requests and answers, and for
    messages of chats; each object at the top of a file has its own. Of other files a paragraph is
    a text. Of a text the first MAX_TEXT_CHARS are taken. Raises ConfigError if nothing is found, a
    file cannot be read, or there are more than MAX_DATA_BYTES.
    """
    items, left = list[Item](), MAX_DATA_BYTES
    try:
        for file in [path] if not path.is_dir() else sorted(path.iterdir()):
            if file == path or file.suffix in _SUFFIXES:
                content = _content_of(file, left)
                if len(content) > left:
                    raise ConfigError(
                        f"--data {path}: it has more than {MAX_DATA_BYTES} bytes; name a part of it"
                    )
                left -= len(content)
                items += _items_of(file, content)
    except OSError as error:
        raise ConfigError(f"--data {error.filename or path}: {error.strerror}") from error
    if not items:
        raise ConfigError(f"--data {path}: it has no text and no question")
    return Corpus(items)


def _content_of(file: Path, limit: int) -> bytearray:
    """All of it, or a little more than the limit: it may have no end."""
    content = bytearray()
    with file.open("rb") as opened:
        while len(content) <= limit and (part := opened.read(_READ_BYTES)):
            content += part
    return content


def _items_of(file: Path, content: bytearray) -> Iterator[Item]:
    where = str(file)
    try:
        if file.suffix not in _JSON:
            paragraphs = map(_cut, re.split(r"\n\s*\n", content.decode()))
            yield from (Item(text=part) for part in paragraphs if part)
        elif file.suffix == ".json":
            whole = msgspec.json.decode(content)
            for value in whole if isinstance(whole, list) else [whole]:
                yield from _items_in(value)
        else:
            for number, line in enumerate(content.splitlines(), 1):
                where = f"{file}, line {number}"
                if line.strip():
                    yield from _items_in(msgspec.json.decode(line))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"--data {where}: {error}") from error


def _items_in(value: Any) -> list[Item]:
    """Of one object. An answer is that of the request before it."""
    texts: list[str] = []
    items: list[Item] = []
    for kind, said in _said_in(value):
        if kind == "text" or (kind == "request" and pieces(said) > _MAX_REQUEST):
            texts.append(said)
        elif kind == "request":
            items.append(Item(request=said))
        elif items and not items[-1].answer:
            items[-1].answer = said
    text = _cut("\n\n".join(texts))
    for item in items:
        item.text = text
    return items or ([Item(text=text)] if text else [])


def _cut(text: str) -> str:
    return text.strip()[:MAX_TEXT_CHARS].rstrip()


def _said_in(value: Any) -> Iterator[tuple[str, str]]:
    """Every text below `value` that is of a kind, with the kind, in their order."""
    if isinstance(value, str):
        if text := _cut(value):
            yield ("request" if value.rstrip().endswith("?") else "text"), text
    elif isinstance(value, list):
        for item in value:
            if not isinstance(item, str):
                yield from _said_in(item)
    elif isinstance(value, dict):
        kind = _SAID.get(str(value.get("role") or value.get("from")))
        said = next((value[name] for name in ("content", "value", "text") if name in value), None)
        is_message = kind is not None and isinstance(said, str)
        if kind is not None and isinstance(said, str) and said.strip():
            yield kind, _cut(said)
        for name, item in value.items():
            for text in item if isinstance(item, list) else [item]:
                if not isinstance(text, str):
                    yield from _said_in(text)
                elif name in _KINDS and text.strip() and not is_message:
                    yield _KINDS[name], _cut(text)


def pieces(text: str) -> int:
    """How many words and signs `text` has."""
    return sum(1 for _ in _PIECE.finditer(text))


class CorpusSource:
    """Prompts from one seed: the same seed and calls give the same ones. A word of it is a piece,
    as `pieces` counts. Nothing comes twice before everything has come once."""

    def __init__(
        self, seed: int | str, tokens_per_word: float = 1.0, corpus: Corpus | None = None
    ) -> None:
        self.tokens_per_word = tokens_per_word
        self._rng = random.Random(seed)
        self._corpus = corpus or built_in()
        self._items = self._order(len(self._corpus.items))
        self._answered = self._order(len(self._corpus.answered))
        self._bodies = self._order(len(self._corpus.bodies))

    def words(self, text: str) -> int:
        """See `Source`."""
        return pieces(text)

    def request(self, tokens: int) -> str:
        """See `Source`: a request, with a text in front that it is about, and others before that
        until it is long enough. What is too long is cut."""
        return self._about(self._corpus.items[next(self._items)], self._count(tokens))

    def prompt(self, tokens: int) -> str:
        """See `Source`."""
        room = self._count(tokens) - pieces(_ANSWER)
        if room < _MIN_PART:
            return self.request(tokens)
        return self._about(self._corpus.items[next(self._items)], room) + _ANSWER

    def pair(self, tokens: int, answer_tokens: int) -> tuple[str, str]:
        """See `Source`. What the answer is too short for, its request has more."""
        item = self._corpus.answered[next(self._answered)]
        answer = self._part(item.answer or self._body(), self._count(answer_tokens), is_start=True)
        room = self._count(tokens + answer_tokens) - pieces(answer)
        return self._about(item, room), " " + answer

    def _order(self, size: int) -> Iterator[int]:
        """All indices in an order of this seed, again and again; nothing is made in advance,
        because a source may be for one prompt."""
        start = self._rng.randrange(size)
        # Far apart, because neighbours may be about one text.
        steps = (self._rng.randrange(size // 3 + 1, size * 2 // 3 + 2) for _ in count())
        step = next(step for step in steps if gcd(step, size) == 1)
        return ((start + i * step) % size for i in count())

    def _count(self, tokens: int) -> int:
        return max(1, round(tokens / self.tokens_per_word))

    def _about(self, item: Item, room: int) -> str:
        """A request of `room` pieces; begins with a space."""
        request = self._part(item.request or self._rng.choice(_GENERAL), room, is_start=True)
        room -= pieces(request)
        parts = [request]
        body = item.text or self._body()
        while room >= _MIN_PART:
            part = self._part(body, room)
            room -= pieces(part)
            parts.insert(0, part)
            body = self._body(but=item.text)
        return " " + "\n\n".join(parts)

    def _body(self, but: str = "") -> str:
        """The next text, and not `but` unless there is no other."""
        bodies = self._corpus.bodies
        found = bodies[next(self._bodies)]
        return bodies[next(self._bodies)] if found == but else found

    def _part(self, text: str, size: int, *, is_start: bool = False) -> str:
        """At most `size` pieces of `text`: from its start, or from anywhere, so that two prompts
        with one text do not begin alike."""
        found = _PIECE.findall(text)
        spare = 0 if is_start else max(len(found) - size, min(_MIN_PART, len(found) // 4))
        start = self._rng.randrange(spare + 1)
        return "".join(found[start : start + size]).strip()
