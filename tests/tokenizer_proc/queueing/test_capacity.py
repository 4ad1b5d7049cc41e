"""The bound on the expected wait: who is refused, for how long, and who never is."""

from msgspec.structs import replace

from srt.wire.errors import OVERLOADED, TIMED_OUT
from srt.wire.filled_params import FilledParams
from srt.wire.hints import Hints
from srt.wire.messages import (
    AbortReq,
    Continuation,
    GenerateReq,
    Refused,
    ScoreReq,
    TokenizeReq,
    pack_ids,
)
from srt.wire.ring_messages import CompileReply, Credit, Pace, TokenizedReq
from tests.tokenizer_proc.admission.test_front import (
    EPOCH,
    A,
    admitted,
    make_front,
    refused,
    request,
    samples,
)
from tests.tokenizer_proc.direct_front import DirectFront
from tokenizer_proc.admission.front import Word
from tokenizer_proc.admission.parking import Parked
from tokenizer_proc.dispatch.admission import Admission
from tokenizer_proc.queueing.capacity import SLACK, QueueWait, QueueWaits

# Each token of a waiting prompt takes 0.1 s, each request without a place 2 s. "hello" is 5 tokens.
PACE = Pace(EPOCH, prompt_token_s=0.1, request_s=2.0)


def busy_front(limit_s: float = 5.0, waiting: int = 0, pace: Pace = PACE) -> DirectFront:
    """A front with `waiting` requests. The longest expected wait that it allows is `limit_s`."""
    front = make_front(max_requests=100, max_queue_wait_s=limit_s * SLACK)
    for i in range(waiting):
        admitted(front, request(f"w{i}"))
    front.dispatch.pace(pace)
    return front


def test_what_is_before_a_request_decides() -> None:
    front = busy_front(waiting=2)  # 2 * (0.5 + 2.0) s
    admitted(front, request("third"))
    error = refused(front, request("fourth"))
    assert (error.code, error.retryable, error.param) == (OVERLOADED, True, None)
    assert error.retry_after_s == 2.5
    assert "would wait for up to 9 s, and may wait for 6.25" in error.message


def test_what_prompts_share_is_not_waited_for() -> None:
    """A burst of questions about two documents in turn, not yet reported on by the scheduler."""
    wait = QueueWait()
    wait.update(Pace(EPOCH, prompt_token_s=1.0, free_places=30))
    for i in range(30):
        ids = pack_ids([i % 2] * 400 + [10 + i])
        wait.enter(TokenizedReq(A, f"r{i}", EPOCH, ids, FilledParams()))
    assert wait.expected_s() == 2 * 401 + 28


def test_a_request_that_finds_nothing_before_it_is_taken_however_large() -> None:
    front = busy_front(limit_s=0.1)
    assert len(samples(front, request(sampling={"n": 50}))) == 50
    assert refused(front, request("s")).code == OVERLOADED


def test_without_a_word_of_the_scheduler_all_are_taken() -> None:
    front = busy_front(waiting=90, pace=Pace(EPOCH))
    admitted(front, request())


def test_no_limit() -> None:
    admitted(busy_front(limit_s=0.0, waiting=90), request())


def test_those_with_a_place_cost_their_prompts_only() -> None:
    front = busy_front(limit_s=4.0, waiting=8, pace=replace(PACE, free_places=20))
    admitted(front, request())  # 8 * 0.5 s
    assert refused(front, request("s")).retry_after_s == 0.5


def test_what_has_left_the_queue_is_not_waited_for() -> None:
    front = busy_front(waiting=4, limit_s=6.0)
    assert refused(front, request()).code == OVERLOADED
    front.dispatch.pace(replace(PACE, left=3, left_tokens=15))
    admitted(front, request())


def test_a_refusal_comes_before_the_prompt_is_looked_at() -> None:
    front = busy_front(waiting=4)
    assert refused(front, request(text="x" * 10_000_000)).code == OVERLOADED
    assert refused(front, request(text=None, input_ids=b"123")).code == OVERLOADED


def test_the_rest_of_a_batch_is_taken() -> None:
    front = busy_front(waiting=4)
    admitted(front, request(joined=True))


def test_scores_are_refused_too() -> None:
    front = busy_front(waiting=4)
    answer = front.score(A, ScoreReq("s", EPOCH, continuations=[Continuation("b")], text="a"))
    assert isinstance(answer, Refused)
    assert answer.error.code == OVERLOADED


def test_a_score_counts_its_parts() -> None:
    front = busy_front(limit_s=5.0)
    req = ScoreReq("s", EPOCH, continuations=[Continuation(c) for c in "abc"], text="x")
    assert isinstance(front.score(A, req), Admission)
    assert refused(front, request()).retry_after_s > 1.0  # 3 * (0.2 + 2.0) s


def test_parked_requests_count_from_when_they_go_on() -> None:
    front = busy_front(limit_s=1.0)
    parked = front.generate(A, request("p", sampling={"regex": "a+"}), now=0.0)
    assert isinstance(parked, Parked)
    admitted(front, request("q"))
    front.dispatch.pace(replace(PACE, left=1, left_tokens=5))
    assert parked.question is not None
    front.grammars.compiled(CompileReply(parked.question.id, EPOCH, key="k"), 0.0)
    assert refused(front, request()).code == OVERLOADED


def test_ends_and_aborts_are_the_schedulers_to_tell() -> None:
    front = busy_front(waiting=4)
    front.dispatch.credit(Credit(A, "w0", EPOCH))
    front.aborted(A, AbortReq("w1", EPOCH))
    assert refused(front, request()).code == OVERLOADED
    front.dispatch.pace(replace(PACE, left=4, left_tokens=20))
    admitted(front, request())


def test_when_all_have_ended_nobody_waits_whatever_was_told_last() -> None:
    front = busy_front(waiting=4)
    for i in range(4):
        front.dispatch.credit(Credit(A, f"w{i}", EPOCH))
    admitted(front, request())


def test_another_epoch_begins_with_nobody_before() -> None:
    front = busy_front(waiting=4)
    front.dispatch.pace(Pace(EPOCH - 1, left=4, left_tokens=20))
    assert refused(front, request()).code == OVERLOADED
    front.reset(EPOCH + 1, [EPOCH + 1])
    admission = front.generate(A, replace(request(), epoch=EPOCH + 1), now=0.0)
    assert isinstance(admission, Admission)


def test_what_waits_to_be_read_counts() -> None:
    front = busy_front(limit_s=4.0, waiting=1)
    front.submit(A, request("unread"), now=0.0)
    assert refused_at_once(front, request("late"))
    piece = front.turns.take()
    assert piece is not None
    front.has_read(piece, front.text.read(piece.req), now=0.0)
    assert refused_at_once(front, request("late"))
    front.dispatch.pace(replace(PACE, left=2, left_tokens=10))
    assert not refused_at_once(front, request("late"))


def test_unread_prompts_may_share_all_with_those_before_them() -> None:
    """A burst of few-shot prompts; only the first has been read."""
    front = busy_front(limit_s=5.0, pace=replace(PACE, free_places=50))
    shared = "an example for all of them. "  # 2.8 s
    admitted(front, request("first", text=shared + "1"))
    unread = [request(f"r{i}", text=shared + str(i)) for i in range(20)]
    for req in unread:
        assert not refused_at_once(front, req)
    words = read_all(front, len(unread))
    assert all(isinstance(word, Admission) for word in words)


def test_prompts_of_their_own_are_refused_when_they_have_been_read() -> None:
    front = busy_front(limit_s=4.0, pace=replace(PACE, free_places=50))
    for i in range(5):
        assert not refused_at_once(front, request(f"r{i}", text=f"{i} is another beginning"))
    admissions = read_all(front, 5)  # 2.2 s each
    assert [type(word) for word in admissions] == [Admission, Admission, Refused, Refused, Refused]
    assert (front.in_flight, front.tokens_in_flight) == (2, 44)
    front.dispatch.pace(replace(PACE, left=2, left_tokens=44))
    admitted(front, request("r3", text="3 is another beginning"))


def test_a_prompt_that_has_been_read_does_not_wait_for_itself() -> None:
    front = busy_front(limit_s=1.0, waiting=1)
    front.dispatch.credit(Credit(A, "w0", EPOCH))  # not yet reported to have left the queue
    assert len(samples(front, request("n", text="x" * 50, sampling={"n": 20}))) == 20


def test_a_flood_of_texts_counts_for_its_own_caller_only() -> None:
    """Another caller's text comes after the first of the flood, and does not wait for the rest."""
    front = busy_front(limit_s=4.0, pace=Pace(EPOCH))
    for i in range(50):
        front.submit(A, request(f"u{i}"), now=0.0)
    front.dispatch.pace(PACE)
    assert not isinstance(front.submit(b"other", request("late"), now=0.0), Refused)
    assert refused_at_once(front, request("late"))


def test_what_is_aborted_unread_counts_no_more() -> None:
    front = busy_front(limit_s=4.0, waiting=1)
    front.submit(A, request("unread"), now=0.0)
    front.aborted(A, AbortReq("unread", EPOCH))
    assert not refused_at_once(front, request("late"))


def test_texts_that_are_only_tokenized_are_not_waited_for() -> None:
    front = busy_front(limit_s=4.0, waiting=1)
    for i in range(50):
        front.submit(A, TokenizeReq(f"t{i}", EPOCH, text="hello"), now=0.0)
    assert not refused_at_once(front, request("late"))


def read_all(front: DirectFront, count: int) -> list[Word | None]:
    words = []
    for _ in range(count):
        piece = front.turns.take()
        assert piece is not None
        words.append(front.has_read(piece, front.text.read(piece.req), now=0.0))
    return words


def refused_at_once(front: DirectFront, req: GenerateReq) -> bool:
    return isinstance(front.submit(A, req, now=0.0), Refused)


# ---- timeout_ms ------------------------------------------------------------------------------


def test_a_deadline_goes_with_every_sample() -> None:
    front = make_front()
    answer = front.generate(A, request(timeout_ms=1500, sampling={"n": 2}), now=10.0)
    assert isinstance(answer, Admission)
    assert [part.deadline_s for part in answer.parts] == [11.5, 11.5]
    assert admitted(front, request("s")).deadline_s == 0.0


def test_a_timeout_is_bounded() -> None:
    for value in (-1, 10**9):
        assert refused(make_front(), request(timeout_ms=value)).param == "timeout_ms"


def test_one_that_is_read_too_late_is_refused() -> None:
    front = make_front()
    front.submit(A, request(timeout_ms=100), now=0.0)
    piece = front.turns.take()
    assert piece is not None
    word = front.has_read(piece, front.text.read(piece.req), now=0.2)
    assert isinstance(word, Refused)
    assert (word.error.code, word.error.retryable) == (TIMED_OUT, True)
    assert front.in_flight == 0


def test_one_whose_text_is_not_read_in_time_is_refused_meanwhile() -> None:
    front = make_front()
    front.submit(A, request("late", timeout_ms=2000, sampling={"n": 2}), now=0.0)
    front.submit(A, request("later", timeout_ms=2000), now=1.0)
    reading = front.turns.take()
    assert reading is not None and reading.req.rid == "late"
    assert front.expire(1.9) == []
    ((client, word),) = front.expire(2.1)
    assert isinstance(word, Refused)
    assert (client, word.rid, word.error.code) == (A, "late", TIMED_OUT)
    assert front.has_read(reading, front.text.read(reading.req), now=2.2) is None
    assert front.in_flight == 1
    assert front.submit(A, request("late"), now=3.0) is None  # its rid is free


def test_one_that_is_parked_too_long_is_refused() -> None:
    front = make_front()
    front.generate(A, request("p", sampling={"regex": "a+"}, timeout_ms=2000), now=0.0)
    front.generate(A, request("q", sampling={"regex": "a+"}), now=0.0)
    assert front.expire(1.9) == []
    ((client, word),) = front.expire(2.1)
    assert client == A
    assert isinstance(word, Refused)
    assert (word.rid, word.error.code) == ("p", TIMED_OUT)
    assert front.in_flight == 1


def test_one_that_chooses_its_replica_waits_there() -> None:
    """Elsewhere nothing waits. It goes elsewhere only if its replica has no scheduler."""
    front = make_front(max_requests=100)
    waits = front.dispatch.waits = QueueWaits(4.0, 2)
    front.dispatch.relay.reset([2, 3])
    front.dispatch.hear([2, 3], [0, 1])
    waits.update(0, Pace(2, free_places=9))
    waits.update(1, Pace(3, left=-3, request_s=2.0))
    for number, chosen in enumerate((None, 0)):
        admitted(front, request(f"r{number}", routed_replica=chosen))
    assert refused(front, request("busy", routed_replica=1)).code == OVERLOADED
    admitted(front, request("joined", routed_replica=1, joined=True))
    front.dispatch.hear([2, 3], [0])
    admitted(front, request("elsewhere", routed_replica=1))


def test_one_of_the_class_latency_waits_for_its_class_only() -> None:
    """Running ones of throughput would give way to it. Beyond its share it has no class."""
    latency, throughput = Hints(perf="latency"), Hints(perf="throughput")
    pace = replace(PACE, giving_way=1)

    def taken(front: DirectFront, rid: str, hints: Hints | None) -> bool:
        return isinstance(front.generate(A, request(rid, hints=hints), now=0.0), Admission)

    front = busy_front(waiting=3, pace=pace)  # 3 * (0.5 + 2.0) s
    assert not taken(front, "plain", None) and not taken(front, "throughput", throughput)
    found = [taken(front, f"l{i}", latency) for i in range(4)]
    assert found == [True, True, True, False]  # 3 * 0.5 + 2 * 2.0 s
    front.dispatch.pace(replace(pace, left=3, left_tokens=15, left_first=3, left_first_tokens=15))
    assert taken(front, "l5", latency)

    few = make_front(max_requests=100, max_running=4, max_queue_wait_s=5.0 * SLACK)
    for i in range(3):
        admitted(few, request(f"w{i}"))
    few.dispatch.pace(pace)
    assert [taken(few, f"l{i}", latency) for i in range(2)] == [True, False]

    plain = make_front(max_requests=100, has_classes=False, max_queue_wait_s=5.0 * SLACK)
    for i in range(3):
        admitted(plain, request(f"w{i}"))
    plain.dispatch.pace(PACE)
    assert not taken(plain, "l0", latency)
