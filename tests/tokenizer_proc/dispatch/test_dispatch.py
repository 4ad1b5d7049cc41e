"""What the front does when the scheduler is lost, or paused: refusals, places, time limits."""

from pathlib import Path

from srt.ring.crash_file import Left
from srt.wire.messages import ControlReq, Refused
from srt.wire.pause import NO_PAUSE, Pause
from srt.wire.ring_messages import (
    Abort,
    ClientGone,
    Control,
    Credit,
    PauseSet,
    SchedulerLost,
    TextStopped,
    TokenizedReq,
)
from tests.tokenizer_proc.admission.test_front import EPOCH, A, B, make_front, request
from tests.tokenizer_proc.direct_front import DirectFront
from tokenizer_proc.admission.parking import Parked
from tokenizer_proc.dispatch.admission import Admission, Answer
from tokenizer_proc.dispatch.replicas import Replicas
from tokenizer_proc.process.pause_file import note_pause, noted_pause


def test_what_is_no_request_is_refused_at_a_loss() -> None:
    front = make_front()
    for number in range(2):
        assert not front.control(A, ControlReq(f"c{number}", EPOCH, "stats"), 0.0)
    refusals, guilty = front.dispatch.scheduler_lost(EPOCH + 1, Left())
    assert guilty == []
    assert [(client, refused.rid) for client, refused in refusals] == [(A, "c0"), (A, "c1")]
    for _, refused in refusals:
        assert isinstance(refused, Refused) and refused.error.http_status == 503
        assert refused.error.retryable
    assert front.dispatch.scheduler_lost(EPOCH + 2, Left()) == ([], [])


def test_requests_keep_their_places_and_go_on() -> None:
    front = make_front()
    for rid in ("1", "2"):
        assert isinstance(front.generate(A, request(rid), now=0.0), Admission)
    tokens = front.tokens_in_flight
    assert front.dispatch.scheduler_lost(EPOCH + 1, Left()) == ([], [])
    front.dispatch.settle(SchedulerLost(EPOCH + 1))
    assert isinstance(front.generate(A, request("3"), now=0.0), Admission)
    assert front.in_flight == 3 and front.dispatch.replicas.take() == []
    front.dispatch.hear([EPOCH + 1], [0])
    sent = front.sent(TokenizedReq)
    assert [message.rid for message in sent if isinstance(message, TokenizedReq)] == ["1", "2", "3"]
    front.dispatch.credit(Credit(A, "1", EPOCH))
    assert front.in_flight == 2 and front.tokens_in_flight == tokens


def test_a_client_that_has_gone_frees_its_places() -> None:
    front = make_front()
    for client in (A, B):
        assert isinstance(front.generate(client, request(), now=0.0), Admission)
    front.dispatch.scheduler_lost(EPOCH + 1, Left())
    front.dispatch.client_gone(ClientGone(A, EPOCH - 1))
    assert front.in_flight == 2
    front.dispatch.client_gone(ClientGone(A, EPOCH))
    assert front.in_flight == 1
    assert isinstance(front.generate(A, request("late"), now=0.0), Admission)
    assert front.in_flight == 1


def test_a_text_that_has_stopped_ends_its_request() -> None:
    front = make_front()
    assert isinstance(front.generate(A, request("1"), now=0.0), Admission)
    front.dispatch.replicas.take()
    front.dispatch.text_stopped(TextStopped(A, "1", EPOCH - 1))
    assert front.dispatch.replicas.take() == []
    front.dispatch.text_stopped(TextStopped(A, "1", EPOCH))
    assert len(front.dispatch.replicas.take()) == 1 and front.in_flight == 1


def pause_in(front: DirectFront, mode: str, now: float) -> list[Answer]:
    """Pause in a mode; "": go on."""
    op = "pause" if mode else "continue"
    return front.control(A, ControlReq("p", EPOCH, op, mode=mode), now)


def refused_rid(answer: Answer) -> str:
    assert isinstance(answer[1], Refused)
    return answer[1].rid


def test_every_scheduler_hears_of_a_pause_before_anything_else() -> None:
    """Of one that begins while there is none, too, and in the next epoch; the second order changes
    only the mode."""
    front = make_front()
    assert not pause_in(front, "in_place", 5.0) and not pause_in(front, "retract", 7.0)
    pauses = [PauseSet(EPOCH, Pause(mode, 5.0)) for mode in ("in_place", "retract")]
    sent = [message for _, message in front.dispatch.replicas.take()]
    assert sent == [pauses[0], sent[1], pauses[1], sent[3]] and isinstance(sent[1], Control)
    assert isinstance(front.generate(A, request("1"), now=8.0), Admission)
    front.dispatch.scheduler_lost(EPOCH + 1, Left())
    front.dispatch.settle(SchedulerLost(EPOCH + 1))
    assert not pause_in(front, "abort", 9.0) and front.dispatch.replicas.take() == []
    front.dispatch.hear([EPOCH + 1], [0])
    sent = [message for _, message in front.dispatch.replicas.take()]
    assert sent[0] == PauseSet(EPOCH + 1, Pause("abort", 5.0))
    assert {type(message) for message in sent[1:]} == {Control, TokenizedReq}
    front.reset(EPOCH + 2, [EPOCH + 2])
    front.dispatch.hear([EPOCH + 2], [0])
    assert front.sent(PauseSet) == [PauseSet(EPOCH + 2, Pause("abort", 5.0))]


def test_a_scheduler_that_is_ready_hears_of_a_pause_before_it_gets_requests() -> None:
    """Which it does once the detokenizer has said what the one before had reported."""
    front = make_front()
    assert isinstance(front.generate(A, request("1"), now=0.0), Admission)
    front.dispatch.scheduler_lost(EPOCH + 1, Left())
    front.dispatch.hear([EPOCH + 1], [0])
    pause_in(front, "retract", 5.0)
    assert front.dispatch.replicas.take() == [(0, PauseSet(EPOCH + 1, Pause("retract", 5.0)))]
    front.dispatch.settle(SchedulerLost(EPOCH + 1))
    sent = [message for _, message in front.dispatch.replicas.take()]
    assert {type(message) for message in sent} == {Control, TokenizedReq}


def test_all_replicas_hear_of_a_pause() -> None:
    """One that starts later, too."""
    replicas, pause = Replicas([4, 5]), Pause("in_place", 1.0)
    replicas.hear([4, 5], [0, 1])
    replicas.control(Control(A, "p", 0, "pause", 1.0), pause)
    sent = replicas.take()
    assert sent[:2] == [(0, PauseSet(4, pause)), (1, PauseSet(5, pause))]
    assert [(to, type(message)) for to, message in sent[2:]] == [(0, Control), (1, Control)]
    replicas.lose(6)
    replicas.settle(6)
    assert replicas.hear([6, 5], [0, 1]) == [0]
    assert replicas.take() == [(0, PauseSet(6, pause))]


def test_a_pause_aborts_what_waits_anywhere() -> None:
    front = make_front()
    assert isinstance(front.generate(A, request("sent"), now=0.0), Admission)
    assert isinstance(front.generate(B, request("parked", sampling={"regex": "a"}), 0.0), Parked)
    assert front.submit(B, request("unread"), 0.0) is None
    front.dispatch.replicas.take()
    answers = pause_in(front, "abort", 1.0)
    admitted = [(client, answer) for client, answer in answers if isinstance(answer, Admission)]
    assert [(client, answer.admitted.rid) for client, answer in admitted] == [
        (B, "parked"),
        (B, "unread"),
    ]
    sent = [message for _, message in front.dispatch.replicas.take()]
    assert sent[:2] == [Abort(A, "sent", EPOCH), PauseSet(EPOCH, Pause("abort", 1.0))]
    assert front.in_flight == 1


def test_in_a_pause_no_time_passes_for_what_waits_at_the_front() -> None:
    front = make_front()
    regex = {"regex": "a"}
    assert isinstance(front.generate(A, request("1", sampling=regex, timeout_ms=2000), 0.0), Parked)
    assert front.submit(B, request("read", timeout_ms=2000), 0.0) is None
    piece = front.turns.take()
    assert piece is not None
    assert front.submit(A, request("2", timeout_ms=2000), 0.0) is None
    pause_in(front, "in_place", 1.0)
    assert isinstance(front.has_read(piece, front.text.read(piece.req), 9.0), Admission)
    assert front.submit(A, request("3", timeout_ms=500), 5.0) is None
    assert front.expire(10.0) == []
    pause_in(front, "", 11.0)
    assert front.expire(11.4) == []
    assert [refused_rid(answer) for answer in front.expire(11.6)] == ["3"]
    assert [refused_rid(answer) for answer in front.expire(12.1)] == ["2", "1"]


def test_the_next_tokenizer_knows_of_a_pause(tmp_path: Path) -> None:
    assert noted_pause(tmp_path, 3.0) == NO_PAUSE
    note_pause(tmp_path, Pause("retract", 1.0))
    assert noted_pause(tmp_path, 3.0) == Pause("retract", 3.0)
    (tmp_path / "paused").write_text("")  # cut short
    assert noted_pause(tmp_path, 3.0).is_on
    for _ in range(2):
        note_pause(tmp_path, NO_PAUSE)
        assert noted_pause(tmp_path, 3.0) == NO_PAUSE
    note_pause(tmp_path / "missing", Pause("retract", 1.0))
