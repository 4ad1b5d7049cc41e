"""What the front does when the scheduler is lost: refusals, places, and the expected wait."""

from srt.ring.crash_file import Left
from srt.wire.messages import ControlReq, Refused
from srt.wire.ring_messages import ClientGone, Credit, SchedulerLost, TextStopped, TokenizedReq
from tests.tokenizer_proc.admission.test_front import EPOCH, A, B, make_front, request
from tokenizer_proc.dispatch.admission import Admission


def test_what_is_no_request_is_refused_at_a_loss() -> None:
    front = make_front()
    for number in range(2):
        assert front.control(A, ControlReq(f"c{number}", EPOCH, "stats")) is None
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
