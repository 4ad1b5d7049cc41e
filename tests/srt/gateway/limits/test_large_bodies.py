"""Room for large bodies: bounded for all, and for each tenant."""

import pytest

from srt.gateway.limits.large_bodies import LargeBodies
from srt.wire.errors import OVERLOADED, RequestError


def test_nobody_keeps_out_all_others() -> None:
    large = LargeBodies(100, 60)
    large.take(50, "a")
    for tenant, size in (("a", 11), ("b", 51)):
        with pytest.raises(RequestError) as caught:
            large.take(size, tenant)
        assert (caught.value.info.code, caught.value.info.retryable) == (OVERLOADED, True)
    large.take(50, "b")
    large.give_back(50, "a")
    large.take(10, "b")
    large.take(40, "a")
