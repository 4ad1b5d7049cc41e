"""Pictures and videos of a prompt: in their places among its texts, and as a model's placeholders.

A model's placeholders are control tokens, such as `<image>`. In a program only `image` and `video`
show something, so wherever a text has such a token by itself, it is made literal.
"""

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise, zip_longest
from typing import Any

from lang.backends.base import Image, Prompt, Turn
from lang.errors import UnsupportedError

Span = tuple[int, int]

_PIECE = re.compile(r"<[^<>]+>|\[[^\[\]]+\]")
# What models with these placeholders are used to have around them.
_AROUND = dict.fromkeys(("<|image_pad|>", "<|video_pad|>"), ("<|vision_start|>", "<|vision_end|>"))


def in_order(text: str, images: Sequence[Image], places: Sequence[int]) -> Iterator[str | Image]:
    """The images at their places in the text, each before the character of this number, and the
    texts between them. An image without a place is at the beginning."""
    start = 0
    for image, place in zip_longest(images, places[: len(images)], fillvalue=0):
        assert isinstance(image, Image)
        if text[start:place]:
            yield text[start:place]
        yield image
        start = max(start, place)
    if text[start:]:
        yield text[start:]


def message_of(turn: Turn, url_of: Callable[[Image], str]) -> dict[str, Any]:
    """A turn as OpenAI's API has it, with the images as parts of its content."""
    if not turn.images:
        return {"role": turn.role, "content": turn.content}
    content: list[dict[str, Any]] = []
    for part in in_order(turn.content, turn.images, turn.image_places):
        if isinstance(part, str):
            content.append({"type": "text", "text": part})
        else:
            name = f"{part.kind}_url"
            content.append({"type": name, name: {"url": url_of(part)}})
    return {"role": turn.role, "content": content}


def data_url(mime: str, image: Image) -> str:
    """A URL that holds the image itself."""
    return f"data:{mime};base64,{base64.b64encode(image.data).decode()}"


def with_placeholders(prompt: Prompt, placeholders: Mapping[str, str]) -> tuple[str, list[Span]]:
    """The prompt's text with a placeholder for each image, by its kind, and the parts of it in
    which control tokens are text. Raises UnsupportedError for a kind that has no placeholder."""
    literal = _literal(prompt, placeholders)
    pieces: list[str] = []
    cuts: list[tuple[int, int]] = []  # where something was put in, and how long it is
    place = 0
    for part in in_order(prompt.text, prompt.images, prompt.image_places):
        if isinstance(part, Image):
            cuts.append((place, len(_placeholder(part.kind, placeholders))))
            pieces.append(_placeholder(part.kind, placeholders))
        else:
            place += len(part)
            pieces.append(part)
    return "".join(pieces), _moved(literal, cuts)


def _placeholder(kind: str, placeholders: Mapping[str, str]) -> str:
    if kind not in placeholders:
        takes = "text only" if not placeholders else f"no {kind}s"
        raise UnsupportedError(kind, f"the served model takes {takes}")
    text = placeholders[kind]
    begin, end = _AROUND.get(text, ("", ""))
    return begin + text + end


def _literal(prompt: Prompt, placeholders: Mapping[str, str]) -> list[Span]:
    """The prompt's literal spans, and every token of a placeholder outside of them."""
    spans = list(prompt.literal_spans)
    if placeholders:
        texts = sorted({_placeholder(kind, placeholders) for kind in placeholders})
        spans += [match.span() for match in _pattern(tuple(texts)).finditer(prompt.text)]
    return _united(spans) if len(spans) > len(prompt.literal_spans) else spans


@lru_cache(maxsize=16)
def _pattern(texts: tuple[str, ...]) -> re.Pattern[str]:
    """Finds each of the texts and its tokens."""
    pieces = {piece for text in texts for piece in (text, *_PIECE.findall(text))}
    return re.compile("|".join(re.escape(each) for each in sorted(pieces, key=len, reverse=True)))


def _united(spans: Iterable[Span]) -> list[Span]:
    """The same in order, and none of them overlapping another."""
    made: list[Span] = []
    for start, stop in sorted(spans):
        if made and start < made[-1][1]:
            made[-1] = (made[-1][0], max(stop, made[-1][1]))
        else:
            made.append((start, stop))
    return made


def _moved(spans: Sequence[Span], cuts: Sequence[tuple[int, int]]) -> list[Span]:
    """The spans without what was put in at these places."""
    made: list[Span] = []
    for start, stop in spans:
        edges = [start, *(place for place, _ in cuts if start < place < stop), stop]
        for a, b in pairwise(edges):
            moved = sum(length for place, length in cuts if place <= a)
            if b > a:
                made.append((a + moved, b + moved))
    return made
