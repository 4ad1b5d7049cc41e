"""The tokens that may follow a state: those whose bytes the automaton can read from there.

One walk of the vocabulary's trie per state: by the native kernel where it is built, else level by
level in numpy. Called by `FsmGrammar`, which keeps the results in a `MaskCache`. A mask never has
a special token; it has the EOS ids exactly where the state is accepting.
"""

import ctypes
from ctypes import c_int32, c_uint8, c_uint32
from typing import Any, Protocol

import numpy as np

from scheduler_proc.grammar.fsm.trim import TrimmedDFA
from scheduler_proc.grammar.vocabulary import TokenVocabulary
from scheduler_proc.kernels import library
from scheduler_proc.kernels.library import Library, NativeUnavailable, pointer


class MaskWalk(Protocol):
    """Computes masks without EOS."""

    def mask(self, state: int) -> np.ndarray:
        """The ordinary tokens that can be read from `state`: a new uint32 [mask_width]."""


class TokenMasks:
    """Masks of the states of one automaton over one vocabulary, computed at every call."""

    def __init__(
        self, trimmed: TrimmedDFA, vocabulary: TokenVocabulary, walk: MaskWalk | None = None
    ) -> None:
        self._walk = make_walk(trimmed, vocabulary) if walk is None else walk
        self._accepting = trimmed.dfa.accepting
        self._eos_mask = vocabulary.eos_mask

    def compute(self, state: int) -> np.ndarray:
        """The tokens that may follow `state`, EOS included: a new uint32 [mask_width]."""
        mask = self._walk.mask(state)
        if self._accepting[state]:
            mask |= self._eos_mask
        return mask


def make_walk(trimmed: TrimmedDFA, vocabulary: TokenVocabulary) -> MaskWalk:
    """The native walk if this installation has the kernels, else the one in numpy."""
    try:
        native = library.load()
    except NativeUnavailable:
        return NumpyWalk(trimmed, vocabulary)
    return NativeWalk(native, trimmed, vocabulary)


class NativeWalk:
    """srt_token_mask: 0.5 ms at most with 50,000 tokens, microseconds where few can follow."""

    def __init__(self, native: Library, trimmed: TrimmedDFA, vocabulary: TokenVocabulary) -> None:
        self.native = native
        self._width = vocabulary.mask_width
        dfa, trie = trimmed.dfa, vocabulary.trie
        transitions = np.ascontiguousarray(dfa.transitions, np.int32)
        byte_class = np.ascontiguousarray(dfa.byte_class, np.uint8)
        token_ends = None
        if trimmed.token_ends is not None:
            token_ends = np.ascontiguousarray(trimmed.token_ends).view(np.uint8)
        self._alive = (trie, transitions, byte_class, token_ends)  # the C side has addresses only
        self.dfa = library.Dfa(
            num_states=transitions.shape[0],
            num_classes=transitions.shape[1],
            transitions=pointer(transitions, c_int32),
            byte_class=pointer(byte_class, c_uint8),
            token_ends=None if token_ends is None else pointer(token_ends, c_uint8),
        )
        self.trie = library.Trie(
            num_nodes=trie.num_nodes,
            num_tokens=len(trie.token_ids),
            vocab=vocabulary.vocab_size,
            max_depth=trie.max_depth,
            bytes=pointer(trie.bytes, c_uint8),
            depths=pointer(trie.depths, c_int32),
            ends=pointer(trie.ends, c_int32),
            token_indptr=pointer(trie.token_indptr, c_int32),
            token_ids=pointer(trie.token_ids, c_int32),
        )

    def mask(self, state: int) -> np.ndarray:
        return self._mask(state, None, 0)

    def mask_within(self, state: int, distances: np.ndarray, most: int) -> np.ndarray:
        """Of `mask` the tokens that lead to states of at most such a distance, int32 [S]."""
        return self._mask(state, pointer(distances, c_int32), most)

    def _mask(self, state: int, distances: Any, most: int) -> np.ndarray:
        mask = np.empty(self._width, np.uint32)
        trie, dfa, out = ctypes.byref(self.trie), ctypes.byref(self.dfa), pointer(mask, c_uint32)
        rc = self.native.c.srt_token_mask(trie, dfa, state, distances, most, out)
        self.native.check(rc)
        return mask


class NumpyWalk:
    """The walk in numpy, a level of the trie at a time over all its nodes: 1 to 10 ms."""

    def __init__(self, trimmed: TrimmedDFA, vocabulary: TokenVocabulary) -> None:
        dfa = trimmed.dfa
        self._vocabulary = vocabulary
        self._byte_class = dfa.byte_class
        # A dead state, the last: all its transitions lead to itself.
        dead = dfa.num_states
        self._table = np.full((dead + 1, dfa.transitions.shape[1]), dead, np.int32)
        self._table[:dead] = np.where(dfa.transitions < 0, dead, dfa.transitions)
        ends = np.ones(dead, np.bool_) if trimmed.token_ends is None else trimmed.token_ends
        self._token_ends = np.append(ends, False)

    def mask(self, state: int) -> np.ndarray:
        trie = self._vocabulary.trie
        readable = self._token_ends[self._states(state)[trie.token_nodes]]
        return self._vocabulary.pack(trie.token_ids[readable])

    def mask_within(self, state: int, distances: np.ndarray, most: int) -> np.ndarray:
        """Of `mask` the tokens that lead to states of at most such a distance, int32 [S]."""
        trie = self._vocabulary.trie
        reached = self._states(state)[trie.token_nodes]
        is_near = self._token_ends & np.append(distances <= most, False)
        return self._vocabulary.pack(trie.token_ids[is_near[reached]])

    def reached(self, state: int) -> tuple[np.ndarray, int]:
        """The states that tokens lead to, each once and in the order of the trie, int64 [n]; and
        how many nodes have a parent that can be entered."""
        trie, states = self._vocabulary.trie, self._states(state)
        dead = len(self._table) - 1
        visited = sum(int((states[level.parents] != dead).sum()) for level in trie.levels)
        ends = states[trie.token_nodes]
        ends = ends[self._token_ends[ends]]
        found, first = np.unique(ends, return_index=True)
        return found[np.argsort(first)].astype(np.int64), visited

    def _states(self, state: int) -> np.ndarray:
        """The state at each node of the trie, the root's last: int32 [N+1]."""
        trie = self._vocabulary.trie
        dead = len(self._table) - 1
        states = np.full(trie.num_nodes + 1, dead, np.int32)
        states[-1] = state  # the root's, which is node -1
        for level in trie.levels:
            classes = self._byte_class[trie.bytes[level.nodes]]
            reached = self._table[states[level.parents], classes]
            states[level.nodes] = reached
            if (reached == dead).all():
                break
        return states
