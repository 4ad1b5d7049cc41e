"""The radix tree compared with a plain dict of prefixes, and the rules of locks and eviction."""

from collections.abc import Sequence

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scheduler_proc.media.spans import Spans
from scheduler_proc.memory.block_hashes import Block, BlockHashes, all_hashes
from scheduler_proc.memory.match_trackers import Cursor
from scheduler_proc.memory.pools import TokenPool
from scheduler_proc.memory.radix_cache import NoCache, RadixCache
from scheduler_proc.memory.tree_node import Inserted, TreeNode
from srt.block_hash import hashes_of, seed_of
from srt.wire.media import MediaItem, MediaSpan
from tests.scheduler_proc.memory.test_pools import taken

PLACEHOLDER = 2  # a token like any other, where no picture is
PICTURES = {"a": 2, "b": 2, "c": 3}  # by digest, how many tokens they have
Symbol = int | tuple[str, int]  # a token, or a picture's token by its number


def symbols(parts: Sequence[int | str]) -> list[Symbol]:
    """What stands at each position of a prompt of tokens and pictures."""
    found: list[Symbol] = []
    for part in parts:
        found += [part] if isinstance(part, int) else [(part, n) for n in range(PICTURES[part])]
    return found


PARTS: st.SearchStrategy[int | str] = st.sampled_from([0, 1, 2, *PICTURES])
TOKENS = st.lists(PARTS, min_size=1, max_size=10).map(symbols)
SALTS = st.sampled_from(["", "a"])


def ids(tokens: Sequence[Symbol]) -> np.ndarray:
    return np.array([t if isinstance(t, int) else PLACEHOLDER for t in tokens], np.int32)


def digest_of(name: str) -> bytes:
    return f"digest of {name}".encode()


def spans(tokens: Sequence[Symbol]) -> Spans:
    """Of the pictures that begin among them, even if they do not end there."""
    return Spans(
        [
            MediaSpan(at, MediaItem(digest_of(t[0]), "image", PICTURES[t[0]], (1, 1, 1, 3)))
            for at, t in enumerate(tokens)
            if isinstance(t, tuple) and t[1] == 0
        ]
    )


def rest_of_picture(tokens: Sequence[Symbol]) -> list[Symbol]:
    """What is missing of the picture that they end in."""
    last = tokens[-1] if tokens else 0
    if isinstance(last, int):
        return []
    return [(last[0], n) for n in range(last[1] + 1, PICTURES[last[0]])]


class TreeMachine(RuleBasedStateMachine):
    """Compares with a model: a dict from (salt, prefix) to the slot of the prefix's last token."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = TokenPool(60)
        self.hashes = BlockHashes("model", block=3)
        self.published: dict[bytes, Block | None] = {}  # as a reader of the journal has them
        self.cache = RadixCache(self.pool, self.hashes)
        self.model: dict[tuple[str, tuple[Symbol, ...]], int] = {}
        self.locked: list[tuple[TreeNode, str, list[Symbol]]] = []
        self.cursors: dict[tuple[str, tuple[Symbol, ...]], Cursor] = {}
        self.wanted: list[tuple[str, list[Symbol]]] = []  # what the last look at the queue found
        self.grown: set[tuple[str, tuple[Symbol, ...]]] = set()  # inserted after it since that look

    def longest(self, tokens: list[Symbol], salt: str) -> int:
        n = 0
        while n < len(tokens) and (salt, tuple(tokens[: n + 1])) in self.model:
            n += 1
        return n

    @rule(tokens=TOKENS, salt=SALTS)
    def insert(self, tokens: list[Symbol], salt: str) -> None:
        self.insert_with(tokens, salt, None)

    @precondition(lambda self: self.locked)
    @rule(pick=st.integers(0, 100), more=TOKENS)
    def go_on(self, pick: int, more: list[Symbol]) -> None:
        """Insert as a running req that has computed more: its lock moves to the new end."""
        at = pick % len(self.locked)
        node, salt, tokens = self.locked[at]
        longer = tokens + rest_of_picture(tokens) + more
        done = self.insert_with(longer, salt, node)
        if done is not None:
            self.cache.inc_lock_ref(done.node)
            self.cache.dec_lock_ref(node)
            self.locked[at] = (done.node, salt, longer)

    def insert_with(self, tokens: list[Symbol], salt: str, own: TreeNode | None) -> Inserted | None:
        """Make room, insert, and note what the tree has taken; None if there is no room."""
        if self.pool.free_size < len(tokens):
            self.cache.evict(len(tokens) - self.pool.free_size)
            self.forget_evicted()
        slots = self.pool.alloc(len(tokens))
        if slots is None:
            return None
        existing = self.longest(tokens, salt)
        done = self.cache.insert(ids(tokens), slots, salt, own, spans(tokens))
        assert done.existing == existing and done.owned == len(tokens) == done.node.end
        self.pool.free(slots[:existing])
        for i, slot in enumerate(done.slots.tolist()):
            known = self.model.setdefault((salt, tuple(tokens[: i + 1])), slot)
            assert known == slot
        if any(s == salt and w and w == tokens[: len(w)] for s, w in self.wanted):
            self.grown |= {(salt, tuple(tokens[: i + 1])) for i in range(existing, len(tokens))}
        return done

    @rule(tokens=TOKENS, salt=SALTS)
    def match(self, tokens: list[Symbol], salt: str) -> None:
        expected = self.longest(tokens, salt)
        assert self.cache.match_len(ids(tokens), salt, spans(tokens)) == expected
        found = self.cache.match_prefix(ids(tokens), salt, spans(tokens))
        prefixes = [(salt, tuple(tokens[: i + 1])) for i in range(expected)]
        assert found.slots.tolist() == [self.model[p] for p in prefixes]

    @rule(tokens=TOKENS, salt=SALTS)
    def watch(self, tokens: list[Symbol], salt: str) -> None:
        """From now on `cursors_follow` asks for these tokens after every change."""
        self.cursors[salt, tuple(tokens)] = Cursor()

    @rule(tokens=TOKENS, salt=SALTS)
    def lock(self, tokens: list[Symbol], salt: str) -> None:
        found = self.cache.match_prefix(ids(tokens), salt, spans(tokens))
        self.cache.inc_lock_ref(found.node)
        self.locked.append((found.node, salt, tokens[: found.length]))

    @precondition(lambda self: self.locked)
    @rule(pick=st.integers(0, 100))
    def unlock(self, pick: int) -> None:
        node, _, _ = self.locked.pop(pick % len(self.locked))
        self.cache.dec_lock_ref(node)

    @rule(n=st.integers(1, 20))
    def evict(self, n: int) -> None:
        before = self.cache.evictable_size
        assert self.cache.evict(n) == min(n, before)
        self.forget_evicted()

    @rule()
    def look(self) -> None:
        """Look at the queue, in which all that is watched waits, in this order."""
        self.cache.want(list(self.cursors.values()))
        self.grown = set()
        self.wanted = [
            (salt, list(tokens)[: cursor.length]) for (salt, tokens), cursor in self.cursors.items()
        ]

    def forget_evicted(self) -> None:
        """Forget what was evicted. Unlocked prefixes that are wanted must go only when nothing else
        is left to evict, and first those of the last in the queue."""
        free = set(self.pool.free_slots().tolist())
        evicted = {prefix for prefix, slot in self.model.items() if slot in free}
        kept = self.model.keys() - evicted - self.locked_prefixes()
        for salt, tokens in self.wanted:
            ours = {(salt, tuple(tokens[: i + 1])) for i in range(len(tokens))}
            if ours & evicted:
                needed = self.needed_before(salt, tokens) | self.grown
                assert kept <= needed, "something else was to go first"
                break
        self.model = {prefix: slot for prefix, slot in self.model.items() if slot not in free}
        # What is computed again later is not marked.
        self.wanted = [(salt, tokens[: self.longest(tokens, salt)]) for salt, tokens in self.wanted]

    def needed_before(self, salt: str, tokens: list[Symbol]) -> set[tuple[str, tuple[Symbol, ...]]]:
        """The prefixes wanted by those up to this one, in the order of the queue."""
        upto = self.wanted[: self.wanted.index((salt, tokens)) + 1]
        return {(s, tuple(t[: i + 1])) for s, t in upto for i in range(len(t))}

    def locked_prefixes(self) -> set[tuple[str, tuple[Symbol, ...]]]:
        return {(salt, tuple(t[: i + 1])) for _, salt, t in self.locked for i in range(len(t))}

    @invariant()
    def cursors_follow(self) -> None:
        for (salt, tokens), cursor in self.cursors.items():
            expected = self.longest(list(tokens), salt)
            found = self.cache.track(cursor, ids(tokens), salt, spans(tokens))
            assert found == expected
            covered = sum(min(n.end, expected) - n.start for n in cursor.path())
            assert covered == expected

    @rule()
    def read_journal(self) -> None:
        """What has come and gone since the last time."""
        added, removed = self.hashes.take()
        for name in removed:
            del self.published[name]
        for block in added:
            assert block.hash not in self.published
            assert block.parent is None or block.parent in self.published
            self.published[block.hash] = block

    @rule()
    def all_blocks_are_known(self) -> None:
        """Hashed by brute force from the tokens of each prefix."""
        self.read_journal()
        expected: dict[bytes, tuple[bytes | None, list[int], str]] = {}
        for salt, tokens in self.model:
            if len(tokens) % 3 == 0:
                shown = [(span.start, span.item.digest) for span in spans(tokens).spans]
                data, seed = ids(tokens).tobytes(), seed_of("model", salt)
                whole = hashes_of(data, seed, 3, shown)
                parent = whole[-2] if len(whole) > 1 else None
                expected[whole[-1]] = (parent, ids(tokens[-3:]).tolist(), salt)
        assert self.published.keys() == expected.keys() == set(all_hashes(self.cache.nodes()))
        for name, block in self.published.items():
            assert block is not None
            found = block.parent, np.frombuffer(block.ids, np.int32).tolist(), block.salt
            assert found == expected[name]

    @invariant()
    def the_books_add_up(self) -> None:
        slots = [s for node in self.cache.nodes() for s in node.slots.tolist()]
        assert sorted(slots) == sorted(self.model.values())
        assert len(slots) + self.pool.free_size == 60
        assert self.cache.evictable_size + self.cache.protected_size == len(slots)
        kept = self.locked_prefixes()
        assert kept <= self.model.keys(), "a locked token was evicted"
        assert self.cache.protected_size == len(kept)
        for node in self.cache.nodes():
            assert len(node.key) == len(node.slots) and node.parent is not None
            assert len(node.hashes) == node.end // 3 - node.start // 3
            assert node.start == node.parent.end and node.parent.children[node.edge] is node
            self.edge_is_right(node)

    def edge_is_right(self, node: TreeNode) -> None:
        """The tokens of an edge are those of the model; pictures begin only with edges."""
        slots = {slot: prefix for (_, prefix), slot in self.model.items()}
        on_edge = [slots[slot][-1] for slot in node.slots.tolist()]
        assert node.key.tolist() == ids(on_edge).tolist()
        begins = [isinstance(symbol, tuple) and symbol[1] == 0 for symbol in on_edge]
        assert not any(begins[1:])
        first = on_edge[0]
        if isinstance(first, tuple) and first[1] == 0:
            assert node.edge == digest_of(first[0])
        else:
            assert node.edge == int(node.key[0])


TreeMachine.TestCase.settings = settings(stateful_step_count=40)
TestTree = TreeMachine.TestCase


def filled(pool: TokenPool, *prompts: list[int]) -> RadixCache:
    cache = RadixCache(pool)
    for prompt in prompts:
        slots = taken(pool, len(prompt))
        done = cache.insert(ids(prompt), slots)
        pool.free(slots[: done.existing])
    return cache


def test_eviction_is_least_recently_used_over_leaves_and_recursive() -> None:
    cache = filled(TokenPool(20), [1, 2, 3], [1, 2, 4], [9, 9])
    cache.match_prefix(ids([1, 2, 3]))  # use it: [4] and [9 9] are older now
    assert cache.evict(1) == 1
    assert cache.match_len(ids([1, 2, 4])) == 2
    cache.evict(2)
    assert cache.match_len(ids([9, 9])) == 0
    cache.evict(1)
    assert cache.match_len(ids([1, 2, 3])) == 2  # the leaf went; its parent is a leaf now
    cache.evict(2)
    assert list(cache.nodes()) == []


def test_locked_paths_survive_any_eviction() -> None:
    cache = filled(TokenPool(20), [1, 2, 3, 4], [1, 2, 5])
    node = cache.match_prefix(ids([1, 2, 3])).node
    cache.inc_lock_ref(node)
    assert cache.evict(100) == 2  # [4] and [5]
    assert cache.match_len(ids([1, 2, 3])) == 3
    cache.dec_lock_ref(node)
    assert cache.evict(100) == 3


def test_what_waiting_reqs_have_matched_is_evicted_last_and_the_last_in_the_queue_first() -> None:
    cache = filled(TokenPool(20), [1, 2, 3], [4, 5, 6], [7, 8, 9])
    cursors = [Cursor(), Cursor()]
    waiting = list(zip(cursors, (ids([4, 5, 0]), ids([1, 2, 3, 0])), strict=True))
    for cursor, tokens in waiting:
        cache.track(cursor, tokens)
    cache.want(cursors)
    cache.match_prefix(ids([4, 5]))
    for _ in range(5):
        cache.match_prefix(ids([7, 8, 9]))  # uses do not outweigh a waiting req
    matches = []
    while cache.evict(1):
        matches.append([cache.track(cursor, tokens) for cursor, tokens in waiting])
    assert matches[:4] == [[2, 3]] * 4  # [7 8 9] goes, and of [4 5 6] what nobody matched
    assert matches[4:] == [[2, 2], [2, 1], [2, 0], [1, 0], [0, 0]]


def test_what_was_wanted_ages_like_all_else_when_nobody_waits_for_it_any_more() -> None:
    cache = filled(TokenPool(20), [1, 2], [3, 4])
    cursor = Cursor()
    cache.track(cursor, ids([1, 2]))
    cache.want([cursor])
    cache.want([])
    cache.match_prefix(ids([3, 4]))
    cache.evict(2)
    assert (cache.match_len(ids([1, 2])), cache.match_len(ids([3, 4]))) == (0, 2)


def test_a_prompt_that_grows_is_one_edge() -> None:
    """A leaf grows although its own req locks it, but not if another req does or it has a child."""
    pool = TokenPool(20)
    cache = filled(pool, [1, 2])
    own = cache.match_prefix(ids([1, 2])).node
    cache.inc_lock_ref(own)
    done = cache.insert(ids([1, 2, 3]), taken(pool, 3), own=own)
    assert done.node is own and own.end == 3 and cache.protected_size == 3
    cache.inc_lock_ref(own)  # another req's lock
    done = cache.insert(ids([1, 2, 3, 4]), taken(pool, 4), own=own)
    assert done.node.parent is own and done.node.start == 3 and cache.evictable_size == 1


def test_a_cursor_notices_that_its_edge_has_been_cut_and_has_grown_another_way() -> None:
    pool = TokenPool(6)
    cache = filled(pool, [1, 2, 3, 4])
    cursor = Cursor()
    assert cache.track(cursor, ids([1, 2, 3, 4])) == 4
    assert cache.evict(2) == 2
    slots = taken(pool, 4)
    cache.insert(ids([1, 2, 7, 8]), slots)
    pool.free(slots[:2])
    assert cache.track(cursor, ids([1, 2, 3, 4])) == 2


def test_namespaces_do_not_see_each_other_but_share_memory() -> None:
    pool = TokenPool(10)
    cache = RadixCache(pool)
    cache.insert(ids([1, 2]), taken(pool, 2), "tenant a")
    assert cache.match_len(ids([1, 2]), "tenant b") == 0
    assert cache.match_len(ids([1, 2]), "tenant a") == 2
    assert cache.evict(2) == 2 and pool.free_size == 10


def test_no_cache_keeps_nothing() -> None:
    cache = NoCache(TokenPool(0))
    done = cache.insert(ids([1, 2]), ids([5, 6]))
    assert done.owned == 0 and cache.match_prefix(ids([1, 2])).length == 0


def test_a_picture_is_not_taken_for_plain_tokens() -> None:
    pool = TokenPool(20)
    plain: list[Symbol] = [0, PLACEHOLDER, PLACEHOLDER, 1]
    cache, shown = RadixCache(pool), symbols([0, "a", 1])
    assert np.array_equal(ids(shown), ids(plain))
    cache.insert(ids(plain), taken(pool, 4))
    cursor = Cursor()
    for _ in range(2):  # the second time, the match goes on in the middle of an edge
        assert cache.track(cursor, ids(shown), "", spans(shown)) == 1
    cache.insert(ids(shown), taken(pool, 4), "", None, spans(shown))
    assert cache.track(cursor, ids(shown), "", spans(shown)) == 4
    other = symbols([0, "b", 1])
    assert cache.match_len(ids(other), "", spans(other)) == 1
    assert cache.match_len(ids(plain)) == 4
