"""What counts as a piece of an answer, and as a failure."""

import json
from typing import Any

import pytest

from srt.benchmark.load import LoadGenerator, Record
from tests.bench.test_event_stream import OK, answering

USAGE = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}}


async def record_of(*chunks: Any, marker: str = "data: ") -> Record:
    """Of a chat that is answered by these chunks."""
    events = "".join(f"{marker}{json.dumps(chunk)}\n\n" for chunk in chunks)
    body = f"{events}{marker}[DONE]\n\n".encode()
    answer = OK + b"content-length: %d\r\n\r\n" % len(body) + body
    async with answering(answer) as (url, _), LoadGenerator(url, "small") as load:
        return await load.complete("", 3, {"messages": []})


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"delta": fields}], "error": None}


async def test_thoughts_and_calls_are_pieces_too() -> None:
    call = [{"function": {"name": "f"}}]
    chunks = (delta(role="assistant"), delta(reasoning_content="a"), delta(reasoning="b"))
    record = await record_of(*chunks, delta(tool_calls=call), delta(content="c"), USAGE)
    assert record.error is None and record.text == "c" and len(record.chunk_times) == 4
    assert (record.prompt_tokens, record.completion_tokens) == (5, 3)


async def test_no_blank_behind_the_colon() -> None:
    record = await record_of(delta(content="c"), USAGE, marker="data:")
    assert record.error is None and record.text == "c"


async def test_an_answer_may_be_empty() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 0}}
    assert (await record_of(usage)).error is None
    assert (await record_of({"choices": [{"delta": None}]}, USAGE)).error is None


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        (delta(content="c"), "the stream ended without usage"),
        ({"error": {"message": "out of memory"}}, "out of memory"),
        ({"choices": ["text"]}, "an event that cannot be read"),
        ([1], "an event that cannot be read"),
    ],
)
async def test_failures(chunk: Any, message: str) -> None:
    record = await record_of(chunk)
    assert record.error is not None and message in record.error
