"""The benchmark of speculation: its workloads, turns and tables, and guesses that are replayed."""

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path

import pytest

from bench import speculation
from bench.copying import COPYING, RECORDS
from bench.figures import figures_of
from bench.guesses import Guesses, guesses_of
from bench.speculation import Turn, differences, summary, take_turns
from bench.speculation_offline import ALL, FIRST, Recorded, guess_times, record, tokens_per_step
from bench.speculation_peers import node_for
from srt.benchmark.load import Record, Run
from srt.benchmark.workloads import Node
from srt.wire.messages import Finish
from tests.fakes import FakeClient
from tests.srt.gateway.setup import served


class Here:
    """A contender in this process."""

    def __init__(self, name: str, pieces: tuple[str, ...] = ("x", " y")) -> None:
        self.name = name
        self.client = FakeClient(pieces)
        self.client.finish = Finish("length")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        async with served(self.client) as server:
            yield server.url


@pytest.mark.parametrize("name", COPYING)
def test_requests_repeat_what_they_say(name: str) -> None:
    nodes, again = (list(islice(COPYING[name](None, random.Random(3)), 20)) for _ in range(2))
    assert nodes == again
    assert len({node.text for node in nodes}) > 10
    assert all(node.out_tokens == 160 and 60 < len(node.text.split()) < 700 for node in nodes)
    if name == "extract":
        assert json.loads(nodes[0].fields["json_schema"]) == RECORDS


def test_texts_of_a_directory(tmp_path: Path) -> None:
    paragraph = " ".join(f"Word{i}" for i in range(60))
    files: dict[str, list[dict[str, object]]] = {
        "long_documents.jsonl": [{"text": f"Title\n\n{paragraph}"}],
        "nq_passages.jsonl": [{"question": f"q{i}", "passage": f"passage {i}."} for i in range(4)],
        "react_traces.jsonl": [
            {
                "question": "who",
                "steps": [
                    {"thought": f"t{i}", "action": "a", "observation": "o"} for i in range(3)
                ],
            }
        ],
    }
    for file, rows in files.items():
        (tmp_path / file).write_text("".join(json.dumps(row) + "\n" for row in rows))
    first = {name: next(make(tmp_path, random.Random(0))) for name, make in COPYING.items()}
    assert first["quote"].text.endswith(
        f"{paragraph}\n\nThe text again, word for word:\nWord0 Word1 Word2"
    )
    assert all(f"passage {i}." in first["rag"].text for i in range(4))
    assert first["react"].text.endswith("Thought 2: t1\nAction 2: a\nObservation 2: o\nThought 3:")


async def test_all_contenders_answer_each_group_in_turns() -> None:
    args = speculation.parse_args(
        ["--workload", "quote", "retry", "batch", "--requests", "4", "--out-tokens", "2"]
    )
    here = [Here("off"), Here("tree"), Here("auto")]
    turns = await take_turns(here, 2, args)
    assert [(turn.workload, turn.server) for turn in turns] == [
        *(("quote", name) for name in ("off", "auto", "auto", "off")),
        *(("retry", name) for name in ("off", "tree", "auto", "auto", "tree", "off")),
        *(("batch", name) for name in ("off", "auto", "auto", "off")),
    ]
    assert [sorted(turn.texts) for turn in turns[:3]] == [[0, 1], [0, 1], [2, 3]]
    assert not differences(turns, ["off", "tree", "auto"])
    sampled = [request.sampling for request in here[0].client.requests[-4:]]
    assert all(sampling.temperature == 1.0 for sampling in sampled)
    assert len({sampling.seed for sampling in sampled}) == 4
    asked = [request.text for request in here[0].client.requests]
    assert [request.text for request in here[2].client.requests][:4] == asked[:4]


async def test_another_text_is_found() -> None:
    args = speculation.parse_args(["--workload", "quote", "--requests", "1"])
    turns = await take_turns([Here("off"), Here("8", ("x", " z")), Here("vllm", ("no",))], 1, args)
    (found,) = differences(turns, ["off", "8"])
    assert "from character 2 on, 8 has 'z', off 'y'" in found


def test_metrics_are_added_up() -> None:
    text = """
# TYPE srt_drafted_tokens_total counter
srt_drafted_tokens_total{source="own"} 8
srt_drafted_tokens_total{source="tree"} 4
srt_accepted_draft_tokens_total{source="own"} 6
srt_verified_drafts_total 3
srt_forward_steps_total 5
"""
    found = guesses_of(text)
    assert found == Guesses(verified=3, drafted=12, accepted=6, steps=5)
    assert found.accept_length == 3.0
    assert found.since(Guesses(drafted=2)).drafted == 10
    assert guesses_of("").accept_length is None
    text = """
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0"} 4.0
vllm:spec_decode_num_draft_tokens_total{engine="0"} 20.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 10.0
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 3
"""
    assert guesses_of(text) == Guesses(verified=4, drafted=20, accepted=10)


def turn(server: str, number: int, wall_s: float) -> Turn:
    run = Run([Record(0.0, wall_s, [], "x", 10, None, 100)], wall_s, 0.1)
    counted = Guesses() if server in ("off", "vllm") else Guesses(20, 80, 60, 40, 1.0, 0.1)
    return Turn(server, "quote", 1, figures_of(run), counted, {number: "x"})


def test_the_table() -> None:
    turns = [turn("off", 0, 2.0), turn("4", 0, 1.0), turn("auto", 0, 1.1)]
    turns += [turn("auto", 1, 1.1), turn("4", 1, 1.0), turn("off", 1, 3.0)]
    (text,) = summary(turns)
    rows = {line.split()[1]: line.split() for line in text.splitlines() if line.startswith("|")}
    off, four = ([cell for cell in rows[name] if cell != "|"] for name in ("off", "4"))
    assert off == ["off", "5.00", "40.0", "-", "-", "-", "-", "1.00", "1.00", "to", "1.00"]
    assert four == [
        "4",
        "2.00",
        "100.0",
        "4.00",
        "0.40",
        "25.00",
        "2.50",
        "2.50",
        "2.00",
        "to",
        "3.00",
    ]
    assert text.endswith("auto over the best fixed, 4: 1.10 (median of pairs 1.10)")


def test_the_table_with_peers() -> None:
    walls = {"off": 2.0, "auto": 1.0, "vllm": 8.0, "vllm/ngram": 4.0}
    turns = [turn(name, 0, wall_s) for name, wall_s in walls.items()]
    turns += [turn(name, 1, wall_s) for name, wall_s in (walls | {"vllm/ngram": 2.0}).items()]
    (text,) = summary(turns)
    _, ours, _, theirs = text.split("\n\n")
    assert "vllm" not in ours
    rows = {
        cells[0]: cells[1:]
        for line in theirs.splitlines()
        if (cells := [cell.strip() for cell in line.strip("|").split("|")])
    }
    assert rows["off"] == ["50.0", "-", "-", "2.00 (2.00 to 2.00)"]
    assert rows["auto"] == ["100.0", "4.00", "2.00 (2.00 to 2.00)", "-"]
    assert rows["vllm"][2:] == ["-", "8.00 (8.00 to 8.00)"]
    assert rows["vllm/ngram"] == ["33.3", "4.00", "2.67 (2.00 to 4.00)", "3.00 (2.00 to 4.00)"]
    turns[2].figures.out_tok_s = turns[2].figures.out_tokens = 0  # where a request has failed
    assert "8.00" not in summary(turns)[0]


def test_command_lines(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.touch()
    names = ["llamacpp", "llamacpp/k4v", "vllm", "vllm/ngram"]
    args = speculation.parse_args(["--peers", *names, "--model-file", str(model)])
    lines = {one.name: " ".join(one.extra) for one in speculation.contenders_of(args, tmp_path)}
    assert list(lines) == ["off", "1", "2", "4", "8", "tree", "auto", *names]
    assert lines["off"] == "--speculative off"
    assert lines["4"] == "--speculative own --speculative-max-tokens 4"
    assert lines["tree"] == "--speculative tree --speculative-max-tokens 8"
    assert lines["llamacpp"] == "--metrics --parallel 16 -c 32768"
    assert lines["llamacpp/k4v"] == (
        "--spec-type ngram-map-k4v --spec-ngram-map-k4v-size-n 8 --spec-ngram-map-k4v-size-m 8 "
        f"--spec-ngram-map-k4v-min-hits 2 {lines['llamacpp']}"
    )
    assert lines["vllm"] == ""
    option, _, config = lines["vllm/ngram"].partition(" ")
    assert option == "--speculative-config"
    assert json.loads(config) == {
        "method": "ngram",
        "num_speculative_tokens": 5,
        "prompt_lookup_min": 4,
        "prompt_lookup_max": 4,
    }


def test_schemas_as_servers_take_them() -> None:
    node = next(COPYING["extract"](None, random.Random(0)))
    assert node_for("off", node) == node
    assert node_for("llamacpp/k4v", node).fields == {"json_schema": RECORDS}
    assert node_for("vllm", node).fields == {"structured_outputs": {"json": RECORDS}}
    assert node_for("vllm", Node("a", 1)) == Node("a", 1)


def test_replayed_guesses(tmp_path: Path) -> None:
    """A period of five tokens is guessed as soon as it has begun again; others never."""
    periodic = Recorded("quote", [1, 2, 3, 4, 5, 1, 2], [3, 4, 5, 1, 2] * 9, 45)
    fresh = Recorded("single", list(range(20)), list(range(20, 60)), 40)
    assert tokens_per_step([periodic], 8) == 9.0
    assert tokens_per_step([periodic], 2) == 3.0
    assert tokens_per_step([fresh], 8) == 1.0
    times = guess_times([periodic, periodic, fresh], 300)
    seen, own, tree, limits, later = (
        len(times[name]) for name in ("seen", "own", "tree", "limits", ALL)
    )
    assert len(times[FIRST]) == 3 and 10 < seen < own < tree == limits == later
    assert all(all_us >= us for us, all_us in zip(times["tree"], times[ALL], strict=True))
    file = tmp_path / "recorded.json"
    file.write_text('[{"workload": "a", "prompt": [1], "outputs": [2], "limit": 3}]')
    assert record({}, "", file) == [Recorded("a", [1], [2], 3)]
