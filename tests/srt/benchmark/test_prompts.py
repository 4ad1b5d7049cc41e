"""Prompts of files and of lengths, and when they come."""

import json
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from srt.benchmark.corpus import CorpusSource, pieces
from srt.benchmark.prompts import arrivals, of_file, of_length
from srt.benchmark.workloads import Node
from srt.wire.errors import ConfigError


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    chat = [{"role": "user", "content": "Grüße"}]
    lines = [
        {"prompt": "é\n"},
        {"messages": chat, "max_tokens": 7},
        {"prompt": "c", "max_tokens": 2},
    ]
    path.write_text("\n\n".join(json.dumps(line, ensure_ascii=False) for line in lines))
    roots = of_file(path, 0, 5, 1).roots
    assert [(node.text, node.out_tokens, node.fields) for node in roots] == [
        *(("é\n", 5, {}), ("", 7, {"messages": chat}), ("c", 2, {})),
    ]
    assert roots[2].text == "c" and roots[0].text == "é\n"  # in any order
    assert len(of_file(path, 2, 5, 1).roots) == 2


@pytest.mark.parametrize(
    ("content", "count", "message"),
    [
        ('{"prompt": "a"}\n{"prompt": 3}', 0, "line 2: Expected `str | null`"),
        ('{"prompt": "a", "max_tokens": 0}', 0, "line 1: Expected `int` >= 1"),
        ("{}", 0, "line 1: it must have a prompt, or messages"),
        ('{"prompt": "a", "messages": []}', 0, "line 1: it must have a prompt, or messages"),
        ("\n\nnonsense", 0, "line 3: JSON is malformed"),
        ("\n", 0, "it has 0 prompts"),
        ('{"prompt": "a"}', 3, "it has 1 prompts, and --num-prompts is 3"),
    ],
)
def test_files_that_cannot_be(tmp_path: Path, content: str, count: int, message: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigError) as error:
        of_file(path, count, 5, 1)
    assert message in str(error.value) and str(path) in str(error.value)


def test_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="must be a file"):
        of_file(path, 0, 16, 4)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        of_file(tmp_path / "none", 0, 5, 1)


def test_prompts_of_a_length_are_made_when_asked_for() -> None:
    def roots(count: int, seed: int) -> Sequence[Node]:
        return of_length(count, lambda name: CorpusSource(f"{seed}/{name}", 2.0), 60, 5, 1).roots

    many = roots(10**9, 7)
    assert len(many) == 10**9
    assert pieces(many[10**9 - 1].text) == pytest.approx(30, abs=8)
    assert many[3].text == roots(5, 7)[3].text
    assert len({node.text for node in many[:20]}) == 20
    assert many[0].text != roots(5, 8)[0].text


def test_arrivals_are_a_poisson_process() -> None:
    times = arrivals(20_000, 4.0, 1)
    assert times[0] == 0.0 and list(times) == sorted(times)
    gaps = [after - before for before, after in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert mean == pytest.approx(0.25, rel=0.05)
    assert variance == pytest.approx(mean**2, rel=0.1)
    assert list(times[:5]) == list(arrivals(5, 4.0, 1))
