"""When the lease of a silent client ends."""

from hypothesis import given
from hypothesis import strategies as st

from detokenizer_proc.leases import Leases
from srt.ring.places import LEASE_INTERVAL_S, LEASE_S

SILENT, LOUD = b"silent", b"loud"


def test_a_client_without_hellos_is_gone() -> None:
    leases = Leases(0.0)
    leases.renew(SILENT, 0.0)
    now = 0.0
    while now <= LEASE_S:
        leases.renew(LOUD, now)
        assert leases.expired(now) == []
        now += LEASE_INTERVAL_S
    assert leases.expired(now) == [SILENT]
    leases.end(SILENT)
    leases.end(b"unknown")
    assert leases.expired(now) == []


def test_the_time_that_the_process_stood_still_does_not_count() -> None:
    leases = Leases(0.0)
    leases.renew(SILENT, 0.0)
    leases.renew(LOUD, 0.0)
    now = 10 * LEASE_S
    assert leases.expired(now) == []
    leases.renew(LOUD, now)  # sent earlier, read only now
    gone: list[bytes] = []
    for _ in range(int(LEASE_S / LEASE_INTERVAL_S) + 1):
        now += LEASE_INTERVAL_S
        leases.renew(LOUD, now)
        gone = leases.expired(now)
    assert gone == [SILENT]


@given(st.lists(st.floats(0.1, 3 * LEASE_S), min_size=1, max_size=50))
def test_who_says_hello_before_each_check_stays(pauses: list[float]) -> None:
    """Each Hello is read just after the check, as after a standstill, whatever the pauses."""
    leases, now = Leases(0.0), 0.0
    leases.renew(LOUD, now)
    for pause in pauses:
        now += pause
        assert leases.expired(now) == []
        leases.renew(LOUD, now)
