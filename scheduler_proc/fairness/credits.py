"""How many tokens each caller may have computed before those of others come first.

Each caller has used some tokens, divided by its weight. One *level* is common to all: what is left
up to it, times the weight, is the caller's credit. So the level rises for all at once: whoever
waits gets credit in proportion to weights, at a cost that does not grow with the callers. The
scheduler raises it when no waiting caller has credit left.

A new caller has credit of one quantum, as those have who wait. Whoever uses less than its share
gains some more, but not beyond a burst; and there are no debts from times at which nobody waited.
Of callers with no requests the latest are remembered.

Source: Sheng et al., "Fairness in Serving Large Language Models", arXiv 2401.00588, whose counters
decide who is next. Here they say who is next *enough*, and the policy chooses among these.
"""

from collections.abc import Collection
from dataclasses import dataclass

BURST = 4  # most credit of a caller, in quanta
MOST_IDLE = 1024  # callers with no requests that are remembered


@dataclass(slots=True)
class _Account:
    used: float  # tokens by weight
    weight: float
    live: int = 0  # its requests that have not ended


class Credits:
    """The callers' accounts. `quantum` is how many tokens the first of those that wait gets at each
    refill."""

    def __init__(self, quantum: int) -> None:
        self._quantum = max(1, quantum)
        self._burst = float(BURST * self._quantum)
        self._level = 0.0
        self._most_used = 0.0
        self._accounts: dict[str, _Account] = {}
        self._idle: dict[str, None] = {}  # those of them with no requests, the latest last

    def __len__(self) -> int:
        """The callers that are remembered."""
        return len(self._accounts)

    def join(self, caller: str, weight: float) -> None:
        """A request of the caller has come. `weight` (above 0) is its share from now on."""
        account = self._accounts.get(caller)
        if account is None:
            account = self._accounts[caller] = _Account(
                self._level - self._quantum / weight, weight
            )
        elif account.weight != weight:
            left = self.left(caller)
            account.weight, account.used = weight, self._level - left / weight
        self._idle.pop(caller, None)
        account.live += 1

    def leave(self, caller: str) -> None:
        """A request of the caller has ended."""
        account = self._accounts[caller]
        account.live -= 1
        if account.live > 0:
            return
        self._idle[caller] = None
        if len(self._idle) > MOST_IDLE:
            oldest = next(iter(self._idle))
            del self._idle[oldest], self._accounts[oldest]

    def charge(self, caller: str, tokens: int) -> None:
        """Tokens of the caller have been computed, or if negative, were charged and will not be."""
        account = self._accounts[caller]  # no calls: this is done for each output
        used, least = account.used, self._level - self._burst / account.weight
        if used < least:
            used = least
        account.used = used = used + tokens / account.weight
        if used > self._most_used:
            self._most_used = used

    def left(self, caller: str) -> float:
        """The caller's credit, in tokens; negative is a debt."""
        account = self._accounts[caller]
        left = (self._level - account.used) * account.weight
        return min(left, self._burst)

    def weight(self, caller: str) -> float:
        """Its share beside others; 1 for those who are not known."""
        account = self._accounts.get(caller)
        return 1.0 if account is None else account.weight

    def able(self, callers: Collection[str]) -> set[str]:
        """Those of the callers with credit left. If none has, there is a refill: until the first of
        them has a quantum, or one token if there is only one: its order does not depend on that,
        and who comes next is not to wait for the rest. Empty only if there are no callers."""
        able = {caller for caller in callers if self.left(caller) > 0.0}
        if not able and callers:
            accounts = [self._accounts[caller] for caller in callers]
            tokens = self._quantum if len(accounts) > 1 else 1
            level = min(account.used + tokens / account.weight for account in accounts)
            self._level = max(self._level, level)
            able = {caller for caller in callers if self.left(caller) > 0.0}
        return able

    def forgive(self) -> None:
        """Nobody waits: nobody is in debt."""
        self._level = max(self._level, self._most_used)
