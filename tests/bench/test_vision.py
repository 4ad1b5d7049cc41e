"""The load of the benchmark of pictures."""

import io
from pathlib import Path

import msgspec
import numpy as np
from PIL import Image

from bench.vision_load import (
    QUESTIONS,
    Question,
    each_its_own,
    made_questions,
    message,
    picture,
    read_questions,
)


def pixels(file: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(file)) as opened:
        return np.array(opened)


def test_every_question_is_asked_about_every_picture() -> None:
    asked = made_questions(pictures=3, seed=5, side=32)
    assert sorted(asked.questions) == sorted(Question(n, q) for n in range(3) for q in QUESTIONS)
    assert asked.questions != sorted(asked.questions)
    assert asked == made_questions(pictures=3, seed=5, side=32)
    shapes = {pixels(file).shape for file in asked.pictures}
    assert shapes == {(32, 32, 3)} and len({*asked.pictures}) == 3
    assert pixels(picture(1, 40, 20)).shape == (20, 40, 3)


def test_nothing_is_shared_by_pictures_of_their_own() -> None:
    asked = made_questions(pictures=2, seed=0, side=64)
    alone = each_its_own(asked)
    assert [q.text for q in alone.questions] == [q.text for q in asked.questions]
    seen = {pixels(alone.pictures[q.picture]).tobytes() for q in alone.questions}
    assert len(seen) == len(asked.questions)
    for question, own in zip(asked.questions, alone.questions, strict=True):
        before, after = (
            pixels(asked.pictures[question.picture]),
            pixels(alone.pictures[own.picture]),
        )
        np.testing.assert_array_equal(after[16:], before[16:])


def test_questions_of_a_file(tmp_path: Path) -> None:
    lines = [("a.jpg", "one"), ("b.jpg", "two"), ("a.jpg", "three")]
    for seed, name in enumerate(("a.jpg", "b.jpg")):
        (tmp_path / name).write_bytes(picture(seed, 8, 8))
    path = tmp_path / "questions.jsonl"
    encoded = (msgspec.json.encode({"image": image, "text": text}) for image, text in lines)
    path.write_bytes(b"\n".join(encoded))
    asked = read_questions(path, seed=0)
    assert asked.pictures == [picture(0, 8, 8), picture(1, 8, 8)]
    assert sorted(asked.questions) == [(0, "one"), (0, "three"), (1, "two")]


def test_messages() -> None:
    assert message("hello") == {"role": "user", "content": "hello"}
    parts = [{"type": "image", "image": b"file"}, {"type": "text", "text": "what?"}]
    assert message("what?", [b"file"]) == {"role": "user", "content": parts}
