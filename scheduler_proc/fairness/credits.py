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

from srt.callers.key_lines import MAX_SHARE, MIN_SHARE

BURST = 4  # most credit of a caller, in quanta
MOST_IDLE = 1024  # callers with no requests that are remembered
LEAST_WEIGHT, MOST_WEIGHT = MIN_SHARE, MAX_SHARE
MOST_LEVEL = 2.0**40  # above it a token of the heaviest caller would be rounded away


@dataclass(slots=True, eq=False)
class Account:
    """What a caller has used."""

    used: float  # tokens by weight
    weight: float
    live: int = 0  # its requests that have not ended
    uncomputed: int = 0  # prompt tokens that were charged before they are computed
    fresh: int = 0  # outputs that are not in `used` yet, see `Credits.settle`
    computed: int = 0  # of these, what is computed by now, see `Credits.settle`


class Credits:
    """The callers' accounts. `quantum` is how many tokens the first of those that wait gets at each
    refill."""

    def __init__(self, quantum: int) -> None:
        self._quantum = max(1, quantum)
        self._burst = float(BURST * self._quantum)
        self._level = 0.0
        self._most_used = 0.0
        self._accounts: dict[str, Account] = {}
        self._live: dict[str, Account] = {}  # those of them with requests
        self._idle: dict[str, None] = {}  # the others, the latest last

    def __len__(self) -> int:
        """The callers that are remembered."""
        return len(self._accounts)

    @property
    def num_live(self) -> int:
        """The callers that have requests."""
        return len(self._live)

    def join(self, caller: str, weight: float) -> Account:
        """A request of the caller has come. `weight`, from `LEAST_WEIGHT` to `MOST_WEIGHT`, is its
        share from now on. The request's outputs are to be counted as `fresh` ones of the account,
        the tokens of its prompt as `computed`."""
        account = self._accounts.get(caller)
        if account is None:
            account = self._accounts[caller] = Account(self._level - self._quantum / weight, weight)
        elif account.weight != weight:
            self.reweigh(caller, weight)
        self._idle.pop(caller, None)
        self._live[caller] = account
        account.live += 1
        return account

    def reweigh(self, caller: str, weight: float) -> None:
        """Change the share of a caller, who keeps the credit that it has."""
        account = self._accounts[caller]
        if account.weight != weight:
            self._settle(account)
            left = self.left(caller)
            account.weight, account.used = weight, self._level - left / weight
            self._use(account, 0)

    def leave(self, caller: str) -> None:
        """A request of the caller has ended."""
        account = self._accounts[caller]
        account.live -= 1
        if account.live > 0:
            return
        self._settle(account)
        del self._live[caller]
        self._idle[caller] = None
        if len(self._idle) > MOST_IDLE:
            oldest = next(iter(self._idle))
            del self._idle[oldest], self._accounts[oldest]

    def settle(self) -> None:
        """Take over what has been computed since this was done last: outputs are charged."""
        for account in self._live.values():
            if account.fresh or account.computed:
                self._settle(account)

    def charge(self, caller: str, tokens: int) -> None:
        """Prompt tokens of the caller will be computed, or if negative, were charged and will not
        be."""
        account = self._accounts[caller]
        account.uncomputed = max(0, account.uncomputed + tokens)
        self._use(account, tokens)

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
            tokens = self._quantum if len(callers) > 1 else 1
            level, first = min(
                (account.used + tokens / account.weight, caller)
                for caller in callers
                for account in (self._accounts[caller],)
            )
            self._raise_level(level)
            able = {caller for caller in callers if self.left(caller) > 0.0} or {first}
        return able

    def forgive(self) -> None:
        """Nobody waits: nobody is in debt for what has been computed."""
        self._raise_level(self._most_used)

    def _raise_level(self, level: float) -> None:
        self._level = max(self._level, level)
        if self._level > MOST_LEVEL:
            base, self._level = self._level, 0.0
            self._most_used -= base
            for account in self._accounts.values():
                account.used -= base

    def _settle(self, account: Account) -> None:
        account.uncomputed = max(0, account.uncomputed - account.computed)
        fresh, account.fresh, account.computed = account.fresh, 0, 0
        self._use(account, fresh)

    def _use(self, account: Account, tokens: int) -> None:
        least = self._level - self._burst / account.weight
        account.used = max(account.used, least) + tokens / account.weight
        used = account.used - account.uncomputed / account.weight
        self._most_used = max(self._most_used, used)
