"""Rates per minute of callers: buckets that fill all the time, and hold a minute's worth.

What is not known beforehand, such as output tokens, is taken when it is known, and may leave less
than nothing: then the next one waits until that is made up for.
"""

from collections.abc import Mapping

from srt.callers.key_lines import CallerLimits
from srt.wire.errors import RATE_LIMITED, RequestError

MINUTE_S = 60.0


class Bucket:
    """Room for `per_minute`, filled with as much a minute."""

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self.level = float(per_minute)
        self._at = now

    def fill(self, now: float) -> None:
        """Add what has come since the last call. A clock that went back adds nothing."""
        gained = max(0.0, now - self._at) * self.per_minute / MINUTE_S
        self.level, self._at = min(float(self.per_minute), self.level + gained), now

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until `amount` may be taken; more than a bucket holds may be when it is full."""
        self.fill(now)
        missing = min(amount, float(self.per_minute)) - self.level
        return max(0.0, missing * MINUTE_S / self.per_minute)

    def take(self, amount: float) -> None:
        """Take this much, or give it back if it is negative."""
        self.level -= amount


class Rates:
    """The buckets of callers that have limits. Times are seconds of any clock that only grows."""

    def __init__(self) -> None:
        self._requests: dict[str, Bucket] = {}
        self._tokens: dict[str, Bucket] = {}

    def set_limits(self, table: Mapping[str, CallerLimits], now: float) -> None:
        """Set the limits of all callers. Who has a limit already keeps what is left of it."""
        self._requests = _buckets(
            self._requests,
            {name: limits.requests_per_minute for name, limits in table.items()},
            now,
        )
        self._tokens = _buckets(
            self._tokens, {name: limits.tokens_per_minute for name, limits in table.items()}, now
        )

    def check_request(self, caller: str, now: float) -> None:
        """Raise RequestError (429) if the caller has to wait with its next request, for its
        requests or for tokens of earlier ones."""
        _check(self._requests.get(caller), 1.0, "requests", now)
        _check(self._tokens.get(caller), 1.0, "tokens", now)

    def check_tokens(self, caller: str, count: int, now: float) -> None:
        """Raise RequestError (429) unless the caller may send a prompt of `count` tokens."""
        _check(self._tokens.get(caller), float(count), "tokens", now)

    def take(self, caller: str, requests: int = 0, tokens: int = 0) -> None:
        """Count what the caller has sent, or got; negative numbers give it back."""
        for buckets, amount in ((self._requests, requests), (self._tokens, tokens)):
            if (bucket := buckets.get(caller)) is not None:
                bucket.take(amount)

    def levels(self, now: float) -> dict[str, list[float | None]]:
        """What is left of requests and of tokens, for those that have taken something."""
        found: dict[str, list[float | None]] = {}
        for place, buckets in enumerate((self._requests, self._tokens)):
            for name, bucket in buckets.items():
                bucket.fill(now)
                if bucket.level < bucket.per_minute:
                    found.setdefault(name, [None, None])[place] = bucket.level
        return found

    def restore(self, levels: Mapping[str, list[float | None]], passed_s: float) -> None:
        """Go on with `levels` from another process, which had them `passed_s` ago."""
        for name, both in levels.items():
            for level, buckets in zip(both, (self._requests, self._tokens), strict=True):
                bucket = buckets.get(name)
                if bucket is not None and level is not None:
                    gained = max(0.0, passed_s) * bucket.per_minute / MINUTE_S
                    bucket.level = min(float(bucket.per_minute), level + gained)


def _buckets(
    before: Mapping[str, Bucket], limits: Mapping[str, int], now: float
) -> dict[str, Bucket]:
    found: dict[str, Bucket] = {}
    for name, limit in limits.items():
        if not limit:
            continue
        bucket, known = Bucket(limit, now), before.get(name)
        if known is not None:
            known.fill(now)
            bucket.level = min(bucket.level, known.level * limit / known.per_minute)
        found[name] = bucket
    return found


def _check(bucket: Bucket | None, amount: float, what: str, now: float) -> None:
    if bucket is None:
        return
    wait_s = bucket.wait_s(amount, now)
    if wait_s > 0:
        reason = f"this key may use {bucket.per_minute} {what} a minute, and has used them"
        raise RequestError(reason, code=RATE_LIMITED, retryable=True, retry_after_s=wait_s)
