"""Incremental events add up to the answer, whatever jumps replace."""

import random

import msgspec
import pytest

from srt.client.generation import OF_IDS, GenerateOutput, Request
from srt.client.http.answers import joined, parse_output
from srt.gateway.native.answers import NativeAnswers
from srt.wire.messages import JUMP_WINDOW_TOKENS, Finish
from srt.wire.sampling import Scoring
from tests.fakes import FakeClient
from tests.srt.gateway.setup import in_process


def snapshots(rng: random.Random, scores: bool) -> list[GenerateOutput]:
    """Snapshots of an answer whose last ids are replaced now and then, for a slow reader."""
    text, ids, logprobs = "", list[int](), list[float]()
    found: list[GenerateOutput] = []
    for step in range(rng.randint(1, 30)):
        drop = rng.choice([0, 0, rng.randint(0, min(len(ids), JUMP_WINDOW_TOKENS))])
        new = [rng.randint(0, 3) for _ in range(rng.randint(1, 4))]
        ids = ids[: len(ids) - drop] + new
        logprobs = logprobs[: len(logprobs) - drop] + [-float(step)] * len(new)
        text += f"{step},"
        if rng.random() < 0.7:
            found.append(
                GenerateOutput(
                    rid="r",
                    text=text,
                    output_ids=ids,
                    completion_tokens=len(ids),
                    output_logprobs=logprobs if scores else None,
                    output_top_logprobs=[[(each, 5)] for each in logprobs] if scores else None,
                    prompt_logprobs=[(None, 1), (-0.5, 2)][:step] if scores else None,
                    token_origins="s" * len(ids),
                )
            )
    last = found[-1] if found else GenerateOutput(rid="r")
    return [*found, msgspec.structs.replace(last, finish=Finish("length"))]


@pytest.mark.parametrize("scores", [False, True])
def test_events_add_up(scores: bool) -> None:
    for seed in range(100):
        rng = random.Random(seed)
        scoring = Scoring(start=0, top=1) if scores else None
        answers = NativeAnswers([Request(text="a", scoring=scoring)], 1, [], None, True)
        known = GenerateOutput(rid="r")
        for snapshot in snapshots(rng, scores):
            event = msgspec.json.encode(answers.response(0, snapshot, 0.0))
            payload = msgspec.json.decode(event)
            known = joined(known, parse_output(payload), payload["start"])
            for name in ("text", *OF_IDS):
                assert (getattr(known, name) or None) == (getattr(snapshot, name) or None)
            assert (known.prompt_logprobs or None) == (snapshot.prompt_logprobs or None)
            assert known.token_origins == snapshot.token_origins


async def test_a_long_stream_says_each_thing_once() -> None:
    async with in_process(FakeClient(["abcd"] * 100)) as http:
        body = {"text": "p", "stream": True, "incremental": True}
        response = await http.post("/generate", json=body | {"sampling_params": {"n": 2}})
    events = [
        msgspec.json.decode(line.removeprefix(b"data: "))
        for line in response.content.split(b"\n\n")[:-2]
    ]
    for index in range(2):
        mine = [event for event in events if event["index"] == index]
        assert "".join(event["text"] for event in mine) == "abcd" * 100
        assert [event["start"] for event in mine] == [*range(100)]
        assert all(len(event["output_ids"]) == 1 for event in mine)
