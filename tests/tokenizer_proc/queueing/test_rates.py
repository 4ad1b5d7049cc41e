"""Rates of callers, and what holds after a restart."""

from pathlib import Path

import pytest

from srt.args import ServerArgs
from srt.callers.key_lines import CallerLimits
from srt.wire.errors import RATE_LIMITED, RequestError
from tokenizer_proc.process.key_limits import CHECK_INTERVAL_S, KeyLimits
from tokenizer_proc.queueing.callers import MAX_LABELS, Callers
from tokenizer_proc.queueing.holdings import Holdings
from tokenizer_proc.queueing.rates import Bucket, Rates

KEY = "key"


def rates_of(now: float = 0.0, **limits: int) -> Rates:
    rates = Rates()
    rates.set_limits({KEY: CallerLimits(**limits)}, now)
    return rates


def test_a_bucket_holds_a_minutes_worth() -> None:
    bucket = Bucket(60, 0.0)
    bucket.take(60)
    assert bucket.wait_s(1, 0.0) == pytest.approx(1.0)
    assert bucket.wait_s(1, 1.0) == 0.0
    assert bucket.wait_s(61, 1000.0) == 0.0  # more than it ever holds, when it is full
    bucket.take(61)
    assert bucket.wait_s(1, 999.0) == pytest.approx(2.0)  # the clock went back


def test_tokens_that_were_not_known_are_made_up_for() -> None:
    rates = rates_of(tokens_per_minute=60)
    rates.take(KEY, tokens=90)
    with pytest.raises(RequestError) as error:
        rates.check_request(KEY, 0.0)
    assert error.value.info.retry_after_s == pytest.approx(31.0)
    assert error.value.info.code == RATE_LIMITED
    rates.check_request(KEY, 31.0)
    rates.check_request("another", 0.0)


def test_other_limits_keep_what_is_used() -> None:
    rates = rates_of(requests_per_minute=10)
    rates.take(KEY, requests=5)
    rates.set_limits({KEY: CallerLimits(requests_per_minute=100)}, 0.0)
    assert rates.levels(0.0) == {KEY: [50.0, None]}
    rates.set_limits({}, 0.0)
    assert rates.levels(0.0) == {}


def test_rates_go_on_after_a_restart(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("k name=key requests_per_minute=60\nother\n")
    args = ServerArgs(api_key_file=str(keys))
    limits = KeyLimits(args, tmp_path)
    callers = limits.callers(0.0)
    callers.rates.take(KEY, requests=50)
    limits.keep(callers, 10.0)
    again = KeyLimits(args, tmp_path).callers(500.0)
    (level, _) = again.rates.levels(500.0)[KEY]
    assert level is not None and 19.0 <= level < 50.0
    (tmp_path / "rates").write_text("{")
    assert KeyLimits(args, tmp_path).callers(0.0).rates.levels(0.0) == {}


def test_limits_are_read_again_and_bad_ones_change_nothing(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("k name=key running=1\n")
    limits = KeyLimits(ServerArgs(api_key_file=str(keys)), tmp_path)
    callers, now = limits.callers(0.0), 0.0

    def written(text: str) -> int:
        nonlocal now
        keys.write_text(text)
        for _ in range(3):
            now += 2 * CHECK_INTERVAL_S
            limits.keep(callers, now)
        return callers.limits(KEY).running

    assert callers.limits(KEY).running == 1
    assert written("k name=key running=2 \n") == 2
    assert written("k name=key running=0  \n") == 2
    assert written("k name=key running=3   \n") == 3


def test_metrics_have_bounded_labels() -> None:
    table = {f"key{i}": CallerLimits(running=1) for i in range(MAX_LABELS + 10)}
    callers, holdings = Callers(table), Holdings()
    for name in (*table, "ip:10.0.0.1"):
        callers.count("requests", name)
        holdings.add("requests", name, 2)
    counts = callers.counts(holdings)
    assert counts["caller_requests_total/key0"] == 1
    assert counts["caller_requests_total/_others"] == counts["caller_in_flight/_others"] / 2 == 11
    assert len({key.partition("/")[2] for key in counts}) == MAX_LABELS + 1
    assert Callers().counts(holdings) == {}


def test_who_is_alone_has_all_before_it() -> None:
    holdings = Holdings()
    assert holdings.part_before("a", 1) == 1.0
    holdings.add("requests", "a", 10)
    assert holdings.part_before("a", 1) == 1.0
    assert holdings.part_before("b", 1) == pytest.approx(0.1)
    holdings.add("requests", "b", 2)
    assert holdings.part_before("b", 1) == pytest.approx(5 / 12)
