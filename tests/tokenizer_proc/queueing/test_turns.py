"""Callers take turns to have their texts read, within bounds; requests that end meanwhile."""

import random
from typing import Any

import pytest

import tokenizer_proc.queueing.turns
from srt.wire.constraint import Capture, Constraint
from srt.wire.errors import BAD_REQUEST, CONFLICT, OVERLOADED, RequestError
from srt.wire.messages import (
    AbortReq,
    Captured,
    CaptureReq,
    ChatMessage,
    ChatOptions,
    Continuation,
    GenerateReq,
    Refused,
    ScoreReq,
    Tokenized,
    TokenizeReq,
    ToolCall,
    ToolSpec,
    pack_ids,
    unpack_ids,
)
from srt.wire.ring_messages import Abort
from srt.wire.sampling import SamplingParams
from tests.running.profiles import seeds
from tests.tokenizer_proc.admission.test_front import EPOCH, A, B, make_front, request
from tokenizer_proc.admission.front import Front, Word
from tokenizer_proc.admission.parking import Parked
from tokenizer_proc.dispatch.admission import Admission
from tokenizer_proc.queueing.turns import Piece, TextReq, Turns
from tokenizer_proc.tokenizing.reading import num_chars


def tokenize(rid: str, text: str = "hello", tenant: str = "") -> TokenizeReq:
    return TokenizeReq(rid=rid, epoch=EPOCH, text=text, tenant=tenant)


def piece(client: bytes, rid: str, tenant: str = "", text: str = "hello") -> Piece:
    req = tokenize(rid, text, tenant)
    return Piece(client, req, num_chars(req), [rid])


def in_turn(turns: Turns) -> list[str]:
    """The rids of all that may be read, in order; each is read at once."""
    order = []
    while (taken := turns.take()) is not None:
        order.append(taken.req.rid)
        turns.done(taken)
    return order


def read_all(front: Front, most: int = 10_000) -> dict[str, Word | None]:
    """What becomes of everything that waits, by rid, or of the first ones of it."""
    words: dict[str, Word | None] = {}
    while len(words) < most and (waiting := front.turns.take()):
        words[waiting.req.rid] = front.has_read(waiting, front.text.read(waiting.req), 0.0)
    return words


# ---- turns ---------------------------------------------------------------------------------------


def test_a_flood_delays_others_by_one_piece() -> None:
    turns = Turns()
    for i in range(30):
        turns.add(piece(A, f"flood {i}"))
    first = turns.take()
    assert first is not None and turns.take() is None  # one at a time for each caller
    turns.add(piece(B, "b"))
    turns.add(piece(A, "other tenant", "t"))
    assert in_turn(turns) == ["b", "other tenant"]
    turns.done(first)
    assert in_turn(turns) == [f"flood {i}" for i in range(1, 30)]
    assert len(turns) == 0


def test_two_floods_alternate() -> None:
    turns = Turns()
    for i in range(3):
        turns.add(piece(A, f"a{i}"))
        turns.add(piece(B, f"b{i}"))
    assert in_turn(turns) == ["a0", "b0", "a1", "b1", "a2", "b2"]


def small_bounds(monkeypatch: pytest.MonkeyPatch, **bounds: int) -> None:
    for name, value in bounds.items():
        monkeypatch.setattr(tokenizer_proc.queueing.turns, f"MAX_{name}", value)


def test_a_caller_cannot_fill_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    small_bounds(monkeypatch, PIECES=5, CALLER_PIECES=3, CHARS=100, CALLER_CHARS=60)
    turns = Turns()
    a, b, c = (piece(client, "").caller for client in (A, B, b"c"))
    for i in range(3):
        turns.check_room(a, 5)
        turns.add(piece(A, f"{i}"))
    with pytest.raises(RequestError, match="too many requests of this caller") as refused:
        turns.check_room(a, 5)
    assert (refused.value.info.code, refused.value.info.retryable) == (OVERLOADED, True)
    with pytest.raises(RequestError, match="too many characters wait"):
        turns.check_room(b, 86)  # more than the other has
    turns.check_room(b, 85)
    turns.add(piece(B, "b", text="x" * 55))
    with pytest.raises(RequestError, match="too many characters of this caller"):
        turns.check_room(b, 6)
    turns.add(piece(B, "b2"))
    with pytest.raises(RequestError, match="too many requests wait"):
        turns.check_room(b, 1)  # as many as the other has
    gone: list[Piece] = []
    turns.gave_way = gone.append
    turns.check_room(c, 1)
    turns.add(piece(b"c", "c"))
    assert [one.req.rid for one in gone] == ["2"] and gone[0].gone and len(turns) == 5
    turns.clear()
    turns.check_room(a, 1000)  # more than may wait: only an empty queue takes it
    assert len(turns) == 0


def gave_way(front: Front) -> set[str]:
    """The rids of the requests that made room for others', since the last call."""
    answers = [answer for _, answer in front.giving_way.take_answers()]
    assert all(isinstance(answer, Refused) for answer in answers)
    return {answer.rid for answer in answers if isinstance(answer, Refused)}


@pytest.mark.parametrize("seeds_of", seeds(3))
def test_nobody_is_shut_out(monkeypatch: pytest.MonkeyPatch, seeds_of: int) -> None:
    for seed in range(20 * seeds_of, 20 * (seeds_of + 1)):
        _fill_and_ask(monkeypatch, seed)


def _fill_and_ask(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Two to four callers fill the queue of texts with many or with long ones; what another one
    sends is read all the same, after one of each of them, and who gives way is told."""
    small_bounds(monkeypatch, PIECES=40, CALLER_PIECES=10, CHARS=4000, CALLER_CHARS=1000)
    rng = random.Random(seed)
    front = make_front(max_requests=rng.choice((30, 1000)), max_tokens=100_000)
    clients = [b"c%d" % number for number in range(rng.randint(2, 4))]
    asked: dict[str, bytes] = {}
    for number in range(rng.choice((30, 200))):
        client, rid = rng.choice(clients), str(number)
        text = "x" * rng.choice((1, 10, 400, 900))
        req: TextReq = rng.choice((tokenize(rid, text), request(rid, text=text)))
        if front.submit(client, req, 0.0) is None:
            asked[rid] = client
        if rng.random() < 0.05:
            for rid in read_all(front, 1):
                asked.pop(rid, None)
    refused = gave_way(front)
    for number in (1000, 1001):
        assert front.submit(b"mine", request(str(number), text="mine"), 0.0) is None
    refused |= gave_way(front)
    assert len(front.turns) <= 40 + len(clients) and not {"1000", "1001"} & refused
    order = list(read_all(front))
    assert set(order) == {rid for rid in asked if rid not in refused} | {"1000", "1001"}
    assert order.index("1000") <= len(clients) and order.index("1001") <= 2 * len(clients) + 1


# ---- at the front --------------------------------------------------------------------------------


def test_ids_do_not_wait_for_texts() -> None:
    front = make_front()
    assert front.submit(A, request("text"), 0.0) is None
    assert front.in_flight == 1
    ids = request("ids", input_ids=pack_ids([1, 2]))
    assert isinstance(front.submit(A, ids, 0.0), Admission)
    assert isinstance(read_all(front)["text"], Admission)
    assert (front.in_flight, front.tokens_in_flight) == (2, 7)


def test_tokenizing_waits_like_the_rest_and_takes_no_place() -> None:
    front = make_front(max_requests=1)
    assert front.submit(A, request("r"), 0.0) is None
    assert front.submit(A, tokenize("t", "ab"), 0.0) is None
    assert front.in_flight == 1
    again = front.submit(A, tokenize("t"), 0.0)
    assert isinstance(again, Refused) and again.error.param == "rid"
    words = read_all(front)
    answer = words["t"]
    assert isinstance(answer, Tokenized) and unpack_ids(answer.ids).tolist() == list(b"ab")
    assert list(words) == ["r", "t"]


def test_captures_are_found_where_texts_are_read() -> None:
    front = make_front(max_requests=1)
    assert front.submit(A, request("r"), 0.0) is None
    front.drain()
    asked = [
        CaptureReq("regex", EPOCH, Constraint("regex", "(?P<x>é+)b"), "ééb"),
        CaptureReq("none", EPOCH, Constraint("regex", "é+b"), "ééb"),
        CaptureReq("bad", EPOCH, Constraint("regex", "(?P<x>"), "b"),
        CaptureReq("long", EPOCH, Constraint("regex", "(?P<x>a*)"), "a" * 10**6),
        CaptureReq("old", EPOCH - 1, Constraint("regex", "(?P<x>a)"), "a"),
    ]
    words = {req.rid: front.submit(A, req, 0.0) for req in asked}
    assert front.in_flight == 1
    words |= read_all(front)
    assert words["regex"] == Captured("regex", EPOCH, [Capture("x", 0, 2, "éé")])
    assert words["none"] == Captured("none", EPOCH, None)
    assert {rid for rid, word in words.items() if isinstance(word, Refused)} == {
        "bad",
        "long",
        "old",
    }
    bad = words["bad"]
    assert isinstance(bad, Refused) and bad.error.code == BAD_REQUEST


def test_all_that_may_be_long_takes_room() -> None:
    long = "x" * 1000
    fields: list[dict[str, Any]] = [{"tool_call_id": long}, {"name": long}, {"reasoning": long}]
    messages = [ChatMessage("user", "hi", **field) for field in fields]
    messages.append(ChatMessage("user", "hi", [ToolCall(long, long, long)]))
    chat = ChatOptions(template_args=long)
    req = TokenizeReq(rid="r", epoch=EPOCH, messages=messages, tools=[ToolSpec(long)], chat=chat)
    assert num_chars(req) >= 8 * 1000


def test_what_is_far_too_long_does_not_wait() -> None:
    front = make_front()
    for req in (request(text="x" * 1601), tokenize("t", "x" * 1601)):
        answer = front.submit(A, req, 0.0)
        assert isinstance(answer, Refused) and answer.error.param == "text"
    chat = ChatOptions(template_args="x" * 1601)
    req = TokenizeReq(rid="c", epoch=EPOCH, messages=[ChatMessage("user", "hi")], chat=chat)
    answer = front.submit(A, req, 0.0)
    assert isinstance(answer, Refused) and answer.error.param == "chat.template_args"
    assert front.turns.take() is None and front.in_flight == 0


@pytest.mark.parametrize("is_read", [False, True])
def test_an_abort_ends_a_request_that_waits(is_read: bool) -> None:
    front = make_front()
    assert front.submit(A, request("r"), 0.0) is None
    taken = front.turns.take() if is_read else None
    ended = front.aborted(A, AbortReq("r", EPOCH))
    assert isinstance(ended, Admission)
    assert (ended.parts, ended.admitted.aborted) == ([], [0])
    assert front.in_flight == 0
    if taken is not None:
        assert front.has_read(taken, front.text.read(taken.req), 0.0) is None
    assert front.turns.take() is None and front.in_flight == 0
    assert front.submit(A, request("r"), 0.0) is None  # the rid is free


@pytest.mark.parametrize("regex", [None, "a"])
def test_samples_are_aborted_one_by_one(regex: str | None) -> None:
    front = make_front()
    assert front.submit(A, request("r", {"n": 3, "regex": regex}), 0.0) is None
    assert front.aborted(A, AbortReq("r/1", EPOCH)) is None
    assert front.aborted(A, AbortReq("r/1", EPOCH)) is None
    assert front.in_flight == 2
    word = read_all(front)["r"]
    if regex is None:
        assert isinstance(word, Admission) and word.admitted.aborted == [1]
        assert [part.rid for part in word.parts] == ["r/0", "r/2"]
        assert front.aborted(A, AbortReq("r/0", EPOCH)) == Abort(A, "r/0", EPOCH)
    else:
        assert isinstance(word, Parked)
        assert front.aborted(A, AbortReq("r/0", EPOCH)) is None
        ended = front.aborted(A, AbortReq("r/2", EPOCH))
        assert isinstance(ended, Admission) and ended.admitted.aborted == [1, 0, 2]
    assert (front.in_flight, front.tokens_in_flight) == ((2, 10) if regex is None else (0, 0))


def test_an_abort_ends_a_score_or_a_tokenization() -> None:
    front = make_front()
    score = ScoreReq("s", EPOCH, continuations=[Continuation("a"), Continuation("b")], text="x")
    assert front.submit(A, score, 0.0) is None and front.submit(A, tokenize("t"), 0.0) is None
    ended = front.aborted(A, AbortReq("s/1", EPOCH))
    assert isinstance(ended, Refused) and (ended.rid, ended.error.code) == ("s", CONFLICT)
    assert front.aborted(A, AbortReq("t", EPOCH)) is None
    assert front.turns.take() is None and front.in_flight == 0


def test_a_new_epoch_ends_what_waits_and_what_is_read() -> None:
    front = make_front()
    reqs: list[TextReq] = [request("r"), tokenize("t")]
    for req in reqs:
        assert front.submit(A, req, 0.0) is None
    taken = front.turns.take()
    assert taken is not None
    front.reset(EPOCH + 1, [EPOCH + 1])
    assert front.turns.take() is None
    assert front.has_read(taken, front.text.read(taken.req), 0.0) is None
    assert (front.in_flight, front.tokens_in_flight) == (0, 0)


def test_a_drain_waits_for_what_waits() -> None:
    front = make_front()
    assert front.submit(A, request("r"), 0.0) is None
    front.drain()
    assert front.in_flight == 1 and isinstance(read_all(front)["r"], Admission)


def test_places_of_a_text_that_is_refused_are_free() -> None:
    front = make_front(max_requests=2)
    fields: dict[str, Any] = {"sampling": SamplingParams(max_new_tokens=1, n=2)}
    assert front.submit(A, GenerateReq(rid="r", epoch=EPOCH, text="", **fields), 0.0) is None
    assert front.in_flight == 2
    full = front.submit(A, request("other"), 0.0)
    assert isinstance(full, Refused) and full.error.code == OVERLOADED
    assert isinstance(read_all(front)["r"], Refused)
    assert (front.in_flight, front.tokens_in_flight) == (0, 0)


def test_a_piece_that_is_held_counts_and_waits_for_nothing_but_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokenizer_proc.queueing.turns, "MAX_CALLER_PIECES", 2)
    turns = Turns()
    held, other, gone = piece(A, "held"), piece(A, "other"), piece(A, "gone")
    for one in (held, gone):
        turns.hold(one)
    assert len(turns) == 2 and turns.named(A, "held") is held and turns.take() is None
    with pytest.raises(RequestError, match="too many requests"):
        turns.check_room(held.caller, 1)
    turns.forget(gone)
    turns.check_room(held.caller, 1)
    turns.add(other)
    turns.add(held)
    assert in_turn(turns) == ["other", "held"]
    turns.forget(other)
    turns.forget(held)
    assert len(turns) == turns._chars.total == 0
    turns.hold(late := piece(B, "late"))
    turns.clear()
    assert late.gone and len(turns) == 0
