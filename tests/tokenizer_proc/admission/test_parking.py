"""Requests with a constraint: parked until the compiler answers, and every other way out."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from srt.callers.names import caller_of
from srt.wire.answer_meta import AnswerMeta
from srt.wire.constraint import Constraint
from srt.wire.errors import BAD_REQUEST, OVERLOADED, UNAVAILABLE, ErrorInfo
from srt.wire.messages import AbortReq, Admitted, ControlReq, GenerateReq, Refused
from srt.wire.ring_messages import (
    Abort,
    CompileCancel,
    CompileReply,
    CompileReq,
    Control,
    Credit,
    GrammarLost,
    GrammarMade,
    TokenizedReq,
)
from tests.tokenizer_proc.admission.test_front import EPOCH, A, B, make_front, refused, request
from tests.tokenizer_proc.direct_front import DirectFront
from tokenizer_proc.admission.parking import Parked
from tokenizer_proc.dispatch.admission import Admission, Answer

WAIT_S, SILENCE_S = 60.0, 25.0  # those of make_front


def constrained(rid: str = "r", regex: str = "a+", **fields: Any) -> GenerateReq:
    return request(rid, sampling={"regex": regex, **fields})


def parked(
    front: DirectFront, req: GenerateReq, client: bytes = A, now: float = 0.0, tenant: str = ""
) -> CompileReq | None:
    answer = front.generate(client, replace(req, tenant=tenant), now)
    assert isinstance(answer, Parked), answer
    return answer.question


def asked(front: DirectFront, req: GenerateReq, client: bytes = A, now: float = 0.0) -> CompileReq:
    question = parked(front, req, client, now)
    assert question is not None
    return question


def admitted_by(answers: list[Answer]) -> dict[tuple[bytes, str], TokenizedReq]:
    """What goes to the scheduler; none may be refused."""
    found = {}
    for client, word in answers:
        assert isinstance(word, Admission), word
        for part in word.parts:
            assert part.client == client and part.rid.partition("/")[0] == word.admitted.rid
            found[client, part.rid] = part
    return found


def refused_by(answers: list[Answer]) -> dict[tuple[bytes, str], ErrorInfo]:
    found = {}
    for client, word in answers:
        assert isinstance(word, Refused), word
        found[client, word.rid] = word.error
    return found


def unanswered(front: DirectFront) -> list[CompileReq]:
    """The questions that the compiler has not answered."""
    return front.grammars.parking.questions(EPOCH)


def cancelled(front: DirectFront) -> list[CompileCancel]:
    """The questions that need no answer any more, since the last call."""
    return front.grammars.parking.take_cancelled(EPOCH)


# ---- the ways through ------------------------------------------------------------------------


def test_a_constraint_is_compiled_first_and_leaves_the_sampling() -> None:
    front = make_front()
    fields: dict[str, Any] = {"temperature": 0.5, "constraint_after": "</think>"}
    question = asked(front, constrained(**fields))
    assert question.epoch == EPOCH
    assert question.constraint == Constraint("regex", "a+", "compact", "</think>")
    assert (front.in_flight, front.tokens_in_flight) == (1, 5)
    admitted = admitted_by(front.grammars.compiled(CompileReply(question.id, EPOCH, "key"), 0.0))
    plain = front.generate(B, request(sampling={"temperature": 0.5}), now=0.0)
    assert isinstance(plain, Admission) and plain.parts[0].grammar == ""
    sampling = replace(plain.parts[0].sampling, close=False)
    part = replace(plain.parts[0], client=A, grammar="key", sampling=sampling)
    part = replace(part, caller=caller_of(A, ""))
    assert admitted == {(A, "r"): part}
    assert front.aborted(A, AbortReq("r", EPOCH)) == Abort(A, "r", EPOCH)
    front.dispatch.credit(Credit(A, "r", EPOCH))
    assert (front.in_flight, front.tokens_in_flight) == (1, 5)


@pytest.mark.parametrize(
    ("fields", "closes"),
    [
        ({"regex": "a+"}, False),
        ({"regex": "a+", "close": True}, True),
        ({"json_schema": "{}"}, True),
        ({"json_schema": "{}", "close": False}, False),
        ({"ebnf": 'root ::= "a"'}, False),
    ],
)
def test_only_schemas_are_closed_by_themselves(fields: dict[str, Any], closes: bool) -> None:
    front = make_front()
    question = asked(front, request("r", sampling=fields))
    (part,) = admitted_by(
        front.grammars.compiled(CompileReply(question.id, EPOCH, "key"), 0.0)
    ).values()
    assert part.sampling.close is closes


def test_one_question_for_one_constraint() -> None:
    front = make_front(max_requests=5)
    question = asked(front, constrained("1"))
    assert parked(front, constrained("2")) is None
    assert asked(front, constrained("1"), B).id == question.id
    other = asked(front, constrained("3", "b+"))
    assert other.id != question.id
    reply = CompileReply(question.id, EPOCH, "key")
    assert list(admitted_by(front.grammars.compiled(reply, 0.0))) == [(A, "1"), (A, "2"), (B, "1")]
    assert front.grammars.compiled(reply, 0.0) == []
    assert list(admitted_by(front.grammars.compiled(CompileReply(other.id, EPOCH, "k"), 0.0))) == [
        (A, "3")
    ]
    assert asked(front, constrained("1", "a+", max_new_tokens=1), b"c").id not in (
        question.id,
        other.id,
    )


@pytest.mark.parametrize("kind", ["regex", "json_schema", "ebnf", "structural_tag", "choices"])
def test_a_bad_constraint_names_its_field(kind: str) -> None:
    front = make_front()
    value: Any = ["x"] if kind == "choices" else "x"
    question = asked(front, request(sampling={kind: value}))
    error = ErrorInfo(BAD_REQUEST, "unbalanced ) at position 3")
    answers = front.grammars.compiled(CompileReply(question.id, EPOCH, error=error), 0.0)
    worded = ErrorInfo(BAD_REQUEST, ": unbalanced ) at position 3", kind, follows_param=True)
    assert refused_by(answers) == {(A, "r"): worded}
    assert (front.in_flight, front.tokens_in_flight) == (0, 0)


def test_other_failures_pass_through() -> None:
    front = make_front()
    error = ErrorInfo(OVERLOADED, "the server is at its limit", retryable=True)
    question = asked(front, constrained())
    answers = front.grammars.compiled(CompileReply(question.id, EPOCH, error=error), 0.0)
    assert refused_by(answers) == {(A, "r"): error}


def test_a_parked_request_is_checked_and_holds_its_place() -> None:
    front = make_front(max_requests=2, max_tokens=12)
    assert refused(front, constrained(json_schema="{}")).param == "json_schema"
    assert refused(front, request(sampling={"regex": ""})).param == "regex"
    parked(front, constrained("1"))
    assert refused(front, constrained("1")).param == "rid"
    assert refused(front, request("1")).param == "rid"
    assert refused(front, request("2", text="x" * 8)).code == OVERLOADED
    parked(front, constrained("2"))
    assert refused(front, request("3", text="x")).code == OVERLOADED


# ---- askers ----------------------------------------------------------------------------------


def test_each_asker_asks_once() -> None:
    """All with one id: the compiler uses the best turn. After its restart all ask again."""
    front = make_front(max_requests=9)
    tenants = [(A, "1", "x"), (A, "2", "x"), (A, "3", "y"), (B, "1", "x"), (A, "4", "y")]
    found = [
        parked(front, constrained(rid), client, tenant=tenant) for client, rid, tenant in tenants
    ]
    questions = [question for question in found if question is not None]
    assert [question is None for question in found] == [False, True, False, False, True]
    assert len({question.id for question in questions}) == 1
    assert len({question.asker for question in questions}) == 3
    assert unanswered(front) == questions
    answers = front.grammars.compiled(CompileReply(questions[0].id, EPOCH, "key"), 0.0)
    assert len(admitted_by(answers)) == 5


# ---- grammars that lie ready -----------------------------------------------------------------


def test_a_grammar_that_lies_ready_needs_no_compiler() -> None:
    ready = {Constraint("regex", "a+"): "key"}
    front = make_front(find=lambda constraint: ready.get(constraint, ""))
    admission = front.generate(A, constrained("1", n=2), now=0.0)
    assert isinstance(admission, Admission)
    found = {part.rid: part.grammar for part in admission.parts}
    assert found == {"1/0": "key", "1/1": "key"}
    assert (front.in_flight, unanswered(front), front.expire(1e9)) == (
        2,
        [],
        [],
    )
    asked(front, constrained("2", "b+"))
    stats = front.controlled(A, ControlReq("c", EPOCH, "stats"))
    assert isinstance(stats, Control) and stats.counts["num_grammar_cache_hit_total"] == 1


def test_a_lost_grammar_is_compiled_again() -> None:
    """From its constraint, which the scheduler does not have; new requests for it wait too."""
    front = make_front(max_requests=9)
    first = asked(front, constrained("1"))
    front.grammars.compiled(CompileReply(first.id, EPOCH, "key"), 0.0)
    assert front.grammars.lost(GrammarLost("key", EPOCH - 1), now=0.0) is None
    question = front.grammars.lost(GrammarLost("key", EPOCH), now=0.0)
    assert isinstance(question, CompileReq)
    assert question.id != first.id and question.constraint == first.constraint
    asked(front, constrained("2"))  # asks too: it is another asker
    assert front.grammars.lost(GrammarLost("key", EPOCH), now=0.0) is None
    assert len(unanswered(front)) == 2
    answers = front.grammars.compiled(CompileReply(question.id, EPOCH, "key"), 0.0)
    assert front.sent(GrammarMade) == [GrammarMade("key", EPOCH)] * 2
    assert list(admitted_by(answers)) == [(A, "2")]


def test_a_lost_grammar_that_cannot_be_had() -> None:
    front = make_front()
    assert front.grammars.lost(GrammarLost("unheard", EPOCH), now=0.0) is None
    assert_given_up(front, "unheard")
    question = asked(front, constrained("1"))
    front.grammars.compiled(CompileReply(question.id, EPOCH, "key"), 0.0)
    again = front.grammars.lost(GrammarLost("key", EPOCH), now=10.0)
    assert isinstance(again, CompileReq)
    error = ErrorInfo(OVERLOADED, "full", retryable=True)
    assert front.grammars.compiled(CompileReply(again.id, EPOCH, error=error), 0.0) == []
    assert front.sent(GrammarMade) == [GrammarMade("key", EPOCH, error)]
    assert isinstance(front.grammars.lost(GrammarLost("key", EPOCH), now=10.0), CompileReq)
    assert front.expire(10.0 + SILENCE_S) == []
    assert_given_up(front, "key")
    assert isinstance(front.grammars.lost(GrammarLost("key", EPOCH), now=10.0), CompileReq)
    other = unanswered(front)[0]
    assert (
        front.grammars.compiled(CompileReply(other.id, EPOCH, "another"), 0.0) == []
    )  # made by other code
    assert_given_up(front, "key")


def assert_given_up(front: DirectFront, key: str) -> None:
    (made,) = front.sent(GrammarMade)
    assert isinstance(made, GrammarMade) and made.key == key
    assert made.error is not None and made.error.retryable


# ---- the ways out ----------------------------------------------------------------------------


def test_an_abort_while_parked() -> None:
    front = make_front()
    question = asked(front, constrained("1"))
    parked(front, constrained("2"))
    for client, req in ((B, AbortReq("1", EPOCH)), (A, AbortReq("1", EPOCH - 1))):
        assert front.aborted(client, req) is None
    answer = front.aborted(A, AbortReq("1", EPOCH))
    assert answer == Admission(Admitted("1", EPOCH, AnswerMeta(5), aborted=[0]), [])
    assert front.aborted(A, AbortReq("1", EPOCH)) is None
    assert (front.in_flight, front.tokens_in_flight) == (1, 5)
    assert cancelled(front) == []
    reply = CompileReply(question.id, EPOCH, "key")
    assert list(admitted_by(front.grammars.compiled(reply, 0.0))) == [(A, "2")]


def test_samples_are_parked_together() -> None:
    front = make_front()
    question = asked(front, constrained(n=3, seed=5))
    assert (front.in_flight, front.tokens_in_flight) == (3, 15)
    assert front.aborted(A, AbortReq("r", EPOCH)) is None  # each sample is aborted by its own rid
    assert front.aborted(A, AbortReq("r/1", EPOCH)) is None
    assert (front.in_flight, front.tokens_in_flight) == (2, 10)
    ((client, word),) = front.grammars.compiled(CompileReply(question.id, EPOCH, "key"), 0.0)
    assert client == A and isinstance(word, Admission)
    assert word.admitted == Admitted("r", EPOCH, AnswerMeta(5), aborted=[1])
    assert [(part.rid, part.grammar) for part in word.parts] == [("r/0", "key"), ("r/2", "key")]
    assert front.aborted(A, AbortReq("r/2", EPOCH)) == Abort(A, "r/2", EPOCH)
    for rid in ("r/0", "r/1", "r/2"):
        front.dispatch.credit(Credit(A, rid, EPOCH))
    assert (front.in_flight, front.tokens_in_flight) == (0, 0)


def test_samples_that_are_parked_end_together() -> None:
    front = make_front()
    question = asked(front, constrained("1", n=2))
    parked(front, constrained("2", "b", n=2))
    assert front.aborted(A, AbortReq("2/1", EPOCH)) is None
    answer = front.aborted(A, AbortReq("2/0", EPOCH))
    assert answer == Admission(Admitted("2", EPOCH, AnswerMeta(5), aborted=[1, 0]), [])
    error = ErrorInfo(BAD_REQUEST, "no")
    assert list(
        refused_by(front.grammars.compiled(CompileReply(question.id, EPOCH, error=error), 0.0))
    ) == [(A, "1")]
    assert (front.in_flight, front.tokens_in_flight) == (0, 0)


def test_the_compiler_hears_of_what_nobody_waits_for() -> None:
    front = make_front()
    first = asked(front, constrained("1"))
    second = asked(front, constrained("2", "b"), now=10.0)
    third = asked(front, constrained("3", "c"), now=99.0)
    front.aborted(A, AbortReq("1", EPOCH))
    assert cancelled(front) == [CompileCancel(first.id, EPOCH)]
    assert cancelled(front) == []
    front.expire(10.0 + SILENCE_S)
    assert cancelled(front) == [CompileCancel(second.id, EPOCH)]
    front.grammars.compiled(CompileReply(third.id, EPOCH, "key"), 0.0)
    assert cancelled(front) == []
    parked(front, constrained("4", "d"))
    front.aborted(A, AbortReq("4", EPOCH))
    front.reset(EPOCH + 1, [EPOCH + 1])
    assert cancelled(front) == []


def test_a_question_that_nobody_waits_for_is_asked_anew() -> None:
    front = make_front()
    first = asked(front, constrained())
    front.aborted(A, AbortReq("r", EPOCH))
    assert unanswered(front) == []
    second = asked(front, constrained())  # the same rid, free again
    assert front.grammars.compiled(CompileReply(first.id, EPOCH, "old"), 0.0) == []
    reply = CompileReply(second.id, EPOCH, "new")
    assert admitted_by(front.grammars.compiled(reply, 0.0))[A, "r"].grammar == "new"


def test_a_new_epoch_drops_what_is_parked() -> None:
    front = make_front()
    question = asked(front, constrained())
    front.reset(EPOCH + 1, [EPOCH + 1])
    assert (front.in_flight, front.tokens_in_flight) == (0, 0)
    assert unanswered(front) == [] and front.expire(1e9) == []
    again = asked(front, replace(constrained(), epoch=EPOCH + 1))
    assert front.grammars.compiled(CompileReply(question.id, EPOCH, "key"), 0.0) == []
    assert front.grammars.compiled(CompileReply(again.id, EPOCH, "key"), 0.0) == []
    assert front.grammars.compiled(CompileReply(question.id, EPOCH + 1, "key"), 0.0) == []
    assert front.in_flight == 1
    assert admitted_by(front.grammars.compiled(CompileReply(again.id, EPOCH + 1, "key"), 0.0))


def test_a_compiler_that_does_not_answer() -> None:
    front = make_front()
    question = asked(front, constrained("1"), now=10.0)
    parked(front, constrained("2"), now=20.0)
    assert front.expire(10.0 + SILENCE_S - 0.1) == []
    expired = refused_by(front.expire(10.0 + SILENCE_S))
    assert list(expired) == [(A, "1")]
    assert (expired[A, "1"].code, expired[A, "1"].retryable) == (UNAVAILABLE, True)
    assert (front.in_flight, front.tokens_in_flight) == (1, 5)
    reply = CompileReply(question.id, EPOCH, "key")
    assert list(admitted_by(front.grammars.compiled(reply, 0.0))) == [(A, "2")]
    assert front.expire(1e9) == []


def test_a_compiler_that_is_heard_of_has_longer() -> None:
    """For example one that was killed twice and is there again."""
    front = make_front()
    parked(front, constrained("1"), now=0.0)
    front.grammars.parking.hear(20.0)
    parked(front, constrained("2"), now=21.0)
    assert front.expire(20.0 + SILENCE_S - 0.1) == []
    front.grammars.parking.hear(45.0)
    assert front.expire(WAIT_S - 0.1) == []
    assert list(refused_by(front.expire(WAIT_S))) == [(A, "1")]  # the longest wait is over
    assert list(refused_by(front.expire(45.0 + SILENCE_S))) == [(A, "2")]


def test_a_compiler_that_restarted_is_asked_again() -> None:
    front = make_front()
    first = asked(front, constrained("1"))
    second = asked(front, constrained("2", "b"))
    parked(front, constrained("3"))
    assert unanswered(front) == [first, second]
    front.grammars.compiled(CompileReply(first.id, EPOCH, "key"), 0.0)
    assert unanswered(front) == [second]
    front.grammars.compiled(CompileReply(second.id, EPOCH, "key"), 0.0)
    assert unanswered(front) == []


def test_draining_lets_parked_requests_finish() -> None:
    front = make_front()
    question = asked(front, constrained())
    front.drain()
    assert admitted_by(front.grammars.compiled(CompileReply(question.id, EPOCH, "key"), 0.0))


def test_samples_and_a_request_of_their_rid_are_told_apart() -> None:
    """Each sample takes a place under its own rid, so both may be parked."""
    front = make_front()
    several = asked(front, constrained("r", n=2))
    single = asked(front, constrained("r", "b"))
    assert list(admitted_by(front.grammars.compiled(CompileReply(single.id, EPOCH, "k"), 0.0))) == [
        (A, "r")
    ]
    assert isinstance(front.aborted(A, AbortReq("r", EPOCH)), Abort)
    admitted = admitted_by(front.grammars.compiled(CompileReply(several.id, EPOCH, "key"), 0.0))
    assert list(admitted) == [(A, "r/0"), (A, "r/1")]
    assert front.in_flight == 3 and unanswered(front) == [] == front.expire(1e9)


# ---- in any order ----------------------------------------------------------------------------

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["generate", "reply", "fail", "abort", "expire", "reset", "credit"]),
        st.integers(0, 3),
        st.sampled_from(["a", "b"]),
    ),
    max_size=40,
)


def part_rids(rid: str) -> list[str]:
    """Requests with an odd rid want two samples."""
    return [rid] if int(rid) % 2 == 0 else [f"{rid}/0", f"{rid}/1"]


@given(ACTIONS)
def test_every_request_has_one_end(actions: list[tuple[str, int, str]]) -> None:
    """Compared with a model of the front: the samples that are parked, by pattern, or running."""
    front, epoch, now = make_front(max_requests=4), EPOCH, 0.0
    parked: dict[str, str] = {}  # rid -> pattern
    waiting: dict[str, set[str]] = {}  # rid -> its samples that were not aborted
    running: set[str] = set()
    questions: dict[str, CompileReq] = {}
    for kind, number, pattern in actions:
        rid, now = str(number), now + 1.0
        parts = part_rids(rid)
        if kind == "generate":
            req = replace(constrained(rid, pattern, n=len(parts)), epoch=epoch)
            answer = front.generate(A, req, now)
            held = running.union(*waiting.values())
            if held.isdisjoint(parts) and len(held) + len(parts) <= 4 and rid not in parked:
                assert isinstance(answer, Parked)
                assert (answer.question is None) == (pattern in parked.values())
                parked[rid], waiting[rid] = pattern, set(parts)
                if answer.question is not None:
                    questions[pattern] = answer.question
            else:
                assert isinstance(answer, Refused)
        elif kind in ("reply", "fail") and pattern in questions:
            error = ErrorInfo(BAD_REQUEST, "no") if kind == "fail" else None
            reply = CompileReply(questions.pop(pattern).id, epoch, "key", error)
            done = {waiter for waiter, wanted in parked.items() if wanted == pattern}
            answers = front.grammars.compiled(reply, 0.0)
            if error:
                assert {name[1] for name in refused_by(answers)} == done
            else:
                admitted = set().union(*(waiting[waiter] for waiter in done))
                assert {name[1] for name in admitted_by(answers)} == admitted
                running |= admitted
            for waiter in done:
                del parked[waiter], waiting[waiter]
        elif kind == "abort":
            part = parts[int(now) % len(parts)]
            answered = front.aborted(A, AbortReq(part, epoch))
            assert isinstance(answered, Abort) == (part in running)
            assert isinstance(answered, Admission) == (waiting.get(rid) == {part})
            waiting.get(rid, set()).discard(part)
            if rid in waiting and not waiting[rid]:
                del parked[rid], waiting[rid]
        elif kind == "expire":
            now += WAIT_S
            assert {name[1] for name in refused_by(front.expire(now))} == set(parked)
            parked.clear()
            waiting.clear()
        elif kind == "credit" and running.intersection(parts):
            part = min(running.intersection(parts))
            front.dispatch.credit(Credit(A, part, epoch))
            running.remove(part)
        elif kind == "reset":
            epoch += 1
            front.reset(epoch, [epoch])
            front.dispatch.hear([epoch], [0])
            parked.clear()
            waiting.clear()
            running.clear()
        unwanted = {q.id for p, q in questions.items() if p not in parked.values()}
        # The end of an epoch cancels everything, so the compiler gets no other message then.
        told = set() if kind == "reset" else unwanted
        assert {cancel.id for cancel in cancelled(front)} == told
        questions = {p: question for p, question in questions.items() if p in parked.values()}
        assert front.in_flight == len(running) + sum(map(len, waiting.values()))
        assert front.tokens_in_flight == 5 * front.in_flight
        assert {q.constraint.source for q in unanswered(front)} == set(parked.values())
