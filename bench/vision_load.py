"""Pictures and questions for `bench.vision`, made in code or read from a file."""

import io
import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec import Struct
from PIL import Image

QUESTIONS = (
    "What is shown in this picture?",
    "Describe the picture in detail.",
    "Which colours are the most frequent ones?",
    "What stands out on the left side?",
    "How many things can be counted, and which are they?",
    "Where might this picture have been taken, and when?",
    "Is anything unusual about it? Explain why or why not.",
    "What could happen next?",
    "Write a short story about what can be seen here.",
)
_BLOB = 64  # pixels on a side of what is drawn before it is made as large as the picture


class Question(NamedTuple):
    """About the picture with this number."""

    picture: int
    text: str


class Asked(NamedTuple):
    """What a run shows and asks."""

    pictures: list[bytes]  # files
    questions: list[Question]


def picture(seed: int, width: int, height: int) -> bytes:
    """A JPEG of smooth spots of colour, another one for each seed."""
    small = np.random.default_rng(seed).integers(0, 256, (_BLOB, _BLOB, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC).save(file, "JPEG")
    return file.getvalue()


def made_questions(pictures: int, seed: int, side: int) -> Asked:
    """All QUESTIONS about each of so many square pictures, shuffled."""
    asked = [Question(number, text) for number in range(pictures) for text in QUESTIONS]
    random.Random(seed).shuffle(asked)
    return Asked([picture(seed + number, side, side) for number in range(pictures)], asked)


class _Line(Struct):
    image: str
    text: str


def read_questions(path: Path, seed: int) -> Asked:
    """The questions of a file of JSON lines with `image`, a path from the file's directory, and
    `text`, as llava-bench has them; shuffled."""
    lines = [msgspec.json.decode(line, type=_Line) for line in path.read_bytes().splitlines()]
    names = list(dict.fromkeys(line.image for line in lines))
    asked = [Question(names.index(line.image), line.text) for line in lines]
    random.Random(seed).shuffle(asked)
    return Asked([(path.parent / name).read_bytes() for name in names], asked)


def each_its_own(asked: Asked) -> Asked:
    """The same with another file for each question, of pixels that differ: nothing is shared."""
    files = [
        _marked(asked.pictures[question.picture], number)
        for number, question in enumerate(asked.questions)
    ]
    return Asked(files, [Question(n, q.text) for n, q in enumerate(asked.questions)])


def _marked(file: bytes, number: int) -> bytes:
    """The picture with a corner of a colour that says the number."""
    with Image.open(io.BytesIO(file)) as opened:
        pixels = np.array(opened.convert("RGB"))
    pixels[:16, :16] = [number % 16 * 16, number // 16 % 16 * 16, number // 256 * 16]
    marked = io.BytesIO()
    Image.fromarray(pixels).save(marked, "PNG")
    return marked.getvalue()


def message(text: str, shown: Sequence[bytes] = ()) -> dict[str, object]:
    """A user's message that shows these files first."""
    images = [{"type": "image", "image": file} for file in shown]
    content: object = [*images, {"type": "text", "text": text}] if images else text
    return {"role": "user", "content": content}
