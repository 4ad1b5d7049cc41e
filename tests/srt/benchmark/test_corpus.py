"""Prompts of real texts: their lengths, their order, and the files that they are read from."""

import json
from pathlib import Path
from statistics import mean

import pytest

from srt.benchmark import corpus
from srt.benchmark.corpus import Corpus, CorpusSource, Item, built_in, pieces, read_corpus
from srt.wire.errors import ConfigError


def test_the_built_in_set() -> None:
    corpus = built_in()
    assert len(corpus.items) >= 3 * len(corpus.bodies) >= 120
    assert len(corpus.answered) == len(corpus.bodies)
    assert all(40 < pieces(item.text) < 300 and item.request for item in corpus.items)


@pytest.mark.parametrize("tokens", [1, 6, 20, 84, 256, 4000])
def test_lengths(tokens: int) -> None:
    source = CorpusSource(5, 2.0)
    for text in (source.request(tokens), source.prompt(tokens), "".join(source.pair(tokens, 20))):
        assert text.startswith(" ") and source.words(text) >= 1
    wanted = max(1, tokens // 2)
    # What would be a piece of a text of a few words is left out.
    assert wanted - 8 < mean(source.words(source.request(tokens)) for _ in range(20)) <= wanted
    assert CorpusSource(5).prompt(64).endswith("\nAnswer:")


def test_a_seed_gives_the_same_prompts() -> None:
    first, again, other = CorpusSource(1), CorpusSource(1), CorpusSource(2)
    texts = [first.prompt(256) for _ in range(64)]
    assert texts == [again.prompt(256) for _ in range(64)]
    assert texts[0] != other.prompt(256)
    assert len({text[:40] for text in texts}) >= 60, "few prompts begin as another one does"


def test_a_text_is_not_repeated_before_all_have_come() -> None:
    corpus = Corpus(Item(text=f"T{i} " * 20) for i in range(6))
    prompt = CorpusSource(0, 1.0, corpus).request(130)
    assert {word for word in prompt.split() if word.startswith("T")} == {f"T{i}" for i in range(6)}


def test_an_answer_belongs_to_its_request() -> None:
    corpus = Corpus([Item("Snow is white.", "What is snow?", "It is white."), Item("Mud.")])
    request, answer = CorpusSource(0, 1.0, corpus).pair(40, 20)
    assert request.endswith("\n\nWhat is snow?") and answer == " It is white."
    assert "is white.\n\nWhat" in request


def write(path: Path, *objects: object) -> Path:
    path.write_text("\n".join(map(json.dumps, objects)) + "\n")
    return path


def test_files_of_many_forms(tmp_path: Path) -> None:
    said = [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So."}]
    (tmp_path / "sharegpt.json").write_text(json.dumps([{"id": "1", "conversations": said}]))
    messages = [{"role": r, "content": c} for r, c in (("system", "Be."), ("user", "Who?"))]
    write(
        tmp_path / "a.jsonl",
        {"question": "What?", "answer": "That.", "passage": "A text.", "title": "no", "n": 3},
        {"turns": ["One?", "Two?"], "reference": None},
        {"messages": messages},
        {"root": {"role": "prompter", "text": "Up?", "replies": [{"role": "bot", "text": "Yes"}]}},
        "Only a string",
        {"schema": {"type": "object"}},
    )
    (tmp_path / "b.txt").write_text("First\nparagraph.\n\n \nSecond.\n")
    (tmp_path / "c.png").write_bytes(b"\xff")
    assert read_corpus(tmp_path).items == [
        Item("A text.", "What?", "That."),
        Item("", "One?"),
        Item("", "Two?"),
        Item("Be.", "Who?"),
        Item("", "Up?", "Yes"),
        Item("Only a string"),
        Item("First\nparagraph."),
        Item("Second."),
        Item("", "Why?", "So."),
    ]
    assert len(read_corpus(tmp_path / "b.txt").items) == 2


def test_a_long_request_is_a_text(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"prompt": "word " * 200})
    (item,) = read_corpus(path).items
    assert item.request == "" and pieces(item.text) == 200


def test_what_is_very_long_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "word " * corpus.MAX_TEXT_CHARS
    (item,) = read_corpus(write(tmp_path / "a.jsonl", {"text": text})).items
    assert len(item.text) == corpus.MAX_TEXT_CHARS and pieces("x" * 100) > 1
    monkeypatch.setattr(corpus, "MAX_DATA_BYTES", 2**20)
    for path in (Path("/dev/zero"), write(tmp_path / "b.jsonl", {"text": text * 4})):
        with pytest.raises(ConfigError, match=f"--data {path}: it has more than 1048576 bytes"):
            read_corpus(path)
    with pytest.raises(ConfigError, match=f"--data {tmp_path}: it has more than"):
        read_corpus(tmp_path)


def test_files_that_cannot_be(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for content, message in (
        (b'{"a": "b"}\n', "it has no text"),
        (b'"a"\n\n{', "line 3: Input data was truncated"),
        (b'"\xff"', "line 1: "),
        (b"[" * 100_000, "line 1: "),
    ):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=message) as error:
            read_corpus(path)
        assert f"--data {path}" in str(error.value)
    with pytest.raises(ConfigError, match="No such file"):
        read_corpus(tmp_path / "none")
