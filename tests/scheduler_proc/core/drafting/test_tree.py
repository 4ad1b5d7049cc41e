"""Guesses from the radix tree, compared with all that is in it."""

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scheduler_proc.core.drafting.base import Match
from scheduler_proc.core.drafting.speculation import best
from scheduler_proc.core.drafting.tree import TreeTokens
from scheduler_proc.core.requests.request import Req
from scheduler_proc.memory.pools import TokenPool
from scheduler_proc.memory.radix_cache import NoCache, RadixCache
from tests.scheduler_proc.core.drafting.reqs import plain, req_of
from tests.scheduler_proc.memory.test_radix_cache import SALTS, Symbol, filled, ids, spans, symbols
from tests.scheduler_proc.ragged import int32

MOST = 5
TEXT = st.lists(st.integers(0, 1), min_size=1, max_size=4)
PARTS: st.SearchStrategy[int | str] = st.sampled_from([0, 1, 0, 1, 2, "a"])
TOKENS = st.lists(PARTS, min_size=1, max_size=6).map(symbols)
Path = tuple[str, tuple[Symbol, ...]]


class TreeGuesses(RuleBasedStateMachine):
    """Reqs ask after every change of the tree, or of their tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = TokenPool(40)
        self.cache = RadixCache(self.pool)
        self.source = TreeTokens(self.cache)
        self.used: dict[Path, int] = {}  # when a prefix was last matched or added, by a count
        self.uses = 0
        self.reqs: list[tuple[Req, list[Symbol]]] = []  # with the symbols of their prompts

    def use(self, tokens: Sequence[Symbol], salt: str) -> None:
        self.uses += 1
        for length in range(1, len(tokens) + 1):
            self.used[salt, tuple(tokens[:length])] = self.uses

    @rule(tokens=TOKENS, salt=SALTS)
    def insert(self, tokens: list[Symbol], salt: str) -> None:
        self.cache.evict(len(tokens) - self.pool.free_size)
        slots = self.pool.alloc(len(tokens))
        assert slots is not None
        done = self.cache.insert(ids(tokens), slots, salt, None, spans(tokens))
        self.pool.free(slots[: done.existing])
        self.use(tokens, salt)

    @rule(tokens=TOKENS, salt=SALTS)
    def match(self, tokens: list[Symbol], salt: str) -> None:
        found = self.cache.match_prefix(ids(tokens), salt, spans(tokens))
        self.use(tokens[: found.length], salt)

    @rule(n=st.integers(1, 20))
    def evict(self, n: int) -> None:
        self.cache.evict(n)

    @precondition(lambda self: len(self.reqs) < 4)
    @rule(parts=st.lists(PARTS, min_size=1, max_size=3), salt=SALTS)
    def begin(self, parts: list[int | str], salt: str) -> None:
        prompt = symbols(parts)
        self.reqs.append((req_of(ids(prompt).tolist(), salt, spans(prompt)), prompt))

    @precondition(lambda self: self.reqs)
    @rule(pick=st.integers(0, 3), drop=st.integers(0, 5), tokens=TEXT)
    def replace(self, pick: int, drop: int, tokens: list[int]) -> None:
        req, _ = self.reqs[pick % len(self.reqs)]
        req.replace_tail(min(drop, len(req.tokens.outputs)), tokens)

    @precondition(lambda self: self.reqs)
    @rule(pick=st.integers(0, 3))
    def end(self, pick: int) -> None:
        req, _ = self.reqs.pop(pick % len(self.reqs))
        self.source.ended(req)

    def is_cached(self, path: Path) -> bool:
        salt, tokens = path
        return self.cache.match_len(ids(tokens), salt, spans(tokens)) == len(tokens)

    def expected(self, req: Req, prompt: list[Symbol]) -> tuple[int, list[int]] | None:
        salt, path = req.wish.salt, (*prompt, *req.tokens.outputs.tolist())
        found: list[int] = []
        if not self.is_cached((salt, path)):
            return None
        while len(found) < MOST:
            longer = [p for p in self.used if p[0] == salt and p[1][:-1] == path]
            cached = [p for p in longer if self.is_cached(p)]
            if not cached:
                break
            _, path = max(cached, key=lambda p: self.used[p])
            last = path[-1]
            if isinstance(last, tuple) and last[1] == 0:
                break
            found += ids([last]).tolist()
        return (req.tokens.known_len, found) if found else None

    @invariant()
    def guesses_are_what_was_used_last(self) -> None:
        before = [(node.uid, node.last_access, node.end) for node in self.cache.nodes()]
        for req, prompt in self.reqs:
            assert plain(self.source.match(req, MOST)) == self.expected(req, prompt)
        assert before == [(node.uid, node.last_access, node.end) for node in self.cache.nodes()]
        assert self.source._cursors.keys() == {req.handle for req, _ in self.reqs}


TreeGuesses.TestCase.settings = settings(stateful_step_count=30)
TestTreeGuesses = TreeGuesses.TestCase


def test_a_req_follows_the_answer_that_was_used_last() -> None:
    cache = filled(TokenPool(40), [1, 2, 3, 4, 5], [1, 2, 6, 7, 8])
    source = TreeTokens(cache)
    req = req_of([1, 2])
    assert plain(source.match(req, 2)) == (2, [6, 7])
    cache.match_prefix(int32([1, 2, 3]))
    assert plain(source.match(req, 2)) == (2, [3, 4])
    cache.match_prefix(int32([1, 2, 6]))
    assert plain(source.match(req, 2)) == (2, [6, 7])
    req.replace_tail(0, [3])
    assert plain(source.match(req, 8)) == (3, [4, 5])
    req.replace_tail(0, [4, 5])
    assert source.match(req, 8) is None
    req.replace_tail(3, [6, 7])
    assert plain(source.match(req, 8)) == (4, [8])
    req.replace_tail(0, [9])
    assert source.match(req, 8) is None


def test_without_a_cache_nothing_is_found() -> None:
    assert TreeTokens(NoCache(TokenPool(0))).match(req_of([1]), 1) is None


def test_the_longest_match_is_the_best_and_of_equals_the_first_source() -> None:
    short, long = Match(2, int32([1])), Match(7, int32([2]))
    assert best([("tree", None), ("own", None)]) is None
    assert best([("tree", short), ("own", None), ("seen", long)]) == ("seen", long)
    assert best([("tree", short), ("own", short), ("seen", short)]) == ("tree", short)
    assert best([("tree", None), ("own", short), ("seen", short)]) == ("own", short)


def test_after_a_match_that_is_enough_no_source_is_asked() -> None:
    matches = iter([("tree", None), ("own", Match(8, int32([1]))), ("seen", Match(9, int32([2])))])
    assert best(matches) == ("own", Match(8, int32([1])))
    assert [name for name, _ in matches] == ["seen"]
    long, longer = Match(8, int32([1])), Match(9, int32([2]))
    chances = {"own": 0.4, "seen": 0.6}
    found = best([("own", long), ("seen", longer)], lambda source, _: chances[source])
    assert found == ("seen", longer)


def test_where_chances_are_known_the_most_likely_match_is_the_best() -> None:
    def chance(source: str, length: int) -> float:
        return {"own": 0.5, "tree": 0.1, "seen": length / 6}[source]

    short, long = Match(2, int32([1])), Match(3, int32([2]))
    assert best([("own", short), ("tree", long), ("seen", short)], chance) == ("own", short)
    assert best([("own", short), ("tree", None), ("seen", long)], chance) == ("seen", long)
    assert best([("own", None), ("tree", long), ("seen", None)], chance) == ("tree", long)
