"""Removes from an automaton what no sequence of whole tokens can use.

A state is *live* if some sequence of ordinary tokens leads from it to acceptance. After trimming,
every state where a token may end is live, so a request is never stuck: its mask is never empty.

Bytes are not tokens: a vocabulary may lack the byte, have it within longer tokens only, or have no
token that ends where the pattern does. If every byte that the automaton uses is a token of its own
then every path of bytes is one of tokens, and what can reach acceptance by bytes is live.
Otherwise the tokens that hold the other bytes are tried from every state. They may pass through
states that are not live, which stay, but as places where no token may end.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from scheduler_proc.grammar.base import GrammarError
from scheduler_proc.grammar.regex.dfa import ByteDFA
from scheduler_proc.grammar.trie import TokenTrie, build_trie
from scheduler_proc.grammar.vocabulary import TokenVocabulary

_MAX_PAIRS = 1 << 20  # (state, node) pairs looked at together


class TrimmedDFA(NamedTuple):
    """`token_ends`: bool [S], where a token may end; None: everywhere."""

    dfa: ByteDFA
    token_ends: np.ndarray | None


class _Edges(NamedTuple):
    """Edges between states: int64 [E] each."""

    sources: np.ndarray
    targets: np.ndarray


def trim(dfa: ByteDFA, vocabulary: TokenVocabulary) -> TrimmedDFA:
    """The part of `dfa` that outputs of this vocabulary can use; its start is still state 0.

    Raises GrammarError if that is nothing.
    """
    whole, dfa = dfa, _without_bytes(dfa, vocabulary.absent_bytes)
    if vocabulary.single_bytes[_used_bytes(dfa)].all():
        if dfa is whole:  # every state of a ByteDFA can be finished by bytes
            return TrimmedDFA(dfa, None)
        live = _reaching(dfa.accepting, _byte_edges(dfa))
        return _cut(dfa, live, live)
    trie = _trie_of_other_tokens(vocabulary)
    live = _token_live(dfa, trie, vocabulary)
    kept = live.copy()
    if not live.all():
        for part in _parts(np.flatnonzero(live), trie):
            kept[_passed(dfa, trie, part, live)] = True
    return _cut(dfa, kept, live)


def _token_live(dfa: ByteDFA, trie: TokenTrie, vocabulary: TokenVocabulary) -> np.ndarray:
    """The states from which tokens reach acceptance: bool [S]."""
    others = np.flatnonzero(~vocabulary.single_bytes).tolist()
    single = _byte_edges(_without_bytes(dfa, others))
    live = _reaching(dfa.accepting, single)
    undecided = np.flatnonzero(~live & _reaching(dfa.accepting, _byte_edges(dfa)))
    if not len(undecided):
        return live
    longer = [_token_edges(dfa, trie, part) for part in _parts(undecided, trie)]
    return _reaching(dfa.accepting, _joined([single, *longer]))


def _cut(dfa: ByteDFA, kept: np.ndarray, live: np.ndarray) -> TrimmedDFA:
    """`dfa` with those of the `kept` states alone that can be reached through them."""
    if not live[0]:
        raise GrammarError("no text of this constraint can be written in the model's vocabulary")
    states = np.flatnonzero(_reachable(dfa, kept))
    ends = None if live[states].all() else live[states]
    if len(states) == dfa.num_states:
        return TrimmedDFA(dfa, ends)
    renumbered = np.full(dfa.num_states + 1, -1, np.int32)  # the last: where -1 leads
    renumbered[states] = np.arange(len(states), dtype=np.int32)
    table = renumbered[dfa.transitions[states]]
    return TrimmedDFA(replace(dfa, transitions=table, accepting=dfa.accepting[states]), ends)


def _used_bytes(dfa: ByteDFA) -> np.ndarray:
    """The bytes that some transition reads: bool [256]."""
    classes: np.ndarray = np.any(dfa.transitions >= 0, axis=0)
    return np.take(classes, dfa.byte_class)


def _without_bytes(dfa: ByteDFA, absent: bytes | list[int]) -> ByteDFA:
    """`dfa` without transitions on these bytes; their class becomes one that leads nowhere."""
    gone = np.zeros(256, np.bool_)
    gone[list(absent)] = True
    if not (gone & _used_bytes(dfa)).any():
        return dfa
    left, byte_class = np.unique(dfa.byte_class[~gone], return_inverse=True)
    table = np.full((dfa.num_states, len(left) + 1), -1, np.int32)
    table[:, :-1] = dfa.transitions[:, left]
    classes = np.full(256, len(left), np.uint8)
    classes[~gone] = byte_class.reshape(-1)
    return replace(dfa, transitions=table, byte_class=classes)


# ---- reachability ------------------------------------------------------------------------------


def _byte_edges(dfa: ByteDFA) -> _Edges:
    sources, classes = np.nonzero(dfa.transitions >= 0)
    return _Edges(sources, dfa.transitions[sources, classes].astype(np.int64))


def _joined(parts: list[_Edges]) -> _Edges:
    return _Edges(
        np.concatenate([part.sources for part in parts]),
        np.concatenate([part.targets for part in parts]),
    )


def _reaching(goal: np.ndarray, edges: _Edges) -> np.ndarray:
    """The states with a path to one of `goal`: bool [S]."""
    return _spread(goal, _Edges(edges.targets, edges.sources))


def _reachable(dfa: ByteDFA, kept: np.ndarray) -> np.ndarray:
    """The states with a path from the start through `kept` states: bool [S]."""
    edges = _byte_edges(dfa)
    inside = kept[edges.sources] & kept[edges.targets]
    start = np.zeros(dfa.num_states, np.bool_)
    start[0] = True
    return _spread(start, _Edges(edges.sources[inside], edges.targets[inside]))


def _spread(seeds: np.ndarray, edges: _Edges) -> np.ndarray:
    """The states that edges lead to from `seeds`, and these: bool [S]."""
    count = len(seeds)
    sources, targets = np.divmod(np.unique(edges.sources * count + edges.targets), count)
    bounds = np.searchsorted(sources, np.arange(count + 1)).tolist()
    neighbours = targets.tolist()
    found = bytearray(seeds)
    stack = np.flatnonzero(seeds).tolist()
    while stack:
        state = stack.pop()
        for near in neighbours[bounds[state] : bounds[state + 1]]:
            if not found[near]:
                found[near] = True
                stack.append(near)
    return np.frombuffer(found, np.bool_)


# ---- tokens that are not paths of single-byte tokens -------------------------------------------


def _trie_of_other_tokens(vocabulary: TokenVocabulary) -> TokenTrie:
    """The tokens with a byte that is not itself a token; the others are paths of single bytes."""
    single = bytes(np.flatnonzero(vocabulary.single_bytes).tolist())
    pairs = enumerate(vocabulary.token_bytes)
    return build_trie([(data, i) for i, data in pairs if data.translate(None, single)])


def _parts(states: np.ndarray, trie: TokenTrie) -> list[np.ndarray]:
    widest = max((len(level.nodes) for level in trie.levels), default=1)
    return np.array_split(states, 1 + len(states) * widest // _MAX_PAIRS)


class _Walk(NamedTuple):
    """Pairs (start state, node) of one level that are alive: the node's index within its level,
    the state there, the start, and the index of the pair above in its own level."""

    nodes: np.ndarray
    states: np.ndarray
    starts: np.ndarray
    above: np.ndarray


def _walks(dfa: ByteDFA, trie: TokenTrie, starts: np.ndarray) -> list[_Walk]:
    """Every token of `trie` read from every one of `starts`, level by level."""
    root = np.full(len(starts), -1, np.int64)
    found = [_Walk(root, starts, starts, root)]
    for level in trie.levels:
        last = found[-1]
        # Children of a node follow each other, within a level.
        first = np.searchsorted(level.parents, last.nodes, "left")
        counts = np.searchsorted(level.parents, last.nodes, "right") - first
        above = np.repeat(np.arange(len(counts)), counts)
        offset = np.arange(len(above)) - (np.cumsum(counts) - counts)[above]
        nodes = level.nodes[first[above] + offset]
        states = dfa.transitions[last.states[above], dfa.byte_class[trie.bytes[nodes]]]
        alive = states >= 0
        above = above[alive]
        found.append(_Walk(nodes[alive], states[alive], last.starts[above], above))
    return found


def _ends_token(trie: TokenTrie, walk: _Walk) -> np.ndarray:
    ends: np.ndarray = trie.token_indptr[walk.nodes + 1] > trie.token_indptr[walk.nodes]
    return ends


def _token_edges(dfa: ByteDFA, trie: TokenTrie, starts: np.ndarray) -> _Edges:
    """From each of `starts` to where tokens of `trie` lead."""
    edges = []
    for walk in _walks(dfa, trie, starts)[1:]:
        ends = _ends_token(trie, walk)
        edges.append(_Edges(walk.starts[ends], walk.states[ends].astype(np.int64)))
    return _joined(edges)


def _passed(dfa: ByteDFA, trie: TokenTrie, starts: np.ndarray, live: np.ndarray) -> np.ndarray:
    """The states that tokens of `trie`, from one of `starts` to a live state, pass."""
    walks = _walks(dfa, trie, starts)
    passed: list[np.ndarray] = []
    used = np.zeros(len(walks[-1].nodes), np.bool_)
    for above, walk in zip(reversed(walks[:-1]), reversed(walks[1:]), strict=True):
        used |= _ends_token(trie, walk) & live[walk.states]
        passed.append(walk.states[used])
        used_above = np.zeros(len(above.nodes), np.bool_)
        used_above[walk.above[used]] = True
        used = used_above
    return np.unique(np.concatenate(passed)) if passed else np.empty(0, np.int64)
