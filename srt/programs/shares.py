"""What tenants take of the server: counts by kind, with a bound for each and one for all."""

from collections import defaultdict

from srt.programs.limits import MAX_BYTES, MAX_GETS, MAX_SESSIONS, TENANT_SHARE
from srt.wire.errors import OVERLOADED, RequestError

_BOUNDS = {"sessions": MAX_SESSIONS, "gets": MAX_GETS, "bytes": MAX_BYTES}
_WORDS = {
    "sessions": "sessions are open",
    "gets": "gets are waiting",
    "bytes": "bytes are taken by programs",
}
_RETRY_AFTER_S = 1.0


class Shares:
    """Sessions, waiting gets and bytes, by tenant."""

    def __init__(self) -> None:
        self._totals = dict.fromkeys(_BOUNDS, 0)
        self._by_tenant: dict[str, dict[str, int]] = {kind: defaultdict(int) for kind in _BOUNDS}

    def taken(self, kind: str) -> int:
        """By all tenants."""
        return self._totals[kind]

    def take(self, kind: str, tenant: str, more: int) -> bool:
        """Take `more`, or with a negative number give back; False, and nothing, if that is too
        much."""
        if more > 0 and self._full(kind, tenant, more):
            return False
        mine = self._by_tenant[kind]
        mine[tenant] += more
        if not mine[tenant]:
            del mine[tenant]
        self._totals[kind] += more
        return True

    def check(self, kind: str, tenant: str, more: int) -> None:
        """Raise RequestError (429) if `more` is too much."""
        whose = self._full(kind, tenant, more)
        if whose:
            reason = f"as many {_WORDS[kind]} {whose} as are allowed"
            raise RequestError(
                reason, code=OVERLOADED, retryable=True, retry_after_s=_RETRY_AFTER_S
            )

    def take_or_refuse(self, kind: str, tenant: str, more: int) -> None:
        """Take `more`. Raises RequestError (429) if that is too much."""
        self.check(kind, tenant, more)
        self.take(kind, tenant, more)

    def _full(self, kind: str, tenant: str, more: int) -> str:
        """Whose bound does not allow `more`; "" if both do."""
        bound = _BOUNDS[kind]
        if self._by_tenant[kind].get(tenant, 0) + more > bound * TENANT_SHARE:
            return "for this caller"
        return "on this server" if self._totals[kind] + more > bound else ""
