"""What is asked of the schedulers again when one is lost."""

from typing import Any

import pytest

from srt.client.ring import operations
from srt.client.ring.operations import RingOperations
from srt.wire.errors import CONFLICT, RequestError, RingError
from srt.wire.messages import ControlReq, ControlResult
from tests.waiting import SOON_S


class Link:
    """A link that fails with each of `errors` before it answers; with the last one for ever, if it
    is `lost`."""

    epoch = 1

    def __init__(self, *errors: RequestError, lost: bool = False) -> None:
        self.errors, self.lost = [*errors], lost
        self.asked: list[ControlReq] = []
        self.waits = 0

    async def until_usable(self) -> None:
        pass

    async def wait_ready(self, timeout_s: float) -> None:
        self.waits += 1
        assert 0 < timeout_s < SOON_S
        if self.lost:
            raise RingError("the server was not ready")

    async def ask(self, req: ControlReq) -> ControlResult:
        self.asked.append(req)
        if self.errors:
            raise self.errors[0] if self.lost else self.errors.pop(0)
        return ControlResult(req.rid, 1, b"{}")


def of(link: Any) -> RingOperations:
    return RingOperations(link, lambda wire_id: None)


async def test_a_pause_is_asked_for_until_a_scheduler_has_answered() -> None:
    link = Link(RingError("it restarts"), RequestError("it was lost", retryable=True))
    await of(link).pause_generation("retract")
    assert [(req.op, req.mode) for req in link.asked] == [("pause", "retract")] * 3
    assert link.waits == 2 and len({req.rid for req in link.asked}) == 3


async def test_a_pause_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What may not be tried again, at once; otherwise in time, with the last error."""
    monkeypatch.setattr(operations, "PAUSE_TIMEOUT_S", 0.2)
    refused = Link(RequestError("a step goes on", code=CONFLICT))
    with pytest.raises(RequestError, match="a step goes on"):
        await of(refused).pause_generation("retract")
    lost = Link(RingError("the model cannot be loaded"), lost=True)
    with pytest.raises(RingError, match="cannot be loaded"):
        await of(lost).pause_generation(None)
    assert len(refused.asked) == 1 < len(lost.asked)
    assert refused.waits == 0
