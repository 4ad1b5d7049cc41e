"""Answers of several schedulers to one operation."""

import json
from typing import Any

from detokenizer_proc.replies import MAX_OPEN, Replies
from srt.wire.errors import CONFLICT, ErrorInfo
from srt.wire.messages import ControlResult
from srt.wire.ring_messages import ControlReply

EPOCH = 7
BUSY = ErrorInfo(CONFLICT, "the cache is in use")


def reply(replica: int, rid: str = "c", asked: int = 3, **fields: Any) -> ControlReply:
    return ControlReply(b"a", rid, 3 + replica, asked=asked, **fields)


def data(**values: Any) -> bytes:
    return json.dumps(values).encode()


def test_one_schedulers_answer_goes_on_as_it_is() -> None:
    answer = ControlReply(b"a", "c", 5, data(a=1), BUSY)
    assert Replies(1).add(answer, EPOCH) == ControlResult("c", EPOCH, data(a=1), BUSY)


def test_numbers_are_summed_and_ratios_made_anew() -> None:
    replies = Replies(3)
    parts = [
        {"num_used_tokens": 10, "max_total_tokens": 100, "token_usage": 0.1}
        | {"expert_load_max_over_mean": 1.5},
        {"num_used_tokens": 90, "max_total_tokens": 100, "token_usage": 0.9},
        {"num_used_tokens": 0, "max_total_tokens": 100, "token_usage": 0.0},
    ]
    shared = {"executor": "native", "new_token_ratio": 0.5}
    for replica in (2, 0):
        assert replies.add(reply(replica, data=data(**parts[replica], **shared)), EPOCH) is None
    result = replies.add(reply(1, data=data(**parts[1], **shared, front=2)), EPOCH)
    assert result is not None and result.error is None
    total = json.loads(result.data)
    expected = {"num_used_tokens": 100, "max_total_tokens": 300, "token_usage": 1 / 3, "front": 2}
    assert expected.items() <= total.items() and total["executor"] == "native"
    assert total["new_token_ratio"] == 0.5 and total["cache_hit_rate"] == 0.0
    assert total["expert_load_max_over_mean"] == 1.5
    assert [part["replica"] for part in total["replicas"]] == [0, 1, 2]
    assert parts[1].items() <= total["replicas"][1].items()


def test_who_refuses_is_named() -> None:
    replies = Replies(3)
    assert replies.add(reply(2, error=BUSY), EPOCH) is None
    assert replies.add(reply(0), EPOCH) is None
    result = replies.add(reply(1, error=BUSY), EPOCH)
    assert result is not None and result.error is not None
    assert result.error.code == CONFLICT
    assert result.error.message == "scheduler.1, scheduler.2: the cache is in use"


def test_an_empty_answer_of_all_is_empty() -> None:
    replies = Replies(3)
    results = [replies.add(reply(replica), EPOCH) for replica in range(3)]
    assert results == [None, None, ControlResult("c", EPOCH)]


def test_those_that_were_asked_count() -> None:
    """The others had no scheduler."""
    result = Replies(3).add(reply(1, asked=1, data=data(a=1)), EPOCH)
    assert result is not None
    assert json.loads(result.data)["replicas"] == [{"replica": 1, "a": 1}]


def test_answers_that_never_become_whole_are_bounded() -> None:
    replies = Replies(2)
    for number in range(3 * MAX_OPEN):
        assert replies.add(reply(0, rid=str(number), asked=2), EPOCH) is None
    assert len(replies._open) == MAX_OPEN
    replies.clear()
    assert len(replies._open) == 0
