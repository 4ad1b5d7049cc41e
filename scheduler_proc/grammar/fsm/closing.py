"""Which tokens lead too far from the end of an output that may have only so many more.

D(s) is the fewest tokens of the vocabulary from state s to an accepting one, EOS apart. With `left`
tokens to come, a token that leads to s may be taken if D(s) <= left - 1. D is not computed for
all states ahead, which would take longer than all masks; three numbers per state are: the fewest
bytes to acceptance, the fewest tokens that spell one text so short, and the bytes over the longest
token's, a bound from below.

Where `left` is above the largest of the second numbers, the `reach`, nothing can lead too far, and
nor can a token whose state's second number is small enough. Nearer, D is found for the states that
can be passed through in time. The search visits no more than `ALLOWANCE` nodes of the vocabulary's
trie, whatever has been found before; beyond that a token must lead to a state whose shortest text
can be spelled in time. All three rules leave a token, or the end, at every state that they let in:
the states of a search are among those of the search one token before, so once one is within the
allowance, all later ones are. (Where the vocabulary lacks bytes, a shortest text may be no
sequence of tokens. Then a state that is searched first from near the end may be beyond both.)
"""

import ctypes
from ctypes import c_int32, c_uint8
from typing import Protocol

import numpy as np

from scheduler_proc.grammar.fsm.token_masks import NativeWalk, NumpyWalk, make_walk
from scheduler_proc.grammar.fsm.trim import TrimmedDFA
from scheduler_proc.grammar.vocabulary import TokenVocabulary
from scheduler_proc.kernels.library import pointer

UNKNOWN = 2**31 - 1
# Nodes of one search. The native one takes 1 ms for 100,000, and the walks for a mask as much.
ALLOWANCE = 100_000
FIRST_ALLOWANCE = 2_000_000  # of each search for what a whole output takes, in the compile worker


class Search(Protocol):
    """What is asked of the automaton and the trie, which `walk` reads; int32 [S] everywhere."""

    @property
    def walk(self) -> NativeWalk | NumpyWalk: ...

    def tables(self) -> tuple[np.ndarray, np.ndarray]:
        """The fewest bytes to acceptance, and the fewest tokens that spell one such text; UNKNOWN
        where there are none."""

    def region(
        self, at_least: np.ndarray, state: int, left: int, allowance: int
    ) -> np.ndarray | None:
        """The fewest tokens to acceptance, right for all states on a way from `state` to acceptance
        within `left` tokens, and never too small; None if that takes more than the allowance."""


class Closing:
    """For one automaton over one vocabulary."""

    def __init__(
        self,
        trimmed: TrimmedDFA,
        vocabulary: TokenVocabulary,
        search: Search | None = None,
        allowance: int = ALLOWANCE,
    ) -> None:
        self._search = make_search(trimmed, vocabulary) if search is None else search
        self._allowance = allowance
        num_bytes, self._tokens = self._search.tables()
        longest = max(1, vocabulary.trie.max_depth)
        self._at_least = (-(-num_bytes.astype(np.int64) // longest)).astype(np.int32)
        self._enough = np.full(len(num_bytes), UNKNOWN, np.int32)  # a `left` that limits nothing
        self._not_eos = ~vocabulary.eos_mask
        ends = np.ones(len(num_bytes), np.bool_)
        if trimmed.token_ends is not None:
            ends = trimmed.token_ends
        spelled = self._tokens[ends]
        # A shortest way visits no state twice.
        is_known = bool((spelled < UNKNOWN).all())
        self.reach = int(spelled.max(initial=0)) if is_known else len(num_bytes)

    @property
    def num_bytes(self) -> int:
        """Memory of its tables."""
        return self._tokens.nbytes + self._at_least.nbytes + self._enough.nbytes

    def mask(self, state: int, left: int, following: np.ndarray) -> np.ndarray | None:
        """The tokens, EOS apart, after which acceptance is known to be reached within `left` tokens
        (1 at least) from `state`, they included: uint32 [mask_width]. None if that is all that can
        follow, which is `following`."""
        if left > self.reach or left >= self._enough[state]:
            return None
        spelled = self._search.walk.mask_within(state, self._tokens, left - 1)
        if not (following & ~spelled & self._not_eos).any():
            self._enough[state] = left
            return None
        distances = self._search.region(self._at_least, state, left, self._allowance)
        if distances is None:
            return spelled
        return self._search.walk.mask_within(state, distances, left - 1)

    def ends_within(self, state: int, left: int) -> bool:
        """Whether acceptance is known to be reached within `left` tokens."""
        if left < 1 or left >= self.reach or self._tokens[state] <= left:
            return left >= self.reach or bool(self._tokens[state] <= left)
        distances = self._search.region(self._at_least, state, left, self._allowance)
        return distances is not None and bool(distances[state] <= left)

    def spelled_tokens(self, state: int) -> int:
        """The fewest tokens that spell one shortest text from `state`, which always fit if so many
        are left; UNKNOWN if the vocabulary cannot spell it."""
        return int(self._tokens[state])

    def fewest_tokens(self, state: int) -> int:
        """The fewest tokens from `state` to acceptance, or less if that takes too long to find."""
        least = int(self._at_least[state])
        left = max(1, least)
        while least > 0:
            distances = self._search.region(self._at_least, state, left, FIRST_ALLOWANCE)
            if distances is None:
                break
            if distances[state] <= left:
                return int(distances[state])
            least, left = left + 1, 2 * left
        return least


def make_search(trimmed: TrimmedDFA, vocabulary: TokenVocabulary) -> Search:
    """The native one if this installation has the kernels, else the one in numpy."""
    walk = make_walk(trimmed, vocabulary)
    if isinstance(walk, NativeWalk):
        return NativeSearch(trimmed, walk)
    return NumpySearch(trimmed, vocabulary)


class NativeSearch:
    """srt_closing_tables and srt_closing_region."""

    def __init__(self, trimmed: TrimmedDFA, walk: NativeWalk) -> None:
        self.walk, self._native = walk, walk.native
        self._accepting = np.ascontiguousarray(trimmed.dfa.accepting).view(np.uint8)

    def tables(self) -> tuple[np.ndarray, np.ndarray]:
        num_bytes, tokens = self._int32(), self._int32()
        self._native.check(
            self._native.c.srt_closing_tables(
                *self._tables(), pointer(num_bytes, c_int32), pointer(tokens, c_int32)
            )
        )
        return num_bytes, tokens

    def region(
        self, at_least: np.ndarray, state: int, left: int, allowance: int
    ) -> np.ndarray | None:
        distances = self._int32()
        rc = self._native.c.srt_closing_region(
            *self._tables(),
            pointer(at_least, c_int32),
            *(state, left, allowance),
            pointer(distances, c_int32),
        )
        if rc == 1:
            return None
        self._native.check(rc)
        return distances

    def _tables(self) -> tuple[object, ...]:
        walk = self.walk
        accepting = pointer(self._accepting, c_uint8)
        return ctypes.byref(walk.trie), ctypes.byref(walk.dfa), accepting

    def _int32(self) -> np.ndarray:
        return np.empty(len(self._accepting), np.int32)


class NumpySearch:
    """The same results, and the same allowance, without the kernels: 10 to 100 times slower."""

    def __init__(self, trimmed: TrimmedDFA, vocabulary: TokenVocabulary) -> None:
        self._dfa, self._token_ends = trimmed
        self._vocabulary = vocabulary
        self.walk = NumpyWalk(trimmed, vocabulary)

    def tables(self) -> tuple[np.ndarray, np.ndarray]:
        dfa = self._dfa
        sources, classes = np.nonzero(dfa.transitions >= 0)
        targets = dfa.transitions[sources, classes]
        num_bytes = _distances(dfa.accepting, sources, targets)
        tokens = np.where(dfa.accepting, 0, UNKNOWN).astype(np.int32)
        for state in np.argsort(num_bytes, kind="stable").tolist():
            if 0 < num_bytes[state] < UNKNOWN:
                tokens[state] = self._fewest_for_text(state, num_bytes, tokens)
        return num_bytes, tokens

    def _fewest_for_text(self, state: int, num_bytes: np.ndarray, tokens: np.ndarray) -> int:
        """The fewest tokens that spell the shortest text of `state`: of the bytes that lead nearer
        to acceptance, those of the first class, and of these the first."""
        dfa, trie = self._dfa, self._vocabulary.trie
        fewest, here, first, last = UNKNOWN, state, 0, trie.num_nodes
        while num_bytes[here] > 0:
            row = dfa.transitions[here]
            nearer = (row >= 0) & (num_bytes[row] == num_bytes[here] - 1)
            byte = int(np.flatnonzero(dfa.byte_class == nearer.argmax())[0])
            node = first
            while node < last and trie.bytes[node] != byte:
                node = int(trie.ends[node])
            if node >= last:
                break
            here = int(row[dfa.byte_class[byte]])
            may_end = self._token_ends is None or self._token_ends[here]
            is_token = trie.token_indptr[node + 1] > trie.token_indptr[node]
            if is_token and may_end and tokens[here] < UNKNOWN:
                fewest = min(fewest, int(tokens[here]) + 1)
            first, last = node + 1, int(trie.ends[node])
        return fewest

    def region(
        self, at_least: np.ndarray, state: int, left: int, allowance: int
    ) -> np.ndarray | None:
        accepting = self._dfa.accepting
        depths, order = {state: 0}, [state]
        sources: list[int] = []
        targets: list[int] = []
        for here in order:
            depth = depths[here] + 1
            if depth > left or (accepting[here] and here != state):
                continue
            reached, num_visited = self.walk.reached(here)
            allowance -= num_visited + 1
            if allowance < 0:
                return None
            for target in reached[at_least[reached] <= left - depth].tolist():
                sources.append(here)
                targets.append(target)
                if target not in depths:
                    depths[target] = depth
                    order.append(target)
        ends = np.zeros(len(accepting), np.bool_)
        ends[[found for found in order if accepting[found]]] = True
        return _distances(ends, np.array(sources, np.int64), np.array(targets, np.int64))


def _distances(ends: np.ndarray, sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """How many edges lead from each state to one of the `ends`, bool [S]: int32 [S]."""
    found = np.where(ends, 0, UNKNOWN).astype(np.int32)
    distance = 0
    while (nearest := found[targets] == distance).any():
        new = sources[nearest]
        distance += 1
        found[new[found[new] == UNKNOWN]] = distance
    return found
